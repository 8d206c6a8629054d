//! A register on a LUN of a third machine, which several nodes can reach: [`LunRegister`]. It is changed by COMPARE AND
//! WRITE, which the LUN's target decides, so that of two owners one wins.
//!
//! The first MiB of the LUN has a slot of 4 KiB for each mirror, found by the mirror's identity in its record. Each write
//! is one block, which no disk tears. The LUN holds nothing else there, so that no other data is taken for blank slots.
//!
//! A record that is read may still be on its way to persistent media. So what is read is written once more, as it is, and
//! counts only once that has succeeded.

use std::cell::Cell;

use ::mirror::{
    Unreadable,
    register::{RECORD_BYTES, Record, RegisterRefusal, Swap},
};
use engine::{Buf, LaneFuture, Payload};
use uuid::Uuid;

use super::register::Register;
use crate::{
    CompareOutcome, Durability, Error, ErrorKind, Result, SharedVolume,
    member::{Looks, Order, Report},
};

const NO_COMPARE: &str = "its target has no COMPARE AND WRITE, without which two owners could both believe that they have the \
                          mirror: use a LUN of Sanstone or LIO";

/// What a mirror has of the LUN, in bytes: no block of a disk is larger.
const SLOT_BYTES: usize = 4096;
/// All slots, in bytes.
const AREA_BYTES: u64 = 1 << 20;
/// How much is read at a time, in bytes.
const PIECE_BYTES: u64 = 64 << 10;
/// How often it is tried to see or change what others are changing.
const ROUNDS_MAX: usize = 16;

/// A register in a slot of a LUN.
pub(super) struct LunRegister {
    /// What messages call it.
    name: String,
    volume: SharedVolume,
    mirror: Uuid,
    /// Where the mirror's slot is, once it was found: it stays there.
    slot: Cell<Option<u64>>,
}

/// What a slot holds.
enum SlotContent {
    Blank,
    /// A record.
    Taken(Record),
    /// Something of ours that this release cannot read.
    Unreadable,
    /// Something else.
    Foreign,
}

impl SlotContent {
    fn of(block: &[u8]) -> SlotContent {
        match Record::decode(block) {
            Ok(record) => SlotContent::Taken(record),
            Err(RegisterRefusal::Unreadable(Unreadable::Blank))
                if block.iter().all(|&byte| byte == 0) =>
            {
                SlotContent::Blank
            }
            Err(RegisterRefusal::Unreadable(Unreadable::Blank | Unreadable::Foreign)) => {
                SlotContent::Foreign
            }
            Err(_) => SlotContent::Unreadable,
        }
    }
}

/// The records in the first MiB of a LUN, or in less of it.
pub(crate) fn records(area: &[u8]) -> Vec<Record> {
    let slots = area.chunks_exact(SLOT_BYTES);
    slots.filter_map(|slot| Record::decode(slot).ok()).collect()
}

impl LunRegister {
    /// The register of `mirror` on `volume`, which messages call `name`.
    pub(super) fn new(name: String, volume: SharedVolume, mirror: Uuid) -> LunRegister {
        LunRegister {
            name,
            volume,
            mirror,
            slot: Cell::new(None),
        }
    }

    fn refuse(&self, why: impl std::fmt::Display) -> Error {
        Error::new(
            ErrorKind::Configuration,
            format!("{}: {why}", self.describe()),
        )
    }

    fn blame(&self, error: Error) -> Error {
        error.context(self.describe())
    }

