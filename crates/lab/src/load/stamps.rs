//! What is written. Every 512 bytes begin with a mark, by which a later run knows that what is on a disk
//! is nobody's data.
//!
//! Where reads are verified, each unit also carries its place and the number of its write, and the rest
//! of it follows from both. A [`Ledger`] knows which writes of each unit have begun and which have ended,
//! so that a read that gives an older write, or that of another place, is found.

use std::{cell::RefCell, collections::HashSet};

use engine::{Buf, Payload};
use volume::{ErrorKind, Result, SharedVolume};

use super::places::Io;

pub(crate) const MARK: &[u8; 16] = b"sanstone lab\0\0\0\0";
const SECTOR_BYTES: usize = 512;

/// How much of a disk is looked at before it is written to.
pub(super) const LOOK_BYTES: u64 = 1 << 20;

/// More units than this would take more memory than a load generator should: 8 bytes each.
const UNITS_MAX: u64 = 32 << 20;

/// `len` bytes for writes that nobody verifies.
pub(super) fn marked(len: usize) -> Payload {
    let mut buf = Buf::zeroed(len);
    for sector in buf.chunks_mut(SECTOR_BYTES) {
        let len = sector.len().min(MARK.len());
        sector[..len].copy_from_slice(&MARK[..len]);
    }
    buf.into()
}

/// Whether a disk may be written to without a loss: its first MiB is empty, or all in it is from an
/// earlier load.
///
/// # Errors
/// It cannot be read.
pub async fn is_free_to_write(volume: &SharedVolume) -> Result<bool> {
    let len = LOOK_BYTES.min(volume.shape().len_bytes());
    let data = volume.read(0, len as usize).await?.to_vec();
    let is_free = |sector: &[u8]| sector.starts_with(MARK) || sector.iter().all(|byte| *byte == 0);
    Ok(data.chunks(SECTOR_BYTES).all(is_free))
}

/// Which writes of each unit of a volume have begun, and which have ended.
#[derive(Debug)]
pub struct Ledger {
    unit_bytes: usize,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    begun: Vec<u32>,
    ended: Vec<u32>,
    /// Units with a write in flight: two at once would have no order.
    busy: HashSet<u64>,
}

/// What a read may find in its units: for each the last write that had ended before it began.
pub(super) struct Expected(Vec<u32>);

impl Ledger {
    /// For the first `span_bytes` of a volume, in units of `unit_bytes`, of which all I/Os are multiples.
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
            state: RefCell::new(State {
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

    /// Begins a write: what it is to write, or `None` while another one is in its way.
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

    /// Ends a write.
    pub(super) fn end(&self, io: &Io) {
        let mut state = self.state.borrow_mut();
        for unit in self.units(io) {
            state.busy.remove(&unit);
            state.ended[unit as usize] = state.begun[unit as usize];
        }
    }

    /// Expects nothing any more of the first `len_bytes`: they have been discarded, while nothing was under way.
    pub(crate) fn forget(&self, len_bytes: u64) {
        let units = (len_bytes / self.unit_bytes as u64) as usize;
        let mut state = self.state.borrow_mut();
        state
            .ended
            .iter_mut()
            .take(units)
            .for_each(|ended| *ended = 0);
    }

    /// What a read that begins now may find at least.
    pub(super) fn expect(&self, io: &Io) -> Expected {
        let state = self.state.borrow();
        let ended = self.units(io).map(|unit| state.ended[unit as usize]);
        Expected(ended.collect())
    }

    /// Compares what a read has found.
    pub(super) fn check(&self, io: &Io, expected: &Expected, data: &Payload) -> Result<()> {
        let state = self.state.borrow();
        let data = data.to_vec();
        let mut right = vec![0; self.unit_bytes];
        let units = self.units(io).zip(&expected.0);
        for ((unit, &ended), bytes) in units.zip(data.chunks(self.unit_bytes)) {
            if ended == 0 {
                // Not written in this run: what is there, nobody knows.
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
                        "verify: byte {at} of the disk was written {ended} times, and gives {found}: \
                         this disk loses or misplaces writes"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Fills a unit with what write `number` of `unit` writes.
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
        // While the second flies, both may be there.
        check(&first).expect("the first");
        check(&second).expect("the second");
        ledger.end(&here);
        let expected = ledger.expect(&here);
        let check = |data: &Payload| ledger.check(&here, &expected, data);
        check(&second).expect("the last");
        let told = |data: &Payload| check(data).expect_err("it is wrong").to_string();
        assert!(told(&first).contains("gives write 1 of byte 8192"));
        assert!(told(&Payload::zeroes(8192)).contains("something else"));
        let elsewhere = io(0, 8192);
        let misplaced = ledger.begin(&elsewhere).expect("nothing flies there");
        assert!(told(&misplaced).contains("gives write 1 of byte 0"));
        let mut torn = second.to_vec();
        torn[5000] ^= 1;
        assert!(told(&Buf::copy_of(&torn).into()).contains("byte 12288"));
        // What is discarded may hold anything until it is written again.
        ledger.forget(4096 * 4);
        ledger
            .check(&here, &ledger.expect(&here), &Payload::zeroes(8192))
            .expect("discarded");
        let third = ledger.begin(&here).expect("nothing flies");
        ledger.end(&here);
        let expected = ledger.expect(&here);
        ledger.check(&here, &expected, &third).expect("the last");
        assert!(ledger.check(&here, &expected, &second).is_err());
        // What was never written may hold anything.
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
