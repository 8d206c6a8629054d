//! Comparing the copies of a mirror that is in use: whoever holds its [`MirrorHandle`](super::MirrorHandle) asks for one
//! part after the other, from any thread; the mirror compares it piece by piece, each while nothing is written there.

use std::{ops::Range, rc::Weak, sync::mpsc};

use engine::{Duration, time};

use super::{driver::Driver, upkeep::living};
use crate::{Error, ErrorKind, Result};

/// How much is read from each copy at a time, in bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// For how long a part is compared.
const PART_TIME: Duration = Duration::from_secs(1);
/// How often is looked whether somebody asks.
const PAUSE: Duration = Duration::from_millis(100);
/// The most ranges that are told of a part: more say no more.
const RANGES_MAX: usize = 1000;

/// A part of the mirror that was compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Where the next part begins, in bytes; the mirror's length after the last.
    pub next_bytes: u64,
    /// The mirror's length in bytes.
    pub len_bytes: u64,
    /// Where the copies differ, in bytes, in ascending order.
    pub differ: Vec<Range<u64>>,
}

/// Somebody asks for the part that begins at `at_bytes`.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) at_bytes: u64,
    pub(super) answer: mpsc::Sender<Result<Compared>>,
}

/// Where pieces differ, in bytes from their beginning.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences(pub(super) Vec<Range<u64>>);

impl Differences {
    /// Adds the blocks of `block_bytes` in which `one` and `other` differ.
    pub(super) fn add(&mut self, one: &[u8], other: &[u8], block_bytes: usize) {
        let blocks = one.chunks(block_bytes).zip(other.chunks(block_bytes));
        for (number, (one, other)) in (0_u64..).zip(blocks) {
            if one != other {
                let start = number * block_bytes as u64;
                self.join(start..start + one.len() as u64);
            }
        }
    }

    /// Adds a range after the others.
    fn join(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }
}

/// Answers who asks, until the mirror ends.
pub(super) async fn answer(driver: Weak<Driver>) {
    loop {
        let Some(this) = living(&driver) else { return };
        let asked = this.handle().take_asked();
        if let Some(asked) = asked {
            // Nobody may wait for it any more.
            let _ = asked.answer.send(part(&this, asked.at_bytes).await);
            continue;
        }
        drop(this);
        time::sleep(PAUSE).await;
    }
}

async fn part(driver: &Driver, at_bytes: u64) -> Result<Compared> {
    let len_bytes = driver.header.data_bytes;
    let (began, mut at) = (time::now(), at_bytes.min(len_bytes));
    let mut found = Differences::default();
    while at < len_bytes && time::now() - began < PART_TIME && found.0.len() < RANGES_MAX {
        if driver.machine(|it| it.record().in_sync.len()) < driver.copies.len() {
            let message = format!(
                "mirror {}: a copy is not in sync, so there is nothing to compare it with: `sanstone volume status` says why",
                driver.name
            );
            return Err(Error::new(ErrorKind::Unreachable, message));
        }
        let len = PIECE_BYTES.min(len_bytes - at);
        for range in driver.compare(at, len).await? {
            found.join(at + range.start..at + range.end);
        }
        at += len;
    }
    Ok(Compared {
        next_bytes: at,
        len_bytes,
        differ: found.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_blocks_that_touch_are_one_range() {
        let one = [0; 4096];
        let mut other = one;
        let mut found = Differences::default();
        found.add(&one, &other, 512);
        assert_eq!(found, Differences::default());
        for at in [511, 512, 1600, 4095] {
            other[at] = 1;
        }
        found.add(&one, &other, 512);
        assert_eq!(found.0, [0..1024, 1536..2048, 3584..4096]);
    }
}
