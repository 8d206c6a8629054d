//! EXTENDED COPY: reads blocks of one logical unit of a target and writes them to another or the
//! same one, without passing the data through the initiator.

use std::{collections::BTreeSet, rc::Rc};

use scsi::{Copy, CopyError, Extent, MediumOp, NexusId, Segment};
use volume::Durability;

use crate::{
    disk::{Luns, Unit},
    lane::LaneUnits,
    nexus::Nexus,
    wanted::{Wanted, while_wanted},
};

/// Blocks are copied in pieces of this size in bytes, or of the longest transfer if that is shorter.
const PIECE_BYTES: u64 = 1 << 20;

/// The logical units that a copy reads and writes.
pub(crate) fn luns(luns: &Luns, plan: &Copy) -> BTreeSet<u32> {
    let named: BTreeSet<&[u8; 16]> = plan
        .segments
        .iter()
        .flat_map(|segment| [&segment.source, &segment.destination])
        .collect();
    luns.iter()
        .filter(|(_, unit)| named.contains(&unit.logical.borrow().identity().naa()))
        .map(|(&lun, _)| lun)
        .collect()
}

/// Copies one segment; false if the copy was no longer `wanted` before its end.
pub(crate) async fn segment(
    units: &LaneUnits,
    nexus: &Nexus,
    segment: &Segment,
    wanted: &impl Wanted,
) -> Result<bool, CopyError> {
    let luns = nexus.luns();
    let source = find(&luns, &segment.source)?;
    let destination = find(&luns, &segment.destination)?;
    let (memory, nexus) = (&nexus.memory, nexus.id);
    let from = extent(source, segment.source_lba, segment.blocks)?;
    let to = extent(destination, segment.destination_lba, segment.blocks)?;
    let (from, to) = match (from, to) {
        (Some(from), Some(to)) if from.block_size_bytes == to.block_size_bytes => (from, to),
        (None, None) => return Ok(wanted.is_wanted()),
        _ => return Err(CopyError::Failed),
    };
    let fua = false;
    allowed(source, nexus, &MediumOp::Read { extent: from, fua })?;
    allowed(destination, nexus, &MediumOp::Write { extent: to, fua })?;
    let transfer_max = units.everywhere.transfer_max_bytes;
    let piece = PIECE_BYTES.min(transfer_max.into()) / u64::from(from.block_size_bytes);
    // If the two ranges overlap, copy backwards, so that the source is read before this copy overwrites it.
    let overlaps = Rc::ptr_eq(&source.disk, &destination.disk)
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
        let (from, to) = (part(from), part(to));
        let disks = [source.memory(), destination.memory()];
        let paid = memory.take_for_copy(disks, from.len_bytes() as usize);
        let paid = while_wanted(wanted, paid).await;
        let Some(_paid) = paid.filter(|_| wanted.is_wanted()) else {
            return Ok(false);
        };
        let data = {
            let read = MediumOp::Read { extent: from, fua };
            let _at_work = source
                .disk
                .gate
                .enter(from, || allowed(source, nexus, &read))
                .await?;
            let len = from.len_bytes() as usize;
            let read = source.disk.volume.read(from.offset_bytes(), len).await;
            read.map_err(|error| failed(&error))?
        };
        let write = MediumOp::Write { extent: to, fua };
        let check = || allowed(destination, nexus, &write);
        let _at_work = destination.disk.gate.enter(to, check).await?;
        // The write had to wait for the gate, so repeat the checks.
        check()?;
        let write = destination
            .disk
            .volume
            .write(to.offset_bytes(), data, Durability::Cached);
        write.await.map_err(|error| failed(&error))?;
    }
    Ok(true)
}

fn failed(error: &volume::Error) -> CopyError {
    tracing::warn!(%error, "a copy failed and was stopped");
    CopyError::Failed
}

fn find<'a>(luns: &'a Luns, naa: &[u8; 16]) -> Result<&'a Rc<Unit>, CopyError> {
    let mut units = luns.values();
    let found = units.find(|unit| unit.logical.borrow().identity().naa() == *naa);
    found.ok_or(CopyError::Unreachable)
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

fn allowed(unit: &Unit, nexus: NexusId, op: &MediumOp) -> Result<(), CopyError> {
    let checked = unit.logical.borrow_mut().recheck(nexus, op);
    checked.map_err(|_| CopyError::Unreachable)
}
