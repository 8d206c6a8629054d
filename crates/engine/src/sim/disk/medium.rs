//! One file of a simulated disk: its content, its medium, and what a power cut makes of both.
//!
//! A file has two contents: the current one, which reads see, and the medium. Between them lies a
//! log of changes in the order of their completion. A change is *kept* when it asked to be durable
//! or when a sync that began after its completion has completed; kept changes at the front of the
//! log move to the medium. A power cut plays the log over the medium: kept changes whole, of the
//! others whatever the seed leaves, cut at sectors of 512 bytes; writes in flight may have landed
//! in part as well. What is left is the file.
//!
//! A sync that fails loses what it should have kept, as Linux does: some of it is on the medium,
//! reads go on to see all of it, and no later sync brings the rest there.

use std::collections::VecDeque;

use super::sparse::Sparse;
use crate::sim::{Occurred, Random};

/// What a power cut never tears, in bytes.
pub(in crate::sim) const SECTOR: usize = 512;

#[derive(Default)]
pub(in crate::sim) struct FileState {
    pub(in crate::sim) current: Sparse,
    medium: Sparse,
    log: VecDeque<Change>,
    /// What it is marked with, now and on the medium.
    pub(in crate::sim) mark: Option<Vec<u8>>,
    durable_mark: Option<Vec<u8>>,
}

/// One completed change of a file.
struct Change {
    serial: u64,
    at: u64,
    what: What,
    kept: bool,
}

pub(in crate::sim) enum What {
    /// Nothing is left of what it held.
    Truncate,
    Write(Vec<u8>),
    Zero(u64),
    /// The file reaches at least to the change's position.
    Extend,
}

impl What {
    /// How many bytes it changes.
    fn len(&self) -> u64 {
        match self {
            What::Write(bytes) => bytes.len() as u64,
            What::Zero(len) => *len,
            What::Truncate | What::Extend => 0,
        }
    }
}

/// What of the changes that nobody synced a power cut leaves.
enum Fate {
    Nothing,
    Everything,
    WholeWrites,
    Sectors,
}

impl FileState {
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

    pub(in crate::sim) fn apply(&mut self, serial: u64, at: u64, what: What, kept: bool) {
        play(&mut self.current, at, &what);
        self.log.push_back(Change {
            serial,
            at,
            what,
            kept,
        });
        self.fold();
    }

    /// Holds `bytes` and nothing else.
    pub(in crate::sim) fn restart(&mut self, serial: u64, bytes: &[u8]) {
        self.apply(serial, 0, What::Truncate, false);
        self.apply(serial, 0, What::Write(bytes.to_vec()), false);
    }

    /// Brings the mark to the medium.
    pub(in crate::sim) fn keep_mark(&mut self) {
        self.durable_mark = self.mark.clone();
    }

    /// Moves what is kept to the medium, as far as nothing before it is still open.
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

    /// A sync failed: of what it should have kept, only what chance leaves gets to the medium.
    pub(in crate::sim) fn lose_before(&mut self, serial: u64, random: &mut Random) {
        let mut log = VecDeque::new();
        for change in self.log.drain(..) {
            if change.kept || change.serial >= serial {
                log.push_back(change);
            } else {
                log.extend(survivors(change, &Fate::Sectors, random));
            }
        }
        self.log = log;
        self.fold();
    }

    pub(in crate::sim) fn cut_power(&mut self, random: &mut Random, occurred: &mut Occurred) {
        let fate = match random.below(4) {
            0 => Fate::Nothing,
            1 => Fate::Everything,
            2 => Fate::WholeWrites,
            _ => Fate::Sectors,
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
            self.mark = self.durable_mark.clone();
        }
        self.keep_mark();
    }
}

fn play(content: &mut Sparse, at: u64, what: &What) {
    match what {
        What::Truncate => *content = Sparse::default(),
        What::Write(bytes) => content.write(at, bytes),
        What::Zero(len) => {
            let end = content.len().min(at.saturating_add(*len));
            content.zero(at, end.saturating_sub(at));
        }
        What::Extend => content.extend(at),
    }
}

/// The parts of a change that are on the medium although nobody asked for it.
fn survivors(change: Change, fate: &Fate, random: &mut Random) -> Vec<Change> {
    let Change { serial, at, .. } = change;
    let part = |at, what| Change {
        serial,
        at,
        what,
        kept: true,
    };
    match (fate, change.what) {
        (Fate::Nothing, _) => Vec::new(),
        (Fate::Everything, what) => vec![part(at, what)],
        (Fate::Sectors, What::Write(bytes)) => {
            let mut parts = Vec::new();
            let mut done = 0;
            while done < bytes.len() {
                let into_sector = (at as usize + done) % SECTOR;
                let n = (SECTOR - into_sector).min(bytes.len() - done);
                if random.chance(0.5) {
                    parts.push(part(
                        at + done as u64,
                        What::Write(bytes[done..done + n].to_vec()),
                    ));
                }
                done += n;
            }
            parts
        }
        (Fate::Sectors, What::Zero(len)) => {
            let sectors = random.below(len / SECTOR as u64 + 1);
            vec![part(at, What::Zero(sectors * SECTOR as u64))]
        }
        (_, what) if random.chance(0.5) => vec![part(at, what)],
        _ => Vec::new(),
    }
}
