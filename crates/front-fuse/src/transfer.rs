//! Reads, writes and zeroes arbitrary byte ranges on a unit that takes whole blocks. A write to part
//! of a block preserves the rest, even against concurrent writes to it.

use std::rc::Rc;

use engine::{
    Buf, Payload,
    sync::{Budget, Permit},
};
use unit::{CommandId, IoError, LaneUnits, Nexus, Permits};

/// The only LUN that our nexuses reach.
pub(crate) const LUN: u32 = 0;
/// The most partial block writes at a time on a lane: each has two blocks of memory that are not paid for. Their requests
/// hold permits for their data, and would wait for good if together they held all.
const PATCHES_MAX: usize = 8;

/// Access to the unit on one lane.
pub(crate) struct Transfer {
    pub(crate) units: Rc<LaneUnits>,
    pub(crate) nexus: Rc<Nexus>,
    block_bytes: u64,
    patches: Rc<Budget>,
}

/// The parts of a range: a partial first block, whole blocks, a partial last block; any may be empty.
struct Parts {
    first: u64,
    whole: u64,
    last: u64,
}

impl Parts {
    fn of(at: u64, len: u64, block: u64) -> Parts {
        let first = match at % block {
            // The first block is whole, or the range is part of a single block.
            0 => 0,
            into => len.min(block - into),
        };
        let last = (len - first) % block;
        Parts {
            first,
            whole: len - first - last,
            last,
        }
    }
}

impl Transfer {
    pub(crate) fn new(units: Rc<LaneUnits>, nexus: Rc<Nexus>, block_size_bytes: u32) -> Transfer {
        Transfer {
            units,
            nexus,
            block_bytes: block_size_bytes.into(),
            patches: Budget::new(PATCHES_MAX),
        }
    }

    /// Reads `len` bytes at byte `at`; the permits pay for their memory.
    pub(crate) async fn read(
        &self,
        id: CommandId,
        at: u64,
        len: u32,
    ) -> Result<(Payload, Permits), IoError> {
        let block = self.block_bytes;
        let (before, len) = ((at % block) as usize, len as usize);
        let all = (before + len).next_multiple_of(block as usize);
        let range = (at - before as u64, all as u32);
        let (data, permits) = self.units.read(&self.nexus, (id, LUN), range).await?;
        match all == len {
            true => Ok((data, permits)),
            false => Ok((data.slice(before..before + len), permits)),
        }
    }

    /// Writes `data`, whose memory is paid for, at byte `at`.
    pub(crate) async fn write(
        &self,
        id: CommandId,
        at: u64,
        data: Payload,
        durable: bool,
    ) -> Result<(), IoError> {
        let parts = Parts::of(at, data.len() as u64, self.block_bytes);
        let (first, whole) = (parts.first as usize, parts.whole as usize);
        if whole == data.len() {
            let write = self.units.write(&self.nexus, (id, LUN), at, data, durable);
            return write.await;
        }
        if first > 0 {
            self.patch(id, at, data.slice(0..first), durable).await?;
        }
        if whole > 0 {
            let at = at + parts.first;
            let middle = data.slice(first..first + whole);
            let write = self
                .units
                .write(&self.nexus, (id, LUN), at, middle, durable);
            write.await?;
        }
        if parts.last > 0 {
            let last = data.slice(first + whole..data.len());
            let at = at + parts.first + parts.whole;
            self.patch(id, at, last, durable).await?;
        }
        Ok(())
    }

    /// Makes `len` bytes at byte `at` read as zeroes.
    pub(crate) async fn zero(
        &self,
        id: CommandId,
        at: u64,
        len: u64,
        may_discard: bool,
    ) -> Result<(), IoError> {
        let parts = Parts::of(at, len, self.block_bytes);
        let zeroes = |len: u64| Payload::zeroes(len as usize);
        if parts.first > 0 {
            self.patch(id, at, zeroes(parts.first), false).await?;
        }
        if parts.whole > 0 {
            let range = (at + parts.first, parts.whole);
            let zeroed = self
                .units
                .write_zeroes(&self.nexus, (id, LUN), range, may_discard);
            zeroed.await?;
        }
        if parts.last > 0 {
            let at = at + parts.first + parts.whole;
            self.patch(id, at, zeroes(parts.last), false).await?;
        }
        Ok(())
    }

    /// Makes all completed writes durable.
    pub(crate) async fn flush(&self, id: CommandId) -> Result<(), IoError> {
        self.units.flush(&self.nexus, (id, LUN)).await
    }

    /// Writes `data` at byte `at`: less than a block, and within one block.
    async fn patch(
        &self,
        id: CommandId,
        at: u64,
        data: Payload,
        durable: bool,
    ) -> Result<(), IoError> {
        let _turn: Permit = self.patches.take(1).await;
        let into = (at % self.block_bytes) as usize;
        let start = at - into as u64;
        let mut unknown_left = UNKNOWN_MAX;
        loop {
            let range = (start, self.block_bytes as u32);
            let old = self
                .units
                .read_unpaid(&self.nexus, (id, LUN), range)
                .await?;
            let mut new = Buf::new(old.len());
            old.copy_to(0, &mut new);
            data.copy_to(0, &mut new[into..into + data.len()]);
            let change = (old, new.into());
            let written =
                self.units
                    .compare_and_write(&self.nexus, (id, LUN), start, change, durable);
            match written.await {
                Ok(true) => return Ok(()),
                // Somebody else has changed the block; start over with its new content.
                Ok(false) => {}
                // If it was written, it may be written again.
                Err(IoError::OutcomeUnknown) if unknown_left > 0 => unknown_left -= 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// How often part of a block is written again whose write the storage has not answered: once for each lost session.
const UNKNOWN_MAX: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_range_cover_it_and_whole_blocks_are_whole() {
        for block in [512, 4096] {
            for at in [0, 1, 511, 512, 513, 4095, 4096, 5000] {
                for len in [1, 2, 511, 512, 513, 1024, 4095, 4096, 4097, 20_000] {
                    let parts = Parts::of(at, len, block);
                    assert_eq!(parts.first + parts.whole + parts.last, len);
                    assert!(parts.first < block && parts.last < block);
                    assert_eq!(parts.whole % block, 0);
                    let whole_at = at + parts.first;
                    if parts.whole + parts.last > 0 {
                        assert_eq!(whole_at % block, 0, "{len} at {at}");
                    }
                    let end = at % block + parts.first;
                    assert!(parts.first == 0 || end <= block);
                }
            }
        }
    }
}
