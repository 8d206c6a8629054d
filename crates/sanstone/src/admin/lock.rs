//! Finds the process that holds a state directory, from the kernel's table of file locks.

use std::{fs, path::Path};

use engine::store;

/// The process that holds the lock on the state directory `state`, if there is one and the kernel shows it.
pub(super) fn holder(state: &Path) -> Option<u32> {
    store::lock_holder(&state.join("lock"))
}

/// Whether process `pid` is a `sanstone attach`.
pub(super) fn is_attach(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0).nth(1) == Some(b"attach")
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FlockOperation, flock};

    use super::*;

    #[test]
    fn a_lock_of_this_process_is_its() {
        let scratch = tempfile::tempdir().expect("room");
        assert_eq!(holder(scratch.path()), None);
        let file = fs::File::create(scratch.path().join("lock")).expect("room");
        assert_eq!(holder(scratch.path()), None);
        flock(&file, FlockOperation::LockExclusive).expect("nobody else has it");
        // Some file systems show a different device number in that table than elsewhere.
        let holder = holder(scratch.path());
        assert!(
            holder.is_none_or(|pid| pid == std::process::id()),
            "{holder:?}"
        );
        assert!(!is_attach(std::process::id()));
    }
}
