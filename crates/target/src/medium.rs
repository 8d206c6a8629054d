//! What a SCSI command asks of the medium, done with a volume; and a volume's errors in SCSI's words.

use engine::{Buf, Payload};
use scsi::{Extent, MediumError, MediumErrorKind, MediumOp};
use volume::{Durability, ErrorKind, Volume};

/// Blocks are compared and written in pieces of this, in bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// Does `op`; `data` is its data-out, if it takes any. Gives the data-in of a read.
pub(crate) async fn perform(
    volume: &dyn Volume,
    op: &MediumOp,
    data: Payload,
) -> Result<Payload, MediumError> {
    let nothing = |()| Payload::new();
    match op {
        MediumOp::Read { extent, fua } => {
            if *fua && volume.shape().volatile_cache {
                volume
                    .flush()
                    .await
                    .map_err(|e| told(&e, MediumErrorKind::Flush))?;
            }
            let len = extent.len_bytes() as usize;
            volume
                .read(extent.offset_bytes(), len)
                .await
                .map_err(|e| told(&e, MediumErrorKind::Read))
        }
        MediumOp::Write { extent, fua } => volume
            .write(extent.offset_bytes(), data, durability(*fua))
            .await
            .map(nothing)
            .map_err(|e| told(&e, MediumErrorKind::Write)),
        MediumOp::WriteAtomic { extent, fua } => volume
            .write_atomic(extent.offset_bytes(), data, durability(*fua))
            .await
            .map(nothing)
            .map_err(|e| told(&e, MediumErrorKind::Write)),
        MediumOp::WriteVerify { extent, compare } => {
            volume
                .write(extent.offset_bytes(), data.clone(), Durability::Fua)
                .await
                .map_err(|e| told(&e, MediumErrorKind::Write))?;
            match compare {
                true => self::compare(volume, extent, &data).await,
                false => verify(volume, extent).await,
            }
        }
        MediumOp::CompareAndWrite { extent, fua } => {
            let half = extent.len_bytes() as usize;
            self::compare(volume, extent, &data.slice(0..half)).await?;
            volume
                .write(
                    extent.offset_bytes(),
                    data.slice(half..2 * half),
                    durability(*fua),
                )
                .await
                .map(nothing)
                .map_err(|e| told(&e, MediumErrorKind::Write))
        }
        MediumOp::OrWrite { extent, fua } => {
            let len = extent.len_bytes() as usize;
            let stored = read(volume, (extent.offset_bytes(), len)).await?.to_vec();
            let mut result = Buf::copy_of(&stored);
            for (byte, given) in result.iter_mut().zip(data.to_vec()) {
                *byte |= given;
            }
            volume
                .write(extent.offset_bytes(), result.into(), durability(*fua))
                .await
                .map(nothing)
                .map_err(|e| told(&e, MediumErrorKind::Write))
        }
        MediumOp::LbaStatus { extent, len_bytes } => {
            let found = volume
                .allocation(extent.offset_bytes(), extent.len_bytes())
                .await
                .map_err(|e| told(&e, MediumErrorKind::Read))?;
            let alike = Extent {
                blocks: (found.len_bytes / u64::from(extent.block_size_bytes)).max(1),
                ..*extent
            };
            let data = scsi::lba_status(alike, found.is_mapped);
            Ok(Buf::copy_of(&data[..*len_bytes as usize]).into())
        }
        MediumOp::Flush { .. } => volume
            .flush()
            .await
            .map(nothing)
            .map_err(|e| told(&e, MediumErrorKind::Flush)),
        MediumOp::Verify { extent } => verify(volume, extent).await,
        MediumOp::Compare { extent } => compare(volume, extent, &data).await,
        MediumOp::CompareSame { extent, block } => {
            let mut done = 0;
            for piece in pieces(extent) {
                let stored = read(volume, piece).await?.to_vec();
                for stored in stored.chunks(block.len()) {
                    if let Some(at) = stored.iter().zip(block).position(|(a, b)| a != b) {
                        return Err(miscompare(done + at));
                    }
                    done += stored.len();
                }
            }
            Ok(Payload::new())
        }
        MediumOp::WriteSame { extent, block } => {
            let longest = PIECE_BYTES.min(extent.len_bytes()) as usize;
            let mut pattern = Buf::new(longest);
            for place in pattern.chunks_mut(block.len()) {
                place.copy_from_slice(block);
            }
            let pattern = Payload::from(pattern);
            for (at, len) in pieces(extent) {
                volume
                    .write(at, pattern.slice(0..len), Durability::Cached)
                    .await
                    .map_err(|e| told(&e, MediumErrorKind::Write))?;
            }
            Ok(Payload::new())
        }
        MediumOp::Zero { extent, unmap } => volume
            .write_zeroes(
                extent.offset_bytes(),
                extent.len_bytes(),
                *unmap,
                Durability::Cached,
            )
            .await
            .map(nothing)
            .map_err(|e| told(&e, MediumErrorKind::Write)),
        MediumOp::Unmap { extents } => {
            for extent in extents {
                volume
                    .discard(extent.offset_bytes(), extent.len_bytes())
                    .await
                    .map_err(|e| told(&e, MediumErrorKind::Write))?;
            }
            Ok(Payload::new())
        }
    }
}

