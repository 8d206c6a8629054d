//! One copy of a mirror: the volume that holds it, and what the mirror keeps at its end, or at its former end.

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::Rc,
};

use ::mirror::{
    CopyId, Regions, Unreadable,
    copy::{
        BITMAP_BLOCKS, BLOCK_BYTES, Bits, CopyState, Header, METADATA_BYTES, MetadataBlock,
        decode_bits, encode_bits, newest,
    },
};
use engine::{Buf, Payload};

use super::calls::Calls;
use crate::{
    Durability, Error, ErrorKind, Result, SharedVolume,
    copy_end::{self, FoundCopy, Search},
    member::{Looks, Order, Report},
    planted::{Bug, is_planted},
};

/// Words of a block of the bitmap.
const WORDS_PER_BLOCK: usize = size_of::<Bits>() / 8;

/// A copy, on the mirror's home lane.
pub(super) struct Copy {
    /// What messages call it.
    pub(super) name: String,
    pub(super) volume: SharedVolume,
    pub(super) calls: Calls,
    /// What was last kept there, as its owner knows, and its sequence number.
    last: Cell<Option<(u64, CopyState)>>,
    /// It was found to keep something older.
    is_set_back: Cell<bool>,
    /// Why it was last given up.
    trouble: RefCell<Option<Error>>,
    /// Since it could first be reached.
    looks: OnceCell<Looks>,
    /// Where the metadata was found to end. `None`: it lies, or shall lie, at the end.
    found_at: Cell<Option<u64>>,
    /// Its header was found to be that of this mirror and place.
    is_known: Cell<bool>,
    /// The disk that is about to take its place: it does not return meanwhile.
    pub(super) next: RefCell<Option<Rc<Copy>>>,
}

impl Copy {
    pub(super) fn new(name: String, volume: SharedVolume) -> Copy {
        Copy {
            name,
            volume,
            calls: Calls::default(),
            last: Cell::new(None),
            is_set_back: Cell::new(false),
            trouble: RefCell::default(),
            looks: OnceCell::new(),
            found_at: Cell::new(None),
            is_known: Cell::new(false),
            next: RefCell::default(),
        }
    }

    /// It has answered: whatever its trouble was, it is over. Returns that.
    pub(super) fn recovers(&self) -> Option<Error> {
        self.trouble.take()
    }

    /// It is in trouble. Returns whether that is news.
    pub(super) fn suffers(&self, error: &Error) -> bool {
        self.trouble.replace(Some(error.clone())).is_none()
    }

    /// Why it was last given up.
    pub(super) fn trouble(&self) -> Option<Error> {
        self.trouble.borrow().clone()
    }

    /// Why it was last given up, without its name.
    pub(super) fn trouble_told(&self) -> Option<String> {
        let told = self.trouble()?.to_string();
        let name = format!("{}: ", self.name);
        Some(told.strip_prefix(&name).unwrap_or(&told).to_owned())
    }

    /// An error about it, with its name once.
    pub(super) fn blame(&self, error: Error) -> Error {
        match error.to_string().starts_with(&format!("{}: ", self.name)) {
            true => error,
            false => error.context(&self.name),
        }
    }

