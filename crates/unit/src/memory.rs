//! The lane's memory for payload, and what each nexus may have of it.
//!
//! Data that comes unasked must find room at once or its command is refused with TASK SET FULL;
//! what is asked for waits in line. Neither can take the other's. Beside the lane's memory each
//! session has a small reserve of its own for each of the two, which it uses when the lane's is
//! taken: so none is brought to a standstill by what others hold and do not give back.
//!
//! A request that is longer than all that the lane has for such is paid from what the lanes have in
//! [common](CommonMemory), so that their number changes nothing about the whole; [`Plan`] divides it.
//!
//! What is counted is the memory behind a buffer, which is more than the bytes asked for.

mod common;
mod plan;

use std::{future::Future, pin::pin, rc::Rc, sync::Arc, task::Poll};

pub(crate) use common::CommonMemory;
use engine::{
    buf::capacity_for,
    sync::{Budget, Permit},
};
pub(crate) use plan::Plan;

use common::CommonPermit;

/// What pays for a transfer until it is dropped.
#[derive(Debug, Default)]
pub struct Permits {
    /// For what came unasked.
    unsolicited: Option<Permit>,
    /// A part of the nexus' share, for the rest.
    #[allow(dead_code, reason = "it is kept to be dropped")]
    own: Option<Permit>,
    /// And of the memory behind that.
    #[allow(dead_code, reason = "as above")]
    memory: Option<Paid>,
}

impl Permits {
    /// They pay for nothing.
    pub fn new() -> Permits {
        Permits::default()
    }

    /// Those for what came unasked pay for the rest as well, with `rest`, which
    /// [waited](NexusMemory::take) for it.
    pub fn pay_rest(&mut self, rest: Permits) {
        let unsolicited = self.unsolicited.take();
        *self = Permits {
            unsolicited,
            ..rest
        };
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
    /// For the payload of commands, over all nexuses, with the buffers that are kept for the next ones,
    /// in bytes; at least [`Limits::memory_least_bytes`].
    pub memory_bytes: usize,
    /// Longest READ or WRITE, in bytes.
    pub transfer_max_bytes: u32,
}

impl Limits {
    /// The least `memory_bytes` with which so many lanes can serve: each has to be able to go on when
    /// the others hold all that they may.
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

/// What a nexus can always have: for a command's unsolicited data (FirstBurstLength), and for
/// what a database reads and writes in one go.
const RESERVE_BYTES: usize = 64 << 10;

/// A nexus begins with a window of so many commands and is given as many more each time it has
/// used it up, while the lane has commands left: what a thousand waiting commands take beside their
/// payload is not to be had for every nexus at once.
pub const WINDOW_STEP: u16 = 128;
/// The lane's.
pub(crate) struct LaneMemory {
    unsolicited: Rc<Budget>,
    transfers: Rc<Budget>,
    common: Arc<CommonMemory>,
    /// Commands that nexuses may have open beyond what each begins with.
    commands: Rc<Budget>,
    /// The most of `transfers` that one nexus may hold.
    nexus_max: usize,
}

/// One nexus'.
pub struct NexusMemory {
    lane: Rc<LaneMemory>,
    own: Rc<Budget>,
    unsolicited_reserve: Rc<Budget>,
    transfers_reserve: Rc<Budget>,
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
        })
    }

    /// A wider window for a nexus, if there is one to be had.
    pub(crate) fn take_window(&self) -> Option<Permit> {
        let step = usize::from(WINDOW_STEP);
        (self.commands.total() >= step)
            .then(|| self.commands.try_take(step))
            .flatten()
    }

    /// Waits for memory for `len` bytes that the server moves by itself.
    pub(crate) async fn take(&self, len: usize) -> Paid {
        self.take_bytes(capacity_for(len)).await
    }

    /// Whether the lane's own part cannot hold so much. What neither can, as a COMPARE AND WRITE of
    /// large blocks where transfers are short, takes the whole of it.
    fn is_common(&self, bytes: usize) -> bool {
        bytes > self.transfers.total() && bytes <= self.common.total()
    }

    async fn take_bytes(&self, bytes: usize) -> Paid {
        match self.is_common(bytes) {
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

/// What pays for memory until it is dropped.
#[derive(Debug)]
pub(crate) enum Paid {
    /// A part of what the lane or the nexus has.
    Lane(#[allow(dead_code, reason = "it is kept to be dropped")] Permit),
    /// A part of what all lanes have.
    Common(#[allow(dead_code, reason = "it is kept to be dropped")] CommonPermit),
}

impl NexusMemory {
    /// A nexus's share of `lane`.
    pub(crate) fn new(lane: &Rc<LaneMemory>) -> NexusMemory {
        NexusMemory {
            own: Budget::new(lane.nexus_max),
            lane: lane.clone(),
            unsolicited_reserve: Budget::new(RESERVE_BYTES),
            transfers_reserve: Budget::new(RESERVE_BYTES),
        }
    }

    /// Memory for `len` bytes that come, or go, without having been asked for, if there is any.
    pub fn take_at_once(&self, len: usize) -> Option<Permits> {
        let bytes = if len == 0 { 0 } else { capacity_for(len) };
        let from = [&self.lane.unsolicited, &self.unsolicited_reserve];
        // A budget takes more than the whole for the whole.
        let mut from = from.into_iter().filter(|budget| bytes <= budget.total());
        let unsolicited = from.find_map(|budget| budget.try_take(bytes))?;
        Some(Permits {
            unsolicited: Some(unsolicited),
            ..Permits::new()
        })
    }

    /// Memory for `len` bytes of the nexus' share and the lane's, if it is free.
    pub fn try_take(&self, len: usize) -> Option<Permits> {
        let bytes = capacity_for(len);
        let own = self.own.try_take(bytes)?;
        let lane = self.lane.try_take_bytes(bytes)?;
        Some(Permits::of_rest(Some(own), lane))
    }

    /// Waits for memory for `len` bytes: of the nexus' share and the lane's, or of its reserve.
    pub async fn take(&self, len: usize) -> Permits {
        let bytes = capacity_for(len);
        let shared = async {
            let own = self.own.take(bytes).await;
            let lane = self.lane.take_bytes(bytes).await;
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
