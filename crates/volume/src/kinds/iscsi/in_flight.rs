//! The commands in flight on a nexus: their number, and the mean latency.

use std::cell::Cell;

use engine::{Duration, Instant, sync::Notify, time};

use super::config::Policy;

/// The weight of the latest latency in the mean, as a right shift.
const LATENCY_SHIFT: u32 = 3;

/// The commands in flight on a nexus.
#[derive(Default)]
pub(super) struct InFlight {
    count: Cell<u32>,
    idle: Notify,
    latency: Cell<Duration>,
}

impl InFlight {
    /// Commands not yet answered.
    pub(super) fn count(&self) -> u32 {
        self.count.get()
    }

    /// Waits until no command is outstanding.
    pub(super) async fn idle(&self) {
        let is_idle = || (self.count.get() == 0).then_some(());
        self.idle.wait_for(is_idle).await;
    }

    /// The cost under `policy`: of several nexuses, the one with the lowest is chosen.
    pub(super) fn load(&self, policy: Policy) -> u64 {
        match policy {
            Policy::RoundRobin => 0,
            Policy::LeastOutstanding => u64::from(self.count()),
            Policy::LowestLatency => {
                let latency = self.latency.get().as_nanos() as u64;
                latency.saturating_mul(u64::from(self.count()) + 1)
            }
        }
    }

    /// Records that a command is sent now.
    pub(super) fn begin(&self) -> Running<'_> {
        self.count.set(self.count.get() + 1);
        Running {
            all: self,
            began: time::turn_began(),
        }
    }
}

/// A command in flight.
pub(super) struct Running<'a> {
    all: &'a InFlight,
    began: Instant,
}

impl Running<'_> {
    /// Records that it was answered now.
    pub(super) fn answered(&self) {
        let (took, mean) = (time::turn_began() - self.began, self.all.latency.get());
        let mean = mean - mean / (1 << LATENCY_SHIFT) + took / (1 << LATENCY_SHIFT);
        self.all.latency.set(mean);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let left = self.all.count.get() - 1;
        self.all.count.set(left);
        if left == 0 {
            self.all.idle.notify();
        }
    }
}
