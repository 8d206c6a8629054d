//! A lane's memory for payload, and how much of it each nexus may use.
//!
//! Unsolicited data must find room at once, or its command is refused with TASK SET FULL; solicited
//! data waits in line. Unsolicited data that is all a command needs may use the share of solicited
//! data too, since the command then waits for nothing that others hold. In addition to the lane's
//! memory each nexus has a small reserve for each of the two, which it uses when the lane's share is
//! taken; and none may hold all of the [unsolicited](unsolicited) data's memory beside others. So no
//! nexus is stalled by memory that others hold and do not return.
//!
//! A request larger than the lane's whole share is paid from memory that the lanes have in
//! [common](CommonMemory), so that the total does not depend on their number; [`Plan`] divides it.
//!
//! The amount counted is the memory behind a buffer, which is more than the bytes requested.

mod common;
mod pace;
mod plan;
mod pool;
mod unsolicited;

use std::{cell::Cell, future::Future, pin::pin, rc::Rc, sync::Arc, task::Poll};

pub(crate) use common::CommonMemory;
use engine::{
    buf::capacity_for,
    sync::{Budget, Permit},
};
pub use pace::{Moving, Paces, Progress, TooSlow};
pub(crate) use plan::Plan;
pub use pool::Held;

use common::CommonPermit;
use pool::{Pool, Shortages, Waiting};
use unsolicited::{NoRoom, UnsolicitedPermit, UnsolicitedPool, UnsolicitedShare};

/// The memory permits of a transfer, held until dropped.
#[derive(Debug, Default)]
pub struct Permits {
    /// For the unsolicited data.
    unsolicited: Option<PaidUnsolicited>,
    /// A part of the nexus' share, for the solicited data.
    #[allow(dead_code, reason = "it is kept to be dropped")]
    own: Option<Permit>,
    /// The part of the lane's or the common memory behind that share.
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
        if let Some(PaidUnsolicited::Shared(permit)) = &self.unsolicited {
            held.add(Pool::Unsolicited, permit.amount());
        }
        match &self.memory {
            Some(Paid::Lane(permit)) => held.add(Pool::Transfers, permit.amount()),
            Some(Paid::Common(permit)) => held.add(Pool::Common, permit.amount()),
            Some(Paid::Reserve(_)) | None => {}
        }
        held
    }

    fn of_rest(own: Option<Permit>, memory: Paid) -> Permits {
        Permits {
            unsolicited: None,
            own,
            memory: Some(memory),
        }
    }
}

/// How much memory commands may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Total payload memory of commands over all nexuses, including free buffers kept for reuse, in
    /// bytes; at least [`Limits::memory_least_bytes`].
    pub memory_bytes: usize,
    /// The longest READ or WRITE, in bytes.
    pub transfer_max_bytes: u32,
}

impl Limits {
    /// The least `memory_bytes` that suffices for `lanes` lanes: each must be able to make progress
    /// while the others hold all that they may.
    pub fn memory_least_bytes(&self, lanes: usize) -> usize {
        Plan::least(lanes, self.transfer_max_bytes as usize)
    }

    pub(crate) fn plan(&self, lanes: usize) -> Plan {
        Plan::new(self.memory_bytes, lanes, self.transfer_max_bytes as usize)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes: 256 << 20,
            transfer_max_bytes: 4 << 20,
        }
    }
}

/// The reserve of each nexus: enough for one typical database read or write. That for unsolicited data is as large as
/// what [one command](Plan::unsolicited_max) may bring.
const RESERVE_BYTES: usize = 64 << 10;

/// A nexus starts with a window of this many commands, and is given as many more whenever it has
/// used them up, while the lane has commands left. Besides their payload, a thousand waiting
/// commands take memory that cannot be reserved for every nexus at once.
pub const WINDOW_STEP: u16 = 128;
/// The memory of one lane.
pub(crate) struct LaneMemory {
    unsolicited: Rc<UnsolicitedPool>,
    /// The most unsolicited data of a command, in bytes.
    pub(crate) unsolicited_max: usize,
    transfers: Rc<Budget>,
    common: Arc<CommonMemory>,
    /// Commands that nexuses may have open in addition to their initial windows.
    commands: Rc<Budget>,
    /// The most of `transfers` that one nexus may hold.
    nexus_max: usize,
    /// The shortages of all its nexuses, and of the server itself. [`CommonMemory`] has its own.
    unsolicited_shortages: Shortages,
    transfers_shortages: Shortages,
}

/// The memory of one nexus.
pub struct NexusMemory {
    lane: Rc<LaneMemory>,
    own: Rc<Budget>,
    unsolicited: UnsolicitedShare,
    unsolicited_reserve: Rc<Budget>,
    transfers_reserve: Rc<Budget>,
    /// Its own shortages, by pool.
    shortages: [Shortages; Pool::ALL.len()],
    /// By pool, how many requests of others had been short of it at the last call of [`wanted`](NexusMemory::wanted).
    others_short: [Cell<u64>; Pool::ALL.len()],
}

