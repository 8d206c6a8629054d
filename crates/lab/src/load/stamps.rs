//! The contents of writes. Every 512 bytes start with a mark, by which a later run recognises that a disk
//! holds nobody's data.
//!
//! Where reads are verified, each unit also carries its place and the sequence number of its write, and the
//! rest of the unit is derived from both. A [`Ledger`] tracks which writes of each unit have started and
//! which have completed, so that a read returning a stale write, or one of another place, is detected.

use std::{cell::RefCell, collections::HashSet};

use engine::{Buf, Payload};
use volume::{Durability, ErrorKind, Result, SharedVolume};

use super::places::Io;

const MARK: &[u8; 16] = b"sanstone lab\0\0\0\0";
const SECTOR_BYTES: usize = 512;

/// How much of a disk to examine before writing to it, in bytes.
pub(super) const LOOK_BYTES: u64 = 1 << 20;

/// Maximum number of units: at 8 bytes each, more would take too much memory for a load generator.
const UNITS_MAX: u64 = 32 << 20;

/// `len` bytes of marked data, for writes that are not verified.
pub(super) fn marked(len: usize) -> Payload {
    let mut buf = Buf::zeroed(len);
    for sector in buf.chunks_mut(SECTOR_BYTES) {
        let len = sector.len().min(MARK.len());
        sector[..len].copy_from_slice(&MARK[..len]);
    }
    buf.into()
}

/// Whether a disk may be written to without loss: its first MiB is empty, or all of it comes from an earlier
/// load.
///
/// # Errors
/// It cannot be read.
pub async fn is_free_to_write(volume: &SharedVolume) -> Result<bool> {
    let len = LOOK_BYTES.min(volume.shape().len_bytes());
    let data = volume.read(0, len as usize).await?.to_vec();
    let is_free = |sector: &[u8]| sector.starts_with(MARK) || sector.iter().all(|byte| *byte == 0);
    Ok(data.chunks(SECTOR_BYTES).all(is_free))
}

/// Tracks which writes of each unit of a volume have started and which have completed.
#[derive(Debug)]
pub struct Ledger {
    unit_bytes: usize,
    state: RefCell<WriteCounts>,
}

#[derive(Debug)]
struct WriteCounts {
    begun: Vec<u32>,
    ended: Vec<u32>,
    /// Units with a write in flight. A second concurrent write would have no defined order, so it is not
    /// started.
    busy: HashSet<u64>,
}

/// What a read may return: for each of its units, the last write completed before the read started.
pub(super) struct Expected(Vec<u32>);

impl Ledger {
    /// Covers the first `span_bytes` of a volume in units of `unit_bytes`; all I/Os must be multiples of a
    /// unit.
    ///
    /// # Errors
    /// There are more units than a ledger may have.
    pub fn new(span_bytes: u64, unit_bytes: usize) -> Result<Ledger> {
        let units = span_bytes / unit_bytes as u64;
        if units > UNITS_MAX {
            let most = (UNITS_MAX * unit_bytes as u64) >> 30;
            return Err(volume::Error::new(
                ErrorKind::Configuration,
                format!(
                    "{} GiB cannot be verified at once: write span = \"{most}GiB\" or less, or verify = false",
                    span_bytes >> 30
                ),
            ));
        }
        let none = vec![0; units as usize];
        Ok(Ledger {
            unit_bytes,
            state: RefCell::new(WriteCounts {
                begun: none.clone(),
                ended: none,
                busy: HashSet::new(),
            }),
        })
    }

    fn units(&self, io: &Io) -> std::ops::Range<u64> {
        let unit = self.unit_bytes as u64;
        io.at / unit..(io.at + io.len as u64) / unit
    }

    /// Starts a write: returns its data, or `None` while another write is in the way.
    pub(super) fn begin(&self, io: &Io) -> Option<Payload> {
        let mut state = self.state.borrow_mut();
        if self.units(io).any(|unit| state.busy.contains(&unit)) {
            return None;
        }
        let mut buf = Buf::new(io.len);
        for (unit, bytes) in self.units(io).zip(buf.chunks_mut(self.unit_bytes)) {
            let number = &mut state.begun[unit as usize];
            *number = number.wrapping_add(1);
            stamp(bytes, unit, *number);
            state.busy.insert(unit);
        }
        Some(buf.into())
    }

    /// Writes `len` bytes at `at`, which no other write may be in the way of.
    pub(super) async fn fill(&self, volume: &SharedVolume, at: u64, len: usize) -> Result<()> {
        let io = Io {
            at,
            len,
            is_read: false,
        };
        let data = self.begin(&io).expect("nothing is in flight");
        let written = volume.write(at, data, Durability::Cached).await;
        self.end(&io);
        written
    }

    /// Completes a write.
    pub(super) fn end(&self, io: &Io) {
        let mut state = self.state.borrow_mut();
        for unit in self.units(io) {
            state.busy.remove(&unit);
            state.ended[unit as usize] = state.begun[unit as usize];
        }
    }

