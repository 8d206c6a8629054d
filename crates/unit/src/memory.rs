//! A lane's memory for payload, and how much of it each nexus and each disk may hold.
//!
//! What a nexus may send [unasked](unsolicited) is promised to it, and paid for before; other data waits in line.
//! Unsolicited data that is all a command needs may use the share of other data too, since the command then waits for
//! nothing that others hold. In addition to the lane's memory each nexus has a small reserve for each of the two, which it
//! uses when the lane's is taken. Of either memory no disk and no nexus may hold [more than it leaves free](shares), and
//! what the server moves on its own account is charged like what a client moves. So nobody is stalled by memory that
//! others hold and do not return.
//!
//! A request larger than the lane's whole share is paid from memory that the lanes have in
//! [common](CommonMemory), so that the total does not depend on their number; [`Plan`] divides it.
//!
//! The amount counted is the memory behind a buffer, which is more than the bytes requested.

mod common;
mod pace;
mod plan;
mod pool;
mod shares;
mod unsolicited;

use std::{cell::Cell, future::Future, pin::pin, rc::Rc, sync::Arc, task::Poll};

pub(crate) use common::CommonMemory;
use engine::{
    buf::capacity_for,
    sync::{Budget, Permit},
};
pub use pace::{ClientPace, Moving, Paces, TooSlow};
pub(crate) use plan::Plan;
pub use pool::Held;

use common::CommonPermit;
use pool::{Pool, Shortages, WaitingRequest};
pub(crate) use shares::{Charged, Holder, MemoryShare, Shares};
use unsolicited::{UnsolicitedPermit, UnsolicitedPool, UnsolicitedShare};

/// The memory permits of a transfer, held until dropped.
#[derive(Debug, Default)]
pub struct Permits {
    /// For the unsolicited data.
    unsolicited: Option<UnsolicitedPermit>,
    /// For the solicited data.
    memory: Option<Paid>,
}

impl Permits {
    /// Permits for nothing.
    pub fn new() -> Permits {
        Permits::default()
    }

    /// Adds the permits `rest` for the solicited data, which have been [waited](NexusMemory::take)
    /// for, to those for the unsolicited data.
    pub fn pay_rest(&mut self, rest: Permits) {
        let unsolicited = self.unsolicited.take();
        *self = Permits {
            unsolicited,
            ..rest
        };
    }

    /// How much memory of each pool they pay for.
    pub fn held(&self) -> Held {
        let mut held = Held::default();
        if let Some(permit) = &self.unsolicited {
            held.add(Pool::Unsolicited, permit.amount());
        }
        match &self.memory {
            Some(Paid::Lane(permit)) => held.add(Pool::Transfers, permit.amount()),
            Some(Paid::Common(permit, _)) => held.add(Pool::Common, permit.amount()),
            Some(Paid::Reserve(_)) | None => {}
        }
        held
    }

    fn of_rest(memory: Paid) -> Permits {
        Permits {
            unsolicited: None,
            memory: Some(memory),
        }
    }
}

/// How much memory commands may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryLimits {
    /// Total payload memory of commands over all nexuses, including free buffers kept for reuse, in
    /// bytes; at least [`MemoryLimits::memory_least_bytes`].
    pub memory_bytes: usize,
    /// The longest READ or WRITE, in bytes.
    pub transfer_max_bytes: u32,
}

impl MemoryLimits {
    /// The least `memory_bytes` that suffices for `lanes` lanes: each must be able to make progress
    /// while the others hold all that they may.
    pub fn memory_least_bytes(&self, lanes: usize) -> usize {
        Plan::least(lanes, self.transfer_max_bytes as usize)
    }

    pub(crate) fn plan(&self, lanes: usize) -> Plan {
        Plan::new(self.memory_bytes, lanes, self.transfer_max_bytes as usize)
    }
}

impl Default for MemoryLimits {
    fn default() -> Self {
        MemoryLimits {
            memory_bytes: 256 << 20,
            transfer_max_bytes: 4 << 20,
        }
    }
}

