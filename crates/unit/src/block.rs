//! Block operations of a nexus: read, write, flush, discard, zeroes and allocation status, for fronts that do not
//! speak SCSI and for internal users of a disk. They are subject to the same access rights and wait at the same
//! gates as SCSI commands, and whatever aborts commands waits for them, too.

use std::{cell::Cell, rc::Rc};

use engine::Payload;
use scsi::{Extent, MediumOp};
use volume::Allocation;

use crate::{
    disk::Unit, error::IoError, execute::Io, lane::LaneUnits, medium, memory::Permits,
    nexus::Nexus, running::CommandId,
};

/// Discards and zeroing are done in pieces of this size, in bytes.
const PIECE_BYTES: u64 = if cfg!(test) { 64 << 10 } else { 64 << 20 };

/// In each call, `operation` is the number that the front gives the operation, like a command identifier. Each future
/// must be driven to its end: a caller that may be cancelled runs it in a task of its own and drops only the wait for
/// it. Otherwise an abort would treat the operation as ended while the medium still works on it.
impl LaneUnits {
    /// Reads `len` bytes at byte `at`. The returned permits pay for the memory until they are dropped.
    ///
    /// # Errors
    /// [`IoError`].
    pub async fn read(
        &self,
        nexus: &Rc<Nexus>,
        (operation, lun): (CommandId, u32),
        (at, len): (u64, u32),
    ) -> Result<(Payload, Permits), IoError> {
        let unit = unit_at(nexus, lun)?;
        self.check_transfer(extent(&unit, at, len.into())?)?;
        let permits = nexus.memory.take(Some(unit.memory()), len as usize).await;
        // It begins here, and not before it waited: no reset and no end of the nexus needs to wait for memory with it. A
        // client that has gone meanwhile wants nothing read, and its unit may be gone, or another one be in its place.
        let now = unit_at(nexus, lun)?;
        let extent = extent(&now, at, len.into())?;
        if !now.is_same_disk(&unit) {
            return Err(IoError::NoUnit);
        }
        let io = Io::begin(nexus, operation, lun, &now);
        let data = self.read_extent(io, extent).await?;
        Ok((data, permits))
    }

    /// As [`read`](Self::read), for a front that has bounded the memory of such reads by itself. A request that holds
    /// permits must not wait for more: others that do the same may hold them all.
    ///
    /// # Errors
    /// [`IoError`].
    pub async fn read_unpaid(
        &self,
        nexus: &Rc<Nexus>,
        (operation, lun): (CommandId, u32),
        (at, len): (u64, u32),
    ) -> Result<Payload, IoError> {
        let unit = unit_at(nexus, lun)?;
        let extent = extent(&unit, at, len.into())?;
        self.check_transfer(extent)?;
        let io = Io::begin(nexus, operation, lun, &unit);
        self.read_extent(io, extent).await
    }

    /// Writes `data`, whose memory the front has paid for, at byte `at`. With `fua` it is on
    /// persistent media on return.
    ///
    /// # Errors
    /// [`IoError`].
    pub async fn write(
        &self,
        nexus: &Rc<Nexus>,
        (operation, lun): (CommandId, u32),
        at: u64,
        data: Payload,
        fua: bool,
    ) -> Result<(), IoError> {
        let unit = unit_at(nexus, lun)?;
        let extent = extent(&unit, at, data.len() as u64)?;
        self.check_transfer(extent)?;
        let io = Io::begin(nexus, operation, lun, &unit);
        let op = MediumOp::Write { extent, fua };
        self.do_block(io, op, data).await.map(drop)
    }

