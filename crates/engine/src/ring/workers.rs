//! Operations on files whose file system asks another process or machine (FUSE, NFS, SMB). They may block for any
//! time, even when the ring asks for a non-blocking attempt, and the lane would block with them. So they go to the
//! kernel's io-wq worker threads.
//!
//! Workers are few, and all files of a ring share them, so a file that hangs must leave some for the others.
//! Hence the kernel gets at most [`RUNNING_MAX`] operations per such file, further ones queue here, and for each
//! file the kernel may start that many more workers.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::RawFd,
};

use io_uring::{Submitter, squeue};

/// Operations on one such file that the kernel has at a time.
const RUNNING_MAX: u32 = 16;

/// The files with operations in flight.
#[derive(Default)]
pub(super) struct Workers {
    lines: HashMap<RawFd, WorkerQueue>,
    /// The number of files for which workers have been provided.
    provided: u32,
}

#[derive(Default)]
struct WorkerQueue {
    running: u32,
    waiting: VecDeque<squeue::Entry>,
}

impl Workers {
    /// Takes an operation on `file`. Returns it if the kernel may have it now, else queues it.
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

    /// An operation on `file` has completed. Returns the next one to submit.
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

    /// Raises the kernel's limit of workers by one file's share. On failure the old limit stays.
    fn provide(&mut self, submitter: &Submitter<'_>) {
        self.provided += 1;
        // The limits for bounded work (regular files and block devices) and for unbounded; 0 queries a limit and
        // leaves it.
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