impl LaneMemory {
    /// The memory of the current lane.
    pub(crate) fn new(plan: &Plan, common: Arc<CommonMemory>) -> Rc<LaneMemory> {
        engine::buf::keep_at_most(plan.kept);
        Rc::new(LaneMemory {
            unsolicited: UnsolicitedPool::new(plan.unsolicited),
            unsolicited_max: plan.unsolicited_max,
            transfers: Budget::new(plan.transfers),
            common,
            commands: Budget::new(plan.commands),
            nexus_max: plan.nexus_max,
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

    /// Waits for memory for `len` bytes that the server moves on its own account.
    pub(crate) async fn take(&self, len: usize) -> Paid {
        self.take_bytes(capacity_for(len), None).await
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

    /// Waits for `bytes`, for the nexus with the shortages `own`, if it is for one.
    async fn take_bytes(&self, bytes: usize, own: Option<&[Shortages; Pool::ALL.len()]>) -> Paid {
        if let Some(paid) = self.try_take_bytes(bytes) {
            return paid;
        }
        let pool = self.pool_for(bytes);
        let own = own.map(|own| &own[pool as usize]);
        let _waiting = Waiting::begin(self.shortages(pool), own);
        match pool {
            Pool::Common => Paid::Common(self.common.take(bytes).await),
            _ => Paid::Lane(self.transfers.take(bytes).await),
        }
    }

    fn try_take_bytes(&self, bytes: usize) -> Option<Paid> {
        match self.pool_for(bytes) {
            Pool::Common => self.common.try_take(bytes).map(Paid::Common),
            _ => self.transfers.try_take(bytes).map(Paid::Lane),
        }
    }
}

/// A permit for memory, held until dropped.
#[derive(Debug)]
pub(crate) enum Paid {
    /// A part of one of the lane's pools.
    Lane(Permit),
    /// A part of the common memory.
    Common(CommonPermit),
    /// A part of a nexus' reserve.
    Reserve(#[expect(dead_code, reason = "it is kept to be dropped")] Permit),
}

/// A permit for the memory of unsolicited data, held until dropped.
#[derive(Debug)]
enum PaidUnsolicited {
    /// A part of the nexus' share of the lane's pool.
    Shared(UnsolicitedPermit),
    /// A part of its reserve.
    Reserve(#[expect(dead_code, reason = "it is kept to be dropped")] Permit),
}

impl NexusMemory {
    /// A nexus' share of the memory of `lane`.
    pub(crate) fn new(lane: &Rc<LaneMemory>) -> NexusMemory {
        NexusMemory {
            own: Budget::new(lane.nexus_max),
            unsolicited: lane.unsolicited.share(),
            lane: lane.clone(),
            unsolicited_reserve: Budget::new(lane.unsolicited_max),
            transfers_reserve: Budget::new(RESERVE_BYTES),
            shortages: Default::default(),
            others_short: Pool::ALL.map(|pool| Cell::new(lane.shortages(pool).requests())),
        }
    }

    /// Memory for all the data of a command, `len` bytes that come unsolicited, if available.
    pub fn take_all_at_once(&self, len: usize) -> Option<Permits> {
        self.take_unsolicited(len, || self.try_take(len))
    }

    /// Memory for `len` bytes of unsolicited data, in either direction, of a command that may need more, if available.
    pub fn take_at_once(&self, len: usize) -> Option<Permits> {
        self.take_unsolicited(len, || None)
    }

    /// Memory for `len` bytes from its share for unsolicited data, or what `instead` finds, or from the reserve.
    fn take_unsolicited(
        &self,
        len: usize,
        instead: impl FnOnce() -> Option<Permits>,
    ) -> Option<Permits> {
        let bytes = if len == 0 { 0 } else { capacity_for(len) };
        let permits = |paid| Permits {
            unsolicited: Some(paid),
            ..Permits::new()
        };
        match self.unsolicited.try_take(bytes) {
            Ok(permit) => return Some(permits(PaidUnsolicited::Shared(permit))),
            Err(NoRoom::Others) => {
                let pool = Pool::Unsolicited;
                self.lane.shortages(pool).note();
                self.shortages[pool as usize].note();
            }
            // Nobody else could help it.
            Err(NoRoom::Share) => {}
        }
        let reserve = || {
            // A budget would count more than the whole as the whole.
            let fits = bytes <= self.unsolicited_reserve.total();
            let permit = fits.then(|| self.unsolicited_reserve.try_take(bytes));
            permit.flatten().map(PaidUnsolicited::Reserve)
        };
        instead().or_else(|| reserve().map(permits))
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

    /// Memory for `len` bytes from the nexus' share and the lane's, if available.
    pub fn try_take(&self, len: usize) -> Option<Permits> {
        let bytes = capacity_for(len);
        let own = self.own.try_take(bytes)?;
        let lane = self.lane.try_take_bytes(bytes)?;
        Some(Permits::of_rest(Some(own), lane))
    }

    /// Waits for memory for `len` bytes: from the nexus' share and the lane's, or from its reserve.
    pub async fn take(&self, len: usize) -> Permits {
        let bytes = capacity_for(len);
        let shared = async {
            let own = self.own.take(bytes).await;
            let lane = self.lane.take_bytes(bytes, Some(&self.shortages)).await;
            Permits::of_rest(Some(own), lane)
        };
        if bytes > RESERVE_BYTES {
            return shared.await;
        }
        let (mut shared, mut reserve) = (pin!(shared), pin!(self.transfers_reserve.take(bytes)));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(permits) = shared.as_mut().poll(cx) {
                return Poll::Ready(permits);
            }
            reserve
                .as_mut()
                .poll(cx)
                .map(|permit| Permits::of_rest(None, Paid::Reserve(permit)))
        })
        .await
    }
}

#[cfg(test)]
mod tests;
