//! How an idle lane waits: by spinning ("looking" for work) or by sleeping.
//!
//! Which takes less CPU depends on the machine and the load, and more on the lane's peers than on the lane itself:
//! where a peer answers within microseconds, a lane that sleeps makes its peer sleep too, and each pays for the
//! other's wake-ups. So a lane measures instead of predicting. It starts by spinning in short pauses. It counts the
//! CPU time and elapsed time of its thread and the bytes moved meanwhile, tries the other way for some pauses now and
//! then, and stays with the way that costs less per byte. The longer the answer stays the same, the rarer the trials.
//!
//! Two lanes that are each other's peers either both spin or both sleep, and neither can find out alone that
//! switching together would be better. That is why lanes start by spinning, and why a lane pays extra CPU for
//! spinning where that moves more in the same time.
//!
//! On a machine with one processor a lane that spins keeps its peer from answering, and its own CPU time does not show
//! what that costs: there it spins only for `Latency`.

use std::mem;

use crate::Instant;

/// How an idle lane waits: a trade-off between CPU time and latency.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Waiting {
    /// Spins for up to 50 µs while pauses are short on average, whatever it costs.
    Latency,
    /// Spins where that takes at most a tenth more CPU than sleeping, or at most a quarter more where it gets a
    /// tenth more done.
    #[default]
    Balanced,
    /// Spins only where that takes no more CPU than sleeping.
    Cpu,
}

/// The longest spin.
const LOOK_MAX_NS: u64 = 50_000;
/// The number of pauses over which costs are measured: in the usual way, and in a trial of the other.
const WINDOW_PAUSES: u32 = 64;
const TRIAL_PAUSES: u32 = 32;
/// The number of windows in a row that must cost something else before the load counts as changed: a peer's trial
/// disturbs up to two.
const CHANGED_WINDOWS: u32 = 3;
/// Windows that moved less than a few I/Os say nothing about the cost per byte.
const WINDOW_BYTES_MIN: u64 = 16 << 10;

/// The cost of moving one MiB.
#[derive(Clone, Copy, Default, Debug)]
struct Cost {
    /// CPU time.
    cpu_ns: u64,
    elapsed_ns: u64,
}

impl Cost {
    fn of(cpu_ns: u64, elapsed_ns: u64, bytes: u64) -> Cost {
        let of_a_mib = |ns: u64| {
            let ns = (u128::from(ns) << 20) / u128::from(bytes);
            u64::try_from(ns).unwrap_or(u64::MAX).max(1)
        };
        Cost {
            cpu_ns: of_a_mib(cpu_ns),
            elapsed_ns: of_a_mib(elapsed_ns),
        }
    }

    /// Updates the running mean.
    fn with(self, newer: Cost) -> Cost {
        let mean = |old: u64, new: u64| old - old / 4 + new / 4;
        Cost {
            cpu_ns: mean(self.cpu_ns, newer.cpu_ns),
            elapsed_ns: mean(self.elapsed_ns, newer.elapsed_ns),
        }
    }
}

/// One of the two ways to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaitingStyle {
    Look,
    Sleep,
}

impl WaitingStyle {
    /// After how many windows under a changed load the other way is first tried. A lane that spins needlessly
    /// loses little until then; one that sleeps needlessly loses much.
    fn first_trial(self) -> u32 {
        match self {
            WaitingStyle::Look => 8,
            WaitingStyle::Sleep => 1,
        }
    }

    /// The most windows between trials of the other way. A trial of sleeping costs a peer that spins as much as the
    /// lane itself.
    fn trial_every_max(self) -> u32 {
        match self {
            WaitingStyle::Look => 1024,
            WaitingStyle::Sleep => 256,
        }
    }
}

/// What a lane has learnt about its pauses.
#[derive(Debug)]
pub(crate) struct Pauses {
    waiting: Waiting,
    /// Whether the machine has this lane's processor only.
    is_alone: bool,
    /// Running mean of the pauses' length: spinning is for short ones.
    mean_ns: u64,
    /// The current choice.
    way: WaitingStyle,
    is_trial: bool,
    /// Pauses left in this window.
    pauses_left: u32,
    /// When this window began, in wall-clock time and in CPU time of the thread, and the bytes moved since.
    began: Instant,
    began_cpu_ns: u64,
    moved_bytes: u64,
    /// Running mean of the cost of the usual way; `None`: unknown.
    usual: Option<Cost>,
    /// The number of windows in a row that cost something else.
    unlike: u32,
    /// Windows until the next trial, and the current interval between trials.
    until_trial: u32,
    trial_every: u32,
}

