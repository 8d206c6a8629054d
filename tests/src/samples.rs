//! Shared by the measurement programs: command lines, and samples with their medians.
//!
//! Absolute figures of a virtual machine drift. So each round measures everything once, in alternation, ratios are
//! taken within a round, and all samples are kept.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How such a program was called.
#[derive(Debug)]
pub struct Call {
    /// How many times everything is measured.
    pub rounds: usize,
    /// Duration of each measurement, in seconds.
    pub seconds: f64,
    /// Where all samples go as JSON.
    pub json: Option<PathBuf>,
    /// Other options, by name, without their dashes.
    pub options: BTreeMap<String, String>,
    /// The parts to measure; all if empty.
    pub parts: Vec<String>,
}

impl Call {
    /// Parses the command line: `[PART…] [--rounds N] [--seconds S] [--json FILE] [--OPTION VALUE…]`. An invalid one
    /// ends the program with exit code 2.
    pub fn read(rounds: usize, seconds: f64) -> Call {
        let mut call = Call {
            rounds,
            seconds,
            json: None,
            options: BTreeMap::new(),
            parts: Vec::new(),
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let Some(name) = argument.strip_prefix("--") else {
                call.parts.push(argument);
                continue;
            };
            let Some(value) = arguments.next() else {
                wrong(&format!("--{name} wants a value"));
            };
            match name {
                "rounds" => call.rounds = number(name, &value),
                "seconds" => call.seconds = number(name, &value),
                "json" => call.json = Some(value.into()),
                _ => {
                    call.options.insert(name.to_owned(), value);
                }
            }
        }
        call
    }

    /// Whether this part is to be measured.
    pub fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }

    /// A numeric option.
    pub fn number<T: std::str::FromStr>(&self, name: &str, default: T) -> T {
        let value = self.options.get(name);
        value.map_or(default, |value| number(name, value))
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> T {
    let parsed = value.parse();
    parsed.unwrap_or_else(|_| wrong(&format!("--{name} {value}: write a number")))
}

fn wrong(message: &str) -> ! {
    eprintln!("{message}");
    std::process::exit(2);
}

/// Samples by name; samples of one round have the same index.
#[derive(Debug, Default)]
pub struct Samples(BTreeMap<String, Vec<f64>>);

/// The median of some samples with its 95 % confidence interval (the sign test's; the full range if there are fewer
/// than six samples).
#[derive(Clone, Copy, Debug)]
pub struct Median {
    /// The median.
    pub median: f64,
    /// The interval's ends.
    pub interval: (f64, f64),
}

impl Samples {
    /// Adds a sample.
    pub fn note(&mut self, what: impl Into<String>, value: f64) {
        self.0.entry(what.into()).or_default().push(value);
    }

    /// The median of the samples of this name; `None`: it was not measured.
    pub fn median(&self, what: &str) -> Option<Median> {
        self.0.get(what).map(|samples| Median::of(samples))
    }

    /// The median of the samples of this name with the least and the greatest as the interval.
    pub fn range(&self, what: &str) -> Option<Median> {
        self.0.get(what).map(|samples| Median::with_range(samples))
    }

    /// The ratio `what` ÷ `to`, taken round by round.
    pub fn ratio(&self, what: &str, to: &str) -> Option<Median> {
        let rounds = self.0.get(what)?.iter().zip(self.0.get(to)?);
        let ratios: Vec<f64> = rounds.map(|(what, to)| what / to).collect();
        Some(Median::of(&ratios))
    }

    /// The names of all samples.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// All samples by name.
    pub fn json(&self) -> Value {
        json!(self.0)
    }

    /// Writes the samples to the file named in the call, if any.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, call: &Call) {
        let Some(file) = &call.json else { return };
        let all = json!({ "rounds": call.rounds, "seconds": call.seconds, "samples": self.json() });
        let text = format!("{all:#}\n");
        std::fs::write(file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

impl Median {
    /// The median of these samples, in any order.
    pub fn of(samples: &[f64]) -> Median {
        Median::without(samples, outside(samples.len()))
    }

    /// The same, but the interval is the full range of the samples.
    pub fn with_range(samples: &[f64]) -> Median {
        Median::without(samples, 0)
    }

    /// `out` samples lie outside the interval at each end.
    fn without(samples: &[f64], out: usize) -> Median {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        Median {
            median: f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]),
            interval: (sorted[out], sorted[count - 1 - out]),
        }
    }
}

impl std::fmt::Display for Median {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = match self.median.abs() {
            100.0.. => 0,
            10.0.. => 1,
            _ => 2,
        };
        let (low, high) = self.interval;
        let text = format!(
            "{:.digits$} [{low:.digits$} … {high:.digits$}]",
            self.median
        );
        f.pad(&text)
    }
}

/// How many of `count` samples lie outside the interval at each end: the largest number such that fewer heads in
/// `count` coin tosses have a probability of at most 2.5 %.
fn outside(count: usize) -> usize {
    let mut chance = 0.5_f64.powi(count as i32);
    let (mut below, mut heads) = (chance, 0);
    while below <= 0.025 {
        chance *= (count - heads) as f64 / (heads + 1) as f64;
        heads += 1;
        below += chance;
    }
    heads.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_the_sign_test() {
        // The published table: all samples of 6 to 8; one dropped at each end of 9 to 11; five of 20.
        let known = [
            (1, 0),
            (5, 0),
            (6, 0),
            (8, 0),
            (9, 1),
            (11, 1),
            (12, 2),
            (20, 5),
        ];
        for (count, expected) in known {
            assert_eq!(outside(count), expected, "{count}");
        }
        let median = Median::of(&[3.0, 1.0, 2.0, 10.0]);
        assert_eq!((median.median, median.interval), (2.5, (1.0, 10.0)));
        assert_eq!(median.to_string(), "2.50 [1.00 … 10.00]");
        let nine: Vec<f64> = (1..=9).map(f64::from).collect();
        assert_eq!(Median::of(&nine).interval, (2.0, 8.0));
        assert_eq!(Median::with_range(&nine).interval, (1.0, 9.0));
    }

    #[test]
    fn a_ratio_is_taken_within_a_round() {
        let mut samples = Samples::default();
        for (one, two) in [(1.0, 2.0), (10.0, 20.0), (100.0, 200.0)] {
            samples.note("one", one);
            samples.note("two", two);
        }
        let ratio = samples.ratio("two", "one").expect("both are there");
        assert_eq!((ratio.median, ratio.interval), (2.0, (2.0, 2.0)));
        assert!(samples.ratio("three", "one").is_none());
    }
}
