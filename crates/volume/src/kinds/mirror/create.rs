//! Makes a mirror of volumes: writes what it keeps at the end of each. The first record says which copies are in sync;
//! the others are filled whole when the mirror is first served.
//!
//! The header comes last: a copy without one is no copy. The register comes first, so that a copy that has a header has a
//! register.

use std::ops::Range;

use ::mirror::{
    CopyId, CopySet,
    copy::{
        BITMAP_BLOCKS, BLOCK_BYTES, Bits, CopyState, Floor, Header, METADATA_BYTES, MetadataBlock,
        encode_bits,
    },
    register::Record,
};
use uuid::Uuid;

use super::{copy::Copy, register_place::RegisterPlace};
use crate::{Error, ErrorKind, Result, member::Looks};

/// What is read at a time to see whether a copy is blank, in bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// No block of a disk is larger, in bytes.
pub(super) const GRAIN_BYTES: u64 = 4096;

/// No region is marked.
const NO_BITS: Bits = [0; size_of::<Bits>()];

/// What a new mirror is made with.
pub(super) struct New<'a> {
    pub(super) mirror: Uuid,
    /// The copy whose data it has. `None`: it begins blank.
    pub(super) from: Option<usize>,
    /// Overwrite what the others hold, and the end of this one.
    pub(super) force: bool,
    pub(super) register: &'a RegisterPlace,
}

/// Makes `copies` a mirror.
///
/// # Errors
/// When a copy is not suitable, or holds something; nothing is written then. The copy's own error when an I/O fails.
pub(super) async fn create(copies: &[Copy], new: &New<'_>) -> Result<()> {
    for copy in copies {
        copy.ask_looks().await?;
    }
    let data_bytes = data_bytes(copies, new)?;
    let block_bytes = block_bytes(copies, new);
    let header = |place| Header::new(new.mirror, CopyId::new(place), data_bytes, block_bytes);
    for (place, copy) in copies.iter().enumerate() {
        copy.check(&header(place))?;
        copy.suits().await?;
    }
    if !new.force {
        check_all_blank(copies, data_bytes, new.from).await?;
    }
    let former = former_mirror(copies).await;
    let mut nonce = [0; 8];
    engine::random::fill(&mut nonce).map_err(|error| Error::io("a nonce", &error))?;
    let mut record = Record::first(new.mirror, copies.len(), u64::from_le_bytes(nonce));
    if !(new.from.is_none() && are_blank(&copies.iter().collect::<Vec<_>>(), 0..data_bytes).await?)
    {
        record.in_sync = CopySet::from(CopyId::new(new.from.unwrap_or(0)));
    }
    new.register.of(new.mirror).begin(record).await?;
    for (place, copy) in copies.iter().enumerate() {
        let written = write(copy, record, &header(place)).await;
        written.map_err(|error| copy.blame(error))?;
    }
    // If one disk has two names, both now have the header that was written last.
    for (place, copy) in copies.iter().enumerate() {
        let found = copy.look().await?;
        if found.mirror != new.mirror {
            return Err(copy.refuse(format_args!(
                "meanwhile it was made a copy of mirror {} elsewhere: end that, and run this again with --force",
                found.mirror
            )));
        }
        if found.copy.place() != place {
            return Err(copy.refuse("it is the same disk as another copy; give each copy its own"));
        }
    }
    if let Some(former) = former.filter(|it| *it != new.mirror) {
        if let Err(error) = new.register.of(former).end().await {
            tracing::warn!(%error, "the record of the mirror that the copies belonged to before is still there");
        }
    }
    Ok(())
}

/// The mirror whose copies all of these are so far.
async fn former_mirror(copies: &[Copy]) -> Option<Uuid> {
    let mut former = None;
    for copy in copies {
        let found = copy.look().await.ok()?.mirror;
        if *former.get_or_insert(found) != found {
            return None;
        }
    }
    former
}

/// The length of the data, which every copy has room for.
fn data_bytes(copies: &[Copy], new: &New<'_>) -> Result<u64> {
    let mut smallest = u64::MAX;
    for copy in copies {
        let looks = looks_of(copy);
        let data = looks.len_bytes.saturating_sub(METADATA_BYTES) / GRAIN_BYTES * GRAIN_BYTES;
        if data == 0 {
            return Err(copy.refuse(format_args!(
                "it has {} bytes; a copy needs its last {METADATA_BYTES} for what the mirror keeps there, and room for data",
                looks.len_bytes
            )));
        }
        smallest = smallest.min(data);
    }
    let Some(from) = new.from else {
        return Ok(smallest);
    };
    let Some(source) = copies.get(from) else {
        let message = format!(
            "there is no copy {from}: the mirror has {}, numbered from 0",
            copies.len()
        );
        return Err(Error::new(ErrorKind::Configuration, message));
    };
    let wanted = looks_of(source).len_bytes - METADATA_BYTES;
    let wanted = wanted / GRAIN_BYTES * GRAIN_BYTES;
    for copy in copies {
        let len_bytes = looks_of(copy).len_bytes;
        if len_bytes < wanted + METADATA_BYTES {
            return Err(copy.refuse(format_args!(
                "it has {len_bytes} bytes, fewer than {} with {}: make it at least as long",
                source.name,
                looks_of(source).len_bytes
            )));
        }
    }
    Ok(wanted)
}

/// The blocks in which it is used: what uses the data that it begins with knows those of its disk.
fn block_bytes(copies: &[Copy], new: &New<'_>) -> u64 {
    let known = new.from.map_or(copies, |from| &copies[from..=from]);
    let known = known
        .iter()
        .map(|copy| u64::from(looks_of(copy).block_size_bytes));
    known.max().expect("a mirror has copies")
}

fn looks_of(copy: &Copy) -> &Looks {
    copy.looks().expect("every copy was asked")
}

