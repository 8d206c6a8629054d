//! The model of what a client may observe on a volume. For each sector it tracks which versions a read may return now
//! and which ones a crash of the target may bring back.
//!
//! From the moment it begins, a write is an *entry* of each sector it touches. An entry is *live* while a read may
//! return it. A successful write kills the entries that had ended before it began. A read that returns one version
//! kills all others that had ended before the read began, because a version once seen cannot disappear again. A failed
//! write may or may not have happened, but it does not happen later: it dies like the others. A crash makes every entry
//! live again. An entry is forgotten, and never permitted again, once a write that began after the entry's end is
//! *durable*: acknowledged with FUA or by a disk without a volatile cache, acknowledged before a successful flush
//! began, or the only live entry at that time.
//!
//! A cache in front of the volume may still return data that the crash has lost, until it evicts it. So until the
//! volume is reopened, a read proves nothing about data from before the crash.
//!
//! So losing an acknowledged write is a violation exactly when a later flush was reported as successful.

use std::{collections::BTreeSet, ops::Range};

use smallvec::SmallVec;

use crate::content::{self, SECTOR_BYTES, ZEROES};

/// What the client knows about a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Pending,
    Acknowledged,
    Durable,
    /// It failed, or a flush that should have made it durable failed.
    Unknown,
    /// A sync of it failed: the page cache shows it as if it were on the medium, and no later sync will write it again
    /// (this is how Linux behaves).
    Doubtful,
}

#[derive(Clone, Debug)]
struct Entry {
    version: u64,
    /// What a read returns: the version, or zeroes.
    value: u64,
    began: u64,
    ended: Option<u64>,
    fate: Fate,
    live: bool,
}

impl Entry {
    fn ended_before(&self, tick: u64) -> bool {
        self.ended.is_some_and(|ended| ended < tick)
    }
}

#[derive(Clone, Debug)]
struct Sector {
    entries: SmallVec<[Entry; 2]>,
    /// When its target last lost data that was not durable.
    crashed: u64,
    /// Which value may have appeared when, as far back as the oldest read in flight.
    appeared: SmallVec<[(u64, u64); 2]>,
    /// A cache may still hold data that this crash has destroyed.
    remembered: bool,
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It succeeded; only a flush makes it durable.
    Acknowledged,
    /// It succeeded and is durable.
    Durable,
    /// It failed: it may have happened, in any of its sectors.
    Failed,
}

/// A write in flight.
#[derive(Debug)]
pub struct Write {
    version: u64,
    began: u64,
    sectors: Range<usize>,
}

/// A read in flight, with what it may return.
#[derive(Debug)]
pub struct Read {
    began: u64,
    sectors: Range<usize>,
    allowed: Vec<SmallVec<[u64; 2]>>,
}

/// A flush in flight.
#[derive(Debug)]
pub struct Flush {
    began: u64,
}

/// The checker of one volume.
#[derive(Debug)]
pub struct Model {
    sectors: Vec<Sector>,
    cached: bool,
    /// When the reads in flight began.
    reading: BTreeSet<u64>,
    tick: u64,
    version: u64,
    flush_failed: Option<u64>,
    /// Whether a flush may succeed after another one has failed.
    flushes_may_fail_once: bool,
    sync_failed: bool,
    /// When the last [`Model::relieved`] came.
    relieved: u64,
}

impl Model {
    /// A volume of `len_bytes` that reads as zeroes, perhaps through a cache.
    pub fn new(len_bytes: u64, cached: bool) -> Model {
        let blank = Entry {
            version: ZEROES,
            value: ZEROES,
            began: 0,
            ended: Some(0),
            fate: Fate::Durable,
            live: true,
        };
        let sector = Sector {
            entries: [blank].into_iter().collect(),
            crashed: 0,
            appeared: SmallVec::new(),
            remembered: false,
        };
        Model {
            sectors: vec![sector; len_bytes as usize / SECTOR_BYTES],
            cached,
            reading: BTreeSet::new(),
            tick: 1,
            version: 0,
            flush_failed: None,
            flushes_may_fail_once: false,
            sync_failed: false,
            relieved: 0,
        }
    }

    /// A failed flush leaves everything as it was, and the next may succeed: it has not reached the other machine, which
    /// keeps the data, or its answer was lost.
    pub fn flushes_may_fail_once(&mut self) {
        self.flushes_may_fail_once = true;
    }

    /// How many sectors there are.
    pub fn sectors_len(&self) -> usize {
        self.sectors.len()
    }