    /// Refuses it.
    pub(super) fn refuse(&self, why: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Configuration, format!("{}: {why}", self.name))
    }

    /// What it looks like, once it could be reached.
    pub(super) fn looks(&self) -> Option<&Looks> {
        self.looks.get()
    }

    /// Asks what it looks like, unless that is known.
    pub(super) async fn ask_looks(&self) -> Result<&Looks> {
        if self.looks.get().is_none() {
            let told = self.volume.member(Order::Look).await;
            let Report::Looks(looks) = told.map_err(|error| self.blame(error))? else {
                return Err(self.refuse("it has not told its length"));
            };
            let _ = self.looks.set(looks);
        }
        Ok(self.looks.get().expect("it was just set"))
    }

    /// Refuses it if it says itself that it cannot be a copy.
    pub(super) async fn suits(&self) -> Result<()> {
        let told = self.volume.member(Order::Suits).await;
        told.map(drop).map_err(|error| self.blame(error))
    }

    /// Where the metadata ends.
    pub(super) fn end_bytes(&self) -> u64 {
        let len_bytes = self.looks.get().map_or(0, |looks| looks.len_bytes);
        assert!(len_bytes > METADATA_BYTES, "it was looked at before");
        let found = self.found_at.get();
        found.unwrap_or_else(|| copy_end::last_end(len_bytes))
    }

    /// It becomes a copy anew: whatever it was, its metadata shall lie at its end.
    pub(super) fn begins_anew(&self) {
        self.found_at.set(None);
    }

    /// Refuses it if it cannot be a copy of a mirror with `header`.
    pub(super) fn check(&self, header: &Header) -> Result<()> {
        let Some(looks) = self.looks() else {
            return Ok(()); // It is not there yet.
        };
        if looks.volatile_cache && !is_planted(Bug::MirrorOverCaches) {
            return Err(self.refuse(
                "it has a volatile write cache, and after a power cut nobody could tell what this copy has lost: for a file \
                 write cache = \"direct-sync\" or \"write-through\"; at the target of a remote disk do the same, or switch \
                 its write cache off (WCE = 0)",
            ));
        }
        if looks.read_only {
            return Err(self.refuse("it is read-only"));
        }
        if looks.len_bytes < header.data_bytes + METADATA_BYTES {
            return Err(self.refuse(format_args!(
                "it has {} bytes, and a copy of this mirror has at least {}: restore its size, or take a disk that is as long",
                looks.len_bytes,
                header.data_bytes + METADATA_BYTES
            )));
        }
        if u64::from(looks.block_size_bytes) > header.block_bytes {
            return Err(self.refuse(format_args!(
                "its blocks have {} bytes, and those of the mirror {}, which whoever uses it relies on: take a disk whose blocks are \
                 no larger",
                looks.block_size_bytes, header.block_bytes
            )));
        }
        Ok(())
    }

    /// The header, read without a fence: it changes only when the mirror is given another length.
    pub(super) async fn look(&self) -> Result<Header> {
        self.find().await.map(|found| found.header)
    }

    async fn find(&self) -> Result<FoundCopy> {
        let len_bytes = self.ask_looks().await?.len_bytes;
        if len_bytes <= METADATA_BYTES {
            return Err(self.refuse(format_args!(
                "it has {len_bytes} bytes, too few for what a mirror keeps at the end of each copy ({METADATA_BYTES})"
            )));
        }
        let reads = async |at| self.read_unfenced(at).await;
        let known_bytes = match self.found_at.get() {
            None => self.noted_end().await?,
            found => found,
        };
        let found = copy_end::find(
            &*self.volume,
            len_bytes,
            known_bytes,
            Search::Everywhere,
            reads,
        )
        .await;
        let found = found.map_err(|error| self.blame(error))?.map_err(|why| match why {
            // A foreign target that makes it longer, moves the end away from what is kept there, and tells nobody.
            Unreadable::Blank => self.refuse(format_args!(
                "its last block is blank, and a copy of a mirror has the mirror's own there. It has {len_bytes} bytes: if it \
                 was made longer, make it as long as it was before, for nothing else is missing; if it is a new disk, give \
                 it its place with `sanstone volume replace -c FILE NAME COPY`, or make a new mirror with `sanstone volume create \
                 -c FILE NAME`"
            )),
            why => self.refuse(format_args!(
                "its last block is not that of a copy of a mirror: {why}; find the disk that belongs here, or make it a \
                 copy with `sanstone volume create -c FILE NAME`"
            )),
        })?;
        self.found_at.set(Some(found.end_bytes));
        Ok(found)
    }

    /// What is kept on it, read without a fence: another owner may be changing it.
    pub(super) async fn look_at_kept(&self) -> Result<CopyState> {
        // It may not have been there when it was looked at before.
        self.look().await?;
        let read = async |slot| {
            let at = MetadataBlock::Kept(slot).at(self.end_bytes());
            let block = self.read_unfenced(at).await;
            block.map_err(|error| self.blame(error))
        };
        let (_, kept) = self.kept([read(0).await?, read(1).await?]).await?;
        Ok(kept)
    }

    /// What was kept last, of which `slots` are on the copy itself, and its sequence number. If the copy is made of several
    /// disks, it is what the one has that is behind: it may have been set back alone.
    async fn kept(&self, slots: [Vec<u8>; 2]) -> Result<(u64, CopyState)> {
        let newest_of = |slots: [&Vec<u8>; 2]| newest(slots.map(|block| CopyState::decode(block)));
        let own = newest_of([&slots[0], &slots[1]]).map_err(|why| self.refuse(why))?;
        let (first, second) = (self.notes(0).await?, self.notes(1).await?);
        let on_disks = first.iter().zip(&second).map(|(first, second)| {
            // Nothing of this mirror: it holds nothing of what was written since there is one.
            let lost = CopyState {
                in_sync_since: 0,
                heartbeats: Default::default(),
                ..own.1
            };
            match newest_of([first, second]) {
                Ok(noted) if noted.1.record.mirror == own.1.record.mirror => noted,
                _ => (own.0, lost),
            }
        });
        let is_whole = |kept: &(u64, CopyState)| kept.1.in_sync_since > 0;
        let all = on_disks.chain([own]);
        Ok(all
            .min_by_key(|kept| (is_whole(kept), kept.0))
            .expect("there is the copy's own"))
    }

    /// Where the metadata ends according to the disks that it is made of: those may have become longer.
    async fn noted_end(&self) -> Result<Option<u64>> {
        let notes = [self.notes(0).await?, self.notes(1).await?].concat();
        let newest = notes
            .iter()
            .filter_map(|note| CopyState::end_of(note))
            .max();
        Ok(newest.map(|(_, end_bytes)| end_bytes))
    }

    async fn notes(&self, slot: usize) -> Result<Vec<Vec<u8>>> {
        match self.volume.member(Order::Notes(slot)).await {
            Ok(Report::Notes(notes)) => Ok(notes),
            Ok(_) => Err(self.refuse("it has not told what is noted on its disks")),
            Err(error) => Err(self.blame(error)),
        }
    }

    /// Looks at what it keeps after its target has restarted, which ends its use otherwise. Returns whether it is at least what
    /// its owner last kept there; if not, it was set back, and what was written since is not on it.
    pub(super) async fn is_as_kept(&self) -> Result<bool> {
        let read = async |slot| {
            let at = MetadataBlock::Kept(slot).at(self.end_bytes());
            self.read_as_registrant(at).await
        };
        let (sequence, kept) = self.kept([read(0).await?, read(1).await?]).await?;
        let is_older = |(last, known): (u64, CopyState)| {
            sequence < last || kept.in_sync_since < known.in_sync_since
        };
        let is_set_back = self.last.get().is_some_and(is_older);
        self.is_set_back.set(is_set_back);
        Ok(!is_set_back)
    }

    /// Why it is given up, where its target's `error` says no more than that it may be older.
    pub(super) fn why(&self, error: Error) -> Error {
        match self.is_set_back.get() {
            true => self.refuse(
                "it was set back to an older state, and nothing newer is in use, so that reads and writes wait: put back its \
                 disk as it was, or stop what serves the mirror and run `sanstone volume take-over --force`, which accepts \
                 what there is",
            ),
            false => error,
        }
    }

    async fn read_unfenced(&self, at: u64) -> Result<Vec<u8>> {
        match self.volume.read(at, BLOCK_BYTES).await {
            Ok(block) => return Ok(block.to_vec()),
            Err(error) if error.kind() == ErrorKind::ReservationConflict => {}
            Err(error) => return Err(error),
        }
        self.read_as_registrant(at).await
    }

    async fn read_as_registrant(&self, at: u64) -> Result<Vec<u8>> {
        match self.volume.member(Order::Read(at)).await? {
            Report::Block(block) => Ok(block),
            _ => Err(self.refuse("it has not read the block that it was asked for")),
        }
    }

    /// Makes sure, before anything is changed on it, that it is `place` of the mirror with `header`: the reservation of another
    /// mirror's copy is that mirror's.
    pub(super) async fn know(&self, header: &Header, place: CopyId) -> Result<()> {
        if self.is_known.get() {
            return Ok(());
        }
        let found = self.find_as(header, place).await?;
        // Of what is made of several disks, these tell: whoever looks for its floor is not told.
        if !found.is_told && !self.notes(0).await?.is_empty() {
            let len_bytes = self.ask_looks().await?.len_bytes;
            copy_end::point(&*self.volume, len_bytes, found.end_bytes).await?;
        }
        Ok(())
    }

    async fn find_as(&self, header: &Header, place: CopyId) -> Result<FoundCopy> {
        let copy = self.find().await?;
        let found = copy.header;
        // It may have grown already, in an attempt that was cut short.
        let is_it = (found.mirror, found.copy) == (header.mirror, place)
            && found.data_bytes >= header.data_bytes;
        if !is_it {
            return Err(self.refuse(format_args!(
                "it is copy {} of mirror {}, not copy {} of {}: give each copy its own disk",
                found.copy.place(),
                found.mirror,
                place.place(),
                header.mirror
            )));
        }
        self.is_known.set(true);
        Ok(copy)
    }

    /// Everything that the mirror keeps on it: what was kept last, and the bitmap. It has to be `place` of the mirror
    /// with `header`.
    pub(super) async fn read_metadata(
        &self,
        header: &Header,
        place: CopyId,
    ) -> Result<(CopyState, Regions)> {
        let FoundCopy {
            end_bytes, is_told, ..
        } = self.find_as(header, place).await?;
        self.check(header)?;
        if !is_told {
            // It was made longer where nobody noted that.
            let len_bytes = self.ask_looks().await?.len_bytes;
            copy_end::point(&*self.volume, len_bytes, end_bytes).await?;
        }
        let slot = async |slot| self.read(MetadataBlock::Kept(slot)).await;
        let (sequence, kept) = self.kept([slot(0).await?, slot(1).await?]).await?;
        self.last.set(Some((sequence, kept)));
        let mut words = Vec::with_capacity(BITMAP_BLOCKS * WORDS_PER_BLOCK);
        for block in 0..BITMAP_BLOCKS {
            let bits = decode_bits(&self.read(MetadataBlock::Bitmap(block)).await?);
            let eights = bits.chunks_exact(8);
            words.extend(
                eights.map(|eight| u64::from_le_bytes(eight.try_into().expect("eight bytes"))),
            );
        }
        Ok((kept, clipped(words, header.regions())))
    }

    async fn read(&self, place: MetadataBlock) -> Result<Vec<u8>> {
        let at = place.at(self.end_bytes());
        Ok(self.volume.read(at, BLOCK_BYTES).await?.to_vec())
    }

    /// Writes `kept` to the next slot, durably. After a failure the next one goes to the same slot: the other one has
    /// what was kept before.
    pub(super) async fn keep(&self, kept: &CopyState) -> Result<()> {
        let sequence = self.last.get().map_or(0, |(last, _)| last + 1);
        self.keep_as(sequence, kept).await?;
        self.last.set(Some((sequence, *kept)));
        Ok(())
    }

    /// Writes `kept` as what is kept `sequence`th, durably, on each disk that it is made of.
    pub(super) async fn keep_as(&self, sequence: u64, kept: &CopyState) -> Result<()> {
        let (slot, block) = (
            (sequence % 2) as usize,
            kept.encode(sequence, self.end_bytes()),
        );
        let noted = self.volume.member(Order::Note(slot, block.clone()));
        noted.await?;
        self.write(MetadataBlock::Kept(slot), &block).await
    }

    /// Writes a block of the bitmap, durably.
    pub(super) async fn mark(&self, block: usize, regions: &[u64]) -> Result<()> {
        let bits = encode_bits(&bits_of(regions));
        self.write(MetadataBlock::Bitmap(block), &bits).await
    }

    /// Writes all but the header so that it ends at `end_bytes`, with these regions marked; it is not looked for there yet.
    pub(super) async fn move_to(&self, end_bytes: u64, marks: &Regions) -> Result<()> {
        let write = async |place: MetadataBlock, block: Vec<u8>| {
            let block = Buf::copy_of(&block).into();
            let written = self
                .volume
                .write(place.at(end_bytes), block, Durability::Fua);
            written.await
        };
        for block in 0..BITMAP_BLOCKS {
            let words = marks.0.chunks(WORDS_PER_BLOCK).nth(block);
            let bits = encode_bits(&bits_of(words.unwrap_or_default()));
            write(MetadataBlock::Bitmap(block), bits).await?;
        }
        for slot in 0..2 {
            for place in [MetadataBlock::Kept(slot), MetadataBlock::Floor(slot)] {
                write(place, self.read(place).await?).await?;
            }
        }
        Ok(())
    }

    /// Has the metadata that was [moved](Copy::move_to) to `end_bytes` be what counts.
    pub(super) async fn moves_to(&self, end_bytes: u64, header: &Header) -> Result<()> {
        self.found_at.set(Some(end_bytes));
        self.head(header).await?;
        for slot in 0..2 {
            let block = self.read(MetadataBlock::Kept(slot)).await?;
            if let Ok((sequence, kept)) = CopyState::decode(&block) {
                self.keep_as(sequence, &kept).await?;
            }
        }
        Ok(())
    }

    /// Has its metadata be what counts, by its header.
    pub(super) async fn head(&self, header: &Header) -> Result<()> {
        let block = header.encode(self.end_bytes());
        self.write(MetadataBlock::Header, &block).await
    }

    /// Erases what is left of the metadata that ended at `end_bytes`.
    pub(super) async fn erase(&self, end_bytes: u64) -> Result<()> {
        let at = MetadataBlock::Bitmap(BITMAP_BLOCKS - 1).at(end_bytes);
        let zeroes = Payload::zeroes((end_bytes - at) as usize);
        self.volume.write(at, zeroes, Durability::Fua).await
    }

    /// Writes a block of metadata, durably.
    pub(super) async fn write(&self, place: MetadataBlock, block: &[u8]) -> Result<()> {
        let at = place.at(self.end_bytes());
        let block = Buf::copy_of(block).into();
        self.volume.write(at, block, Durability::Fua).await
    }
}

/// The bits of a block of the bitmap with these words.
fn bits_of(words: &[u64]) -> Bits {
    let mut bits: Bits = [0; size_of::<Bits>()];
    for (eight, word) in bits.chunks_exact_mut(8).zip(words) {
        eight.copy_from_slice(&word.to_le_bytes());
    }
    bits
}

/// The first `regions` regions of `words`.
fn clipped(mut words: Vec<u64>, regions: usize) -> Regions {
    words.truncate(regions.div_ceil(64));
    let rest = regions % 64;
    if let Some(last) = words.last_mut().filter(|_| rest > 0) {
        *last &= (1 << rest) - 1;
    }
    Regions(words)
}
