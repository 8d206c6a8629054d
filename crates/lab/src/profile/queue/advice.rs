//! What follows from the figures of all rounds: a change to make, with the interval that supports it, or that no
//! difference was found.

use super::{super::too_few, Knee, Sweep, median, short};
use crate::report::time_us;
use crate::statistics::{Comparison, Median};

/// Latency beyond the knee is worth advice if it is longer by this factor.
const LONGER: f64 = 1.5;
/// With fewer than six rounds, an adapter faster by this factor is better by more than noise.
const BETTER: f64 = 1.25;

/// What follows from a comparison.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Advice {
    Change(String),
    /// No difference was found.
    Nothing(String),
}

/// From the knee: latency beyond it, beside that at the knee, round by round.
pub(super) fn of_knee(knee: Option<&Knee>, sweep: &Sweep) -> Option<Advice> {
    let knee = knee.filter(|knee| knee.is_passed)?;
    let (at, (most, beyond)) = (sweep.get(&knee.outstanding)?, sweep.last_key_value()?);
    let (iops, mean_us) = (
        compared(at, beyond, |run| run.iops),
        compared(at, beyond, |run| run.mean_us),
    );
    let outstanding = knee.outstanding;
    if mean_us.interval.is_some() && !mean_us.differs() {
        let [at, beyond] = [outstanding, *most].map(|n| format!("{n} outstanding"));
        let told = mean_us.sentence(&at, &beyond);
        return Some(Advice::Nothing(format!("latency: {told}")));
    }
    if mean_us.ratio < LONGER {
        return None;
    }
    Some(Advice::Change(format!(
        "with {most} outstanding instead of {outstanding}, throughput {} ({} I/Os a second instead of {}), and each I/O \
         takes {} instead of {} ({}): limit the initiator to {outstanding} outstanding{}",
        grown(&iops),
        short(median(beyond, |run| run.iops)),
        short(knee.iops),
        time_us(median(beyond, |run| run.mean_us)),
        time_us(knee.mean_us),
        told(&mean_us),
        doubt(&mean_us),
    )))
}

/// How throughput changes from the knee to the largest number, round by round: a clause for the answer. `None` if the knee
/// is not passed.
pub(super) fn beyond_knee(knee: &Knee, sweep: &Sweep) -> Option<String> {
    let (most, beyond) = sweep.last_key_value().filter(|_| knee.is_passed)?;
    let iops = compared(sweep.get(&knee.outstanding)?, beyond, |run| run.iops);
    Some(format!(
        "with {most} outstanding throughput {}",
        grown(&iops)
    ))
}

fn compared(
    at: &[super::Figures],
    beyond: &[super::Figures],
    of: fn(&super::Figures) -> f64,
) -> Comparison {
    let all = |runs: &[super::Figures]| runs.iter().map(of).collect::<Vec<f64>>();
    Comparison::of(&all(at), &all(beyond))
}

/// What is known of throughput that is `iops` times what it was: never that it is the same, but how much more it may be.
fn grown(iops: &Comparison) -> String {
    let (ratio, rounds) = (iops.ratio, iops.pairs);
    let Some((low, high)) = iops.interval else {
        return format!("is {ratio:.2}× that");
    };
    let interval = format!("95 % interval {low:.2}–{high:.2}, {rounds} rounds");
    let percent = 100.0 * (high - 1.0);
    match (low > 1.0, high > 1.0) {
        (true, _) => format!("grows, by no more than {percent:.0} % ({ratio:.2}×, {interval})"),
        (false, true) => {
            format!("does not grow by more than {percent:.0} % ({ratio:.2}×, {interval})")
        }
        (false, false) => format!("does not grow ({ratio:.2}×, {interval})"),
    }
}

/// From I/Os a second behind each adapter, by its name, round by round: the fastest beside the slowest.
pub(super) fn of_adapters(adapters: &[(&str, Vec<f64>)]) -> Option<Advice> {
    let iops = |all: &[f64]| Median::of(all).median;
    let by_iops = |a: &&(&str, Vec<f64>), b: &&(&str, Vec<f64>)| iops(&a.1).total_cmp(&iops(&b.1));
    let (least, less) = adapters.iter().min_by(by_iops)?;
    let (most, more) = adapters.iter().max_by(by_iops)?;
    if least == most {
        return None;
    }
    let compared = Comparison::of(less, more);
    if compared.interval.is_some() && !compared.differs() {
        let named = |name: &str| format!("an adapter with {name}");
        return Some(Advice::Nothing(
            compared.sentence(&named(least), &named(most)),
        ));
    }
    if compared.ratio < BETTER {
        return None;
    }
    Some(Advice::Change(format!(
        "an adapter with {least} does {} I/Os a second, one with {most} does {} ({}): set the adapter's limits to \
         {most}{}",
        short(iops(less)),
        short(iops(more)),
        told(&compared),
        doubt(&compared),
    )))
}

