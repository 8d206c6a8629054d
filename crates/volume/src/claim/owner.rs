//! The owner of claims, and how it is known to people and to itself.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use uuid::Uuid;

/// The owner of claims: one per process, whatever it opens.
#[derive(Clone)]
pub struct Owner(Arc<OwnerInner>);

struct OwnerInner {
    uuid: Uuid,
    boot: Uuid,
    name: String,
    /// The nonces of its current claims.
    standing: Mutex<Vec<u128>>,
}

impl Owner {
    /// The owner with identity `uuid`, which must belong to something that only one process can hold, such as a
    /// locked state directory; `name` identifies it to people. `boot` is that of the machine, nil if unknown: see
    /// [`boot_id`].
    pub fn new(uuid: Uuid, boot: Uuid, name: impl Into<String>) -> Owner {
        Owner(Arc::new(OwnerInner {
            uuid,
            boot,
            name: name.into(),
            standing: Mutex::default(),
        }))
    }

    /// Its identity.
    pub(crate) fn uuid(&self) -> Uuid {
        self.0.uuid
    }

    pub(super) fn boot(&self) -> Uuid {
        self.0.boot
    }

    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    /// A temporary owner with a random identity.
    pub fn passing(name: impl Into<String>) -> Owner {
        Owner::new(Uuid::new_v4(), boot_id(), name)
    }

    /// The nonces of its current claims.
    pub(super) fn standing(&self) -> MutexGuard<'_, Vec<u128>> {
        let standing = &self.0.standing;
        standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({}, {:?})", self.0.uuid, self.0.name)
    }
}

/// A name for people: program, machine and process.
pub fn name_of(what: impl fmt::Display) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (host, process) = (host.trim(), std::process::id());
    format!("{what} on {host} (process {process})")
}

/// The process in a [name](name_of).
fn process_of(name: &str) -> Option<u32> {
    let (_, process) = name.strip_suffix(')')?.rsplit_once("(process ")?;
    process.parse().ok()
}

/// Whether the process with this number is a Sanstone. The number of one that has ended may be another's, or another
/// container's: nothing follows from "no".
fn runs(process: u32) -> bool {
    let name_of = |process: &str| std::fs::read_to_string(format!("/proc/{process}/comm"));
    // The program may have been renamed.
    let own = name_of("self").unwrap_or_default();
    let name = name_of(&process.to_string());
    name.is_ok_and(|name| name.starts_with("sanstone") || name == own)
}

/// Whether the process in this [name](name_of) of an owner runs on this machine.
pub(super) fn is_running(name: &str) -> bool {
    process_of(name).is_some_and(runs)
}

/// Identifies this boot of the machine; nil if the system does not report it.
pub fn boot_id() -> Uuid {
    let told = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    told.trim().parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_runs_here_is_told_from_its_name() {
        let name = name_of("sanstone serve -c (a).toml");
        assert_eq!(process_of(&name), Some(std::process::id()));
        assert_eq!(process_of("somebody"), None);
        assert!(runs(std::process::id()));
        assert!(!runs(u32::MAX));
    }
}
