//! A stripe: one volume whose units of, say, 64 KiB are distributed over several children in turn, so that large I/O
//! uses all of them at once and small I/O spreads over them. It has no redundancy: if one child is lost, everything
//! is.
//!
//! [`create`] writes a superblock to each child, once. [`OpenStripe::open`] verifies them and [`OpenStripe::on_lane`] returns
//! the volume. Its I/O splits the range into one run per child (`map`), has the children process their runs
//! concurrently (`join_all`), and assembles the payloads without copying (`rope`).
//!
//! A [concat](crate::kinds::concat) is the same with another map: its children follow one another.

mod claim;
#[cfg(test)]
mod claim_tests;
mod create;
mod describe;
mod grow;
mod in_use;
#[cfg(test)]
mod in_use_tests;
mod join;
mod join_in_use;
mod joined;
mod look;
mod map;
mod members;
mod notes;
mod on_lane;
mod open;
mod place;
mod rope;
mod round_robin;
mod sequence;
pub mod settings;
mod superblock;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use engine::{LaneFuture, Payload, task::join_all};
use uuid::Uuid;

pub use self::describe::SetMember;
pub(crate) use self::describe::{Described, describe};
pub use self::{
    claim::{claim_all, give_up},
    create::{CreateOptions, create, look},
    open::OpenStripe,
    settings::UnitBytes,
    superblock::Layout,
};
pub(crate) use self::{in_use::OpenSet, join_in_use::Joins, open::WantedLayout};
use self::{
    on_lane::OnLane,
    open::StripeState,
    place::{PerChild, Place},
    superblock::{RESERVED_BYTES, SUPERBLOCK_BYTES, Superblock, SuperblockRefusal},
};
use crate::{
    Allocation, AtomicWrites, CompareOutcome, Durability, Error, ErrorKind, Result, Shape,
    SharedVolume, Volume, fallback,
    flush_epochs::Epoch,
    member::{Order, Report},
    volume::DATABASE_PAGE_BYTES,
};

/// The default unit, in bytes.
pub const UNIT_BYTES_DEFAULT: u32 = 64 << 10;

/// A child and its name in messages.
#[derive(Clone)]
pub struct Child {
    /// The name used in messages, by which its user knows it: its place in the configuration, its path or its URL.
    pub name: String,
    /// The child itself.
    pub volume: SharedVolume,
}

impl Child {
    fn refuse(&self, why: impl fmt::Display) -> Error {
        refuse(&self.name, why)
    }

    fn blame(&self, error: Error) -> Error {
        error.context(format_args!("{}", self.name))
    }

    fn check_len(&self) -> Result<()> {
        check_len(&self.name, self.volume.shape().len_bytes())
    }

    /// Reads its superblock, which must be that of a volume of the kind called `kind`.
    async fn read_superblock(&self, kind: &'static str) -> Result<Superblock> {
        self.check_len()?;
        let block = self.volume.read(0, SUPERBLOCK_BYTES).await;
        let block = block.map_err(|error| self.blame(error))?;
        superblock_of(&self.name, &block.to_vec(), kind)
    }

    /// As [`Child::read_superblock`], even if another owner has reserved the child. `None`: the reservation hides it
    /// from everybody.
    async fn look_at_superblock(&self, kind: &'static str) -> Result<Option<Superblock>> {
        self.check_len()?;
        let block = self.read_block(0).await?;
        let block = block.map(|block| superblock_of(&self.name, &block, kind));
        block.transpose()
    }

    /// Reads a block, even if another owner has reserved the child. `None`: the reservation hides it from everybody.
    async fn read_block(&self, at: u64) -> Result<Option<Vec<u8>>> {
        match self.volume.read(at, SUPERBLOCK_BYTES).await {
            Err(error) if error.kind() == ErrorKind::ReservationConflict => {}
            read => {
                let block = read.map_err(|error| self.blame(error))?;
                return Ok(Some(block.to_vec()));
            }
        }
        match self.volume.member(Order::Read(at)).await {
            Err(error) if error.kind() == ErrorKind::ReservationConflict => Ok(None),
            Err(error) => Err(self.blame(error)),
            Ok(Report::Block(block)) => Ok(Some(block)),
            Ok(_) => Ok(None),
        }
    }
}

/// Writes a superblock, durably.
async fn write_superblock(child: &Child, superblock: &Superblock) -> Result<()> {
    let block = Payload::from(engine::Buf::copy_of(&superblock.encode()));
    let written = child.volume.write(0, block, Durability::Fua).await;
    written.map_err(|error| child.blame(error))?;
    let flushed = child.volume.flush().await;
    flushed.map_err(|error| child.blame(error))
}

/// The error for rejecting the child that messages call `name`.
fn refuse(name: &str, why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Configuration, format!("{name}: {why}"))
}