    fn now(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// A write of `sectors` begins; also returns its bytes. With `zeroes` it zeroes the sectors.
    pub fn begin_write(&mut self, sectors: Range<usize>, zeroes: bool) -> (Write, Vec<u8>) {
        let began = self.now();
        self.version += 1;
        let version = self.version;
        let value = if zeroes { ZEROES } else { version };
        let mut bytes = Vec::with_capacity(sectors.len() * SECTOR_BYTES);
        for index in sectors.clone() {
            content::append(index as u64, value, &mut bytes);
            let sector = &mut self.sectors[index];
            sector.appears(began, value, self.reading.first());
            sector.entries.push(Entry {
                version,
                value,
                began,
                ended: None,
                fate: Fate::Pending,
                live: true,
            });
        }
        let write = Write {
            version,
            began,
            sectors,
        };
        (write, bytes)
    }

    /// A write has ended.
    pub fn end_write(&mut self, write: Write, ending: Ending) {
        let now = self.now();
        for sector in &mut self.sectors[write.sectors] {
            let found = sector
                .entries
                .iter_mut()
                .find(|e| e.version == write.version);
            let Some(entry) = found else {
                // What it has left was overwritten before the answer came.
                let is_late = write.began < self.relieved;
                assert!(is_late, "a pending write is not forgotten");
                continue;
            };
            entry.ended.get_or_insert(now);
            entry.fate = match ending {
                Ending::Acknowledged => Fate::Acknowledged,
                Ending::Durable => Fate::Durable,
                Ending::Failed => Fate::Unknown,
            };
            let began = entry.began;
            match ending {
                Ending::Durable => sector.forget(),
                // A write that began before a crash tells nothing about what is there now.
                Ending::Acknowledged if sector.crashed < began => {
                    for older in &mut sector.entries {
                        older.live &= !older.ended_before(began);
                    }
                }
                Ending::Acknowledged | Ending::Failed => {}
            }
        }
    }

    /// A read begins.
    pub fn begin_read(&mut self, sectors: Range<usize>) -> Read {
        let began = self.now();
        self.reading.insert(began);
        let allowed = self.sectors[sectors.clone()].iter();
        let allowed = allowed.map(|sector| sector.live().collect()).collect();
        Read {
            began,
            sectors,
            allowed,
        }
    }

    /// A read has succeeded and returned `bytes`.
    ///
    /// # Errors
    /// The first sector whose content is not permitted, and what it might have held.
    pub fn end_read(&mut self, read: Read, bytes: &[u8]) -> Result<(), String> {
        assert_eq!(bytes.len(), read.sectors.len() * SECTOR_BYTES);
        self.now();
        self.reading.remove(&read.began);
        let sectors = read.sectors.zip(bytes.chunks(SECTOR_BYTES));
        for ((index, bytes), at_first) in sectors.zip(read.allowed) {
            let sector = &mut self.sectors[index];
            let found = content::version_of(index as u64, bytes)
                .map_err(|what| format!("sector {index}: {what}"))?;
            let meanwhile = |&(when, value): &(u64, u64)| when > read.began && value == found;
            let is_allowed = at_first.contains(&found) || sector.appeared.iter().any(meanwhile);
            if !is_allowed {
                return Err(format!(
                    "sector {index} holds version {found}; it may hold {at_first:?}, or what was \
                     written since the read began; all that is known of it: {:?}",
                    sector.entries
                ));
            }
            sector.seen(found, read.began);
        }
        Ok(())
    }

    /// A read has failed.
    pub fn failed_read(&mut self, read: &Read) {
        self.reading.remove(&read.began);
    }

    /// A flush begins.
    pub fn begin_flush(&mut self) -> Flush {
        Flush { began: self.now() }
    }

    /// A flush has ended, well or not.
    ///
    /// # Errors
    /// When it succeeded although an earlier flush had failed before it began.
    pub fn end_flush(&mut self, flush: &Flush, good: bool) -> Result<(), String> {
        let now = self.now();
        if !good {
            if !self.flushes_may_fail_once {
                self.flush_failed.get_or_insert(now);
            }
            return Ok(());
        }
        if self.flush_failed.is_some_and(|failed| failed < flush.began) {
            return Err("a flush ended well although an earlier one had failed".into());
        }
        for sector in &mut self.sectors {
            if matches!(&sector.entries[..], [only] if only.fate == Fate::Durable) {
                continue;
            }
            for entry in &mut sector.entries {
                if entry.fate == Fate::Acknowledged && entry.ended_before(flush.began) {
                    entry.fate = Fate::Durable;
                }
            }
            if let Some(entry) = sector.only_one(flush.began) {
                entry.fate = Fate::Durable;
            }
            sector.forget();
        }
        Ok(())
    }

    /// The target of the `chosen` sectors has lost data that was not durable, all or some of it.
    pub fn crashed(&mut self, chosen: impl Fn(usize) -> bool) {
        let now = self.now();
        for (index, sector) in self.sectors.iter_mut().enumerate() {
            if chosen(index) {
                sector.crashed = now;
                sector.remembered = self.cached;
                sector
                    .entries
                    .iter_mut()
                    .for_each(|entry| entry.live = true);
                let values: Vec<u64> = sector.live().collect();
                for value in values {
                    sector.appears(now, value, self.reading.first());
                }
            }
        }
    }

    /// The client has stopped: what it had in flight may have happened, and will not happen any more.
    pub fn client_stopped(&mut self) {
        let now = self.now();
        self.reading.clear();
        let entries = self.sectors.iter_mut().flat_map(|s| &mut s.entries);
        for entry in entries.filter(|entry| entry.fate == Fate::Pending) {
            (entry.ended, entry.fate) = (Some(now), Fate::Unknown);
        }
    }

    /// Another server of the volume has relieved the one that was asked so far: what is in flight may have happened, and
    /// does not happen any more. It may still be answered.
    pub fn relieved(&mut self) {
        let now = self.now();
        self.relieved = now;
        let entries = self.sectors.iter_mut().flat_map(|s| &mut s.entries);
        for entry in entries.filter(|entry| entry.fate == Fate::Pending) {
            entry.ended.get_or_insert(now);
        }
    }

    /// A disk failed to sync its cache.
    pub fn sync_failed(&mut self) {
        self.sync_failed = true;
    }

    /// The volume is reopened. This clears an earlier flush failure; data acknowledged before it counts as promised
    /// only once it was read back and a flush has succeeded.
    pub fn reopened(&mut self) {
        for sector in &mut self.sectors {
            sector.remembered = false;
        }
        self.flush_failed = None;
        let sync_failed = std::mem::take(&mut self.sync_failed);
        for entry in self.sectors.iter_mut().flat_map(|s| &mut s.entries) {
            entry.fate = match entry.fate {
                Fate::Durable => Fate::Durable,
                _ if sync_failed => Fate::Doubtful,
                Fate::Acknowledged => Fate::Unknown,
                other => other,
            };
        }
    }

    /// How many sectors have a write in flight.
    pub fn in_flight(&self) -> usize {
        self.having(Fate::Pending)
    }

    /// How many sectors have a write that is acknowledged but not durable.
    pub fn unflushed(&self) -> usize {
        self.having(Fate::Acknowledged)
    }

    fn having(&self, fate: Fate) -> usize {
        let has = |sector: &&Sector| sector.entries.iter().any(|entry| entry.fate == fate);
        self.sectors.iter().filter(has).count()
    }

    /// Whether a flush has failed since the volume was opened.
    pub fn flush_failed(&self) -> bool {
        self.flush_failed.is_some()
    }
}

impl Sector {
    fn live(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries.iter().filter(|e| e.live).map(|e| e.value)
    }

