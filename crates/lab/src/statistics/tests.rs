//! Tests on synthetic data whose true parameters are known.

use super::*;

const TRIALS: usize = 1000;
/// The default number of pairs of `lab compare`.
const PAIRS: usize = 12;
/// Standard deviation of one measurement on a shared machine.
const NOISE: f64 = 0.03;

/// A normally distributed value with a standard deviation of 1 (Box and Muller).
fn normal(random: &mut SplitMix64) -> f64 {
    (-2.0 * random.unit().ln()).sqrt() * (std::f64::consts::TAU * random.unit()).cos()
}

/// How often a difference is found if B is `ratio` times A and both have the given noise.
fn found(
    trials: usize,
    pairs: usize,
    ratio: f64,
    mut noise: impl FnMut(&mut SplitMix64) -> f64,
) -> usize {
    let mut random = SplitMix64::new(7);
    let trial = |_: &usize| {
        let mut series = |level: f64| -> Vec<f64> {
            (0..pairs)
                .map(|_| level * noise(&mut random).exp())
                .collect()
        };
        let a = series(1000.0);
        let b = series(1000.0 * ratio);
        Comparison::of(&a, &b).differs()
    };
    (0..trials).filter(trial).count()
}

#[test]
fn ordinary_noise_gives_no_false_alarm() {
    let alarms = found(TRIALS, PAIRS, 1.0, |random| NOISE * normal(random));
    assert!(alarms <= TRIALS / 20, "{alarms}");
}

#[test]
fn pauses_of_the_machine_give_no_false_alarm() {
    // Every tenth measurement takes a third longer.
    let alarms = found(TRIALS, PAIRS, 1.0, |random| {
        let pause = if random.one_in(10) { -0.3 } else { 0.0 };
        NOISE * normal(random) + pause
    });
    assert!(alarms <= TRIALS / 20, "{alarms}");
}

#[test]
fn few_pairs_with_heavy_tails_give_no_false_alarm() {
    let alarms = found(TRIALS, SAMPLES_MIN, 1.0, |random| {
        NOISE * normal(random) / normal(random).abs().max(0.1)
    });
    assert!(alarms <= TRIALS / 20, "{alarms}");
}

#[test]
fn a_difference_of_5_percent_is_found_with_the_pairs_that_it_asks_for() {
    let mut random = SplitMix64::new(1);
    let mut series = || -> Vec<f64> {
        (0..PAIRS)
            .map(|_| (NOISE * normal(&mut random)).exp())
            .collect()
    };
    let asked = Comparison::of(&series(), &series()).pairs_needed;
    assert!((10..60).contains(&asked), "{asked}");
    let found = found(200, asked, 1.05, |random| NOISE * normal(random));
    assert!(found >= 180, "{found} of 200 with {asked} pairs");
}

#[test]
fn what_moves_both_is_drift_and_no_difference() {
    let mut random = SplitMix64::new(3);
    let mut series = |_| -> Vec<f64> {
        let level = |pair: i32| f64::from(100 - 2 * pair) * (0.01 * normal(&mut random)).exp();
        (0..12).map(level).collect()
    };
    let [a, b] = [0, 1].map(&mut series);
    let compared = Comparison::of(&a, &b);
    assert!(!compared.differs(), "{compared:?}");
    let drift = compared.drift.expect("it is seen");
    assert!((0.7..0.85).contains(&drift), "{drift}");
    let doubts = compared.doubts().concat();
    assert!(
        doubts.contains("drift: ") && doubts.contains("no trend"),
        "{doubts}"
    );
}

/// Rounds of transactions on a file and over iSCSI, as published (docs/results/2026-11-25, `oltp-few`): the file became
/// slower, the other faster.
const DRIFTED: [[f64; 8]; 2] = [
    [
        104_652.0, 95_751.0, 86_953.0, 74_745.0, 74_389.0, 78_396.0, 81_883.0, 76_227.0,
    ],
    [
        56_038.0, 54_352.0, 58_398.0, 57_221.0, 58_471.0, 63_660.0, 61_433.0, 61_340.0,
    ],
];

#[test]
fn what_moves_one_alone_is_drift_of_the_ratio() {
    let [file, iscsi] = &DRIFTED;
    let compared = Comparison::of(file, iscsi);
    let (first, last) = compared.ratio_drift.expect("it is seen");
    assert!(
        (0.5..0.65).contains(&first) && (0.78..0.9).contains(&last),
        "{first} to {last}"
    );
    let told = format!("drift of the ratio itself, from {first:.2} at the first pair to {last:.2}");
    let doubts = compared.doubts().concat();
    assert!(
        doubts.contains(&told) && doubts.contains("p < 0.05"),
        "{doubts}"
    );
    assert!(!doubts.contains("no trend"), "{doubts}");
    // The other way round, it is the reciprocal.
    let (first_back, last_back) = Comparison::of(iscsi, file).ratio_drift.expect("also seen");
    assert!((first * first_back - 1.0).abs() < 1e-9 && (last * last_back - 1.0).abs() < 1e-9);
}

