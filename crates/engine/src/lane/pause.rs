//! How a lane that has nothing to do waits: it looks for work, or it sleeps.
//!
//! Which takes less of the processor depends on the machine and on the load, and more on what is around the lane than
//! on the lane: where a peer answers within microseconds, a lane that sleeps has it sleep too, and each wake-up of the
//! one is paid for by the other. So nothing is foretold. A lane counts what its thread has taken of the processor and
//! how many bytes it has moved for it, tries the other way for some pauses now and then, and goes on in the way that
//! takes less for a byte. The longer the answer stays the same, the rarer are the trials.

use std::mem;

/// How a lane that has nothing to do waits: what that costs, and how soon it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Waiting {
    /// It looks for work for up to 50 µs after short pauses, whatever that costs.
    Latency,
    /// It looks for work where that takes at most a tenth more of the processor than to sleep.
    #[default]
    Balanced,
    /// It looks for work only where that takes less of the processor than to sleep.
    Cpu,
}

/// The longest look.
const LOOK_MAX_NS: u64 = 50_000;
/// After so many pauses what they cost is counted, in the usual way and in a trial of the other.
const WINDOW_PAUSES: u32 = 64;
const TRIAL_PAUSES: u32 = 32;
/// A trial comes after so many windows at most.
const TRIAL_EVERY_MAX: u32 = 64;
/// Fewer bytes than one I/O say nothing.
const WINDOW_BYTES_MIN: u64 = 16 << 10;

/// One of the two ways to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Look,
    Sleep,
}

impl Way {
    fn other(self) -> Way {
        match self {
            Way::Look => Way::Sleep,
            Way::Sleep => Way::Look,
        }
    }
}

/// What a lane has learnt of its pauses.
#[derive(Debug)]
pub(super) struct Pauses {
    waiting: Waiting,
    /// A running mean of the pauses, which [`Waiting::Latency`] goes by.
    mean_ns: u64,
    /// The way that is usual now.
    way: Way,
    is_trial: bool,
    /// Pauses that are left of this window.
    pauses_left: u32,
    /// The thread's CPU time as this window began, and the bytes moved since.
    began_cpu_ns: u64,
    moved_bytes: u64,
    /// What the usual way costs for a MiB, a running mean; zero: not known.
    usual_cost_ns: u64,
    /// Windows until the next trial, and how many there were before the last.
    until_trial: u32,
    trial_every: u32,
}

impl Pauses {
    pub(super) fn new(waiting: Waiting) -> Pauses {
        Pauses {
            waiting,
            mean_ns: 10 * LOOK_MAX_NS,
            way: Way::Sleep,
            is_trial: false,
            pauses_left: WINDOW_PAUSES,
            began_cpu_ns: 0,
            moved_bytes: 0,
            usual_cost_ns: 0,
            until_trial: 1,
            trial_every: 1,
        }
    }

    /// How long to look for work now; `None`: not at all.
    pub(super) fn look_ns(&self) -> Option<u64> {
        let looks = match self.waiting {
            Waiting::Latency => self.mean_ns <= LOOK_MAX_NS,
            Waiting::Balanced | Waiting::Cpu => (self.way == Way::Look) != self.is_trial,
        };
        looks.then_some(LOOK_MAX_NS)
    }

    /// Bytes have been moved.
    pub(super) fn moved(&mut self, bytes: u64) {
        self.moved_bytes += bytes;
    }

    /// A pause has ended after `pause_ns`, however it was spent. `cpu_ns` gives the thread's CPU time.
    pub(super) fn ended(&mut self, pause_ns: u64, cpu_ns: impl FnOnce() -> u64) {
        if self.waiting == Waiting::Latency {
            // A mean over about eight pauses; a long one counts no more than ten looks, so that the lane finds
            // back to looking soon after a quiet time.
            let capped = pause_ns.min(10 * LOOK_MAX_NS);
            self.mean_ns = self.mean_ns - self.mean_ns / 8 + capped / 8;
            return;
        }
        self.pauses_left -= 1;
        if self.pauses_left == 0 {
            let now_ns = cpu_ns();
            let spent_ns = now_ns - mem::replace(&mut self.began_cpu_ns, now_ns);
            self.window_ended(spent_ns);
        }
    }

    fn window_ended(&mut self, spent_ns: u64) {
        let moved_bytes = mem::take(&mut self.moved_bytes);
        let was_trial = mem::take(&mut self.is_trial);
        self.pauses_left = WINDOW_PAUSES;
        if moved_bytes < WINDOW_BYTES_MIN {
            return;
        }
        let cost_ns = (u128::from(spent_ns) << 20) / u128::from(moved_bytes);
        let cost_ns = u64::try_from(cost_ns).unwrap_or(u64::MAX).max(1);
        match was_trial {
            true => self.compare(cost_ns),
            false => self.count(cost_ns),
        }
        if self.until_trial == 0 {
            self.is_trial = true;
            self.pauses_left = TRIAL_PAUSES;
        }
    }

