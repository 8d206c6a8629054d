//! Who has a state directory, as the kernel tells it of the lock on it.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use rustix::fs::{major, minor};

/// The process that has locked the state directory `state`, if one has and the kernel says which.
pub(super) fn holder(state: &Path) -> Option<u32> {
    let file = fs::metadata(state.join("lock")).ok()?;
    let (first, second) = (major(file.dev()), minor(file.dev()));
    let place = format!("{first:02x}:{second:02x}:{}", file.ino());
    holder_of(&place, &fs::read_to_string("/proc/locks").ok()?)
}

/// The process whose lock on the file at `place` is in the table `locks` (proc_locks(5)).
fn holder_of(place: &str, locks: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        // Who waits for a lock has an arrow before that word.
        let is_held = words.next() == Some("FLOCK");
        let (pid, of) = (words.nth(2)?, words.next()?);
        (is_held && of == place).then(|| pid.parse().ok()).flatten()
    })
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
    fn who_holds_the_lock_is_found_among_others() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 08:01:42 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 8 08:01:43 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 9 08:01:42 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 10 08:01:44 0 EOF\n";
        for (place, pid) in [
            ("08:01:42", Some(9)),
            ("08:01:43", Some(8)),
            ("08:01:44", None),
            ("08:02:42", None),
        ] {
            assert_eq!(holder_of(place, locks), pid, "{place}");
        }
    }

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