/// The reserve of each nexus: enough for one typical database read or write. That for unsolicited data is as large as
/// what [one command](Plan::unsolicited_max) may bring.
const RESERVE_BYTES: usize = 64 << 10;

/// A nexus may have this many commands open, and as many more whenever they are used up, while the lane has commands
/// left. Besides their payload, a thousand waiting commands take memory that cannot be reserved for every nexus at once.
pub const WINDOW_STEP: u16 = 128;

/// The memory of one lane.
pub(crate) struct LaneMemory {
    unsolicited: Rc<UnsolicitedPool>,
    /// The most unsolicited data of a command, in bytes.
    pub(crate) unsolicited_max: usize,
    transfers: Rc<Shares>,
    /// Multi-step operations, which need memory for a piece or two beyond what their command has paid for.
    pub(crate) steps: Rc<Shares>,
    common: Arc<CommonMemory>,
    /// The longest transfer, in bytes.
    transfer_max: usize,
    /// Commands that nexuses may have open in addition to their initial windows.
    commands: Rc<Budget>,
    /// How many nexuses there are.
    nexuses: Cell<usize>,
    /// The shortages of all its nexuses, and of the server itself. [`CommonMemory`] has its own.
    unsolicited_shortages: Shortages,
    transfers_shortages: Shortages,
}

/// The memory of one nexus.
pub struct NexusMemory {
    lane: Rc<LaneMemory>,
    own: Rc<Holder>,
    /// What it may hold of the common memory.
    own_common: Rc<Budget>,
    unsolicited: UnsolicitedShare,
    transfers_reserve: Rc<Budget>,
    /// Its own shortages, by pool.
    shortages: [Shortages; Pool::ALL.len()],
    /// By pool, how many requests of others had been short of it at the last call of [`wanted`](NexusMemory::wanted).
    others_short: [Cell<u64>; Pool::ALL.len()],
}

/// What one disk holds of a lane's memory.
pub struct DiskMemory {
    lane: Rc<LaneMemory>,
    unsolicited: Rc<Holder>,
    transfers: Rc<Holder>,
    pub(crate) steps: Rc<Holder>,
}

impl DiskMemory {
    /// A further disk on `lane`.
    pub(crate) fn new(lane: &Rc<LaneMemory>) -> DiskMemory {
        lane.unsolicited.add_disk();
        lane.transfers.add_disk();
        lane.steps.add_disk();
        DiskMemory {
            lane: lane.clone(),
            unsolicited: Rc::default(),
            transfers: Rc::default(),
            steps: Rc::default(),
        }
    }
}

impl Drop for DiskMemory {
    fn drop(&mut self) {
        self.lane.unsolicited.remove_disk();
        self.lane.transfers.remove_disk();
        self.lane.steps.remove_disk();
    }
}

impl LaneMemory {
    /// The memory of the current lane.
    pub(crate) fn new(plan: &Plan, common: Arc<CommonMemory>) -> Rc<LaneMemory> {
        engine::buf::keep_at_most(plan.kept);
        Rc::new(LaneMemory {
            unsolicited: UnsolicitedPool::new(plan.unsolicited),
            unsolicited_max: plan.unsolicited_max,
            transfers: Shares::new(plan.transfers),
            steps: Shares::new(plan.in_steps),
            common,
            transfer_max: plan.transfer_max,
            commands: Budget::new(plan.commands),
            nexuses: Cell::new(0),
            unsolicited_shortages: Shortages::default(),
            transfers_shortages: Shortages::default(),
        })
    }

    /// The shortages of all who use `pool`.
    fn shortages(&self, pool: Pool) -> &Shortages {
        match pool {
            Pool::Unsolicited => &self.unsolicited_shortages,
            Pool::Transfers => &self.transfers_shortages,
            Pool::Common => self.common.shortages(),
        }
    }

    /// A larger command window for a nexus, if one is available.
    pub(crate) fn take_window(&self) -> Option<Permit> {
        let step = usize::from(WINDOW_STEP);
        (self.commands.total() >= step)
            .then(|| self.commands.try_take(step))
            .flatten()
    }