    /// Resets the first `len_bytes` to unknown: they were discarded while nothing was in flight.
    pub(crate) fn forget(&self, len_bytes: u64) {
        let units = (len_bytes / self.unit_bytes as u64) as usize;
        let mut state = self.state.borrow_mut();
        state
            .ended
            .iter_mut()
            .take(units)
            .for_each(|ended| *ended = 0);
    }

    /// The oldest data that a read starting now may return.
    pub(super) fn expect(&self, io: &Io) -> Expected {
        let state = self.state.borrow();
        let ended = self.units(io).map(|unit| state.ended[unit as usize]);
        Expected(ended.collect())
    }

    /// Verifies the data of a read.
    pub(super) fn check(&self, io: &Io, expected: &Expected, data: &Payload) -> Result<()> {
        let state = self.state.borrow();
        let data = data.to_vec();
        let mut right = vec![0; self.unit_bytes];
        let units = self.units(io).zip(&expected.0);
        for ((unit, &ended), bytes) in units.zip(data.chunks(self.unit_bytes)) {
            if ended == 0 {
                // Not written in this run, so its contents are unknown.
                continue;
            }
            let (place, number) = stamp_of(bytes);
            let is_one_of_them = (ended..=state.begun[unit as usize]).contains(&number);
            stamp(&mut right, unit, number);
            if place != unit || !is_one_of_them || bytes != right {
                let at = unit * self.unit_bytes as u64;
                let found = match bytes.starts_with(MARK) {
                    true => format!("write {number} of byte {}", place * self.unit_bytes as u64),
                    false => "something else".to_owned(),
                };
                return Err(volume::Error::new(
                    ErrorKind::Medium,
                    format!(
                        "verify: byte {at} of the disk was written {ended} times, but holds {found}: \
                         this disk loses or misplaces writes"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Fills a unit with the data of write `number` to `unit`.
fn stamp(bytes: &mut [u8], unit: u64, number: u32) {
    let pattern = (unit ^ u64::from(number) << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for (index, sector) in bytes.chunks_mut(SECTOR_BYTES).enumerate() {
        let word = pattern.wrapping_add(index as u64).to_le_bytes();
        for chunk in sector.chunks_mut(word.len()) {
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        sector[..16].copy_from_slice(MARK);
        sector[16..24].copy_from_slice(&unit.to_le_bytes());
        sector[24..28].copy_from_slice(&number.to_le_bytes());
    }
}

fn stamp_of(bytes: &[u8]) -> (u64, u32) {
    let mut place = [0; 8];
    let mut number = [0; 4];
    place.copy_from_slice(&bytes[16..24]);
    number.copy_from_slice(&bytes[24..28]);
    (u64::from_le_bytes(place), u32::from_le_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io(at: u64, len: usize) -> Io {
        Io {
            at,
            len,
            is_read: false,
        }
    }

    #[test]
    fn a_lost_an_old_and_a_misplaced_write_are_found() {
        let ledger = Ledger::new(1 << 20, 4096).expect("few units");
        let here = io(8192, 8192);
        let first = ledger.begin(&here).expect("nothing flies");
        assert!(ledger.begin(&io(12288, 4096)).is_none(), "one flies there");
        ledger.end(&here);
        let second = ledger.begin(&here).expect("it has ended");
        let expected = ledger.expect(&here);
        let check = |data: &Payload| ledger.check(&here, &expected, data);
        // While the second write is in flight, a read may return either.
        check(&first).expect("the first");
        check(&second).expect("the second");
        ledger.end(&here);
        let expected = ledger.expect(&here);
        let check = |data: &Payload| ledger.check(&here, &expected, data);
        check(&second).expect("the last");
        let told = |data: &Payload| check(data).expect_err("it is wrong").to_string();
        assert!(told(&first).contains("holds write 1 of byte 8192"));
        assert!(told(&Payload::zeroes(8192)).contains("something else"));
        let elsewhere = io(0, 8192);
        let misplaced = ledger.begin(&elsewhere).expect("nothing flies there");
        assert!(told(&misplaced).contains("holds write 1 of byte 0"));
        let mut torn = second.to_vec();
        torn[5000] ^= 1;
        assert!(told(&Buf::copy_of(&torn).into()).contains("byte 12288"));
        // Discarded data is undefined until it is written again.
        ledger.forget(4096 * 4);
        ledger
            .check(&here, &ledger.expect(&here), &Payload::zeroes(8192))
            .expect("discarded");
        let third = ledger.begin(&here).expect("nothing flies");
        ledger.end(&here);
        let expected = ledger.expect(&here);
        ledger.check(&here, &expected, &third).expect("the last");
        assert!(ledger.check(&here, &expected, &second).is_err());
        // Data that was never written may be anything.
        let never = io(65536, 4096);
        let zeroes = Payload::zeroes(4096);
        ledger
            .check(&never, &ledger.expect(&never), &zeroes)
            .expect("unknown");
    }

    #[test]
    fn what_would_take_too_much_memory_is_refused() {
        let error = Ledger::new(1 << 40, 4096).expect_err("a TiB").to_string();
        assert!(error.contains("span = \"128GiB\""), "{error}");
    }
}
