//! The floor of a mirror's copy: the highest key that it was ever fenced with, in what the mirror keeps at the copy's end.
//! Whoever serves the copy keeps it there, so that it is lost only together with the data, and lets in nobody below it.
//!
//! The copy's header tells a copy from any other volume, also once the disk has become longer ([`copy_end`]). Where there is
//! none, there is no floor, whatever keys are used.

use std::ops::RangeInclusive;

use engine::Buf;
use mirror::{
    copy::{Floor, MetadataBlock, newest},
    key::FenceKey,
};

pub use crate::copy_end::Search;
use crate::{
    Durability, Error, ErrorKind, Result, Volume,
    copy_end::{self, FoundCopy},
    member::{Order, Report},
};

/// The reservation keys of mirrors' fences, which are ordered as the fences were made.
pub const KEYS: RangeInclusive<u64> = FenceKey::ALL;

/// The floor of one copy, as it was read.
#[derive(Clone, Copy, Debug)]
pub struct CopyFloor {
    pub(crate) floor: Floor,
    sequence: u64,
    found: FoundCopy,
}

impl CopyFloor {
    /// The lowest key of [`KEYS`] that is let in; `None`: the copy was never fenced.
    pub fn lowest(&self) -> Option<u64> {
        self.floor.key.map(FenceKey::raw)
    }

    /// The floor once `key` was registered; `None` if it stays as it is.
    pub fn raised_to(&self, key: u64) -> Option<CopyFloor> {
        let floor = self.floor.raised_to(FenceKey::from_raw(key)?);
        (floor != self.floor).then_some(CopyFloor { floor, ..*self })
    }

    /// The floor once somebody has ended the mirror's reservation.
    pub fn lifted(&self) -> CopyFloor {
        CopyFloor {
            floor: Floor::default(),
            ..*self
        }
    }

    /// Where the copy's metadata ends, in bytes: that stays.
    pub fn end_bytes(&self) -> u64 {
        self.found.end_bytes
    }

    /// Whether the last block of the disk leads to the copy; otherwise it was found without it.
    pub fn is_told(&self) -> bool {
        self.found.is_told
    }

    /// Has the last block of the first `len_bytes` of `volume` lead to the copy, so that it is found there when the disk is
    /// that long. On return it is on persistent media.
    ///
    /// # Errors
    /// Those of the volume.
    pub async fn point_from(&self, volume: &dyn Volume, len_bytes: u64) -> Result<()> {
        copy_end::point(volume, len_bytes, self.end_bytes()).await
    }

    /// Writes it in the place of the one that was read. On return it is on persistent media.
    ///
    /// # Errors
    /// Those of the volume; either floor may be there then.
    pub async fn write(&self, volume: &dyn Volume) -> Result<()> {
        let next = self.sequence + 1;
        let at = MetadataBlock::Floor((next % 2) as usize).at(self.end_bytes());
        let block = Buf::copy_of(&self.floor.encode(next));
        volume.write(at, block.into(), Durability::Fua).await
    }
}

/// The floor of the copy on the first `len_bytes` of `volume`, whose metadata ended at `known_bytes` when it was last found;
/// `None`: there is no copy of a mirror. It is looked for without a request that would be counted: one read on most other
/// disks.
///
/// # Errors
/// Those of the volume; [`ErrorKind::Configuration`] if it is a copy whose floor is damaged.
pub async fn of(
    volume: &dyn Volume,
    len_bytes: u64,
    known_bytes: Option<u64>,
    search: Search,
) -> Result<Option<CopyFloor>> {
    let peeks = async |at| peek(volume, at).await;
    match copy_end::find(volume, len_bytes, known_bytes, search, peeks).await? {
        Ok(found) => read(volume, found).await.map(Some),
        Err(_) => Ok(None),
    }
}

