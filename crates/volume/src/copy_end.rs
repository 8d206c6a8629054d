//! Where the metadata of a mirror's copy ends: at the end that the disk had when it became a copy. A disk that becomes longer
//! keeps it there, and its place is told by
//!
//! 1. the last block: the header itself, or a [`Signpost`];
//! 2. the one who looks, if it has found the copy before;
//! 3. the file system, if nobody was there when the disk became longer: what it has grown by occupies no space, and the
//!    header is the last that does. It is asked where nobody waits for a first command.

use std::ops::Range;

use engine::Buf;
use mirror::{
    Unreadable,
    copy::{BLOCK_BYTES, Header, METADATA_BYTES, MetadataBlock, Signpost},
};

use crate::{Durability, Result, Volume};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// How far from the end a file system is first asked what occupies space, in bytes.
const TAIL_BYTES: u64 = 1 << 20;
/// How often it is asked at most: a disk of countless holes holds up nobody's start.
const QUERIES_MAX: usize = 1000;
/// How many parts that occupy space are looked at, from the end.
const RUNS_MAX: usize = 4;
/// The largest unit in which a file system sets space aside, in blocks: so many before its end may be blank.
const BLANK_BLOCKS_MAX: u64 = 16;

/// A copy of a mirror, as it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FoundCopy {
    pub(crate) header: Header,
    /// Where its metadata ends.
    pub(crate) end_bytes: u64,
    /// Whether the last block of the disk leads there.
    pub(crate) is_told: bool,
}

/// What was found, or why that is no copy.
pub(crate) type Finding = std::result::Result<FoundCopy, Unreadable>;

/// The last whole block of a disk of `len_bytes` ends there.
pub(crate) fn last_end(len_bytes: u64) -> u64 {
    len_bytes / BLOCK * BLOCK
}

/// How a copy is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// Where it is told to be: a read or two.
    Told,
    /// Also by asking the file system, which takes its time.
    Everywhere,
}

/// Finds the copy on the first `len_bytes` of `volume`, where it was found before with its metadata ending at `known_bytes`.
/// Blocks are read by `read`.
///
/// # Errors
/// Those of `read`. If there is no copy, the outcome is what the last block is instead.
pub(crate) async fn find(
    volume: &dyn Volume,
    len_bytes: u64,
    known_bytes: Option<u64>,
    search: Search,
    read: impl AsyncFn(u64) -> Result<Vec<u8>>,
) -> Result<Finding> {
    let last = last_end(len_bytes);
    let is_place =
        |end_bytes: u64| end_bytes > METADATA_BYTES && end_bytes <= last && end_bytes % BLOCK == 0;
    // The copy whose header or signpost ends there.
    let told_at = async |end_bytes: u64| -> Result<Finding> {
        if !is_place(end_bytes) {
            return Ok(Err(Unreadable::Blank));
        }
        let is_told = end_bytes == last;
        let found = |header, end_bytes| FoundCopy {
            header,
            end_bytes,
            is_told,
        };
        let block = read(MetadataBlock::Header.at(end_bytes)).await?;
        let none = match Header::decode(&block, end_bytes) {
            Ok(header) => return Ok(Ok(found(header, end_bytes))),
            Err(none) => none,
        };
        let signpost = Signpost::decode(&block).ok();
        let Some(led) = signpost.map(|it| it.end_bytes).filter(|it| is_place(*it)) else {
            return Ok(Err(none));
        };
        let block = read(MetadataBlock::Header.at(led)).await?;
        let header = Header::decode(&block, led);
        Ok(header.map(|header| found(header, led)))
    };
    let none = match told_at(last).await? {
        Ok(found) => return Ok(Ok(found)),
        Err(none) => none,
    };
    if let Some(known_bytes) = known_bytes {
        if let Ok(found) = told_at(known_bytes).await? {
            return Ok(Ok(found));
        }
    }
    if none != Unreadable::Blank || search == Search::Told {
        return Ok(Err(none));
    }
    let found = search_used(volume, len_bytes, told_at).await?;
    Ok(found.ok_or(none))
}

/// The copy whose header is the last block that is used. `told_at` says what is told by the block that ends at a byte.
async fn search_used(
    volume: &dyn Volume,
    len_bytes: u64,
    told_at: impl AsyncFn(u64) -> Result<Finding>,
) -> Result<Option<FoundCopy>> {
    let last = last_end(len_bytes);
    let mut below = len_bytes;
    for _ in 0..RUNS_MAX {
        // A disk of which nothing is used is asked once.
        if is_free(volume, below).await {
            return Ok(None);
        }
        let Some(run) = last_used(volume, below).await else {
            return Ok(None);
        };
        let mut end_bytes = run.end.next_multiple_of(BLOCK);
        if end_bytes >= last && run.end - run.start > BLANK_BLOCKS_MAX * BLOCK {
            return Ok(None); // All of it occupies space.
        }
        for _ in 0..BLANK_BLOCKS_MAX {
            let told = match end_bytes == last {
                // It was read before anything was searched.
                true => Err(Unreadable::Blank),
                false => told_at(end_bytes).await?,
            };
            match told {
                Ok(found) => return Ok(Some(found)),
                Err(Unreadable::Blank) => end_bytes -= BLOCK,
                Err(_) => break,
            }
            if end_bytes <= run.start {
                break;
            }
        }
        if end_bytes > run.start {
            return Ok(None);
        }
        // A signpost of which a power cut has left nothing but the space.
        below = run.start;
    }
    Ok(None)
}

