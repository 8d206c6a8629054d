//! Checks that the machine can meet the configuration: it has the memory, and the state directory is writable. Memory
//! beyond what the machine has would be taken gradually, until the OOM killer ends some process.

use std::{
    path::{Path, PathBuf},
    thread,
};

use engine::store::{self, AccessRequest};
use volume::config::{ConfigError, Node, NodeForm};

use super::{ConfigFile, MEMORY_MIN_BYTES};
use crate::StateError;

/// Checks that the memory of volumes and `memory` fit into this machine.
pub(super) fn check(file: &ConfigFile, text: &str) -> Vec<ConfigError> {
    let system = rustix::system::sysinfo();
    let has_bytes = system.totalram.saturating_mul(system.mem_unit.into());
    check_for(file, text, has_bytes)
}

/// Checks that the state directory could be written, or created if it is missing. Creates nothing.
pub(super) fn check_state(directory: &Path) -> Result<(), StateError> {
    if store::resolve(directory).is_ok_and(|it| it == Path::new("/")) {
        return Err(StateError::Refused(format!(
            "the state directory {} is the root of the file system, where its files would lie among \
             the system's; write state = \"/var/lib/sanstone\" or another directory of its own",
            directory.display()
        )));
    }
    let mut leads_there = directory.ancestors().map(|it| match it == Path::new("") {
        true => PathBuf::from("."),
        false => it.to_owned(),
    });
    let there = leads_there.find(|it| store::look(it).is_ok());
    let needed = AccessRequest {
        read: false,
        write: true,
        execute: true,
    };
    let allowed = there.map_or(Ok(()), |there| store::may(&there, needed));
    let shown = directory.display();
    let what = format!("the state directory {shown} cannot be written");
    allowed.map_err(StateError::io(what))
}

/// Rejects memory that does not suffice for the lanes; `None`: one lane per CPU.
pub(super) fn check_lanes(
    file: &ConfigFile,
    lanes: Option<usize>,
    limits: &unit::MemoryLimits,
) -> Result<(), ConfigError> {
    let cpus = || thread::available_parallelism().map_or(1, usize::from);
    let lanes = lanes.unwrap_or_else(cpus);
    let least = limits.memory_least_bytes(lanes).next_multiple_of(1 << 20);
    // Too little memory for any number of lanes, and zero lanes, have been reported already.
    let is_said = limits.memory_bytes < MEMORY_MIN_BYTES as usize || lanes == 0;
    if limits.memory_bytes >= least || is_said {
        return Ok(());
    }
    let write = format!("write memory = \"{}MiB\" or more", least >> 20);
    let at = match (&file.memory, &file.lanes) {
        (Some(memory), _) => memory.span(),
        (None, Some(lanes)) => lanes.span(),
        (None, None) => 0..0,
    };
    let has = limits.memory_bytes >> 20;
    let transfer = limits.transfer_max_bytes >> 10;
    let message = format!(
        "{has} MiB of memory is too little for {lanes} lanes and transfers of {transfer} KiB; {write}, \
         or use fewer lanes"
    );
    Err(ConfigError::new(at, message))
}

fn check_for(file: &ConfigFile, text: &str, has_bytes: u64) -> Vec<ConfigError> {
    let nodes = file.volume.0.values().flat_map(Node::all);
    let held = nodes.filter_map(|node| match &node.what {
        NodeForm::Inline(kind) => kind.memory(),
        NodeForm::Named(_) => None,
    });
    let sizes = file.memory.iter().chain(held);
    let too_large = sizes.filter(|size| size.get_ref().bytes() > has_bytes);
    let errors = too_large.map(|size| {
        let message = format!(
            "{} is more than the {} MiB of memory that this machine has; write a smaller size",
            &text[size.span()],
            has_bytes >> 20
        );
        ConfigError::new(size.span(), message)
    });
    errors.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Result<(), String> {
        let file: ConfigFile = toml::from_str(text).expect("a configuration");
        let errors = check_for(&file, text, 1 << 30);
        errors
            .first()
            .map_or(Ok(()), |error| Err(error.to_string()))
    }

    #[test]
    fn what_is_larger_than_the_machine_is_named_wherever_it_stands() {
        for (text, size) in [
            ("memory = \"2GiB\"", "\"2GiB\""),
            ("[volume.a]\nram = { size = \"1025MiB\" }", "\"1025MiB\""),
            (
                "[volume.a]\nstats = { of = { cache = { size = \"3GiB\", of = { ram = { size = \"1MiB\" } } } } }",
                "\"3GiB\"",
            ),
        ] {
            let error = found(text).expect_err(text);
            assert!(
                error.contains(size) && error.contains("1024 MiB"),
                "{error}"
            );
        }
        let file = "memory = \"1GiB\"\n[volume.a]\nfile = { path = \"a\", size = \"9TiB\" }";
        assert_eq!(found(file), Ok(()));
    }
}
