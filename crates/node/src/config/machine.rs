//! What a configuration asks of the memory that this machine has. More than there is would be taken
//! bit by bit, until the system ends whoever it likes.

use volume::config::{ConfigError, Node, What};

use super::File;

/// Looks whether what volumes keep in memory, and `memory`, could be filled.
pub(super) fn check(file: &File, text: &str) -> Result<(), ConfigError> {
    let system = rustix::system::sysinfo();
    let has_bytes = system.totalram.saturating_mul(system.mem_unit.into());
    check_for(file, text, has_bytes)
}

fn check_for(file: &File, text: &str, has_bytes: u64) -> Result<(), ConfigError> {
    let nodes = file.volume.0.values().flat_map(Node::all);
    let held = nodes.filter_map(|node| match &node.what {
        What::Inline(kind) => kind.memory(),
        What::Named(_) => None,
    });
    for size in file.memory.iter().chain(held) {
        if size.get_ref().bytes() > has_bytes {
            let message = format!(
                "{} is more than the {} MiB of memory that this machine has; write a smaller size",
                &text[size.span()],
                has_bytes >> 20
            );
            return Err(ConfigError::new(size.span(), message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Result<(), String> {
        let file: File = toml::from_str(text).expect("a configuration");
        check_for(&file, text, 1 << 30).map_err(|error| error.to_string())
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
