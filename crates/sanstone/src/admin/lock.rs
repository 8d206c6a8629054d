//! Finds the process that holds a state directory, from the kernel's table of file locks.

use std::path::Path;

use engine::store;

/// The process that holds the lock on the state directory `state`, if there is one and the kernel shows it.
pub(super) fn holder(state: &Path) -> Option<u32> {
    store::lock_holder(&state.join("lock"))
}

/// Whether a process is known to hold that lock.
pub(crate) fn is_held(state: &Path) -> bool {
    holder(state).is_some()
}

#[cfg(test)]
mod tests {
    use std::fs;

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
    }
}