/// Refuses copies that hold something, other than what an attempt to make just this mirror has left that was cut short.
async fn check_all_blank(copies: &[Copy], data_bytes: u64, from: Option<usize>) -> Result<()> {
    let mut begun: Option<Uuid> = None;
    let mut made = 0;
    for (place, copy) in copies.iter().enumerate() {
        if let Ok(found) = copy.look().await {
            let is_one = *begun.get_or_insert(found.mirror) == found.mirror;
            let is_it = is_one && found.copy.place() == place;
            if !is_it || copy.look_at_kept().await?.record.epoch > 0 {
                return Err(taken(copy, &found));
            }
            made += 1;
        }
        check_unused(copy, data_bytes, from == Some(place)).await?;
    }
    if let Some(mirror) = begun.filter(|_| made == copies.len()) {
        let message = format!(
            "this is already done: the copies belong to mirror {mirror}, which was not used so far; serve it, or use --force to \
             make it anew"
        );
        return Err(Error::new(ErrorKind::Configuration, message));
    }
    Ok(())
}

/// A copy cannot be part of a new mirror.
fn taken(copy: &Copy, found: &Header) -> Error {
    copy.refuse(format_args!(
        "it is already copy {} of mirror {}; use another disk, or --force to give up that mirror",
        found.copy.place(),
        found.mirror
    ))
}

/// Refuses a copy that holds anything.
pub(super) async fn check_blank(copy: &Copy, data_bytes: u64) -> Result<()> {
    match copy.look().await {
        Ok(found) => Err(taken(copy, &found)),
        Err(_) => check_unused(copy, data_bytes, false).await,
    }
}

/// Refuses a copy that holds something where that would be overwritten: in its first MiB, unless its data `is_kept`, and
/// in its last.
async fn check_unused(copy: &Copy, data_bytes: u64, is_kept: bool) -> Result<()> {
    let len_bytes = looks_of(copy).len_bytes;
    let first = 0..PIECE_BYTES.min(data_bytes);
    let last = data_bytes.max(len_bytes - METADATA_BYTES) / GRAIN_BYTES * GRAIN_BYTES..len_bytes;
    for (range, is_data) in [(first, true), (last, false)] {
        if is_data && is_kept {
            continue;
        }
        let len = (range.end - range.start) as usize;
        let read = copy.volume.read(range.start, len).await;
        let read = read.map_err(|error| copy.blame(error))?.to_vec();
        let blocks = read
            .chunks(BLOCK_BYTES)
            .zip((range.start..).step_by(BLOCK_BYTES));
        let mut foreign = blocks.filter(|(block, at)| is_data || !is_left(copy, *at, block));
        let found = foreign.find_map(|(block, at)| {
            let within = block.iter().position(|&byte| byte != 0)?;
            Some(at + within as u64)
        });
        if let Some(at) = found {
            return Err(copy.refuse(match is_data {
                true => format!(
                    "it holds data (a nonzero byte at {at}); use a blank disk, or with `sanstone volume` --force to \
                     overwrite it, or --from to keep the data of one copy"
                ),
                false => format!(
                    "it holds data in its last MiB (a nonzero byte at {at}), where the mirror keeps its own; make it 1MiB \
                     longer, or use --force if nothing there is needed"
                ),
            }));
        }
    }
    Ok(())
}

/// Whether the `block` at `at` is one that [`write`] has left when it was cut short, of a copy that was not in use.
fn is_left(copy: &Copy, at: u64, block: &[u8]) -> bool {
    let is_at = |place: MetadataBlock| place.at(copy.end_bytes()) == at;
    let is_unused = |kept: &CopyState| kept.record.epoch == 0 || kept.in_sync_since == 0;
    let is_slot = |slot| {
        let kept = || CopyState::decode(block).is_ok_and(|(_, kept)| is_unused(&kept));
        let floor = || Floor::decode(block).is_ok_and(|(_, floor)| floor == Floor::default());
        (is_at(MetadataBlock::Kept(slot)) && kept())
            || (is_at(MetadataBlock::Floor(slot)) && floor())
    };
    let is_of_bitmap = (0..BITMAP_BLOCKS).any(|index| is_at(MetadataBlock::Bitmap(index)));
    let is_header = is_at(MetadataBlock::Header) && Header::decode(block, copy.end_bytes()).is_ok();
    (0..2).any(is_slot) || is_header || (is_of_bitmap && block == encode_bits(&NO_BITS))
}

/// Whether the copies are certainly equal in `range`, because nothing was ever written there.
pub(super) async fn are_blank(copies: &[&Copy], range: Range<u64>) -> Result<bool> {
    for copy in copies {
        let mut at = range.start;
        while at < range.end {
            let found = copy.volume.allocation(at, range.end - at).await;
            let found = found.map_err(|error| copy.blame(error))?;
            if found.is_mapped {
                return Ok(false);
            }
            at += found.len_bytes;
        }
    }
    Ok(true)
}

/// Writes everything that is kept on a copy, durably, the header last.
pub(super) async fn write(copy: &Copy, record: Record, header: &Header) -> Result<()> {
    copy.begins_anew();
    let is_in_sync = record.in_sync.contains(header.copy);
    let mut kept = CopyState::first(record);
    if !is_in_sync {
        kept.in_sync_since = 0;
    }
    for block in 0..BITMAP_BLOCKS {
        copy.write(MetadataBlock::Bitmap(block), &encode_bits(&NO_BITS))
            .await?;
    }
    for sequence in 0..2 {
        let slot = sequence as usize;
        copy.keep_as(sequence, &kept).await?;
        copy.write(
            MetadataBlock::Floor(slot),
            &Floor::default().encode(sequence),
        )
        .await?;
    }
    copy.head(header).await
}
