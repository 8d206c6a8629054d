//! What a client may see of a volume: a checker that knows, for each sector, which versions a read
//! may find now and which ones a crash of the target may bring back.
//!
//! Every write is an *entry* of each sector it touches, from its beginning on. An entry is *live*
//! when a read may find it. A write that has ended well makes those dead that had ended before it
//! began; a read that finds one version makes dead whatever else had ended before the read began,
//! for what was seen once is not unseen; and a write that failed may or may not have happened, but
//! does not happen later: it dies like the others. A crash makes every entry live again. An entry
//! is forgotten, and never permitted again, once a write that began after its end is *durable*:
//! acknowledged with FUA or by a disk without a volatile cache, or acknowledged before the
//! beginning of a flush that ended well, or the only live one then.
//!
//! With a cache before the volume, what was lost may still be read until the cache lets go of it:
//! until the volume is opened again, a read proves nothing about what was there before the crash.
//!
//! So losing an acknowledged write is a violation exactly when a later flush was told to be good.

use std::{collections::BTreeSet, ops::Range};

use smallvec::SmallVec;

use crate::content::{self, SECTOR_BYTES, ZEROES};

/// What the client knows about a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Pending,
    Acknowledged,
    Durable,
    /// It failed, or a flush that should have kept it did.
    Unknown,
    /// A sync of it failed: the page cache shows it as if it were on the medium, which no later
    /// sync will change (as Linux has it).
    Doubtful,
}

#[derive(Clone, Debug)]
struct Entry {
    version: u64,
    /// What a read finds: the version, or zeroes.
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
    /// When its target last lost what was not durable.
    crashed: u64,
    /// When which value may have come to be there, as far back as the oldest read in flight.
    appeared: SmallVec<[(u64, u64); 2]>,
    /// A cache may still know what that crash has taken away.
    remembered: bool,
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Well; a flush is to make it durable.
    Acknowledged,
    /// Well and durable.
    Durable,
    /// Not well: it may have happened, in any of its sectors.
    Failed,
}

/// A write on its way.
#[derive(Debug)]
pub struct Write {
    version: u64,
    sectors: Range<usize>,
}

/// A read on its way, with what it may find.
#[derive(Debug)]
pub struct Read {
    began: u64,
    sectors: Range<usize>,
    allowed: Vec<SmallVec<[u64; 2]>>,
}

/// A flush on its way.
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
    sync_failed: bool,
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
            sync_failed: false,
        }
    }

    /// How many sectors there are.
    pub fn sectors_len(&self) -> usize {
        self.sectors.len()
    }

    fn now(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// A write of `sectors` begins; gives its bytes as well. With `zeroes` it makes them zero.
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
        (Write { version, sectors }, bytes)
    }

    /// A write has ended.
    pub fn end_write(&mut self, write: Write, ending: Ending) {
        let now = self.now();
        for sector in &mut self.sectors[write.sectors] {
            let found = sector
                .entries
                .iter_mut()
                .find(|e| e.version == write.version);
            let entry = found.expect("a pending write is not forgotten");
            entry.ended = Some(now);
            entry.fate = match ending {
                Ending::Acknowledged => Fate::Acknowledged,
                Ending::Durable => Fate::Durable,
                Ending::Failed => Fate::Unknown,
            };
            let began = entry.began;
            match ending {
                Ending::Durable => sector.forget(),
                // An answer from before a crash tells nothing about what is there now.
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

    /// A read has ended well and gave `bytes`.
    ///
    /// # Errors
    /// The first sector that holds what it must not, and what it might have held.
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
    /// When it ended well although an earlier one had failed before it began.
    pub fn end_flush(&mut self, flush: &Flush, good: bool) -> Result<(), String> {
        let now = self.now();
        if !good {
            self.flush_failed.get_or_insert(now);
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

    /// The target of the `chosen` sectors has lost what was not durable, or some of it.
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

    /// A disk failed to sync what it had in its cache.
    pub fn sync_failed(&mut self) {
        self.sync_failed = true;
    }

    /// The volume is opened again. A flush that failed before is history, and what the one before
    /// had acknowledged is promised only once it was seen and a flush has ended well.
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

    /// How many sectors have a write on its way.
    pub fn in_flight(&self) -> usize {
        self.having(Fate::Pending)
    }

    /// How many sectors have a write that was acknowledged and not made durable.
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

    /// The one that is there, if nothing else can have been since `tick`: who made it and whether
    /// it was acknowledged does not matter to a flush.
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

    /// A read that began at `began` found `value`: what had ended before and is another is not
    /// there, unless a crash since then has brought it back.
    fn seen(&mut self, value: u64, began: u64) {
        if self.crashed > began || !self.live().any(|live| live == value) {
            return;
        }
        for entry in &mut self.entries {
            let is_there = entry.value == value || !entry.ended_before(began);
            entry.live &= is_there || self.remembered && entry.began < self.crashed;
        }
    }

    /// Forgets what no crash can bring back.
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
