//! A logical unit of a remote target as a volume: translates the volume's calls into commands that the target
//! supports, and tracks which writes it may have lost.
//!
//! Resending a write is safe: [`recovery`](super::recovery) ensures that the lost attempt can no longer take effect,
//! and the volume orders nothing else relative to it.

use std::{rc::Rc, sync::Arc};

use engine::{Buf, LaneFuture, LaneHandle, Payload};

use super::{
    branch::{AtHome, BranchCommand, Trouble},
    cdb::{self, CdbBytes},
    compare,
    config::{IscsiConfig, LoginTerms, Sessions},
    extents,
    facts::DiskFacts,
    identity::DiskIdentity,
    inquiry, lanes,
    machine::{Event, OwnershipEvent, Subject},
    paths::PathCounts,
    session::{Data, Reply},
    transfer::{self, Way, whole},
    unit::RemoteUnit,
};
use crate::{
    Allocation, AtomicWrites, CompareOutcome, Durability, Error, ErrorKind, Result, Shape,
    SharedVolume, Volume, fallback,
    member::{BLOCK_BYTES, Order, Report},
    part::HomeVolume,
};

/// The most UNMAPs sent for one discard, which need not discard everything.
const UNMAPS_MAX: usize = 1024;

/// A disk on a remote target.
pub struct IscsiDisk {
    pub(super) unit: Rc<RemoteUnit>,
    pub(super) facts: Arc<DiskFacts>,
}

impl IscsiDisk {
    /// Logs in and queries the disk.
    ///
    /// # Errors
    /// When the target cannot be reached, refuses us, or has no such disk.
    pub async fn open(config: IscsiConfig) -> Result<Rc<IscsiDisk>> {
        IscsiDisk::open_on(config, &[]).await
    }

    /// As [`IscsiDisk::open`], with the sessions spread over the lanes `on` in turn; the first is the current one.
    ///
    /// # Errors
    /// As [`IscsiDisk::open`].
    pub async fn open_on(config: IscsiConfig, on: &[LaneHandle]) -> Result<Rc<IscsiDisk>> {
        let what = format!(
            "{} LUN {} at {}",
            config.target_name, config.lun, config.address
        );
        let unit = RemoteUnit::new(config.clone(), on);
        let opened = match IscsiDisk::open_by(&unit, on, 0).await {
            Err(error) if error.kind() == ErrorKind::ReservationConflict => {
                // A target may let in that one of our ports alone that has reserved it before a restart.
                let holding = unit.holding_index().await;
                let begin = holding.filter(|&path| path < unit.paths.all().len());
                unit.paths.end(&error);
                match holding {
                    Some(path @ 1..) => {
                        let unit = RemoteUnit::new(config.with_first_isid(path), on);
                        let opened = IscsiDisk::open_by(&unit, on, begin.unwrap_or(0)).await;
                        opened.inspect_err(|error| unit.paths.end(error))
                    }
                    _ => Err(error),
                }
            }
            opened => opened.inspect_err(|error| unit.paths.end(error)),
        };
        opened.map_err(|error: Error| error.context(&what))
    }

    /// Opens it as a unit that has no session yet, over path `begin` before the others.
    async fn open_by(
        unit: &Rc<RemoteUnit>,
        on: &[LaneHandle],
        begin: usize,
    ) -> Result<Rc<IscsiDisk>> {
        unit.open_first(begin).await?;
        let facts = inquiry::ask(unit).await?;
        let facts = Arc::new(facts);
        let _ = unit.facts.set(facts.clone());
        let _ = unit.identity.set(facts.identity.clone());
        unit.handle(Event::Opened(facts.geometry(), facts.mode()));
        unit.open_others().await?;
        let disk = Rc::new(IscsiDisk {
            unit: unit.clone(),
            facts,
        });
        let weak = Rc::downgrade(&disk);
        lanes::branch_out(&disk.unit, weak, &disk.facts, on).await?;
        Ok(disk)
    }

    /// The digests of its sessions; none while there is no session.
    pub fn digests(&self) -> iscsi::frame::Digests {
        let nexus = self.unit.paths.live().next();
        nexus
            .map(|nexus| nexus.link().digests())
            .unwrap_or_default()
    }

