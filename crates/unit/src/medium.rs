//! Performs the medium operations of SCSI commands and of block operations on a volume.

use std::{cell::Cell, rc::Rc};

use engine::{Buf, LaneFuture, Payload, rate::Rate, spend, time};
use scsi::{Extent, MediumOp};
use volume::{Allocation, CompareOutcome, Durability, ErrorKind, Volume};

use crate::{
    error::IoError,
    memory::{Charged, DiskMemory, Holder, LaneMemory, MemoryShare, Shares},
    wanted::{Wanted, while_wanted},
};

/// Blocks are compared and written in pieces of this size, in bytes.
pub(crate) const PIECE_BYTES: u64 = 64 << 10;

/// Limits how many multi-step operations run at a time: they need memory for a piece or two beyond what their command has
/// paid for ([`Plan`](crate::memory::Plan)). No nexus and no disk has [more of them](crate::memory::Shares) than it leaves
/// to others, so that these need not wait until its long commands have ended.
///
/// An operation takes its permit before it waits for its lock and its gate, and keeps it until it ends. If it took
/// the permit later, it would lock its blocks while waiting for operations on other volumes, and its access would
/// have to be checked again after that wait, because its nexus may have been fenced meanwhile. This order cannot
/// deadlock: an operation that waits for a permit holds only memory; one that has its permit waits only for locks and
/// gates; and one that holds those waits only for its volume.
pub(crate) struct Steps {
    nexus: Rc<Holder>,
    lane: Rc<Shares>,
}

impl Steps {
    /// For one nexus of a lane with this memory.
    pub(crate) fn of_nexus(lane: &LaneMemory) -> Steps {
        Steps {
            nexus: Rc::default(),
            lane: lane.steps.clone(),
        }
    }

    /// Waits for the permit that `op` on `disk` needs, if it takes several steps.
    ///
    /// # Errors
    /// It is no longer `wanted`.
    pub(crate) async fn take_for(
        &self,
        op: &MediumOp,
        disk: &DiskMemory,
        wanted: &impl Wanted,
    ) -> Result<Option<MemoryShare>, ()> {
        if is_one_call(op) {
            return Ok(None);
        }
        let charged = Charged::new(&self.nexus, Some(&disk.steps));
        // Boxed, so that the short operations do without the memory.
        let taken = LaneFuture::new(while_wanted(wanted, self.lane.take(charged, 1)));
        taken.await.map(Some).ok_or(())
    }
}

/// Whether `op` is one call of its volume, which needs no permit and no memory of its own.
fn is_one_call(op: &MediumOp) -> bool {
    matches!(
        op,
        MediumOp::Read { .. }
            | MediumOp::Write { .. }
            | MediumOp::WriteAtomic { .. }
            | MediumOp::Zero { .. }
            | MediumOp::Flush { .. }
    )
}

/// Performs `op`, taking its data-out, if any, from `data`. Returns the data-in of a read. The caller has
/// [taken](Steps::take_for) the permit that it needs.
pub(crate) async fn perform(
    volume: &dyn Volume,
    op: &MediumOp,
    data: &Cell<Payload>,
) -> Result<Payload, IoError> {
    match op {
        MediumOp::Read { extent, fua } => {
            if *fua && volume.shape().volatile_cache {
                let flushed = volume.flush().await;
                flushed.map_err(|e| failed(&e, IoError::FlushFailed))?;
            }
            let len = extent.len_bytes() as usize;
            let read = volume.read(extent.offset_bytes(), len).await;
            let data = read.map_err(|e| failed(&e, IoError::ReadFailed))?;
            // What follows it in the reply would take the place of what is missing.
            assert_eq!(data.len(), len, "a volume has read another length");
            Ok(data)
        }
        MediumOp::Write { extent, fua } => {
            let written = volume.write(extent.offset_bytes(), data.take(), durability(*fua));
            written.await.map(nothing).map_err(not_written)
        }
        MediumOp::WriteAtomic { extent, fua } => {
            let written = volume.write_atomic(extent.offset_bytes(), data.take(), durability(*fua));
            written.await.map(nothing).map_err(not_written)
        }
        MediumOp::Zero { extent, unmap } => {
            let (at, len) = (extent.offset_bytes(), extent.len_bytes());
            let zeroed = volume.write_zeroes(at, len, *unmap, Durability::Cached);
            zeroed.await.map(nothing).map_err(not_written)
        }
        MediumOp::Flush { .. } => {
            let flushed = volume.flush().await.map(nothing);
            flushed.map_err(|e| failed(&e, IoError::FlushFailed))
        }
        // Multi-step operations are boxed, so that the short ones do without the memory.
        _ => LaneFuture::new(in_steps(volume, op, data.take())).await,
    }
}

