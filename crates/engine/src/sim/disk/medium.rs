//! One file of a simulated disk: its content, its medium, and the effect of a power cut on both.
//!
//! A file has two contents: the current one, which reads see, and the medium. Between them lies a
//! log of changes in order of completion. A change is *kept* if it asked to be durable, or once a
//! sync that began after its completion has completed. Kept changes at the front of the log move to
//! the medium. A power cut replays the log onto the medium: kept changes entirely, and of the
//! others what the seed leaves, cut at sectors of 512 bytes. Writes in flight may also have landed
//! in part. The result is the file after the power cut.
//!
//! A failed sync loses what it should have kept, as on Linux: part of it is on the medium, reads
//! still see all of it, and no later sync brings the rest to the medium.

use std::{collections::VecDeque, io};

use super::sparse::Sparse;
use crate::{
    reactor::{AccessRequest, PathKind},
    sim::{Occurred, Random},
};

/// The unit that a power cut never tears, in bytes.
pub(in crate::sim) const SECTOR: usize = 512;

pub(in crate::sim) struct FileState {
    /// A file; or what has its name and no content.
    pub(in crate::sim) kind: PathKind,
    /// The permission bits. The machine's software is the owner.
    pub(in crate::sim) mode: u32,
    pub(in crate::sim) current: Sparse,
    medium: Sparse,
    log: VecDeque<FileChange>,
    /// The file's marks, by [`Mark`](crate::reactor::Mark), now and on the medium.
    pub(in crate::sim) marks: [Option<Vec<u8>>; 2],
    durable_marks: [Option<Vec<u8>>; 2],
}

/// One completed change of a file.
struct FileChange {
    serial: u64,
    at: u64,
    what: MediumChange,
    kept: bool,
}

pub(in crate::sim) enum MediumChange {
    /// The file ends at the change's position.
    Truncate,
    Write(Vec<u8>),
    Zero(u64),
    /// Extends the file at least to the change's position.
    Extend,
}

impl MediumChange {
    /// The number of bytes it changes.
    fn len(&self) -> u64 {
        match self {
            MediumChange::Write(bytes) => bytes.len() as u64,
            MediumChange::Zero(len) => *len,
            MediumChange::Truncate | MediumChange::Extend => 0,
        }
    }
}

/// What a power cut leaves of the changes that were not synced.
enum ChangeFate {
    Nothing,
    Everything,
    WholeWrites,
    Sectors,
}

impl Default for FileState {
    /// An empty file that belongs to its owner alone, as the engine creates them.
    fn default() -> FileState {
        FileState {
            kind: PathKind::File,
            mode: 0o600,
            current: Sparse::default(),
            medium: Sparse::default(),
            log: VecDeque::new(),
            marks: [None, None],
            durable_marks: [None, None],
        }
    }
}

impl FileState {
    /// Refuses what its permission bits do not let its owner do.
    pub(in crate::sim) fn check_access(&self, access: AccessRequest) -> io::Result<()> {
        let wanted = [
            (access.read, 0o400),
            (access.write, 0o200),
            (access.execute, 0o100),
        ];
        let is_refused = |&(is_wanted, bit): &(bool, u32)| is_wanted && self.mode & bit == 0;
        match wanted.iter().any(is_refused) {
            true => Err(io::Error::from_raw_os_error(libc::EACCES)),
            false => Ok(()),
        }
    }

    /// A file of `bytes`, all on the medium.
    pub(in crate::sim) fn holding(bytes: &[u8]) -> FileState {
        let mut content = Sparse::default();
        content.write(0, bytes);
        FileState {
            current: content.clone(),
            medium: content,
            ..FileState::default()
        }
    }

    pub(in crate::sim) fn apply(&mut self, serial: u64, at: u64, what: MediumChange, kept: bool) {
        play(&mut self.current, at, &what);
        self.log.push_back(FileChange {
            serial,
            at,
            what,
            kept,
        });
        self.fold();
    }