    /// The usual way has cost this much.
    fn count(&mut self, cost_ns: u64) {
        let known = mem::replace(&mut self.usual_cost_ns, cost_ns);
        let is_alike = known > 0 && cost_ns.abs_diff(known) < known / 3;
        match is_alike {
            true => self.usual_cost_ns = known - known / 4 + cost_ns / 4,
            // Another load: what was learnt is of no use for it.
            false => self.trial_every = 1,
        }
        self.until_trial = self.until_trial.min(self.trial_every).saturating_sub(1);
    }

    /// The other way has cost this much.
    fn compare(&mut self, cost_ns: u64) {
        let (look_ns, sleep_ns) = match self.way {
            Way::Look => (self.usual_cost_ns, cost_ns),
            Way::Sleep => (cost_ns, self.usual_cost_ns),
        };
        let may_cost_ns = match self.waiting {
            Waiting::Cpu => sleep_ns,
            Waiting::Balanced | Waiting::Latency => sleep_ns + sleep_ns / 10,
        };
        let better = match look_ns <= may_cost_ns {
            true => Way::Look,
            false => Way::Sleep,
        };
        self.trial_every = match better == self.way {
            true => TRIAL_EVERY_MAX.min(self.trial_every * 2),
            false => 1,
        };
        if better != self.way {
            self.way = self.way.other();
            self.usual_cost_ns = cost_ns;
        }
        self.until_trial = self.trial_every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the two ways cost for a command of 4 KiB, one at each pause, in nanoseconds.
    #[derive(Clone, Copy)]
    struct Costs {
        look: u64,
        sleep: u64,
    }

    /// Goes through `count` pauses; the share of those in which the lane looked, in parts of a thousand.
    fn looked(pauses: &mut Pauses, count: u32, costs: Costs) -> u32 {
        let mut cpu_ns = pauses.began_cpu_ns;
        let mut looks = 0;
        for _ in 0..count {
            let looks_now = pauses.look_ns().is_some();
            looks += u32::from(looks_now);
            cpu_ns += if looks_now { costs.look } else { costs.sleep };
            pauses.moved(4096);
            pauses.ended(20_000, || cpu_ns);
        }
        looks * 1000 / count
    }

    const LOOKING_IS_CHEAP: Costs = Costs {
        look: 31_000,
        sleep: 39_000,
    };
    const SLEEPING_IS_CHEAP: Costs = Costs {
        look: 120_000,
        sleep: 60_000,
    };
    const LOOKING_IS_A_LITTLE_DEARER: Costs = Costs {
        look: 105,
        sleep: 100,
    };

    #[test]
    fn a_balanced_lane_goes_the_cheaper_way_and_tries_the_other_seldom() {
        for (costs, usually) in [(LOOKING_IS_CHEAP, 1000), (SLEEPING_IS_CHEAP, 0)] {
            let mut pauses = Pauses::new(Waiting::Balanced);
            looked(&mut pauses, 20_000, costs);
            let share = looked(&mut pauses, 100_000, costs);
            assert!(share.abs_diff(usually) <= 10, "{share} beside {usually}");
        }
    }

    #[test]
    fn another_load_is_learnt_within_some_windows() {
        let mut pauses = Pauses::new(Waiting::Balanced);
        for _ in 0..3 {
            looked(&mut pauses, 100_000, LOOKING_IS_CHEAP);
            looked(&mut pauses, 5 * WINDOW_PAUSES, SLEEPING_IS_CHEAP);
            assert!(looked(&mut pauses, 1_000, SLEEPING_IS_CHEAP) < 200);
            looked(&mut pauses, 100_000, SLEEPING_IS_CHEAP);
            looked(&mut pauses, 5 * WINDOW_PAUSES, LOOKING_IS_CHEAP);
            assert!(looked(&mut pauses, 1_000, LOOKING_IS_CHEAP) > 800);
        }
    }

    #[test]
    fn a_tenth_more_is_what_balanced_gives_for_looking_and_cpu_gives_nothing() {
        let share = |waiting| {
            let mut pauses = Pauses::new(waiting);
            looked(&mut pauses, 20_000, LOOKING_IS_A_LITTLE_DEARER);
            looked(&mut pauses, 20_000, LOOKING_IS_A_LITTLE_DEARER)
        };
        assert!(share(Waiting::Balanced) > 950);
        assert!(share(Waiting::Cpu) < 50);
    }

    #[test]
    fn windows_in_which_nothing_moves_teach_nothing() {
        let mut pauses = Pauses::new(Waiting::Balanced);
        for _ in 0..10_000 {
            assert_eq!(pauses.look_ns(), None);
            pauses.ended(1_000_000_000, || 0);
        }
    }

    #[test]
    fn a_lane_for_latency_looks_after_short_pauses() {
        let mut latency = Pauses::new(Waiting::Latency);
        for (pause_ns, looks) in [(40_000, Some(LOOK_MAX_NS)), (80_000, None)] {
            for _ in 0..100 {
                latency.ended(pause_ns, || unreachable!("it counts nothing"));
            }
            assert_eq!(latency.look_ns(), looks);
        }
    }
}