    /// The events on its paths so far.
    pub fn path_counts(&self) -> PathCounts {
        let mut counts = *self.unit.paths.counts.borrow();
        counts.beside_home = self.unit.grants.commands();
        counts.beside_first += counts.beside_home;
        counts
    }

    /// How many of its sessions can be used now.
    pub fn live_paths(&self) -> usize {
        self.unit.paths.usable().count()
    }

    /// The disk's identity.
    pub fn identity(&self) -> &DiskIdentity {
        &self.facts.identity
    }

    /// Asks the target again for what may have changed: length, write protection, cache. Returns a message if there is a
    /// change.
    pub(super) async fn look_again(&self) -> Option<String> {
        let shape = || {
            (
                self.facts.shape.len_bytes(),
                self.facts.shape.read_only.is_on(),
            )
        };
        let before = shape();
        self.unit.doubt_capacity();
        self.unit.doubt_cache();
        // It settles these doubts first.
        let asked = self.run(&cdb::test_unit_ready(), Data::None).await;
        let (now, config) = (shape(), self.unit.config());
        if asked.is_err() || now == before {
            return None;
        }
        let protected = if now.1 { ", write-protected" } else { "" };
        Some(format!(
            "{} LUN {} has changed: it has {} bytes{protected}",
            config.target_name, config.lun, now.0
        ))
    }

    /// From now on it waits so long, and logs in so.
    pub fn adopt_terms(&self, terms: LoginTerms) {
        self.unit.paths.reconfigure(|config| config.adopt(terms));
    }

    /// Adds the paths that `next` has and the disk has not. Those that it has beside stay for now. Returns what is wrong
    /// with paths that cannot be used yet, and are retried.
    ///
    /// # Errors
    /// When a path leads to another disk, or when `next` leaves out a path, and none of its own works.
    /// [`IscsiDisk::remove_added_paths`] is still to be called.
    pub async fn add_paths(&self, next: &Sessions) -> Result<Vec<String>> {
        self.unit.add_paths(next).await
    }

    /// From now on `next`, whose paths have been added, are the sessions of the disk. Others end once they are not needed.
    pub fn adopt_paths(&self, next: &Sessions) {
        self.unit.adopt_paths(next);
    }

    /// Removes the paths that were added, instead of [`IscsiDisk::adopt_paths`].
    pub fn remove_added_paths(&self) {
        self.unit.remove_added_paths();
    }

    /// Waits until removed paths have ended, for about as long as their last requests may take. Returns what is left.
    pub async fn parted(&self) -> Vec<String> {
        self.unit.parted().await
    }

    /// Releases the claim and logs out. Later requests log in again, unless there was a claim.
    pub async fn close(&self) {
        if let Err(error) = self.unit.release_claim().await {
            let target_name = &self.unit.config().target_name;
            tracing::warn!(target_name, %error, "the claim could not be released");
        }
        self.unit.paths.rest();
        self.unit.grants_revoked(|| true).await;
        self.unit.paths.log_out().await;
    }

    /// Ends it for good, for an owner who fences the disk off and goes on from initiator ports of its own
    /// ([`IscsiConfig::from_ports`]). Every session is reset; on return nothing is sent any more that was queued here or in
    /// this machine's kernel, nor anything else. What the target has received by then is the fence's to end. What waits
    /// fails with [`ErrorKind::Preempted`], and so does everything later.
    pub async fn end(&self) {
        self.unit.end().await;
    }

    /// The handles for the other lanes that have sessions of their own.
    pub(crate) async fn branches(&self) -> Result<Vec<Arc<HomeVolume>>> {
        let mut homes = Vec::new();
        for branch in self.unit.grants.branches() {
            let lane = branch.lane().clone();
            let make = move || LaneFuture::new(async move { Ok(branch.here()? as SharedVolume) });
            homes.push(HomeVolume::settle(&lane, make).await?);
        }
        Ok(homes)
    }