/// Has the last block of the first `len_bytes` of `volume` lead to the copy whose metadata ends at `end_bytes`. On return
/// that is on persistent media.
///
/// # Errors
/// Those of the volume.
pub(crate) async fn point(volume: &dyn Volume, len_bytes: u64, end_bytes: u64) -> Result<()> {
    let last = last_end(len_bytes);
    if last == end_bytes {
        return Ok(());
    }
    let block = Buf::copy_of(&Signpost { end_bytes }.encode());
    let at = MetadataBlock::Header.at(last);
    volume.write(at, block.into(), Durability::Fua).await
}

/// Whether nothing of the first `len_bytes` occupies space.
async fn is_free(volume: &dyn Volume, len_bytes: u64) -> bool {
    let block = u64::from(volume.shape().block_size_bytes);
    let len_bytes = len_bytes / block * block;
    let found = volume.allocation(0, len_bytes).await;
    found.is_ok_and(|found| !found.is_mapped && found.len_bytes >= len_bytes)
}

/// The last part of the first `len_bytes` that occupies space, or the end of it; `None`: there is none, or it cannot be found
/// out, or not soon.
async fn last_used(volume: &dyn Volume, len_bytes: u64) -> Option<Range<u64>> {
    let block = u64::from(volume.shape().block_size_bytes);
    let len_bytes = len_bytes / block * block;
    let (mut free_from, mut tail_bytes, mut queries) = (len_bytes, TAIL_BYTES, 0);
    while free_from > 0 {
        let from = len_bytes.saturating_sub(tail_bytes) / block * block;
        let (mut at, mut used) = (from, None::<Range<u64>>);
        while at < free_from {
            queries += 1;
            if queries > QUERIES_MAX {
                return None;
            }
            // A block device does not know.
            let Ok(found) = volume.allocation(at, free_from - at).await else {
                return None;
            };
            let end = at + found.len_bytes;
            if found.is_mapped {
                let before = used.filter(|before| before.end == at);
                used = Some(before.map_or(at, |before| before.start)..end);
            }
            at = end;
        }
        if used.is_some() {
            return used;
        }
        free_from = from;
        tail_bytes = tail_bytes.saturating_mul(2);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use mirror::CopyId;
    use uuid::Uuid;

    use super::*;
    use crate::test_volume::{TestVolume, on_lane};

    const MIB: u64 = 1 << 20;
    const LONGEST: u64 = 8 * MIB;

    struct Disk(Rc<TestVolume>);

    impl Disk {
        async fn with_copy(end_bytes: u64) -> Disk {
            let disk = Disk(TestVolume::new(LONGEST as usize));
            let header = Header::new(Uuid::from_u128(7), CopyId::new(0), end_bytes - MIB, 512);
            disk.put(end_bytes, &header.encode(end_bytes)).await;
            disk
        }

        async fn put(&self, end_bytes: u64, block: &[u8]) {
            let at = MetadataBlock::Header.at(end_bytes);
            let written = self
                .0
                .write(at, Buf::copy_of(block).into(), Durability::Fua);
            written.await.expect("a write");
        }

        /// Where a copy is found on a disk of this length, and whether its end leads there.
        async fn found(&self, len_bytes: u64, known_bytes: Option<u64>) -> Option<(u64, bool)> {
            let read = async |at| Ok(self.0.read(at, BLOCK_BYTES).await?.to_vec());
            let found = find(&*self.0, len_bytes, known_bytes, Search::Everywhere, read).await;
            let found = found.expect("it is read").ok();
            found.map(|found| (found.end_bytes, found.is_told))
        }
    }

    #[test]
    fn a_copy_is_found_at_its_end_from_a_longer_one_and_again_when_that_is_cut_off() {
        on_lane(async {
            let disk = Disk::with_copy(3 * MIB).await;
            let told = Some((3 * MIB, true));
            assert_eq!(disk.found(3 * MIB, None).await, told);
            assert_eq!(disk.found(3 * MIB + 512, None).await, told);
            for longer in [4 * MIB, 6 * MIB + 512] {
                assert_eq!(disk.found(longer, None).await, None, "all may be in use");
                let known = disk.found(longer, Some(3 * MIB)).await;
                assert_eq!(known, Some((3 * MIB, false)));
                point(&*disk.0, longer, 3 * MIB).await.expect("a write");
                assert_eq!(disk.found(longer, None).await, told);
            }
            assert_eq!(disk.found(4 * MIB, None).await, told);
            assert_eq!(disk.found(3 * MIB, None).await, told);
            assert_eq!(disk.found(2 * MIB, None).await, None);
        });
    }

    #[test]
    fn what_leads_to_no_copy_is_not_followed() {
        on_lane(async {
            let disk = Disk::with_copy(3 * MIB).await;
            for end_bytes in [0, MIB, 2 * MIB, 3 * MIB - 512, 4 * MIB, 6 * MIB, u64::MAX] {
                disk.put(4 * MIB, &Signpost { end_bytes }.encode()).await;
                assert_eq!(
                    disk.found(4 * MIB, Some(end_bytes)).await,
                    None,
                    "{end_bytes}"
                );
            }
            assert_eq!(
                disk.found(4 * MIB, Some(3 * MIB)).await,
                Some((3 * MIB, false))
            );
            let newer = Header::new(Uuid::from_u128(8), CopyId::new(1), 3 * MIB, 512);
            disk.put(4 * MIB, &newer.encode(4 * MIB)).await;
            assert_eq!(
                disk.found(4 * MIB, Some(3 * MIB)).await,
                Some((4 * MIB, true))
            );
        });
    }
}
