//! Who has a state directory, as the kernel tells it of the lock on it.

use std::{fs, path::Path};

use engine::store;

/// The process that has locked the state directory `state`, if one has and the kernel says which.
pub(super) fn holder(state: &Path) -> Option<u32> {
    store::lock_holder(&state.join("lock"))
}

/// Whether process `pid` is one of `sanstone attach`.
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
        // Some file systems have another number in that table than everywhere else.
        let holder = holder(scratch.path());
        assert!(
            holder.is_none_or(|pid| pid == std::process::id()),
            "{holder:?}"
        );
        assert!(!is_attach(std::process::id()));
    }
}