    /// The disk for the other lanes that have sessions of their own, as volumes usable from this lane.
    ///
    /// # Errors
    /// When one of the lanes has ended.
    pub async fn from_branches(&self) -> Result<Vec<SharedVolume>> {
        let branches = self.branches().await?;
        branches.iter().map(HomeVolume::on_lane).collect()
    }

    /// Records the end of a write of any kind that becomes durable only with a flush.
    fn wrote(&self, result: Result<Reply>) -> Result<()> {
        if self.facts.shape.volatile_cache {
            self.unit.unflushed.wrote(result.is_ok());
        }
        result.map(drop)
    }
}

impl IscsiDisk {
    /// Asks the target for no block at all (READ of 0 blocks), which touches no medium and passes no fence: it succeeds as
    /// long as no reservation of another initiator keeps us from reading.
    ///
    /// # Errors
    /// [`ErrorKind::ReservationConflict`] behind another's fence; otherwise as a read.
    pub async fn read_nothing(&self) -> Result<()> {
        self.run(&cdb::read(0, 0), Data::None).await.map(drop)
    }
}

impl Way for IscsiDisk {
    fn facts(&self) -> &DiskFacts {
        &self.facts
    }

    async fn look_at_protection(&self) -> Result<()> {
        self.unit.look_at_protection().await
    }

    fn check_unflushed(&self) -> Result<()> {
        self.unit.unflushed.check()
    }

    async fn run(&self, cdb: &CdbBytes, data: Data) -> Result<Reply> {
        self.unit.run(cdb, data, &mut self.unit.patience()).await
    }

    async fn run_write(&self, cdb: &CdbBytes, data: Payload, is_volatile: bool) -> Result<()> {
        let len = data.len();
        let written = whole(self.run(cdb, Data::Out(data)).await, len);
        if is_volatile {
            self.unit.unflushed.wrote(written.is_ok());
        }
        written
    }
}

impl AtHome for IscsiDisk {
    fn go_on(
        self: Rc<Self>,
        index: usize,
        trouble: Option<Trouble>,
        command: BranchCommand,
    ) -> LaneFuture<'static, Result<Reply>> {
        LaneFuture::new(async move { self.unit.go_on(index, trouble, command).await })
    }

    fn look_at_protection(self: Rc<Self>) -> LaneFuture<'static, Result<()>> {
        LaneFuture::new(async move { self.unit.look_at_protection().await })
    }
}

impl Drop for IscsiDisk {
    fn drop(&mut self) {
        // Do not wait for the unit's drop: a login attempt may keep it alive for a while.
        let closed = Error::new(ErrorKind::Unreachable, "the volume has been closed");
        self.unit.paths.end(&closed);
    }
}

