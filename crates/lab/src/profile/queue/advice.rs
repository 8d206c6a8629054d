//! What follows from the figures of all rounds: a change to make, with the interval that supports it, or that no
//! difference was found.

use super::{super::too_few, Knee, Sweep, median, short};
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
    let compared = |of: fn(&super::Figures) -> f64| {
        let all = |runs: &[super::Figures]| runs.iter().map(of).collect::<Vec<f64>>();
        Comparison::of(&all(at), &all(beyond))
    };
    let (iops, mean_us) = (compared(|run| run.iops), compared(|run| run.mean_us));
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
        "beyond {outstanding} outstanding throughput does not grow ({} I/Os a second there; with {most}, {}: {}), and \
         each I/O takes {} µs instead of {} ({}): limit the initiator to {outstanding} outstanding{}",
        short(knee.iops),
        short(median(beyond, |run| run.iops)),
        told(&iops),
        short(median(beyond, |run| run.mean_us)),
        short(knee.mean_us),
        told(&mean_us),
        doubt(&mean_us),
    )))
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
            "beyond 48 outstanding throughput does not grow",
            "no difference found, 95 % interval of the ratio ",
            ", 8 rounds), and each I/O takes 21,",
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