    /// Replaces the content with `bytes`.
    pub(in crate::sim) fn restart(&mut self, serial: u64, bytes: &[u8]) {
        self.apply(serial, 0, MediumChange::Truncate, false);
        self.apply(serial, 0, MediumChange::Write(bytes.to_vec()), false);
    }

    /// Makes the marks durable.
    pub(in crate::sim) fn keep_marks(&mut self) {
        self.durable_marks = self.marks.clone();
    }

    /// Moves kept changes from the front of the log to the medium, up to the first that is not kept.
    fn fold(&mut self) {
        while self.log.front().is_some_and(|change| change.kept) {
            if let Some(change) = self.log.pop_front() {
                play(&mut self.medium, change.at, &change.what);
            }
        }
    }

    pub(in crate::sim) fn keep_before(&mut self, serial: u64) {
        for change in &mut self.log {
            change.kept |= change.serial < serial;
        }
        self.fold();
    }

    /// Handles a failed sync: of what it should have kept, chance decides what reaches the medium.
    pub(in crate::sim) fn lose_before(&mut self, serial: u64, random: &mut Random) {
        let mut log = VecDeque::new();
        for change in self.log.drain(..) {
            if change.kept || change.serial >= serial {
                log.push_back(change);
            } else {
                log.extend(survivors(change, &ChangeFate::Sectors, random));
            }
        }
        self.log = log;
        self.fold();
    }

    pub(in crate::sim) fn cut_power(&mut self, random: &mut Random, occurred: &mut Occurred) {
        let fate = match random.below(4) {
            0 => ChangeFate::Nothing,
            1 => ChangeFate::Everything,
            2 => ChangeFate::WholeWrites,
            _ => ChangeFate::Sectors,
        };
        for change in std::mem::take(&mut self.log) {
            if change.kept {
                play(&mut self.medium, change.at, &change.what);
            } else {
                let whole = change.what.len();
                let parts = survivors(change, &fate, random);
                match parts.iter().map(|part| part.what.len()).sum::<u64>() {
                    left if left == whole => {}
                    0 => occurred.changes_lost += 1,
                    _ => occurred.changes_torn += 1,
                }
                for part in parts {
                    play(&mut self.medium, part.at, &part.what);
                }
            }
        }
        self.current = self.medium.clone();
        if random.chance(0.5) {
            self.marks = self.durable_marks.clone();
        }
        self.keep_marks();
    }
}

fn play(content: &mut Sparse, at: u64, what: &MediumChange) {
    match what {
        MediumChange::Truncate => content.truncate(at),
        MediumChange::Write(bytes) => content.write(at, bytes),
        MediumChange::Zero(len) => {
            let end = content.len().min(at.saturating_add(*len));
            content.zero(at, end.saturating_sub(at));
        }
        MediumChange::Extend => content.extend(at),
    }
}

/// The parts of an unsynced change that reached the medium anyway.
fn survivors(change: FileChange, fate: &ChangeFate, random: &mut Random) -> Vec<FileChange> {
    let FileChange { serial, at, .. } = change;
    let part = |at, what| FileChange {
        serial,
        at,
        what,
        kept: true,
    };
    match (fate, change.what) {
        (ChangeFate::Nothing, _) => Vec::new(),
        (ChangeFate::Everything, what) => vec![part(at, what)],
        (ChangeFate::Sectors, MediumChange::Write(bytes)) => {
            let mut parts = Vec::new();
            let mut done = 0;
            while done < bytes.len() {
                let into_sector = (at as usize + done) % SECTOR;
                let n = (SECTOR - into_sector).min(bytes.len() - done);
                if random.chance(0.5) {
                    parts.push(part(
                        at + done as u64,
                        MediumChange::Write(bytes[done..done + n].to_vec()),
                    ));
                }
                done += n;
            }
            parts
        }
        (ChangeFate::Sectors, MediumChange::Zero(len)) => {
            let sectors = random.below(len / SECTOR as u64 + 1);
            vec![part(at, MediumChange::Zero(sectors * SECTOR as u64))]
        }
        (_, what) if random.chance(0.5) => vec![part(at, what)],
        _ => Vec::new(),
    }
}