#[test]
fn ratios_without_a_trend_give_no_false_alarm() {
    // Few pairs, as many as the published series, and the default of `lab compare`.
    for pairs in [SAMPLES_MIN, 7, 8, PAIRS] {
        let mut random = SplitMix64::new(pairs as u64);
        let mut series = |drift: f64| -> Vec<f64> {
            (0_u32..pairs as u32)
                .map(|pair| (drift * f64::from(pair) + NOISE * normal(&mut random)).exp())
                .collect()
        };
        // Both become slower together, which is no trend of the ratio.
        let is_alarm = |_: &usize| {
            let (a, b) = (series(-0.05), series(-0.05));
            Comparison::of(&a, &b).ratio_drift.is_some()
        };
        let alarms = (0..TRIALS).filter(is_alarm).count();
        assert!(alarms <= TRIALS / 20, "{alarms} with {pairs} pairs");
    }
}

#[test]
fn the_sentence_says_what_was_found_and_how_surely() {
    let a: Vec<f64> = (0..12).map(|n| 100.0 + f64::from(n % 3)).collect();
    let b: Vec<f64> = a.iter().map(|a| a * 1.31).collect();
    let compared = Comparison::of(&a, &b);
    assert_eq!(
        compared.sentence("file", "stripe"),
        "stripe is faster: 1.31× file (95 % interval 1.31–1.31, 12 pairs)"
    );
    let same = Comparison::of(&a, &a).sentence("file", "stripe");
    assert!(same.starts_with("no difference found"), "{same}");
    let few = Comparison::of(&a[..5], &b[..5]).sentence("file", "stripe");
    assert!(few.contains("take 6 or more"), "{few}");
}

#[test]
fn the_interval_of_ranks_is_the_published_one() {
    // Wilcoxon's critical values for a two-sided test at 5 %: 0, 13 and 52 for 6, 12 and 20 pairs. The
    // interval starts at the mean after them.
    for (pairs, critical) in [(6, 0), (12, 13), (20, 52)] {
        let values: Vec<f64> = (0..pairs).map(|n| 1.7_f64.powi(n)).collect();
        let mut means = means_of_two(&values);
        means.sort_unstable_by(f64::total_cmp);
        let (low, high) = signed_ranks(&values).expect("enough pairs");
        assert_eq!(low, means[critical], "{pairs} pairs");
        assert_eq!(high, means[means.len() - 1 - critical], "{pairs} pairs");
    }
}

#[test]
fn what_is_no_measurement_is_left_out() {
    let compared = Comparison::of(&[1.0, 0.0, f64::NAN, 2.0], &[2.0, 1.0, 1.0, 4.0, 9.0]);
    assert_eq!((compared.pairs, compared.ratio), (2, 2.0));
    assert!(Comparison::of(&[], &[]).ratio.is_nan());
}

/// A series that is multiplied by `ratio` from run `at` on.
fn series(
    random: &mut SplitMix64,
    runs: usize,
    at: usize,
    ratio: f64,
    noise: impl Fn(&mut SplitMix64) -> f64,
) -> Vec<f64> {
    let level = |run: usize| if run < at { 100.0 } else { 100.0 * ratio };
    (0..runs)
        .map(|run| level(run) * noise(random).exp())
        .collect()
}

#[test]
fn a_history_without_a_change_gives_no_false_alarm() {
    let ordinary: fn(&mut SplitMix64) -> f64 = |random| NOISE * normal(random);
    let heavy: fn(&mut SplitMix64) -> f64 =
        |random| NOISE * normal(random) / normal(random).abs().max(0.1);
    for (runs, trials, noise) in [
        (RUNS_MIN, 200, ordinary),
        (16, 200, ordinary),
        (16, 200, heavy),
    ] {
        let mut random = SplitMix64::new(runs as u64);
        let alarm =
            |_: &usize| !changes(&series(&mut random, runs, runs, 1.0, noise), 0.05).is_empty();
        let alarms = (0..trials).filter(alarm).count();
        // 5 %, plus a margin that 200 trials exceed only once in a thousand cases.
        assert!(
            alarms <= trials / 20 + 10,
            "{alarms} of {trials} with {runs} runs"
        );
    }
}

#[test]
fn a_change_of_a_tenth_is_found_where_it_is() {
    let mut random = SplitMix64::new(5);
    let noise = |random: &mut SplitMix64| NOISE * normal(random);
    let is_found = |_: &usize| {
        let found = changes(&series(&mut random, 24, 15, 0.9, noise), 0.05);
        found.first().is_some_and(|change| {
            let ratio = change.after / change.before;
            change.at.abs_diff(15) <= 1 && (0.85..0.95).contains(&ratio)
        })
    };
    let found = (0..100).filter(is_found).count();
    assert!(found >= 90, "{found} of 100");
}

#[test]
fn two_changes_are_both_found_and_a_wild_run_is_none() {
    let mut values: Vec<f64> = (0..30).map(|run| 100.0 + f64::from(run * 7 % 5)).collect();
    values[4] = 300.0;
    assert_eq!(changes(&values, 0.05), []);
    values[12..].iter_mut().for_each(|value| *value *= 2.0);
    values[20..].iter_mut().for_each(|value| *value *= 1.5);
    let at: Vec<usize> = changes(&values, 0.05)
        .iter()
        .map(|change| change.at)
        .collect();
    assert_eq!(at, [12, 20]);
    // The minimum number of runs, with an obvious change.
    let few = [1.0, 1.01, 1.02, 1.03, 2.0, 2.01, 2.02, 2.03];
    assert_eq!(
        changes(&few, 0.05)
            .iter()
            .map(|change| change.at)
            .collect::<Vec<_>>(),
        [4]
    );
    assert_eq!(changes(&[1.0; 20], 0.05), []);
}