impl Volume for IscsiDisk {
    fn shape(&self) -> &Shape {
        &self.facts.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        transfer::read(self, at, len)
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        if self.facts.flushes_for(durability) {
            return LaneFuture::new(async move {
                transfer::write(self, at, data, Durability::Cached).await?;
                self.flush().await
            });
        }
        transfer::write(self, at, data, durability)
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            let unflushed = &self.unit.unflushed;
            if !self.facts.shape.volatile_cache {
                let machine = &self.unit.machine;
                let events = machine.borrow().events(Subject::Mode);
                if machine.borrow().is_open(Subject::Mode) {
                    // Any command settles it first.
                    self.run(&cdb::test_unit_ready(), Data::None).await?;
                }
                if !machine.borrow().is_settled(Subject::Mode, events) {
                    let message = "another initiator has reserved the disk, and the target does not say whether the \
                                   disk still has no volatile write cache";
                    return Err(Error::new(ErrorKind::ReservationConflict, message));
                }
                return unflushed.check();
            }
            if let Some(covers) = unflushed.to_flush() {
                let flushed = self.run(&cdb::synchronize_cache(), Data::None).await;
                if let Err(error) = flushed {
                    unflushed.flush_failed(error.kind());
                    return Err(error);
                }
                unflushed.flushed(covers);
            }
            self.unit.judged().await;
            unflushed.check()
        })
    }

    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>> {
        LaneFuture::new(async move {
            match order {
                Order::Read(at) => Ok(Report::Block(self.unit.read_as_registrant(at).await?)),
                Order::Peek(at) => {
                    let block = Volume::read(self, at, BLOCK_BYTES).await?;
                    Ok(Report::Block(block.to_vec()))
                }
                Order::Take(claim) => {
                    self.unit.claim(&claim).await?;
                    Ok(Report::Taken(Some(claim.generation())))
                }
                Order::Label(claim) => {
                    self.unit.label_again(&claim).await?;
                    Ok(Report::Labelled)
                }
                Order::Fence(key, step) => {
                    let answer = self.unit.fence_step(key, step).await?;
                    Ok(Report::Fence(answer))
                }
                Order::Prove => {
                    self.run(&cdb::read(0, 0), Data::None).await?;
                    Ok(Report::Proved)
                }
                Order::Look => {
                    self.unit.reach().await?;
                    Ok(Report::Looks(self.facts.shape.looks()))
                }
                Order::Suits => {
                    self.unit.suits().await?;
                    Ok(Report::Suits)
                }
                Order::Renew => {
                    self.unit.look_for_cache().await?;
                    self.unit.tell_ownership(OwnershipEvent::Looked);
                    Ok(Report::Renewed)
                }
                order @ (Order::Note(..) | Order::Notes(_)) => fallback::member(self, order).await,
            }
        })
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            IscsiDisk::close(self).await;
            Ok(())
        })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            transfer::check_write(self, at, len).await?;
            if self.facts.unmap_max_blocks == 0 {
                return Ok(());
            }
            let (mut lba, blocks) = self.facts.blocks(at, len);
            let mut left = u64::from(blocks);
            for _ in 0..UNMAPS_MAX {
                let count = left.min(self.facts.unmap_max_blocks) as u32;
                let list = cdb::unmap_list(lba, count);
                let data = Data::Out(Buf::copy_of(&list).into());
                self.wrote(self.run(&cdb::unmap(list.len() as u16), data).await)?;
                (lba, left) = (lba + u64::from(count), left - u64::from(count));
                if left == 0 {
                    break;
                }
            }
            Ok(())
        })
    }

    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        LaneFuture::new(extents::allocation(self, at, len))
    }

    /// Resending a write after a lost session would be fine, but we do not query any target's atomic write limits
    /// yet.
    fn atomic_writes(&self) -> Option<AtomicWrites> {
        None
    }

    fn write_atomic(&self, _: u64, _: Payload, _: Durability) -> LaneFuture<'_, Result<()>> {
        fallback::write_atomic()
    }

    fn compare_and_write(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        LaneFuture::new(compare::compare_and_write(
            self,
            &self.unit.unflushed,
            at,
            data,
            durability,
        ))
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            transfer::check_write(self, at, len).await?;
            let block = u64::from(self.facts.shape.block_size_bytes);
            let mut same_max = self.facts.write_same_max_blocks;
            let transfer_max = self.facts.transfer_max_bytes as u64;
            let may_unmap = may_discard && self.facts.unmapped_reads_zeroes;
            let mut done = 0;
            while done < len {
                let left = len - done;
                // Whichever takes fewer commands.
                if same_max * block <= transfer_max {
                    let piece = left.min(transfer_max);
                    let zeroes = Payload::zeroes(piece as usize);
                    self.write(at + done, zeroes, durability).await?;
                    done += piece;
                    continue;
                }
                let count = (left / block).min(same_max) as u32;
                let zeroes = Data::Out(Payload::zeroes(block as usize));
                let lba = (at + done) / block;
                let command = cdb::write_same_16(lba, count, may_unmap);
                match self.wrote(self.run(&command, zeroes).await) {
                    // It says that it has the command, and refuses it: zeroes can be written all the same.
                    Err(error) if error.kind() == ErrorKind::Protocol => same_max = 0,
                    written => {
                        written?;
                        done += u64::from(count) * block;
                    }
                }
            }
            match durability {
                Durability::Fua => self.flush().await,
                Durability::Cached => Ok(()),
            }
        })
    }
}