/// The ratio with its interval, or that there is no difference.
fn told(compared: &Comparison) -> String {
    let (ratio, rounds) = (compared.ratio, compared.pairs);
    match compared.interval {
        None => format!("{ratio:.2}×"),
        Some((low, high)) if compared.differs() => {
            format!("{ratio:.2}×, 95 % interval {low:.2}–{high:.2}, {rounds} rounds")
        }
        Some((low, high)) => {
            format!(
                "no difference found, 95 % interval of the ratio {low:.2}–{high:.2}, {rounds} rounds"
            )
        }
    }
}

/// What to know before acting on a ratio without an interval.
fn doubt(compared: &Comparison) -> String {
    match compared.interval {
        Some(_) => String::new(),
        None => too_few(compared.pairs),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Figures, knee, tests::sweep},
        *,
    };

    /// The sweep of a disk that completes at most 48,000 I/Os a second, in rounds that differ by some percent.
    fn rounds(count: usize) -> Sweep {
        let once = sweep(48_000.0);
        let repeated = once.into_iter().map(|(outstanding, runs)| {
            let noisy = (0..count).map(|round| {
                let noise = 1.0 + ((round * 7 + outstanding) % 5) as f64 / 200.0;
                Figures::example(outstanding as f64, runs[0].iops * noise)
            });
            (outstanding, noisy.collect())
        });
        repeated.collect()
    }

    fn of(sweep: &Sweep) -> Option<Advice> {
        of_knee(knee(sweep).as_ref(), sweep)
    }

    fn change(advice: Option<Advice>) -> String {
        match advice {
            Some(Advice::Change(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_knee_is_told_with_the_interval_over_rounds() {
        let text = change(of(&rounds(8)));
        for part in [
            "with 1024 outstanding instead of 48, throughput does not grow by more than ",
            "×, 95 % interval 0.9",
            ", 8 rounds) (48,",
            "), and each I/O takes 21.1 ms instead of 990 µs",
            "×, 95 % interval 2",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(
            text.ends_with("limit the initiator to 48 outstanding"),
            "{text}"
        );
        assert!(
            change(of(&rounds(1)))
                .ends_with("(one round: run it without --quick before you act on it)")
        );
        assert!(change(of(&rounds(3))).contains("(3 rounds: 6 or more give an interval"));
    }

    #[test]
    fn of_throughput_beyond_the_knee_only_what_is_known_is_said() {
        let grown_by = |factors: [f64; 6]| {
            let at = vec![Figures::example(96.0, 62_762.0); 6];
            let beyond = factors.map(|factor| Figures::example(1024.0, 62_762.0 * factor));
            grown(&compared(&at, &beyond, |run| run.iops))
        };
        assert_eq!(
            grown_by([0.96, 1.16, 1.0, 1.04, 1.1, 1.05]),
            "does not grow by more than 16 % (1.05×, 95 % interval 0.96–1.16, 6 rounds)"
        );
        let less = grown_by([0.88, 0.89, 0.9, 0.89, 0.88, 0.9]);
        assert!(less.starts_with("does not grow (0.89×, 95 % "), "{less}");
        let more = grown_by([1.02, 1.03, 1.04, 1.03, 1.02, 1.04]);
        assert!(
            more.starts_with("grows, by no more than 4 % (1.03×"),
            "{more}"
        );
        let once = sweep(48_000.0);
        let knee = knee(&once).expect("a knee");
        let told = beyond_knee(&knee, &once).expect("it is passed");
        assert_eq!(told, "with 1024 outstanding throughput is 1.00× that");
    }

    #[test]
    fn a_latency_that_may_be_the_same_is_no_reason_to_change_anything() {
        let mut sweep = rounds(8);
        // As noisy as it can be: beyond the knee, half of the rounds are slower, and half are quicker.
        let at = sweep[&48].clone();
        let beyond = sweep.last_entry().expect("a number").into_mut();
        for (round, (run, at)) in beyond.iter_mut().zip(&at).enumerate() {
            let factor = if round % 2 == 0 { 4.0 } else { 0.25 };
            run.mean_us = at.mean_us * factor;
        }
        match of(&sweep) {
            Some(Advice::Nothing(text)) => {
                assert!(
                    text.starts_with("latency: no difference found between 48 outstanding"),
                    "{text}"
                );
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(of(&super::super::tests::sweep(f64::INFINITY)), None);
    }

    #[test]
    fn adapters_are_compared_round_by_round() {
        let wide: Vec<f64> = (0..8).map(|n| 2000.0 + f64::from(n)).collect();
        let narrow: Vec<f64> = (0..8).map(|n| 1000.0 + 20.0 * f64::from(n % 3)).collect();
        let text = change(of_adapters(&[
            ("32", narrow.clone()),
            ("254", wide.clone()),
        ]));
        assert!(text.contains("×, 95 % interval 1.9"), "{text}");
        assert!(text.ends_with("set the adapter's limits to 254"), "{text}");
        let noisy: Vec<f64> = (0..8)
            .map(|n| if n % 2 == 0 { 500.0 } else { 2200.0 })
            .collect();
        match of_adapters(&[("32", narrow), ("254", noisy)]) {
            Some(Advice::Nothing(text)) => {
                assert!(text.starts_with("no difference found"), "{text}")
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(of_adapters(&[("254", wide)]), None);
        assert_eq!(of_adapters(&[]), None);
    }
}
