//! Proof that a scenario tested what it is for: its hard cases occurred under its seeds.

use std::cell::Cell;

/// How often a hard case occurred, over all seeds of a scenario.
#[derive(Debug, Default)]
pub struct Count(Cell<u64>);

impl Count {
    /// It has not occurred.
    pub const fn new() -> Count {
        Count(Cell::new(0))
    }

    /// It has occurred `times` more.
    pub fn add(&self, times: usize) {
        self.0.set(self.0.get() + times as u64);
    }

    /// It has occurred once more, if it `occurred`.
    pub fn when(&self, occurred: bool) {
        self.add(usize::from(occurred));
    }

    /// How often it occurred.
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// Checks that each of these cases, given with its count, occurred at least once. Not required of runs with chosen
/// seeds (`SANSTONE_SEED`, `SANSTONE_SEEDS`).
///
/// # Panics
/// If any never occurred; the message names them.
#[track_caller]
pub fn assert_occurred<const N: usize>(cases: [(&str, u64); N]) {
    println!("{cases:?}");
    let is_chosen =
        ["SANSTONE_SEED", "SANSTONE_SEEDS"].map(|name| std::env::var_os(name).is_some());
    let missed: Vec<&str> = cases
        .iter()
        .filter(|(_, times)| *times == 0)
        .map(|(case, _)| *case)
        .collect();
    assert!(
        missed.is_empty() || is_chosen.contains(&true),
        "never occurred: {missed:?}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "never occurred: [\"b\"]")]
    fn what_never_occurred_is_named() {
        assert_occurred([("a", 2), ("b", 0)]);
    }
}