/// Performs an operation that takes several calls.
async fn in_steps(volume: &dyn Volume, op: &MediumOp, data: Payload) -> Result<Payload, IoError> {
    match op {
        MediumOp::WriteVerify { extent, compare } => {
            write_verify(volume, extent, *compare, data).await
        }
        MediumOp::CompareAndWrite { extent, fua } => {
            compare_and_write(volume, extent, *fua, data).await
        }
        MediumOp::OrWrite { extent, fua } => or_write(volume, extent, *fua, data).await,
        MediumOp::LbaStatus { extent, len_bytes } => lba_status(volume, extent, *len_bytes).await,
        MediumOp::Verify { extent } => verify(volume, extent).await,
        MediumOp::Compare { extent } => compare(volume, extent, &data).await,
        MediumOp::CompareSame { extent, block } => compare_same(volume, extent, block).await,
        MediumOp::WriteSame { extent, block } => write_same(volume, extent, block).await,
        MediumOp::Unmap { extents } => unmap(volume, extents).await,
        _ => unreachable!("`perform` makes the calls of operations that are one"),
    }
}

async fn write_verify(
    volume: &dyn Volume,
    extent: &Extent,
    compares: bool,
    data: Payload,
) -> Result<Payload, IoError> {
    let written = volume.write(extent.offset_bytes(), data.clone(), Durability::Fua);
    written.await.map_err(not_written)?;
    match compares {
        true => compare(volume, extent, &data).await,
        false => verify(volume, extent).await,
    }
}

async fn compare_and_write(
    volume: &dyn Volume,
    extent: &Extent,
    fua: bool,
    data: Payload,
) -> Result<Payload, IoError> {
    let (at, durability) = (extent.offset_bytes(), durability(fua));
    if volume.shape().compare_and_write_max_bytes > 0 {
        // Others write to what is below: it must compare.
        let compared = volume.compare_and_write(at, data, durability);
        return match compared.await.map_err(not_written)? {
            CompareOutcome::Written => Ok(Payload::new()),
            CompareOutcome::Differs { offset_bytes } => Err(IoError::Miscompare { offset_bytes }),
        };
    }
    let half = extent.len_bytes() as usize;
    compare(volume, extent, &data).await?;
    let new = data.slice(half..2 * half);
    let written = volume.write(at, new, durability);
    written.await.map(nothing).map_err(not_written)
}

async fn or_write(
    volume: &dyn Volume,
    extent: &Extent,
    fua: bool,
    data: Payload,
) -> Result<Payload, IoError> {
    let mut done = 0;
    for (at, len) in pieces(extent) {
        let stored = read(volume, (at, len)).await?;
        spend(2 * len).await;
        let mut result = Buf::new(len);
        stored.copy_to(0, &mut result);
        drop(stored);
        let given = data.slice(done..done + len);
        let given = given.slices().iter().flat_map(|slice| slice.iter());
        for (byte, given) in result.iter_mut().zip(given) {
            *byte |= given;
        }
        let written = volume.write(at, result.into(), durability(fua));
        written.await.map_err(not_written)?;
        done += len;
    }
    Ok(Payload::new())
}

async fn lba_status(
    volume: &dyn Volume,
    extent: &Extent,
    len_bytes: u32,
) -> Result<Payload, IoError> {
    let found = allocation(volume, extent).await?;
    let alike = Extent {
        blocks: (found.len_bytes / u64::from(extent.block_size_bytes)).max(1),
        ..*extent
    };
    let data = scsi::lba_status(alike, found.is_mapped);
    Ok(Buf::copy_of(&data[..len_bytes as usize]).into())
}

/// Whether the first byte of `extent` is allocated, and for how much of the extent the same holds.
pub(crate) async fn allocation(
    volume: &dyn Volume,
    extent: &Extent,
) -> Result<Allocation, IoError> {
    let found = volume.allocation(extent.offset_bytes(), extent.len_bytes());
    found.await.map_err(|e| failed(&e, IoError::ReadFailed))
}

/// Compares every block of `extent` with `block`.
async fn compare_same(
    volume: &dyn Volume,
    extent: &Extent,
    block: &[u8],
) -> Result<Payload, IoError> {
    let pattern = repeated(block, PIECE_BYTES.min(extent.len_bytes()) as usize);
    let mut done = 0;
    for piece in pieces(extent) {
        let stored = read(volume, piece).await?;
        spend(2 * stored.len()).await;
        if let Some(at) = first_difference(&stored, &pattern, 0) {
            return Err(miscompare(done + at));
        }
        done += stored.len();
    }
    Ok(Payload::new())
}

async fn write_same(
    volume: &dyn Volume,
    extent: &Extent,
    block: &[u8],
) -> Result<Payload, IoError> {
    let pattern = repeated(block, PIECE_BYTES.min(extent.len_bytes()) as usize);
    for (at, len) in pieces(extent) {
        let written = volume.write(at, pattern.slice(0..len), Durability::Cached);
        written.await.map_err(not_written)?;
    }
    Ok(Payload::new())
}