fn check_len(name: &str, len_bytes: u64) -> Result<()> {
    match len_bytes < RESERVED_BYTES {
        false => Ok(()),
        true => Err(refuse(
            name,
            format_args!(
                "it has {len_bytes} bytes, too few for a superblock; find the child that belongs \
                 here"
            ),
        )),
    }
}

/// Decodes `block`, a child's first, which must be the superblock of a volume of the kind called `kind`.
fn superblock_of(name: &str, block: &[u8], kind: &'static str) -> Result<Superblock> {
    let found = Superblock::decode(block).map_err(|refused| refuse(name, refused))?;
    if found.layout.name() != kind {
        let other = SuperblockRefusal::OtherKind(found.layout.name().to_owned(), kind);
        return Err(refuse(name, other));
    }
    Ok(found)
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Child({})", self.name)
    }
}

/// A stripe or concat on one lane.
pub struct Stripe {
    state: Arc<StripeState>,
    /// Its children when it was opened, and those that came later.
    opened: OnLane,
}

impl Volume for Stripe {
    fn shape(&self) -> &Shape {
        &self.state.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        if let Err(error) = self.check(at, len as u64) {
            return LaneFuture::new(async { Err(error) });
        }
        let Some(lane) = self.opened.newest() else {
            return LaneFuture::new(async move {
                self.opened.followed().await?;
                self.read(at, len).await
            });
        };
        if let Some(place) = lane.members.map.single(at, len as u64) {
            return LaneFuture::new(read_child(lane, place, len));
        }
        LaneFuture::new(async move {
            let map = &lane.members.map;
            let runs = map.runs(at, len as u64);
            let reads = join_all(runs.iter().map(|run| {
                lane.children[run.child].read(RESERVED_BYTES + run.at, run.len as usize)
            }));
            let mut parts: PerChild<Payload> = PerChild::new();
            for (run, part) in runs.iter().zip(reads.await) {
                parts.push(lane.checked(run.child, part, run.len as usize)?);
            }
            Ok(rope::interleave(map, at, len, &parts))
        })
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        let len = data.len() as u64;
        if let Err(error) = self.check_write(at, len) {
            return LaneFuture::new(async { Err(error) });
        }
        let Some(lane) = self.opened.newest() else {
            return LaneFuture::new(async move {
                self.opened.followed().await?;
                self.write(at, data, durability).await
            });
        };
        if let Some(place) = lane.members.map.single(at, len) {
            return LaneFuture::new(async move {
                let child = &lane.children[place.child];
                let result = child.write(RESERVED_BYTES + place.at, data, durability);
                lane.wrote(place.child, result.await, durability)
            });
        }
        LaneFuture::new(async move {
            let map = &lane.members.map;
            let runs = map.runs(at, len);
            let parts = rope::split(map, at, &data, runs.len());
            let writes = runs.iter().zip(parts).map(|(run, part)| {
                lane.children[run.child].write(RESERVED_BYTES + run.at, part, durability)
            });
            let results = join_all(writes).await;
            lane.all_wrote(&runs, results, durability)
        })
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.state.check_claim()?;
            let lane = self.opened.followed().await?;
            let (epochs, failed) = (&lane.members.epochs, &self.state.failed);
            failed.check()?;
            let begun = epochs.iter().map(|it| it.begin()).enumerate();
            let begun = begun.filter_map(|(child, covers)| Some((child, covers?)));
            let dirty: PerChild<(usize, Epoch)> = begun.collect();
            let flushes = dirty.iter().map(|&(child, _)| lane.children[child].flush());
            for (&(child, covers), result) in dirty.iter().zip(join_all(flushes).await) {
                match result {
                    Ok(()) => epochs[child].flushed(covers),
                    Err(error) => self.flush_failed(&lane.blame(child, error)),
                }
            }
            // Fails even if only a concurrent flush failed: what it lost may have been ours.
            failed.check()
        })
    }

    /// A nested stripe has claimed its children when it was opened, so whoever owns the outer one owns them.
    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>> {
        LaneFuture::new(async move {
            match order {
                Order::Read(at) => self.read_block(at, Order::Read).await,
                Order::Peek(at) => self.read_block(at, Order::Peek).await,
                // It is no more than each of its children is.
                Order::Prove | Order::Look | Order::Suits | Order::Renew => {
                    self.state.check_claim()?;
                    self.ask_all(&order).await?;
                    fallback::member(self, order).await
                }
                Order::Note(slot, block) => self.note(slot, &block).await,
                Order::Notes(slot) => self.notes(slot).await,
                order => fallback::member(self, order).await,
            }
        })
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            let lane = self.opened.followed().await?;
            let results = join_all(lane.children.iter().map(|child| child.close())).await;
            let mut closed = Ok(());
            for (child, result) in results.into_iter().enumerate() {
                closed = closed.and(result.map_err(|error| lane.blame(child, error)));
            }
            closed
        })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.check_write(at, len)?;
            if self.shape().discard.is_none() {
                return Ok(());
            }
            let lane = self.opened.followed().await?;
            let runs = lane.members.map.runs(at, len);
            let discards = runs
                .iter()
                .map(|run| lane.children[run.child].discard(RESERVED_BYTES + run.at, run.len));
            let results = join_all(discards).await;
            lane.all_wrote(&runs, results, Durability::Cached)
        })
    }

    /// Looks no further than one child is contiguous: what follows lies on another child.
    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        LaneFuture::new(async move {
            self.check(at, len)?;
            let lane = self.opened.followed().await?;
            let map = &lane.members.map;
            let place = map.place(at);
            let len = len.min(map.reach(at));
            let child = &lane.children[place.child];
            child.allocation(RESERVED_BYTES + place.at, len).await
        })
    }

    /// Only a single child can write atomically, so such a write must lie within one unit of a stripe or one grain of
    /// a concat. Every write permitted here does: it has one length, a power of two, and is aligned to it.
    fn atomic_writes(&self) -> Option<AtomicWrites> {
        atomic_writes(&self.state.layout, &self.opened.children)
    }

    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            let len = data.len() as u64;
            self.check_write(at, len)?;
            let Some(atomic) = self.atomic_writes() else {
                return fallback::write_atomic().await;
            };
            atomic.check(at, len)?;
            let lane = self.opened.followed().await?;
            let place = lane.members.map.place(at);
            let child = &lane.children[place.child];
            let result = child.write_atomic(RESERVED_BYTES + place.at, data, durability);
            lane.wrote(place.child, result.await, durability)
        })
    }

    /// Its children have one owner, who keeps its own users away: nobody else writes there. Passed on, it would fail where a
    /// write waits for a lost session to come back.
    fn compare_and_write(
        &self,
        _: u64,
        _: Payload,
        _: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        fallback::compare_and_write()
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.check_write(at, len)?;
            let lane = self.opened.followed().await?;
            let runs = lane.members.map.runs(at, len);
            let writes = runs.iter().map(|run| {
                let at = RESERVED_BYTES + run.at;
                lane.children[run.child].write_zeroes(at, run.len, may_discard, durability)
            });
            let results = join_all(writes).await;
            lane.all_wrote(&runs, results, durability)
        })
    }
}