    /// What the LUN looks like, if it can be a register.
    async fn look(&self) -> Result<Looks> {
        let told = self.volume.member(Order::Look).await;
        let Report::Looks(looks) = told.map_err(|error| self.blame(error))? else {
            return Err(self.refuse("it has not told what it is"));
        };
        if looks.compare_and_write_max_bytes == 0 {
            return Err(self.refuse(NO_COMPARE));
        }
        if looks.volatile_cache {
            return Err(self.refuse(
                "it has a volatile write cache, and a power cut could take a record back: switch it off at its target \
                 (WCE = 0; for Sanstone cache = \"direct-sync\" or \"write-through\")",
            ));
        }
        if looks.read_only {
            return Err(self.refuse("it is read-only"));
        }
        if looks.len_bytes < AREA_BYTES {
            return Err(self.refuse(format_args!(
                "it has {} bytes; a register needs 1MiB, which serves {} mirrors",
                looks.len_bytes,
                AREA_BYTES / SLOT_BYTES as u64
            )));
        }
        if looks.block_size_bytes as usize > SLOT_BYTES {
            return Err(self.refuse(format_args!(
                "its blocks have {} bytes; a register has room for {SLOT_BYTES}",
                looks.block_size_bytes
            )));
        }
        Ok(looks)
    }

    /// Finds the slot of the mirror, and the first blank one.
    async fn find(&self) -> Result<(Option<u64>, Option<u64>)> {
        let (mut own, mut blank) = (None, None);
        for piece in (0..AREA_BYTES).step_by(PIECE_BYTES as usize) {
            let read = self.volume.read(piece, PIECE_BYTES as usize).await;
            let read = read.map_err(|error| self.blame(error))?.to_vec();
            for (index, block) in read.chunks(SLOT_BYTES).enumerate() {
                let at = piece + (index * SLOT_BYTES) as u64;
                match SlotContent::of(block) {
                    SlotContent::Taken(record) if record.mirror == self.mirror => {
                        own = own.or(Some(at));
                    }
                    SlotContent::Blank => blank = blank.or(Some(at)),
                    SlotContent::Taken(_) | SlotContent::Unreadable => {}
                    SlotContent::Foreign => {
                        return Err(self.refuse(format_args!(
                            "it holds something else at byte {at}: name a LUN that is blank, and used for registers alone"
                        )));
                    }
                }
            }
        }
        Ok((own, blank))
    }

    /// Where the mirror's slot is, if it has one.
    async fn slot(&self) -> Result<Option<u64>> {
        if self.slot.get().is_none() {
            self.look().await?;
            self.slot.set(self.find().await?.0);
        }
        Ok(self.slot.get())
    }

    /// Writes `new` at `at` if `expected` is there. Returns whether it was.
    async fn compare(&self, at: u64, expected: &[u8], new: &[u8]) -> Result<bool> {
        let looks = self.look().await?;
        let block_bytes = looks.block_size_bytes as usize;
        let mut halves = Vec::with_capacity(2 * block_bytes);
        for half in [expected, new] {
            halves.extend(half);
            halves.resize(halves.len().next_multiple_of(block_bytes), 0);
        }
        let data: Payload = Buf::copy_of(&halves).into();
        let compared = self.volume.compare_and_write(at, data, Durability::Fua);
        match compared.await.map_err(|error| self.blame(error))? {
            CompareOutcome::Written => Ok(true),
            CompareOutcome::Differs { .. } => Ok(false),
        }
    }

    /// The record at `at`, once it is on persistent media.
    async fn settled(&self, at: u64) -> Result<Record> {
        for _ in 0..ROUNDS_MAX {
            let read = self.volume.read(at, SLOT_BYTES).await;
            let read = read.map_err(|error| self.blame(error))?.to_vec();
            let record = Record::decode(&read[..RECORD_BYTES]);
            let record = record.map_err(|why| self.refuse(why))?;
            let sector = record.encode();
            if self.compare(at, &sector, &sector).await? {
                return Ok(record);
            }
        }
        Err(self.is_changing())
    }

    fn is_changing(&self) -> Error {
        Error::new(
            ErrorKind::TimedOut,
            format!("{}: others keep changing it", self.describe()),
        )
    }

    async fn read_record(&self) -> Result<Option<Record>> {
        match self.slot().await? {
            Some(at) => Ok(Some(self.settled(at).await?)),
            None => Ok(None),
        }
    }