/// The first `len_bytes` of a read or write: what is left of it when the initiator takes or gives
/// less than the command says. `None`: not even one block. Other operations are not shortened.
pub(crate) fn shortened(mut op: MediumOp, len_bytes: u64) -> Option<MediumOp> {
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

/// An extent in pieces of bounded length: offset and length in bytes.
fn pieces(extent: &Extent) -> impl Iterator<Item = (u64, usize)> + use<> {
    let (at, end) = (
        extent.offset_bytes(),
        extent.offset_bytes() + extent.len_bytes(),
    );
    (at..end)
        .step_by(PIECE_BYTES as usize)
        .map(move |start| (start, (end - start).min(PIECE_BYTES) as usize))
}

/// Reads `extent` and gives nothing.
async fn verify(volume: &dyn Volume, extent: &Extent) -> Result<Payload, MediumError> {
    for piece in pieces(extent) {
        read(volume, piece).await?;
    }
    Ok(Payload::new())
}

/// Compares `extent` with `given`, as long as it.
async fn compare(
    volume: &dyn Volume,
    extent: &Extent,
    given: &Payload,
) -> Result<Payload, MediumError> {
    let mut done = 0;
    for piece in pieces(extent) {
        let stored = read(volume, piece).await?.to_vec();
        let given = given.slice(done..done + stored.len()).to_vec();
        if let Some(at) = stored.iter().zip(&given).position(|(a, b)| a != b) {
            return Err(miscompare(done + at));
        }
        done += stored.len();
    }
    Ok(Payload::new())
}

async fn read(volume: &dyn Volume, (at, len): (u64, usize)) -> Result<Payload, MediumError> {
    volume
        .read(at, len)
        .await
        .map_err(|e| told(&e, MediumErrorKind::Read))
}

fn miscompare(offset_bytes: usize) -> MediumError {
    let kind = MediumErrorKind::Miscompare {
        offset_bytes: offset_bytes as u64,
    };
    MediumError { kind, lba: None }
}

/// `error` in SCSI's words; `otherwise` is what a failure of the medium itself means here.
fn told(error: &volume::Error, otherwise: MediumErrorKind) -> MediumError {
    tracing::warn!(%error, "an I/O failed");
    let kind = match error.kind() {
        ErrorKind::ReadOnly => MediumErrorKind::WriteProtected,
        ErrorKind::NoSpace => MediumErrorKind::OutOfSpace,
        ErrorKind::Unreachable | ErrorKind::TimedOut => MediumErrorKind::NotReady,
        ErrorKind::FlushFailed | ErrorKind::Protocol | ErrorKind::Configuration => {
            MediumErrorKind::Failed
        }
        _ => otherwise,
    };
    MediumError { kind, lba: None }
}