impl Stripe {
    /// The identity that it got when it was created.
    pub fn uuid(&self) -> Uuid {
        self.state.uuid
    }

    fn check(&self, at: u64, len: u64) -> Result<()> {
        self.state.check_claim()?;
        self.shape().check(at, len)
    }

    fn check_write(&self, at: u64, len: u64) -> Result<()> {
        self.state.check_claim()?;
        self.shape().check_write(at, len)?;
        self.state.failed.check()
    }

    /// A child's flush has failed: it is unknown which writes are lost, so all later writes and flushes are refused.
    fn flush_failed(&self, error: &Error) {
        self.state.failed.set(format!(
            "a flush failed, and data written before it may be lost: {error}; repair the child, \
             check the data, then open the volume again"
        ));
    }
}

async fn read_child(lane: &OnLane, place: Place, len: usize) -> Result<Payload> {
    let read = lane.children[place.child].read(RESERVED_BYTES + place.at, len);
    lane.checked(place.child, read.await, len)
}

/// Which atomic writes a volume with this layout has over `children`.
fn atomic_writes(layout: &Layout, children: &[SharedVolume]) -> Option<AtomicWrites> {
    let unit = layout.grain_bytes().min(RESERVED_BYTES);
    let children = children.iter().map(|child| child.atomic_writes());
    let children: PerChild<AtomicWrites> = children.collect::<Option<_>>()?;
    let longest = children.iter().filter_map(|child| child.max_bytes);
    let longest = u64::from(longest.min().unwrap_or(u32::MAX)).min(unit);
    let shortest = children.iter().map(|child| child.unit_bytes).max()?;
    let wanted = u64::from(shortest.max(DATABASE_PAGE_BYTES));
    let bytes = 1 << longest.min(wanted).checked_ilog2()?;
    let fits = |child: &AtomicWrites| bytes % child.unit_bytes == 0;
    children.iter().all(fits).then_some(AtomicWrites {
        unit_bytes: bytes,
        max_bytes: Some(bytes),
    })
}

impl fmt::Debug for Stripe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = &self.state.members.newest().names;
        write!(f, "Stripe({} of {names:?})", self.state.uuid)
    }
}