    async fn swap_record(&self, swap: Swap) -> Result<Record> {
        let Some(at) = self.slot().await? else {
            return Err(self.refuse("it has no record of this mirror any more"));
        };
        let (expected, new) = (swap.expect.encode(), swap.new.encode());
        match self.compare(at, &expected, &new).await? {
            true => Ok(swap.new),
            false => self.settled(at).await,
        }
    }

    async fn begin_with(&self, record: Record) -> Result<()> {
        self.look().await?;
        let sector = record.encode();
        for _ in 0..ROUNDS_MAX {
            let (at, held) = match self.find().await? {
                (Some(own), _) => (own, self.settled(own).await?.encode()),
                (None, Some(blank)) => (blank, vec![0; RECORD_BYTES]),
                (None, None) => {
                    return Err(self.refuse(format_args!(
                        "all of its {} slots are taken: use another disk",
                        AREA_BYTES / SLOT_BYTES as u64
                    )));
                }
            };
            let is_begun = self.compare(at, &held, &sector).await;
            // It says that it has the command, and has not (tgt).
            let is_begun = is_begun.map_err(|error| match error.kind() {
                ErrorKind::Protocol => self.refuse(format_args!("{NO_COMPARE} ({error})")),
                _ => error,
            });
            if is_begun? {
                self.slot.set(Some(at));
                return Ok(());
            }
        }
        Err(self.is_changing())
    }

    async fn end_record(&self) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let Some(at) = self.slot().await? else {
                return Ok(());
            };
            let held = self.settled(at).await?;
            // A slot that another mirror has taken meanwhile is that one's.
            let is_ended = held.mirror != self.mirror
                || self.compare(at, &held.encode(), &[0; RECORD_BYTES]).await?;
            if is_ended {
                self.slot.set(None);
                return Ok(());
            }
        }
        Err(self.is_changing())
    }
}

