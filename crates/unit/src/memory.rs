//! A lane's memory for payload, and how much of it each nexus may use.
//!
//! Unsolicited data must find room at once, or its command is refused with TASK SET FULL; solicited
//! data waits in line. Neither can use the other's share. In addition to the lane's memory each
//! nexus has a small reserve for each of the two, which it uses when the lane's share is taken. So
//! no nexus is stalled by memory that others hold and do not return.
//!
//! A request larger than the lane's whole share is paid from memory that the lanes have in
//! [common](CommonMemory), so that the total does not depend on their number; [`Plan`] divides it.
//!
//! The amount counted is the memory behind a buffer, which is more than the bytes requested.

mod common;
mod pace;
mod plan;

use std::{cell::Cell, future::Future, pin::pin, rc::Rc, sync::Arc, task::Poll};

pub(crate) use common::CommonMemory;
use engine::{
    buf::capacity_for,
    sync::{Budget, Permit},
};
pub use pace::{Moving, Paces, TooSlow};
pub(crate) use plan::Plan;

use common::CommonPermit;

/// The memory permits of a transfer, held until dropped.
#[derive(Debug, Default)]
pub struct Permits {
    /// For the unsolicited data.
    unsolicited: Option<Permit>,
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

    /// The memory they pay for, in bytes.
    pub fn amount(&self) -> usize {
        let unsolicited = self.unsolicited.as_ref().map_or(0, Permit::amount);
        unsolicited + self.memory.as_ref().map_or(0, Paid::amount)
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

/// The reserve of each nexus: enough for a command's unsolicited data (FirstBurstLength), and for
/// one typical database read or write.
const RESERVE_BYTES: usize = 64 << 10;

/// A nexus starts with a window of this many commands, and is given as many more whenever it has
/// used them up, while the lane has commands left. Besides their payload, a thousand waiting
/// commands take memory that cannot be reserved for every nexus at once.
pub const WINDOW_STEP: u16 = 128;
/// The memory of one lane.
pub(crate) struct LaneMemory {
    unsolicited: Rc<Budget>,
    transfers: Rc<Budget>,
    common: Arc<CommonMemory>,
    /// Commands that nexuses may have open in addition to their initial windows.
    commands: Rc<Budget>,
    /// The most of `transfers` that one nexus may hold.
    nexus_max: usize,
    /// That of all its nexuses together, and of the server itself.
    shortage: Shortage,
}

/// How often memory was short, and how many requests wait for it now.
#[derive(Default)]
struct Shortage {
    times: Cell<u64>,
    waiting: Cell<usize>,
    /// Of these, how many wait for common memory.
    waiting_for_common: Cell<usize>,
}

impl Shortage {
    fn note(&self) {
        self.times.set(self.times.get() + 1);
    }

    fn begin(&self, is_common: bool) {
        self.note();
        self.waiting.set(self.waiting.get() + 1);
        let common = self.waiting_for_common.get() + usize::from(is_common);
        self.waiting_for_common.set(common);
    }

    fn end(&self, is_common: bool) {
        self.waiting.set(self.waiting.get() - 1);
        let common = self.waiting_for_common.get() - usize::from(is_common);
        self.waiting_for_common.set(common);
    }
}

/// A request that waits for memory, counted by its lane and its nexus while this exists.
struct Waiting<'a> {
    by: [Option<&'a Shortage>; 2],
    is_common: bool,
}

impl<'a> Waiting<'a> {
    fn begin(by: [Option<&'a Shortage>; 2], is_common: bool) -> Waiting<'a> {
        by.iter().flatten().for_each(|it| it.begin(is_common));
        Waiting { by, is_common }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let by = self.by.iter().flatten();
        by.for_each(|it| it.end(self.is_common));
    }
}

/// The memory of one nexus.
pub struct NexusMemory {
    lane: Rc<LaneMemory>,
    own: Rc<Budget>,
    unsolicited_reserve: Rc<Budget>,
    transfers_reserve: Rc<Budget>,
    shortage: Shortage,
    /// How often others had been short when that was last asked.
    others_short: Cell<u64>,
}

impl LaneMemory {
    /// The memory of the current lane.
    pub(crate) fn new(plan: &Plan, common: Arc<CommonMemory>) -> Rc<LaneMemory> {
        engine::buf::keep_at_most(plan.kept);
        Rc::new(LaneMemory {
            unsolicited: Budget::new(plan.unsolicited),
            transfers: Budget::new(plan.transfers),
            common,
            commands: Budget::new(plan.commands),
            nexus_max: plan.nexus_max,
            shortage: Shortage::default(),
        })
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

    /// Whether the request exceeds the lane's whole part and fits the common one. A request that fits neither, such
    /// as a COMPARE AND WRITE of large blocks where transfers are short, takes the lane's whole part.
    fn is_common(&self, bytes: usize) -> bool {
        bytes > self.transfers.total() && bytes <= self.common.total()
    }

    /// Waits for `bytes`, for the nexus that counts its own shortage.
    async fn take_bytes(&self, bytes: usize, own: Option<&Shortage>) -> Paid {
        if let Some(paid) = self.try_take_bytes(bytes) {
            return paid;
        }
        let is_common = self.is_common(bytes);
        let _waiting = Waiting::begin([Some(&self.shortage), own], is_common);
        match is_common {
            true => Paid::Common(self.common.take(bytes).await),
            false => Paid::Lane(self.transfers.take(bytes).await),
        }
    }

    fn try_take_bytes(&self, bytes: usize) -> Option<Paid> {
        match self.is_common(bytes) {
            true => self.common.try_take(bytes).map(Paid::Common),
            false => self.transfers.try_take(bytes).map(Paid::Lane),
        }
    }
}

/// A permit for memory, held until dropped.
#[derive(Debug)]
pub(crate) enum Paid {
    /// A part of the lane's or the nexus' memory.
    Lane(Permit),
    /// A part of the common memory.
    Common(CommonPermit),
}

impl Paid {
    fn amount(&self) -> usize {
        match self {
            Paid::Lane(permit) => permit.amount(),
            Paid::Common(permit) => permit.amount(),
        }
    }
}

impl NexusMemory {
    /// A nexus' share of the memory of `lane`.
    pub(crate) fn new(lane: &Rc<LaneMemory>) -> NexusMemory {
        NexusMemory {
            own: Budget::new(lane.nexus_max),
            lane: lane.clone(),
            unsolicited_reserve: Budget::new(RESERVE_BYTES),
            transfers_reserve: Budget::new(RESERVE_BYTES),
            shortage: Shortage::default(),
            others_short: Cell::new(lane.shortage.times.get()),
        }
    }

    /// Memory for `len` bytes of unsolicited data, in either direction, if available.
    pub fn take_at_once(&self, len: usize) -> Option<Permits> {
        let bytes = if len == 0 { 0 } else { capacity_for(len) };
        // A budget would count more than the whole as the whole.
        let from = |budget: &Rc<Budget>| match bytes <= budget.total() {
            true => budget.try_take(bytes),
            false => None,
        };
        let unsolicited = from(&self.lane.unsolicited).or_else(|| {
            self.lane.shortage.note();
            self.shortage.note();
            from(&self.unsolicited_reserve)
        })?;
        Some(Permits {
            unsolicited: Some(unsolicited),
            ..Permits::new()
        })
    }

    /// How much of its share the nexus holds, in bytes. Its reserves do not count: nobody else could have them.
    fn held_bytes(&self) -> usize {
        self.own.total() - self.own.left()
    }

    /// Whether another nexus of the lane was short of memory since the last call: it waits for some, had to use its
    /// reserve, or was refused. Or a nexus of another lane waits for the memory that the lanes have in common.
    fn is_wanted(&self) -> bool {
        let (all, own) = (&self.lane.shortage, &self.shortage);
        let others = all.times.get() - own.times.get();
        let were_short = self.others_short.replace(others) != others;
        were_short
            || all.waiting.get() > own.waiting.get()
            || self.lane.common.waiting() > own.waiting_for_common.get()
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
            let lane = self.lane.take_bytes(bytes, Some(&self.shortage)).await;
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
                .map(|permit| Permits::of_rest(None, Paid::Lane(permit)))
        })
        .await
    }
}

#[cfg(test)]
mod tests;
