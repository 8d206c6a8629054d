//! The disk of one simulated machine: its files by path, and injected errors. It knows nothing of
//! the world around it. [`medium`] decides what of a file's content survives a power cut, and
//! [`names`] what of its names.

mod fault;
pub(super) mod medium;
pub(super) mod names;
mod sparse;

use std::{io, ops::Range, path::Path, time::Duration};

use self::{
    medium::{FileState, MediumChange, SECTOR},
    names::{NameChange, Names, normal},
};
use super::{Occurred, Random};
use crate::{range::overlap, reactor::PathInfo};

pub use fault::{FaultKind, InjectedFault};
pub(super) use sparse::Sparse;

/// The user of every file: the one that every machine's software runs as, too.
pub(super) const OWNER: u32 = 0;

#[derive(Default)]
pub(super) struct SimDisk {
    pub(super) names: Names,
    pub(super) files: Vec<FileState>,
    pub(super) faults: Vec<InjectedFault>,
    pub(super) changes: u64,
    /// How many more changes it makes before it fails; `None`: unlimited.
    pub(super) changes_left: Option<u64>,
    /// See [`stall_disk`](super::Host::stall_disk).
    pub(super) stall: Duration,
    /// See [`hang_writes`](super::Host::hang_writes).
    pub(super) hangs: Option<Hangs>,
}

/// Which writes take longer.
pub(super) struct Hangs {
    pub(super) probability: f64,
    /// How much longer.
    pub(super) longer_ns: Range<u64>,
}

/// What a disk does when an operation's time has come.
pub(super) enum DiskEvent {
    Read(usize),
    Write(usize),
    /// Keeps the changes before this serial.
    Sync(u64),
    Allocate,
}

impl SimDisk {
    pub(super) fn fault(
        &mut self,
        kind: FaultKind,
        file: usize,
        range: &Range<u64>,
        occurred: &mut Occurred,
    ) -> Option<i32> {
        let names = &self.names;
        let hit = self.faults.iter().position(|fault| {
            fault.kind == kind
                && fault
                    .path
                    .as_ref()
                    .is_none_or(|path| names.file(path) == Some(file))
                && (kind == FaultKind::Sync || overlap(&fault.range, range))
        })?;
        Some(self.hit(hit, occurred))
    }

    /// As [`SimDisk::fault`], of what has the name `path`, a directory perhaps.
    pub(super) fn fault_at(
        &mut self,
        kind: FaultKind,
        path: &Path,
        occurred: &mut Occurred,
    ) -> Option<i32> {
        let hit = self.faults.iter().position(|fault| {
            let of = fault.path.as_ref();
            fault.kind == kind && of.is_none_or(|of| normal(of) == normal(path))
        })?;
        Some(self.hit(hit, occurred))
    }

    /// Counts that a fault was met; returns its errno.
    fn hit(&mut self, hit: usize, occurred: &mut Occurred) -> i32 {
        occurred.faults_hit += 1;
        let fault = &mut self.faults[hit];
        let errno = fault.errno;
        if let Some(times) = &mut fault.times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                self.faults.remove(hit);
            }
        }
        errno
    }

    pub(super) fn change(&mut self, file: usize, at: u64, what: MediumChange, kept: bool) {
        self.changes += 1;
        self.files[file].apply(self.changes, at, what, kept);
    }

    /// Writes `bytes` at `at` of a file, as far as faults permit; returns the errno of one that fails the write.
    pub(super) fn write(
        &mut self,
        file: usize,
        at: u64,
        mut bytes: Vec<u8>,
        is_durable: bool,
        random: &mut Random,
        occurred: &mut Occurred,
    ) -> Option<i32> {
        let range = at..at + bytes.len() as u64;
        if let Some(errno) = self.fault(FaultKind::Write, file, &range, occurred) {
            // A failed write may have changed part of its range.
            let some = random.below(bytes.len() as u64 / SECTOR as u64 + 1);
            bytes.truncate(some as usize * SECTOR);
            if !bytes.is_empty() && random.chance(0.5) {
                self.change(file, at, MediumChange::Write(bytes), false);
            }
            return Some(errno);
        }
        let failed_sync = match is_durable {
            true => self.fault(FaultKind::OwnSync, file, &range, occurred),
            false => None,
        };
        let is_kept = is_durable && failed_sync.is_none();
        self.change(file, at, MediumChange::Write(bytes), is_kept);
        if failed_sync.is_some() {
            let all = self.changes + 1;
            self.files[file].lose_before(all, random);
        } else if is_kept {
            self.names.sync_file(file);
        }
        failed_sync
    }

    /// Counts down to the power loss; fails if there is no power left for a change.
    pub(super) fn take_step(&mut self) -> io::Result<()> {
        self.has_power()?;
        if let Some(left) = &mut self.changes_left {
            *left -= 1;
        }
        Ok(())
    }

    pub(super) fn has_power(&self) -> io::Result<()> {
        match self.changes_left {
            Some(0) => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => Ok(()),
        }
    }

    /// Creates an empty file. Its name is durable after a sync.
    pub(super) fn create(&mut self, path: &Path) -> usize {
        self.files.push(FileState::default());
        let file = self.files.len() - 1;
        self.names.change(NameChange::Link(normal(path), file));
        file
    }

    /// Replaces the content of a file.
    pub(super) fn rewrite(&mut self, file: usize, bytes: &[u8]) {
        self.changes += 1;
        self.files[file].restart(self.changes, bytes);
    }

    pub(super) fn sync_file(&mut self, file: usize) {
        self.files[file].keep_before(self.changes + 1);
        self.files[file].keep_marks();
        self.names.sync_file(file);
    }

    /// Creates a file with `bytes` and its parent directories, all durably.
    pub(super) fn put(&mut self, path: &Path, bytes: &[u8]) {
        for directory in normal(path).ancestors().skip(1) {
            let made = NameChange::MakeDirectory(directory.to_owned());
            self.names.change_durably(made);
        }
        let file = self.create(path);
        self.names.sync_file(file);
        self.changes += 1;
        self.files[file] = FileState::holding(bytes);
    }

    /// What is at a name of `file`.
    pub(super) fn look(&self, file: usize) -> PathInfo {
        let state = &self.files[file];
        PathInfo {
            kind: state.kind,
            len_bytes: state.current.len(),
            id: (0, file as u64),
            mode: state.mode,
            owner: OWNER,
        }
    }

    /// Removes a file from its directory, durably.
    pub(super) fn take(&mut self, path: &Path) -> Option<usize> {
        let file = self.names.file(path)?;
        self.names.change_durably(NameChange::Unlink(normal(path)));
        Some(file)
    }

    /// Renames what is at `from`, with everything below, to `to`, durably.
    pub(super) fn move_all(&mut self, from: &Path, to: &Path) {
        let (from, to) = (normal(from), normal(to));
        for path in self.names.all_from(&from) {
            let below = path.strip_prefix(&from).unwrap_or(Path::new(""));
            let place = if below == Path::new("") {
                to.clone()
            } else {
                to.join(below)
            };
            let change = match self.take(&path) {
                Some(file) => NameChange::Link(place, file),
                None => NameChange::MakeDirectory(place),
            };
            self.names.change_durably(change);
        }
    }

    /// At most `len` bytes from `at` on.
    pub(super) fn read(&self, path: &Path, at: u64, len: u64) -> Option<Vec<u8>> {
        let content = &self.files[self.names.file(path)?].current;
        let len = len.min(content.len().saturating_sub(at));
        let mut bytes = vec![0; len as usize];
        content.read(at, &mut bytes);
        Some(bytes)
    }
}