impl Register for LunRegister {
    fn read(&self) -> LaneFuture<'_, Result<Option<Record>>> {
        LaneFuture::new(self.read_record())
    }

    fn swap(&self, swap: Swap) -> LaneFuture<'_, Result<Record>> {
        LaneFuture::new(self.swap_record(swap))
    }

    fn begin(&self, record: Record) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.begin_with(record))
    }

    fn end(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.end_record())
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use ::mirror::copy::BLOCK_BYTES;

    use super::*;
    use crate::{
        Shape, Volume,
        test_volume::{TestVolume, on_lane},
    };

    /// A disk that compares before it writes.
    struct Comparing(Rc<TestVolume>);

    impl Volume for Comparing {
        crate::pass_on! {
            self => self.0;
            shape, read, write, write_atomic, write_zeroes, discard, flush, allocation, atomic_writes, member, close
        }

        fn compare_and_write(
            &self,
            at: u64,
            data: Payload,
            durability: Durability,
        ) -> LaneFuture<'_, Result<CompareOutcome>> {
            LaneFuture::new(async move {
                let data = data.to_vec();
                let (expected, new) = data.split_at(data.len() / 2);
                let held = self.read(at, expected.len()).await?.to_vec();
                let differs = held.iter().zip(expected).position(|(a, b)| a != b);
                if let Some(offset) = differs {
                    return Ok(CompareOutcome::Differs {
                        offset_bytes: offset as u64,
                    });
                }
                self.write(at, Buf::copy_of(new).into(), durability).await?;
                Ok(CompareOutcome::Written)
            })
        }
    }

    fn record(mirror: u128, nonce: u64) -> Record {
        Record::first(Uuid::from_u128(mirror), 2, nonce)
    }

    fn register(volume: &SharedVolume, mirror: u128) -> LunRegister {
        let name = "the register".to_owned();
        LunRegister::new(name, volume.clone(), Uuid::from_u128(mirror))
    }

    fn lun_of(len_bytes: u64, change: fn(&mut Shape)) -> SharedVolume {
        let volume = TestVolume::with(len_bytes as usize, |shape| {
            (shape.volatile_cache, shape.compare_and_write_max_bytes) = (false, 512);
            change(shape);
        });
        Rc::new(Comparing(volume))
    }

    fn lun() -> SharedVolume {
        lun_of(AREA_BYTES, |_| {})
    }

    #[test]
    fn of_two_swaps_of_one_record_one_wins_and_the_other_learns_of_it() {
        on_lane(async {
            let volume = lun();
            let (first, second) = (register(&volume, 1), register(&volume, 1));
            assert_eq!(first.read().await.expect("it is read"), None);
            let begun = record(1, 7);
            first.begin(begun).await.expect("a slot");
            assert_eq!(second.read().await.expect("it is read"), Some(begun));
            let (won, lost) = (begun.next(8), begun.next(9));
            let swapped = first.swap(Swap::new(begun, won)).await;
            assert_eq!(swapped.expect("an answer"), won);
            for register in [&second, &first] {
                let swapped = register.swap(Swap::new(begun, lost)).await;
                assert_eq!(swapped.expect("an answer"), won);
            }
            // A swap whose answer was lost is sent again.
            let again = first.swap(Swap::new(begun, won)).await;
            assert_eq!(again.expect("an answer"), won);
        });
    }

    #[test]
    fn each_mirror_has_a_slot_of_its_own() {
        on_lane(async {
            let volume = lun();
            for mirror in 1..=40 {
                let register = register(&volume, mirror);
                register.begin(record(mirror, 7)).await.expect("a slot");
            }
            for mirror in 1..=40 {
                let read = register(&volume, mirror).read().await;
                assert_eq!(read.expect("it is read"), Some(record(mirror, 7)));
            }
            let again = register(&volume, 3);
            again.begin(record(3, 7).next(8)).await.expect("its own");
            let read = register(&volume, 3).read().await.expect("it is read");
            assert_eq!(read, Some(record(3, 7).next(8)));
        });
    }

    #[test]
    fn the_slot_of_a_mirror_that_has_ended_is_the_next_ones() {
        on_lane(async {
            let volume = lun();
            let [one, two, three] = [1, 2, 3].map(|mirror| register(&volume, mirror));
            one.end().await.expect("it has none");
            one.begin(record(1, 7)).await.expect("a slot");
            two.begin(record(2, 7)).await.expect("a slot");
            let again = register(&volume, 1);
            again.end().await.expect("it is its own");
            three.begin(record(3, 7)).await.expect("a slot");
            assert_eq!(three.slot.get(), one.slot.get());
            let swapped = one.swap(Swap::new(record(1, 7), record(1, 7).next(8)));
            let found = swapped.await.expect("an answer");
            assert_eq!(found, record(3, 7), "whose that is tells whoever asked");
            one.end().await.expect("it has none any more");
            for (register, mirror) in [(two, 2), (three, 3)] {
                let read = register.read().await.expect("it is read");
                assert_eq!(read, Some(record(mirror, 7)));
            }
        });
    }

    #[test]
    fn a_lun_that_lacks_what_a_register_needs_is_refused() {
        on_lane(async {
            let volume = lun();
            let other: Payload = Buf::copy_of(&[0xEE; BLOCK_BYTES]).into();
            let written = volume.write(512 << 10, other, Durability::Fua);
            written.await.expect("a write");
            let begun = register(&volume, 1).begin(record(1, 7)).await;
            let error = begun.expect_err("it holds something").to_string();
            assert!(error.contains("something else at byte 524288"), "{error}");
            let cases = [
                (lun_of(AREA_BYTES - 512, |_| {}), "1MiB"),
                (
                    lun_of(AREA_BYTES, |shape| shape.volatile_cache = true),
                    "WCE = 0",
                ),
                (
                    lun_of(AREA_BYTES, |shape| shape.compare_and_write_max_bytes = 0),
                    "COMPARE AND WRITE",
                ),
            ];
            for (volume, why) in cases {
                let begun = register(&volume, 1).begin(record(1, 7)).await;
                let error = begun.expect_err("it is refused").to_string();
                assert!(error.contains(why), "{error}");
            }
        });
    }
}
