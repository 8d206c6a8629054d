//! EXTENDED COPY: reads blocks of one logical unit of a target and writes them to another or the
//! same one, without passing the data through the initiator.
//!
//! All units of a copy are looked up once, and the copy is registered as running on each of them, before it first waits.
//! A unit that was looked up later could be one of which no abort and no fence knows that the copy is writing there.

use std::{collections::BTreeSet, rc::Rc};

use scsi::{Copy, CopyError, Ending, Extent, MediumOp, Segment};
use volume::Durability;

use crate::{
    disk::Unit,
    execute::Io,
    lane::LaneUnits,
    nexus::Nexus,
    running::CommandId,
    wanted::{Wanted, while_wanted},
};

/// Blocks are copied in pieces of this size in bytes, or of the longest transfer if that is shorter.
const PIECE_BYTES: u64 = 1 << 20;

/// An EXTENDED COPY that is registered as running on all its units, until it has been carried out.
pub struct Copying {
    plan: Copy,
    /// On the unit that the command was sent to.
    own: Io,
    /// On each other unit that a segment names, at its LUN.
    others: Vec<(u32, Io)>,
}

/// The two ends of a segment.
struct Ends<'a> {
    nexus: &'a Nexus,
    source: (&'a Rc<Unit>, Extent),
    destination: (&'a Rc<Unit>, Extent),
}

impl LaneUnits {
    /// Runs an EXTENDED COPY. When no longer `wanted`, it ends after the current piece.
    pub async fn copy(&self, copying: Copying, wanted: impl Wanted) -> Ending {
        let (mut done, mut ending) = (0, Ending::GOOD);
        for segment in &copying.plan.segments {
            match copying.copy(self, segment, &wanted).await {
                Ok(true) => done += 1,
                Ok(false) => break,
                Err(error) => {
                    ending = error.ending();
                    break;
                }
            }
        }
        let (plan, own) = (&copying.plan, &copying.own);
        plan.ended(&own.unit.logical.borrow(), own.nexus.id, done, &ending);
        copying.own.finish();
        for (_, io) in copying.others {
            io.finish();
        }
        ending
    }
}

impl Copying {
    /// Registers `command`, which was sent to `unit` at `lun`, on that and on all units that `plan` names. What it
    /// names and the nexus does not reach now is not found later either.
    pub fn begin(
        nexus: &Rc<Nexus>,
        command: CommandId,
        (lun, unit): (u32, &Rc<Unit>),
        plan: Copy,
    ) -> Copying {
        let mut named: BTreeSet<[u8; 16]> = plan
            .segments
            .iter()
            .flat_map(|segment| [segment.source, segment.destination])
            .collect();
        named.remove(&naa(unit));
        let mut others = Vec::new();
        for (&lun, unit) in &*nexus.luns() {
            // A disk may be at several LUNs.
            if named.remove(&naa(unit)) {
                others.push((lun, Io::begin(nexus, command, lun, unit)));
            }
        }
        Copying {
            plan,
            own: Io::begin(nexus, command, lun, unit),
            others,
        }
    }

    /// The LUNs at which it runs, beside the one that the command was sent to.
    pub fn others(&self) -> impl Iterator<Item = u32> {
        self.others.iter().map(|(lun, _)| *lun)
    }

    /// Copies one segment; false if the copy was aborted meanwhile.
    async fn copy(
        &self,
        units: &LaneUnits,
        segment: &Segment,
        wanted: &impl Wanted,
    ) -> Result<bool, CopyError> {
        let Some(ends) = self.ends(segment)? else {
            return Ok(wanted.is_wanted());
        };
        ends.check_source()?;
        ends.check_destination()?;
        let (from, to) = (ends.source.1, ends.destination.1);
        let transfer_max = units.everywhere.transfer_max_bytes;
        let piece = PIECE_BYTES.min(transfer_max.into()) / u64::from(from.block_size_bytes);
        // If the two ranges overlap, copy backwards, so that the source is read before this copy overwrites it.
        let overlaps = Rc::ptr_eq(&ends.source.0.disk, &ends.destination.0.disk)
            && from.lba < to.lba
            && to.lba < from.lba + from.blocks;
        let count = from.blocks.div_ceil(piece);
        for index in 0..count {
            let index = if overlaps { count - 1 - index } else { index };
            let done = index * piece;
            let blocks = piece.min(from.blocks - done);
            let part = |whole: Extent| Extent {
                lba: whole.lba + done,
                blocks,
                ..whole
            };
            if !ends.copy_piece(part(from), part(to), wanted).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The ends of a segment; `None` if it has no blocks.
    fn ends(&self, segment: &Segment) -> Result<Option<Ends<'_>>, CopyError> {
        let source = self.find(&segment.source)?;
        let destination = self.find(&segment.destination)?;
        let from = extent(source, segment.source_lba, segment.blocks)?;
        let to = extent(destination, segment.destination_lba, segment.blocks)?;
        match (from, to) {
            (Some(from), Some(to)) if from.block_size_bytes == to.block_size_bytes => {
                Ok(Some(Ends {
                    nexus: &self.own.nexus,
                    source: (source, from),
                    destination: (destination, to),
                }))
            }
            (None, None) => Ok(None),
            _ => Err(CopyError::Failed),
        }
    }

    fn find(&self, named: &[u8; 16]) -> Result<&Rc<Unit>, CopyError> {
        let others = self.others.iter().map(|(_, io)| io);
        let mut units = [&self.own].into_iter().chain(others).map(|io| &io.unit);
        let found = units.find(|unit| naa(unit) == *named);
        found.ok_or(CopyError::Unreachable)
    }
}

impl Ends<'_> {
    /// Copies one piece; false if the copy was aborted before its memory was there.
    async fn copy_piece(
        &self,
        from: Extent,
        to: Extent,
        wanted: &impl Wanted,
    ) -> Result<bool, CopyError> {
        let (source, destination) = (&self.source.0.disk, &self.destination.0.disk);
        let len = from.len_bytes() as usize;
        let disks = [self.source.0.memory(), self.destination.0.memory()];
        for disk in [source, destination] {
            disk.learn_floor().await.map_err(|error| failed(&error))?;
        }
        let paid = self.nexus.memory.take_for_copy(disks, len);
        let paid = while_wanted(wanted, paid).await;
        let Some(_paid) = paid.filter(|_| wanted.is_wanted()) else {
            return Ok(false);
        };
        let data = {
            let _at_work = source.gate.enter(from, || self.check_source()).await?;
            // It had to wait for memory and the gate, so repeat the checks.
            self.check_source()?;
            let read = source.volume.read(from.offset_bytes(), len).await;
            read.map_err(|error| failed(&error))?
        };
        let check = || self.check_destination();
        let _at_work = destination.gate.enter(to, check).await?;
        check()?;
        let written = destination
            .volume
            .write(to.offset_bytes(), data, Durability::Cached);
        written.await.map_err(|error| failed(&error))?;
        Ok(true)
    }

    fn check_source(&self) -> Result<(), CopyError> {
        let (unit, extent) = self.source;
        self.check(unit, &MediumOp::Read { extent, fua: false })
    }

    fn check_destination(&self) -> Result<(), CopyError> {
        let (unit, extent) = self.destination;
        self.check(unit, &MediumOp::Write { extent, fua: false })
    }

    fn check(&self, unit: &Unit, op: &MediumOp) -> Result<(), CopyError> {
        let checked = unit.logical.borrow_mut().recheck(self.nexus.id, op);
        checked.map_err(|_| CopyError::Unreachable)
    }
}

fn naa(unit: &Unit) -> [u8; 16] {
    unit.logical.borrow().identity().naa()
}

fn failed(error: &volume::Error) -> CopyError {
    tracing::warn!(%error, "a copy failed and was stopped");
    CopyError::Failed
}

/// The blocks of a segment in a unit; `None` if it has none.
fn extent(unit: &Unit, lba: u64, blocks: u64) -> Result<Option<Extent>, CopyError> {
    let logical = unit.logical.borrow();
    let shape = logical.shape();
    let end = lba.checked_add(blocks).ok_or(CopyError::Failed)?;
    if end > shape.len_blocks {
        return Err(CopyError::Failed);
    }
    Ok((blocks > 0).then_some(Extent {
        lba,
        blocks,
        block_size_bytes: shape.block_size_bytes,
    }))
}

#[cfg(test)]
mod tests;