    /// The most data that a command of one more nexus may bring before the lane asks for it, in bytes: the more nexuses
    /// there are, the less.
    pub(crate) fn first_burst_max(&self) -> usize {
        let each = self.unsolicited_max / (self.nexuses.get() + 1);
        let power = 1 << each.max(1).ilog2();
        self.unsolicited_max.min(RESERVE_BYTES.max(power))
    }

    /// The pool for solicited data that a request is served from: the common one if it exceeds the lane's whole pool. A
    /// request that fits neither, such as a COMPARE AND WRITE of large blocks where transfers are short, takes the lane's
    /// whole pool.
    fn pool_for(&self, bytes: usize) -> Pool {
        match bytes > self.transfers.total() && bytes <= self.common.total() {
            true => Pool::Common,
            false => Pool::Transfers,
        }
    }
}

/// A permit for memory, held until dropped.
#[derive(Debug)]
pub(crate) enum Paid {
    /// A part of the lane's memory for solicited data.
    Lane(MemoryShare),
    /// A part of the common memory, and of what one nexus may hold of it.
    Common(
        CommonPermit,
        #[expect(dead_code, reason = "it is kept to be dropped")] Permit,
    ),
    /// A part of a nexus' reserve.
    Reserve(#[expect(dead_code, reason = "it is kept to be dropped")] Permit),
}

impl NexusMemory {
    /// A nexus' share of the memory of `lane`.
    pub(crate) fn new(lane: &Rc<LaneMemory>) -> NexusMemory {
        lane.nexuses.set(lane.nexuses.get() + 1);
        NexusMemory {
            own: Rc::default(),
            own_common: Budget::new(lane.transfer_max),
            unsolicited: lane.unsolicited.share(lane.unsolicited_max),
            lane: lane.clone(),
            transfers_reserve: Budget::new(RESERVE_BYTES),
            shortages: Default::default(),
            others_short: Pool::ALL.map(|pool| Cell::new(lane.shortages(pool).requests())),
        }
    }

    /// A command may bring `len` bytes before it is asked for, from now on. Called once, before the first
    /// [promise](Self::promise).
    pub fn set_burst(&self, len: u32) {
        let bytes = if len == 0 {
            0
        } else {
            capacity_for(len as usize)
        };
        self.unsolicited.set_burst(bytes);
    }

    /// Promises memory for what further commands may bring unasked, as far as there is room; returns how many of them
    /// may be on their way.
    pub fn promise(&self) -> u32 {
        let promised = self.unsolicited.promise();
        if promised == 0 && !self.unsolicited.is_own_fault() {
            self.note_shortage(Pool::Unsolicited);
        }
        promised
    }

    /// Waits until there may be room for a promise, if there was none for any.
    pub async fn room(&self) {
        self.unsolicited.room().await;
    }

    /// A command that was promised room has arrived. Whatever it needs is taken before anything else happens on the lane.
    pub fn arrived(&self) {
        self.unsolicited.arrived();
    }

    /// Memory for all the data of a command for `disk`, `len` bytes in either direction that are there at once, if
    /// available.
    pub fn take_all_at_once(&self, disk: Option<&DiskMemory>, len: usize) -> Option<Permits> {
        let instead = || {
            self.try_take(disk, len).or_else(|| {
                // A budget would count more than the whole as the whole.
                let fits = capacity_for(len) <= RESERVE_BYTES;
                let reserve = fits.then(|| self.transfers_reserve.try_take(capacity_for(len)));
                reserve
                    .flatten()
                    .map(|permit| Permits::of_rest(Paid::Reserve(permit)))
            })
        };
        self.take_at_once(disk, len).or_else(instead)
    }

    /// Memory for `len` bytes of unsolicited data of a command for `disk`, which may need more later, if available.
    pub fn take_at_once(&self, disk: Option<&DiskMemory>, len: usize) -> Option<Permits> {
        let bytes = if len == 0 { 0 } else { capacity_for(len) };
        let disk = disk.map(|disk| &disk.unsolicited);
        let permit = self.unsolicited.try_take(disk, bytes);
        if permit.as_ref().is_none_or(|permit| permit.amount() < bytes)
            && !self.unsolicited.is_own_fault()
        {
            self.note_shortage(Pool::Unsolicited);
        }
        permit.map(|permit| Permits {
            unsolicited: Some(permit),
            ..Permits::new()
        })
    }