async fn unmap(volume: &dyn Volume, extents: &[Extent]) -> Result<Payload, IoError> {
    for extent in extents {
        let discarded = volume.discard(extent.offset_bytes(), extent.len_bytes());
        discarded.await.map_err(not_written)?;
    }
    Ok(Payload::new())
}

/// The first `len_bytes` of a read or write, for when the initiator transfers less than the command
/// says. `None`: not even one block. Other operations are returned unchanged.
pub fn shortened(mut op: MediumOp, len_bytes: u64) -> Option<MediumOp> {
    match &mut op {
        MediumOp::Read { extent, .. }
        | MediumOp::Write { extent, .. }
        | MediumOp::WriteVerify { extent, .. } => {
            let block = u64::from(extent.block_size_bytes);
            extent.blocks = extent.blocks.min(len_bytes / block);
            (extent.blocks > 0).then_some(op)
        }
        _ => Some(op),
    }
}

fn durability(fua: bool) -> Durability {
    if fua {
        Durability::Fua
    } else {
        Durability::Cached
    }
}

/// Splits an extent into pieces of bounded length: offset and length in bytes.
fn pieces(extent: &Extent) -> impl Iterator<Item = (u64, usize)> + use<> {
    let (at, end) = (
        extent.offset_bytes(),
        extent.offset_bytes() + extent.len_bytes(),
    );
    (at..end)
        .step_by(PIECE_BYTES as usize)
        .map(move |start| (start, (end - start).min(PIECE_BYTES) as usize))
}

/// Reads `extent` and discards the data.
async fn verify(volume: &dyn Volume, extent: &Extent) -> Result<Payload, IoError> {
    for piece in pieces(extent) {
        read(volume, piece).await?;
    }
    Ok(Payload::new())
}

/// Compares `extent` with the beginning of `given`.
async fn compare(
    volume: &dyn Volume,
    extent: &Extent,
    given: &Payload,
) -> Result<Payload, IoError> {
    let mut done = 0;
    for piece in pieces(extent) {
        let stored = read(volume, piece).await?;
        spend(2 * stored.len()).await;
        if let Some(at) = first_difference(&stored, given, done) {
            return Err(miscompare(done + at));
        }
        done += stored.len();
    }
    Ok(Payload::new())
}

/// The first position, from `start` on, at which `a` differs from the same number of bytes of `b`.
fn first_difference(a: &Payload, b: &Payload, start: usize) -> Option<usize> {
    let mut skip = start;
    let mut rest = b.slices().iter().filter_map(|slice| {
        let from = skip.min(slice.len());
        skip -= from;
        (from < slice.len()).then(|| &slice[from..])
    });
    let mut other: &[u8] = &[];
    let mut at = 0;
    for slice in a.slices() {
        let mut left: &[u8] = slice;
        while !left.is_empty() {
            if other.is_empty() {
                other = rest.next()?;
            }
            let n = left.len().min(other.len());
            // Compare as a whole first, for which the library has a fast path.
            if left[..n] != other[..n] {
                let differs = left.iter().zip(other).position(|(a, b)| a != b);
                return differs.map(|differs| at + differs);
            }
            (left, other, at) = (&left[n..], &other[n..], at + n);
        }
    }
    None
}

async fn read(volume: &dyn Volume, (at, len): (u64, usize)) -> Result<Payload, IoError> {
    volume
        .read(at, len)
        .await
        .map_err(|e| failed(&e, IoError::ReadFailed))
}

/// `len` bytes that repeat `block`, a whole number of times.
pub(crate) fn repeated(block: &[u8], len: usize) -> Payload {
    let mut pattern = Buf::new(len);
    for place in pattern.chunks_mut(block.len()) {
        place.copy_from_slice(block);
    }
    pattern.into()
}

fn nothing((): ()) -> Payload {
    Payload::new()
}

fn miscompare(offset_bytes: usize) -> IoError {
    IoError::Miscompare {
        offset_bytes: offset_bytes as u64,
    }
}

fn not_written(error: volume::Error) -> IoError {
    failed(&error, IoError::WriteFailed)
}

thread_local! {
    /// Rate limit for logging failed I/Os, so that an initiator that keeps retrying one does not flood the log.
    static FAILURES: Cell<Rate> = Cell::default();
}

/// Logs `error` and gives its kind. `otherwise` says what a failure of the medium itself means here.
fn failed(error: &volume::Error, otherwise: IoError) -> IoError {
    let mut rate = FAILURES.get();
    // That a disk takes no writes is no failure.
    if error.kind() != ErrorKind::ReadOnly
        && let Some(suppressed) = rate.take(time::now())
    {
        tracing::warn!(%error, suppressed, "an I/O failed");
    }
    FAILURES.set(rate);
    IoError::of_volume(error, otherwise)
}