    /// Writes `new` at byte `at` if `old`, of the same length, is there; returns whether it was. Nobody
    /// else writes there meanwhile, so a read-modify-write of part of a block cannot undo another one's
    /// change. The front has paid for the memory of both.
    ///
    /// # Errors
    /// [`IoError`].
    pub async fn compare_and_write(
        &self,
        nexus: &Rc<Nexus>,
        (operation, lun): (CommandId, u32),
        at: u64,
        (old, new): (Payload, Payload),
        fua: bool,
    ) -> Result<bool, IoError> {
        let unit = unit_at(nexus, lun)?;
        let extent = extent(&unit, at, new.len() as u64)?;
        self.check_transfer(extent)?;
        if old.len() != new.len() {
            return Err(IoError::OutOfRange);
        }
        let io = Io::begin(nexus, operation, lun, &unit);
        let op = MediumOp::CompareAndWrite { extent, fua };
        let mut data = old;
        data.append(new);
        let data = Cell::new(data);
        let executed = self.execute(io, (&op, &data), false, || true).await;
        match executed.result {
            Ok(_) => Ok(true),
            Err(IoError::Miscompare { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// [`IoError`].
    pub async fn flush(
        &self,
        nexus: &Rc<Nexus>,
        (operation, lun): (CommandId, u32),
    ) -> Result<(), IoError> {
        let unit = unit_at(nexus, lun)?;
        let extent = Extent {
            lba: 0,
            blocks: 0,
            block_size_bytes: unit.block_size_bytes(),
        };
        let io = Io::begin(nexus, operation, lun, &unit);
        let op = MediumOp::Flush { extent };
        self.do_block(io, op, Payload::new()).await.map(drop)
    }

    /// Tells the disk that `len` bytes at byte `at` are no longer needed.
    ///
    /// # Errors
    /// [`IoError`].
    pub async fn discard(
        &self,
        nexus: &Rc<Nexus>,
        (operation, lun): (CommandId, u32),
        (at, len): (u64, u64),
    ) -> Result<(), IoError> {
        let op = |extent| MediumOp::Unmap {
            extents: vec![extent],
        };
        self.in_pieces(nexus, (operation, lun), (at, len), op).await
    }

    /// Makes `len` bytes at byte `at` read as zeroes; `may_discard` permits freeing their space.
    ///
    /// # Errors
    /// [`IoError`].
    pub async fn write_zeroes(
        &self,
        nexus: &Rc<Nexus>,
        (operation, lun): (CommandId, u32),
        (at, len): (u64, u64),
        may_discard: bool,
    ) -> Result<(), IoError> {
        let unmap = may_discard;
        let op = |extent| MediumOp::Zero { extent, unmap };
        self.in_pieces(nexus, (operation, lun), (at, len), op).await
    }

    /// Whether byte `at` is allocated, and for how many of the `len` bytes from there the same holds.
    /// Unallocated bytes read as zeroes if the volume's [`Shape`](volume::Shape) says so of discards.
    ///
    /// # Errors
    /// [`IoError`].
    pub async fn allocation(
        &self,
        nexus: &Rc<Nexus>,
        (operation, lun): (CommandId, u32),
        (at, len): (u64, u64),
    ) -> Result<Allocation, IoError> {
        let unit = unit_at(nexus, lun)?;
        let extent = extent(&unit, at, len)?;
        let op = MediumOp::LbaStatus {
            extent,
            len_bytes: 0,
        };
        unit.logical.borrow_mut().recheck(nexus.id, &op)?;
        let io = Io::begin(nexus, operation, lun, &unit);
        let found = medium::allocation(&*unit.disk.volume, &extent).await;
        io.finish();
        found
    }

    /// Runs an operation that may be as long as the disk piece by piece. Each piece is checked as an
    /// operation of its own, so that a fence stops it and other I/O gets in between. An abort ends it
    /// with the current piece, and waits for that.
    async fn in_pieces(
        &self,
        nexus: &Rc<Nexus>,
        (operation, lun): (CommandId, u32),
        (at, len): (u64, u64),
        op: impl Fn(Extent) -> MediumOp,
    ) -> Result<(), IoError> {
        let unit = unit_at(nexus, lun)?;
        let whole = extent(&unit, at, len)?;
        let all = Io::begin(nexus, operation, lun, &unit);
        let done = self.pieces(&all, (operation, lun), whole, op).await;
        all.finish();
        done
    }

    async fn pieces(
        &self,
        all: &Io,
        (operation, lun): (CommandId, u32),
        whole: Extent,
        op: impl Fn(Extent) -> MediumOp,
    ) -> Result<(), IoError> {
        let step = PIECE_BYTES / u64::from(whole.block_size_bytes);
        let (nexus, unit) = (&all.nexus, &all.unit);
        let aborts = nexus.aborts(lun);
        let mut done = 0;
        while done < whole.blocks {
            if nexus.aborts(lun) != aborts {
                return Err(IoError::Aborted);
            }
            let piece = Extent {
                lba: whole.lba + done,
                blocks: step.min(whole.blocks - done),
                ..whole
            };
            let io = Io::begin(nexus, operation, lun, unit);
            self.do_block(io, op(piece), Payload::new()).await?;
            done += piece.blocks;
        }
        Ok(())
    }

    /// Refuses longer transfers. There is no memory for them: a budget counts more than the whole as the whole.
    fn check_transfer(&self, extent: Extent) -> Result<(), IoError> {
        match extent.len_bytes() > self.transfer_max_bytes().into() {
            true => Err(IoError::TooLong),
            false => Ok(()),
        }
    }

    async fn read_extent(&self, io: Io, extent: Extent) -> Result<Payload, IoError> {
        let op = MediumOp::Read { extent, fua: false };
        self.do_block(io, op, Payload::new()).await
    }

    async fn do_block(&self, io: Io, op: MediumOp, data: Payload) -> Result<Payload, IoError> {
        let data = Cell::new(data);
        let executed = self.execute(io, (&op, &data), false, || true).await;
        executed.result
    }
}

fn unit_at(nexus: &Nexus, lun: u32) -> Result<Rc<Unit>, IoError> {
    let unit = nexus.unit(lun).filter(|_| !nexus.is_leaving.get());
    unit.ok_or(IoError::NoUnit)
}

/// The blocks that cover `len` bytes at byte `at`.
fn extent(unit: &Unit, at: u64, len: u64) -> Result<Extent, IoError> {
    let block_size_bytes = unit.block_size_bytes();
    let block = u64::from(block_size_bytes);
    let end = at.checked_add(len).ok_or(IoError::OutOfRange)?;
    if at % block != 0 || len % block != 0 {
        return Err(IoError::Misaligned);
    }
    if len == 0 || end > unit.len_bytes() {
        return Err(IoError::OutOfRange);
    }
    Ok(Extent {
        lba: at / block,
        blocks: len / block,
        block_size_bytes,
    })
}

#[cfg(test)]
mod tests;