/// The floor of a copy.
async fn read(volume: &dyn Volume, found: FoundCopy) -> Result<CopyFloor> {
    let mut slots = Vec::with_capacity(2);
    for slot in 0..2 {
        let block = peek(volume, MetadataBlock::Floor(slot).at(found.end_bytes)).await?;
        slots.push(Floor::decode(&block));
    }
    let slots: [_; 2] = slots.try_into().expect("two slots");
    let (sequence, floor) = newest(slots).map_err(|why| {
        let message = format!("it has no floor: {why}");
        Error::new(ErrorKind::Configuration, message)
    })?;
    Ok(CopyFloor {
        floor,
        sequence,
        found,
    })
}

/// Reads a block of what may be a copy.
async fn peek(volume: &dyn Volume, at: u64) -> Result<Vec<u8>> {
    match volume.member(Order::Peek(at)).await? {
        Report::Block(block) => Ok(block),
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "it has not read the block that it was asked for",
        )),
    }
}

#[cfg(test)]
mod tests {
    use mirror::{
        CopyId,
        copy::{BLOCK_BYTES, Header, METADATA_BYTES},
    };
    use set::label::{Generation, Label};
    use uuid::Uuid;

    use super::*;
    use crate::test_volume::{TestVolume, on_lane};

    const LEN_BYTES: usize = 2 << 20;

    async fn put(volume: &dyn Volume, place: MetadataBlock, block: &[u8]) {
        let at = place.at(LEN_BYTES as u64);
        let written = volume.write(at, Buf::copy_of(block).into(), Durability::Fua);
        written.await.expect("a write");
    }

    #[test]
    fn no_key_of_a_stripes_claim_is_taken_for_that_of_a_fence() {
        for owner in 1..10_000 {
            let key = Label {
                nonce: 1,
                owner: Uuid::from_u128(owner),
                boot: Uuid::nil(),
                since_unix_s: 0,
                name: String::new(),
                generation: Generation::default(),
            }
            .key();
            assert!(!KEYS.contains(&key), "owner {owner}: {key:#x}");
        }
    }

    #[test]
    fn a_floor_is_kept_on_copies_alone_and_a_torn_write_of_it_leaves_the_older_one() {
        on_lane(async {
            let volume = TestVolume::new(LEN_BYTES);
            let found = async || of(&*volume, LEN_BYTES as u64, None, Search::Told).await;
            assert!(found().await.expect("it is read").is_none());
            let header = Header::new(
                Uuid::from_u128(7),
                CopyId::new(0),
                LEN_BYTES as u64 - METADATA_BYTES,
                512,
            );
            put(
                &*volume,
                MetadataBlock::Header,
                &header.encode(LEN_BYTES as u64),
            )
            .await;
            let damaged = found().await.expect_err("no floor");
            assert_eq!(damaged.kind(), ErrorKind::Configuration, "{damaged}");
            for sequence in 0..2 {
                let block = Floor::default().encode(sequence);
                put(&*volume, MetadataBlock::Floor(sequence as usize), &block).await;
            }
            let floor = async || found().await.expect("it is read").expect("a copy");
            assert_eq!(floor().await.lowest(), None);
            let [older, newer] =
                [(4, 0), (5, 0)].map(|(epoch, number)| FenceKey::new(epoch, number).raw());
            for key in [older, newer] {
                let raised = floor().await.raised_to(key).expect("it is higher");
                raised.write(&*volume).await.expect("a write");
                assert_eq!(floor().await.lowest(), Some(key));
            }
            assert!(floor().await.raised_to(older).is_none());
            assert!(floor().await.raised_to(0x1234).is_none(), "no fence's key");
            // The last one went to the slot of the sequence number 3.
            put(&*volume, MetadataBlock::Floor(1), &[0xEE; BLOCK_BYTES]).await;
            assert_eq!(floor().await.lowest(), Some(older));
            floor()
                .await
                .lifted()
                .write(&*volume)
                .await
                .expect("a write");
            assert_eq!(floor().await.lowest(), None);
        });
    }
}