    fn note_shortage(&self, pool: Pool) {
        self.lane.shortages(pool).note();
        self.shortages[pool as usize].note();
    }

    /// The pools that others need: since the last call one of their requests was short of it, so that it waited, took
    /// from a reserve or was refused; or one waits now.
    fn wanted(&self) -> Vec<Pool> {
        let is_wanted = |pool: &Pool| {
            let (all, own) = (self.lane.shortages(*pool), &self.shortages[*pool as usize]);
            let others = all.requests() - own.requests();
            let before = self.others_short[*pool as usize].replace(others);
            before != others || all.waiting() > own.waiting()
        };
        Pool::ALL.into_iter().filter(is_wanted).collect()
    }

    fn charged(&self, disk: Option<&DiskMemory>) -> Charged {
        Charged::new(&self.own, disk.map(|disk| &disk.transfers))
    }

    /// Memory for `len` bytes of a command for `disk`, if available.
    pub fn try_take(&self, disk: Option<&DiskMemory>, len: usize) -> Option<Permits> {
        let paid = self.try_take_bytes(self.charged(disk), capacity_for(len));
        paid.ok().map(Permits::of_rest)
    }

    fn try_take_bytes(&self, charged: Charged, bytes: usize) -> Result<Paid, Charged> {
        if self.lane.pool_for(bytes) != Pool::Common {
            let part = self.lane.transfers.try_take(charged, bytes);
            return part.map(Paid::Lane);
        }
        let own = self.own_common.try_take(bytes);
        let paid = own.and_then(|own| Some(Paid::Common(self.lane.common.try_take(bytes)?, own)));
        paid.ok_or(charged)
    }

    /// Waits for `bytes`.
    async fn take_bytes(&self, charged: Charged, bytes: usize) -> Paid {
        let charged = match self.try_take_bytes(charged, bytes) {
            Ok(paid) => return paid,
            Err(charged) => charged,
        };
        let pool = self.lane.pool_for(bytes);
        let waiting =
            || WaitingRequest::begin(self.lane.shortages(pool), &self.shortages[pool as usize]);
        if pool == Pool::Common {
            let own = self.own_common.take(bytes).await;
            let _waiting = waiting();
            return Paid::Common(self.lane.common.take(bytes).await, own);
        }
        // Nobody else can help a nexus that holds too much itself.
        let is_own_fault = self.lane.transfers.is_own_fault(&charged, bytes);
        let _waiting = (!is_own_fault).then(waiting);
        Paid::Lane(self.lane.transfers.take(charged, bytes).await)
    }

    /// Waits for memory for `len` bytes of a command for `disk`: from the lane's, or from the nexus' reserve.
    pub async fn take(&self, disk: Option<&DiskMemory>, len: usize) -> Permits {
        let bytes = capacity_for(len);
        let lane = self.take_bytes(self.charged(disk), bytes);
        if bytes > RESERVE_BYTES {
            return Permits::of_rest(lane.await);
        }
        let (mut lane, mut reserve) = (pin!(lane), pin!(self.transfers_reserve.take(bytes)));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(memory) = lane.as_mut().poll(cx) {
                return Poll::Ready(Permits::of_rest(memory));
            }
            let reserve = reserve.as_mut().poll(cx);
            reserve.map(|permit| Permits::of_rest(Paid::Reserve(permit)))
        })
        .await
    }

    /// Waits for memory for `len` bytes that the server copies from one disk to the other for this nexus.
    pub(crate) async fn take_for_copy(&self, disks: [&DiskMemory; 2], len: usize) -> Permits {
        let charged = Charged::for_copy(&self.own, disks.map(|disk| &disk.transfers));
        let lane = self.take_bytes(charged, capacity_for(len));
        Permits::of_rest(lane.await)
    }
}

impl Drop for NexusMemory {
    fn drop(&mut self) {
        self.lane.nexuses.set(self.lane.nexuses.get() - 1);
    }
}

#[cfg(test)]
mod tests;