impl Pauses {
    pub(crate) fn new(waiting: Waiting, is_alone: bool) -> Pauses {
        Pauses {
            waiting,
            is_alone: is_alone && waiting != Waiting::Latency,
            mean_ns: 10 * LOOK_MAX_NS,
            way: WaitingStyle::Look,
            is_trial: false,
            pauses_left: WINDOW_PAUSES,
            began: Instant::default(),
            began_cpu_ns: 0,
            moved_bytes: 0,
            usual: None,
            unlike: 0,
            until_trial: WaitingStyle::Look.first_trial(),
            trial_every: WaitingStyle::Look.first_trial(),
        }
    }

    /// How long to spin now; `None`: not at all.
    pub(super) fn look_ns(&self) -> Option<u64> {
        if self.is_alone {
            return None;
        }
        let is_short = self.mean_ns <= LOOK_MAX_NS;
        let looks = match (self.waiting, self.way, self.is_trial) {
            (Waiting::Latency, ..) | (_, WaitingStyle::Look, false) => is_short,
            // Pauses may be long just because the lane slept.
            (_, WaitingStyle::Sleep, true) => true,
            (_, WaitingStyle::Look, true) | (_, WaitingStyle::Sleep, false) => false,
        };
        looks.then_some(LOOK_MAX_NS)
    }

    /// Counts bytes moved.
    pub(super) fn moved(&mut self, bytes: u64) {
        self.moved_bytes += bytes;
    }

    /// Records a pause from `began` to `now`, however it was spent. `cpu_ns` returns the thread's CPU time.
    pub(super) fn ended(&mut self, began: Instant, now: Instant, cpu_ns: impl FnOnce() -> u64) {
        // A mean over about eight pauses. A long pause counts as at most ten spins, so that the lane returns to
        // spinning soon after a quiet time.
        let pause_ns = now.since(began).as_nanos() as u64;
        let capped = pause_ns.min(10 * LOOK_MAX_NS);
        self.mean_ns = self.mean_ns - self.mean_ns / 8 + capped / 8;
        if self.waiting == Waiting::Latency || self.is_alone {
            return;
        }
        self.pauses_left -= 1;
        if self.pauses_left == 0 {
            let now_cpu_ns = cpu_ns();
            let spent_ns = now_cpu_ns - mem::replace(&mut self.began_cpu_ns, now_cpu_ns);
            let elapsed = now.since(mem::replace(&mut self.began, now));
            self.window_ended(spent_ns, elapsed.as_nanos() as u64);
        }
    }

    fn window_ended(&mut self, spent_ns: u64, elapsed_ns: u64) {
        let moved_bytes = mem::take(&mut self.moved_bytes);
        let was_trial = mem::take(&mut self.is_trial);
        self.pauses_left = WINDOW_PAUSES;
        if moved_bytes < WINDOW_BYTES_MIN {
            return;
        }
        let cost = Cost::of(spent_ns, elapsed_ns, moved_bytes);
        match (was_trial, self.usual) {
            (true, Some(usual)) => self.compare(usual, cost),
            _ => self.count(cost),
        }
        if self.until_trial == 0 {
            self.is_trial = true;
            self.pauses_left = TRIAL_PAUSES;
        }
    }

    /// Records the cost of a window in the usual way.
    fn count(&mut self, cost: Cost) {
        let is_alike = |known: &Cost| cost.cpu_ns.abs_diff(known.cpu_ns) < known.cpu_ns / 3;
        match self.usual {
            Some(known) if is_alike(&known) => {
                self.usual = Some(known.with(cost));
                self.unlike = 0;
            }
            Some(_) if self.unlike + 1 < CHANGED_WINDOWS => self.unlike += 1,
            // The load has changed, so earlier measurements do not apply.
            Some(_) | None => {
                self.usual = Some(cost);
                self.unlike = 0;
                self.trial_every = self.way.first_trial();
            }
        }
        self.until_trial = self.until_trial.min(self.trial_every).saturating_sub(1);
    }

    /// Records the cost of a trial of the other way.
    fn compare(&mut self, usual: Cost, other: Cost) {
        let (look, sleep) = match self.way {
            WaitingStyle::Look => (usual, other),
            WaitingStyle::Sleep => (other, usual),
        };
        let better = match self.is_worth_looking(look, sleep) {
            true => WaitingStyle::Look,
            false => WaitingStyle::Sleep,
        };
        self.trial_every = match better == self.way {
            true => self.way.trial_every_max().min(self.trial_every * 2),
            false => better.first_trial(),
        };
        if better != self.way {
            self.way = better;
            self.usual = Some(other);
        }
        self.until_trial = self.trial_every;
        self.unlike = 0;
    }

