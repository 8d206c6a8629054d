//! Operations on files whose file system asks somebody else (FUSE, NFS, SMB). Such an operation may wait for any time, also
//! where the ring asks for one that does not, and the lane would wait with it. So it goes to a worker thread of the
//! kernel's.
//!
//! Workers are few, and all files of a ring share them. A file that stands still must leave some to the others:
//! each such file has so many operations with the kernel and no more, the next ones stand in line, and the kernel
//! may start as many workers more.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::RawFd,
};

use io_uring::{Submitter, squeue};

/// Operations on one such file that the kernel has at once.
const RUNNING_MAX: u32 = 16;

/// The files that have any.
#[derive(Default)]
pub(super) struct Workers {
    lines: HashMap<RawFd, Line>,
    /// For so many files there are workers.
    provided: u32,
}

#[derive(Default)]
struct Line {
    running: u32,
    waiting: VecDeque<squeue::Entry>,
}

impl Workers {
    /// Takes an operation on `file`; gives it back if the kernel may have it now.
    pub(super) fn begin(
        &mut self,
        file: RawFd,
        entry: squeue::Entry,
        submitter: &Submitter<'_>,
    ) -> Option<squeue::Entry> {
        let entry = entry.flags(squeue::Flags::ASYNC);
        let line = self.lines.entry(file).or_default();
        let begun = match line.running < RUNNING_MAX {
            true => {
                line.running += 1;
                Some(entry)
            }
            false => {
                line.waiting.push_back(entry);
                None
            }
        };
        if self.lines.len() as u32 > self.provided {
            self.provide(submitter);
        }
        begun
    }

    /// An operation on `file` has completed; gives the next one.
    pub(super) fn ended(&mut self, file: RawFd) -> Option<squeue::Entry> {
        let line = self.lines.get_mut(&file)?;
        let next = line.waiting.pop_front();
        if next.is_none() {
            line.running -= 1;
            if line.running == 0 {
                self.lines.remove(&file);
            }
        }
        next
    }

    /// Lets the kernel start workers for one file more. One that does not has as many as before.
    fn provide(&mut self, submitter: &Submitter<'_>) {
        self.provided += 1;
        // Those for files and devices, and those for all else; 0 leaves a number as it is and asks for it.
        let mut workers = [0, 0];
        if submitter.register_iowq_max_workers(&mut workers).is_ok() {
            let mut more = [workers[0] + RUNNING_MAX, 0];
            let _ = submitter.register_iowq_max_workers(&mut more);
        }
    }
}

#[cfg(test)]
mod tests {
    use io_uring::{IoUring, opcode};

    use super::*;

    #[test]
    fn what_is_more_stands_in_line_and_each_file_has_its_own() {
        let ring = IoUring::new(8).expect("a ring");
        let mut workers = Workers::default();
        let begin = |workers: &mut Workers, file| {
            let entry = opcode::Nop::new().build();
            workers.begin(file, entry, &ring.submitter()).is_some()
        };
        for _ in 0..RUNNING_MAX {
            assert!(begin(&mut workers, 3));
        }
        assert!(!begin(&mut workers, 3), "it has as many as it may");
        assert!(begin(&mut workers, 4), "another one has not");
        assert_eq!(workers.provided, 2);
        assert!(workers.ended(3).is_some(), "the one in line");
        for _ in 0..RUNNING_MAX {
            assert!(workers.ended(3).is_none());
        }
        assert!(workers.ended(4).is_none());
        assert!(workers.lines.is_empty(), "nothing is kept of what is over");
        assert!(begin(&mut workers, 5));
        assert_eq!(workers.provided, 2, "there are workers already");
    }
}