    /// The only entry that can have been there since `tick`, if there is just one: a flush makes it durable no matter
    /// who wrote it and whether it was acknowledged.
    fn only_one(&mut self, tick: u64) -> Option<&mut Entry> {
        if self.remembered || self.crashed > tick || self.live().count() != 1 {
            return None;
        }
        let found = self.entries.iter_mut().find(|entry| entry.live);
        found.filter(|entry| entry.ended_before(tick) && entry.fate != Fate::Doubtful)
    }

    fn appears(&mut self, when: u64, value: u64, oldest_read: Option<&u64>) {
        let oldest = oldest_read.copied().unwrap_or(when);
        self.appeared.retain(|&mut (when, _)| when > oldest);
        self.appeared.push((when, value));
    }

    /// A read that began at `began` returned `value`: entries of other values that had ended before are dead, unless a
    /// crash since then has revived them.
    fn seen(&mut self, value: u64, began: u64) {
        if self.crashed > began || !self.live().any(|live| live == value) {
            return;
        }
        for entry in &mut self.entries {
            let is_there = entry.value == value || !entry.ended_before(began);
            entry.live &= is_there || self.remembered && entry.began < self.crashed;
        }
    }

    /// Forgets the entries that no crash can bring back.
    fn forget(&mut self) {
        let durable = self.entries.iter().filter(|e| e.fate == Fate::Durable);
        let Some(latest) = durable.map(|entry| entry.began).max() else {
            return;
        };
        self.entries.retain(|entry| !entry.ended_before(latest));
    }
}

#[cfg(test)]
mod tests;
