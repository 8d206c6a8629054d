//! The disk of one simulated machine: files by path, and what errors they give. It knows nothing of
//! the world around it. What of a file's content survives a power cut is [`medium`]'s, what of its
//! names [`names`]'s.

mod fault;
pub(super) mod medium;
pub(super) mod names;
mod sparse;

use std::{io, ops::Range, path::Path, time::Duration};

use self::{
    medium::{FileState, What},
    names::{Change, Names, normal},
};
use super::Occurred;
use crate::range::overlap;

pub use fault::{Fault, FaultKind};
pub(super) use sparse::Sparse;

#[derive(Default)]
pub(super) struct Disk {
    pub(super) names: Names,
    pub(super) files: Vec<FileState>,
    pub(super) faults: Vec<Fault>,
    pub(super) changes: u64,
    /// How many changes it still makes before it fails; `None`: any number.
    pub(super) changes_left: Option<u64>,
    /// For how long it keeps waiting whoever asks it by [`crate::store`] what it holds.
    pub(super) stall: Duration,
}

/// What a disk does when the time of an operation has come.
pub(super) enum DiskEvent {
    Read(usize),
    Write(usize),
    /// Keeps the changes before this serial.
    Sync(u64),
    Allocate,
}

impl Disk {
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
        occurred.faults_hit += 1;
        let fault = &mut self.faults[hit];
        let errno = fault.errno;
        if let Some(times) = &mut fault.times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                self.faults.remove(hit);
            }
        }
        Some(errno)
    }

    pub(super) fn change(&mut self, file: usize, at: u64, what: What, kept: bool) {
        self.changes += 1;
        self.files[file].apply(self.changes, at, what, kept);
    }

    /// Goes on if there is power for a change.
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

    /// Makes an empty file. Its name is durable after a sync.
    pub(super) fn create(&mut self, path: &Path) -> usize {
        self.files.push(FileState::default());
        let file = self.files.len() - 1;
        self.names.change(Change::Link(normal(path), file));
        file
    }

    /// Replaces what a file holds.
    pub(super) fn rewrite(&mut self, file: usize, bytes: &[u8]) {
        self.changes += 1;
        self.files[file].restart(self.changes, bytes);
    }

    pub(super) fn sync_file(&mut self, file: usize) {
        self.files[file].keep_before(self.changes + 1);
        self.files[file].keep_mark();
        self.names.sync_file(file);
    }

    /// Puts a file there with `bytes`, all on the medium, and what leads there.
    pub(super) fn put(&mut self, path: &Path, bytes: &[u8]) {
        for directory in normal(path).ancestors().skip(1) {
            let made = Change::MakeDirectory(directory.to_owned());
            self.names.change_durably(made);
        }
        let file = self.create(path);
        self.names.sync_file(file);
        self.changes += 1;
        self.files[file] = FileState::holding(bytes);
    }

    /// Takes a file out of its directory, on the medium too.
    pub(super) fn take(&mut self, path: &Path) -> Option<usize> {
        let file = self.names.file(path)?;
        self.names.change_durably(Change::Unlink(normal(path)));
        Some(file)
    }

    /// Gives what is at `from`, and all below, its place at `to`, on the medium too.
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
                Some(file) => Change::Link(place, file),
                None => Change::MakeDirectory(place),
            };
            self.names.change_durably(change);
        }
    }

    pub(super) fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let content = &self.files[self.names.file(path)?].current;
        let mut bytes = vec![0; content.len() as usize];
        content.read(0, &mut bytes);
        Some(bytes)
    }
}