    fn is_worth_looking(&self, look: Cost, sleep: Cost) -> bool {
        let costs_at_most = |share: u64| look.cpu_ns <= sleep.cpu_ns.saturating_add(share);
        let gets_more_done =
            look.elapsed_ns.saturating_add(look.elapsed_ns / 10) <= sleep.elapsed_ns;
        match self.waiting {
            Waiting::Cpu => costs_at_most(0),
            Waiting::Balanced | Waiting::Latency => {
                costs_at_most(sleep.cpu_ns / 10)
                    || (gets_more_done && costs_at_most(sleep.cpu_ns / 4))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Duration;

    /// What the two ways cost for one 4 KiB command per pause, in nanoseconds.
    #[derive(Clone, Copy)]
    struct Costs {
        look: u64,
        sleep: u64,
    }

    const PAUSE: Duration = Duration::from_micros(20);

    /// A lane with a clock and one command per pause.
    struct Lane {
        pauses: Pauses,
        now: Instant,
        cpu_ns: u64,
    }

    impl Lane {
        fn new(waiting: Waiting) -> Lane {
            Lane {
                pauses: Pauses::new(waiting, false),
                now: Instant::default(),
                cpu_ns: 0,
            }
        }

        /// Simulates one pause; returns whether the lane spun.
        fn pause(&mut self, costs: Costs, pause: Duration) -> bool {
            let looks = self.pauses.look_ns().is_some();
            self.cpu_ns += if looks { costs.look } else { costs.sleep };
            self.pauses.moved(4096);
            let began = self.now;
            self.now = began + pause;
            self.pauses.ended(began, self.now, || self.cpu_ns);
            looks
        }

        /// Goes through `count` pauses; returns the share of them spent spinning, in thousandths.
        fn looked(&mut self, count: u32, costs: Costs) -> u32 {
            let looks = (0..count).filter(|_| self.pause(costs, PAUSE)).count();
            looks as u32 * 1000 / count
        }
    }

    const LOOKING_IS_CHEAP: Costs = Costs {
        look: 31_000,
        sleep: 39_000,
    };
    const SLEEPING_IS_CHEAP: Costs = Costs {
        look: 160_000,
        sleep: 80_000,
    };
    const LOOKING_IS_A_LITTLE_DEARER: Costs = Costs {
        look: 105,
        sleep: 100,
    };

    #[test]
    fn a_balanced_lane_goes_the_cheaper_way_and_tries_the_other_seldom() {
        for (costs, usually) in [(LOOKING_IS_CHEAP, 1000), (SLEEPING_IS_CHEAP, 0)] {
            let mut lane = Lane::new(Waiting::Balanced);
            lane.looked(20_000, costs);
            let share = lane.looked(100_000, costs);
            assert!(share.abs_diff(usually) <= 10, "{share} beside {usually}");
        }
    }

    #[test]
    fn another_load_is_learnt_within_some_windows() {
        let mut lane = Lane::new(Waiting::Balanced);
        for _ in 0..3 {
            lane.looked(100_000, LOOKING_IS_CHEAP);
            lane.looked(20 * WINDOW_PAUSES, SLEEPING_IS_CHEAP);
            assert!(lane.looked(1_000, SLEEPING_IS_CHEAP) < 200);
            lane.looked(100_000, SLEEPING_IS_CHEAP);
            lane.looked(5 * WINDOW_PAUSES, LOOKING_IS_CHEAP);
            assert!(lane.looked(1_000, LOOKING_IS_CHEAP) > 800);
        }
    }

    #[test]
    fn a_tenth_more_is_what_balanced_gives_for_looking_and_cpu_gives_nothing() {
        let share = |waiting| {
            let mut lane = Lane::new(waiting);
            lane.looked(20_000, LOOKING_IS_A_LITTLE_DEARER);
            lane.looked(20_000, LOOKING_IS_A_LITTLE_DEARER)
        };
        assert!(share(Waiting::Balanced) > 950);
        assert!(share(Waiting::Cpu) < 50);
    }

    /// The share of pauses in which one of the two spun, in thousandths.
    fn together(peers: &mut [Lane; 2], count: u32) -> u32 {
        let mut looks = 0;
        for _ in 0..count {
            let are_looking = peers.each_ref().map(|lane| lane.pauses.look_ns().is_some());
            let asleep = are_looking.iter().filter(|looks| !**looks).count() as u64;
            let cpu_ns = 2_000 + asleep * 300;
            let costs = Costs {
                look: cpu_ns,
                sleep: cpu_ns,
            };
            let pause = Duration::from_nanos(2_000 + asleep * 1_000);
            for lane in peers.iter_mut() {
                looks += u32::from(lane.pause(costs, pause));
            }
        }
        looks * 500 / count
    }

    /// With both spinning, a command takes 2 µs of time and of each one's CPU. A lane that sleeps makes the other
    /// wait for its wake-up, which takes a third more CPU on both sides, whatever the other does.
    #[test]
    fn lanes_that_are_peers_look_together_from_the_start_and_after_a_load_for_which_they_slept() {
        let mut peers = [Lane::new(Waiting::Balanced), Lane::new(Waiting::Balanced)];
        assert!(together(&mut peers, 10_000) > 900);
        for lane in &mut peers {
            lane.looked(100_000, SLEEPING_IS_CHEAP);
            assert!(lane.looked(1_000, SLEEPING_IS_CHEAP) < 50);
        }
        together(&mut peers, 10_000);
        assert!(together(&mut peers, 10_000) > 900);
    }

    /// A peer's trial makes a window of this lane cost several times as much.
    #[test]
    fn a_peers_trials_do_not_count_as_another_load() {
        let mut peers = [Lane::new(Waiting::Balanced), Lane::new(Waiting::Balanced)];
        let mut slept = 0;
        for round in 0..400_000 {
            let asleep = peers
                .iter()
                .filter(|lane| lane.pauses.look_ns().is_none())
                .count() as u64;
            let ns = 12_000 + asleep * 15_000;
            let costs = Costs {
                look: ns,
                sleep: ns,
            };
            // The second lane pauses a little more seldom, so that their trials drift apart.
            let pausing = if round % 17 == 0 { 1 } else { 2 };
            for lane in &mut peers[..pausing] {
                let looked = lane.pause(costs, Duration::from_nanos(ns));
                slept += u32::from(!looked && round >= 200_000);
            }
        }
        assert!(slept < 2_000, "{slept} of 400000 pauses were asleep");
    }

    /// Spinning takes a fifth more CPU and gets the work done in two thirds of the time, or in the same.
    #[test]
    fn balanced_gives_a_quarter_where_more_gets_done() {
        const DEARER: Costs = Costs {
            look: 120,
            sleep: 100,
        };
        for (look_us, looks) in [(20, true), (30, false)] {
            let mut lane = Lane::new(Waiting::Balanced);
            let mut share = 0;
            for round in 0..40_000 {
                let us = match lane.pauses.look_ns() {
                    Some(_) => look_us,
                    None => 30,
                };
                let looked = lane.pause(DEARER, Duration::from_micros(us));
                share += u32::from(looked && round >= 20_000);
            }
            assert_eq!(share > 10_000, looks, "{share} of 20000");
        }
    }

    #[test]
    fn windows_in_which_nothing_moves_teach_nothing() {
        let mut pauses = Pauses::new(Waiting::Balanced, false);
        let mut now = Instant::default();
        for _ in 0..10_000 {
            assert_eq!(pauses.look_ns(), None);
            let began = now;
            now = began + Duration::from_secs(1);
            pauses.ended(began, now, || 0);
        }
    }

    #[test]
    fn on_the_only_processor_a_lane_looks_for_latency_only() {
        for (waiting, looks) in [
            (Waiting::Balanced, None),
            (Waiting::Cpu, None),
            (Waiting::Latency, Some(LOOK_MAX_NS)),
        ] {
            let mut pauses = Pauses::new(waiting, true);
            for _ in 0..10_000 {
                let now = Instant::default() + Duration::from_micros(5);
                pauses.moved(4096);
                pauses.ended(Instant::default(), now, || 0);
            }
            assert_eq!(pauses.look_ns(), looks, "{waiting:?}");
        }
    }

    #[test]
    fn a_lane_for_latency_looks_after_short_pauses() {
        let mut latency = Pauses::new(Waiting::Latency, false);
        for (pause_us, looks) in [(40, Some(LOOK_MAX_NS)), (80, None)] {
            for _ in 0..100 {
                let began = Instant::default();
                let now = began + Duration::from_micros(pause_us);
                latency.ended(began, now, || unreachable!("it counts nothing"));
            }
            assert_eq!(latency.look_ns(), looks);
        }
    }
}
