//! What the runs say about themselves: whether Little's law holds, and whether the load generator was late.

use super::{AS_GOOD, AtRate, Knee, Sweep, Swept, median};
use crate::{
    profile::runner::Figures,
    report::{short, time_us},
};

/// The generator may be late by this fraction of the latency it measures.
const LATE_MAX: f64 = 0.25;
/// Little's law holds if both sides differ by at most this fraction.
const LITTLE_MAX: f64 = 0.1;

/// A note about the fastest number that was not compared with the knee, if it did better.
pub(super) fn faster_apart(knee: &Knee, swept: &Swept) -> Option<String> {
    let compared = swept.compared();
    let apart = swept.all.iter();
    let apart = apart.filter(|(outstanding, _)| !compared.contains_key(outstanding));
    let apart = apart.map(|(outstanding, runs)| (outstanding, median(runs, |run| run.iops)));
    let (outstanding, iops) = apart.max_by(|a, b| a.1.total_cmp(&b.1))?;
    (AS_GOOD * iops > knee.iops).then(|| {
        format!(
            "{outstanding} outstanding did {} I/Os a second, but it did not take turns with the knee, where {} were done \
             later: the disk may have changed meanwhile, or the knee lies there",
            short(iops),
            short(knee.iops)
        )
    })
}

/// Whether the counted queue agrees with Little's law.
pub(super) fn little(sweep: &Sweep) -> Option<String> {
    let runs = sweep.values().flatten();
    let off = |run: &Figures| (run.queue_by_little / run.queue - 1.0).abs();
    let worst = runs
        .map(off)
        .filter(|off| off.is_finite())
        .reduce(f64::max)?;
    Some(match worst <= LITTLE_MAX {
        true => format!(
            "Little's law holds: arrivals × time and the counted queue differ by {:.1} % at most",
            worst * 100.0
        ),
        false => format!(
            "Little's law does not hold: arrivals × time and the counted queue differ by up to {:.0} \
             %; this run was too short or too unsteady for its figures to be trusted",
            worst * 100.0
        ),
    })
}

/// A note if the generator itself was the bottleneck.
pub(super) fn late(rates: &[AtRate]) -> Option<String> {
    let [late_us, p99_us]: [fn(&Figures) -> f64; 2] =
        [|run| run.generator_late_p99_us, |run| run.p99_us];
    let is_late = |at: &&AtRate| at.median(late_us) > LATE_MAX * at.median(p99_us);
    let found = rates.iter().find(is_late)?;
    let percent = found.percent;
    let [own, busy]: [fn(&Figures) -> f64; 2] =
        [|run| run.cpu.own_percent, |run| run.cpu.busy_cores as f64];
    let (own, busy) = (found.median(own), found.median(busy));
    let why = match busy >= 1.0 {
        true => format!(
            "{busy:.0} of {} cores were busy for more than 90 % of the time, so it may not have had the processor time \
             that it needs",
            found.steps[0].figures.cpu.cores
        ),
        false => format!(
            "no core was busy for more than 90 % of the time, and this program used {own:.0} % of one; what held it up was \
             not measured"
        ),
    };
    Some(format!(
        "from {percent} % of the knee's rate on, the load generator itself was late, by {} at the 99th percentile, \
         where the latency is {}: {why}. That part of the latencies is its own and not the disk's",
        time_us(found.median(late_us)),
        time_us(found.median(p99_us)),
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{LoadRun, knee, tests::sweep},
        *,
    };
    use crate::load::Done;

    #[test]
    fn a_number_that_did_better_apart_from_the_knee_is_told() {
        let run = |outstanding: usize, iops| Figures::example(outstanding as f64, iops);
        let swept = |apart: f64| {
            let mut swept = Swept::default();
            swept.add(512, Some(run(512, apart)));
            for outstanding in [96, 1024] {
                swept.add_again(outstanding, Some(run(outstanding, 62_762.0)));
            }
            swept
        };
        let told = |swept: Swept| {
            let knee = knee(swept.compared()).expect("a knee");
            faster_apart(&knee, &swept)
        };
        let text = told(swept(68_925.0)).expect("it did better");
        assert!(
            text.starts_with("512 outstanding did 68,925 I/Os a second"),
            "{text}"
        );
        assert_eq!(told(swept(63_000.0)), None);
    }

    #[test]
    fn a_late_generator_lacked_processor_time_only_if_a_core_was_busy() {
        let at_rate = |busy_cores, own_percent, late_us| {
            let mut figures = Figures::example(1.0, 1000.0);
            figures.cpu.busy_cores = busy_cores;
            figures.cpu.own_percent = own_percent;
            figures.generator_late_p99_us = late_us;
            let done = Done::without_times(Duration::from_millis(30));
            AtRate {
                percent: 110,
                rate_per_s: 1000.0,
                steps: vec![LoadRun {
                    done,
                    figures,
                    seen: None,
                }],
            }
        };
        assert_eq!(late(&[at_rate(1, 99.0, 10.0)]), None);
        let idle = late(&[at_rate(0, 31.6, 1900.0)]).expect("it was late");
        assert!(
            idle.contains("no core was busy") && idle.contains("32 % of one; what held it up"),
            "{idle}"
        );
        assert!(
            idle.contains("1.9 ms at the 99th percentile, where the latency is 2 ms:"),
            "{idle}"
        );
        let busy = late(&[at_rate(1, 99.0, 1900.0)]).expect("it was late");
        assert!(
            busy.contains("1 of 2 cores were busy for more than 90 %"),
            "{busy}"
        );
        assert!(!busy.contains("not measured"), "{busy}");
    }

    #[test]
    fn a_run_that_breaks_littles_law_is_called_so() {
        let mut sweep = sweep(48_000.0);
        assert!(little(&sweep).expect("a check").contains("holds: "));
        sweep.values_mut().next().expect("a run")[0].queue = 2.0;
        assert!(little(&sweep).expect("a check").contains("does not hold"));
    }
}
