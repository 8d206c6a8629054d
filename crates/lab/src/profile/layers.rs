//! Breaks the time of operations down into rows: means of the total and of its parts, over all operations and
//! over those whose total is near the median or near the 99th percentile. Selecting by the total makes the
//! rows add up.

use volume::layers::Layers as Seen;

use crate::report::{LayerShare, Layers, OperationTimes};

/// Where one operation spent the time that it waited for its volume, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimeSpent {
    volume_ns: u64,
    initiator_ns: u64,
    wire_ns: u64,
    target_ns: u64,
    medium_ns: u64,
    untold_ns: u64,
    is_partial: bool,
}

/// A row: its name, and how to get its time from an operation.
pub(crate) type LayerRow<T> = (&'static str, fn(&T) -> u64);

pub(crate) const VOLUME: &str = "volume";
pub(crate) const INITIATOR: &str = "initiator";
pub(crate) const WIRE: &str = "wire";
pub(crate) const TARGET: &str = "target";
pub(crate) const MEDIUM: &str = "medium";
pub(crate) const UNTOLD: &str = "wire and target: not visible";

/// The rows of a way, from top to bottom; together they make up all of it.
const ROWS: [LayerRow<TimeSpent>; 6] = [
    (VOLUME, |way| way.volume_ns),
    (INITIATOR, |way| way.initiator_ns),
    (WIRE, |way| way.wire_ns),
    (TARGET, |way| way.target_ns),
    (MEDIUM, |way| way.medium_ns),
    (UNTOLD, |way| way.untold_ns),
];

impl TimeSpent {
    /// For an operation that waited for `waited_ns`, of which `seen` was observed. The rest was spent in the
    /// volume's own layers on this side, and on the way to them.
    pub(crate) fn new(waited_ns: u64, seen: &Seen) -> TimeSpent {
        let all = [
            seen.initiator,
            seen.wire,
            seen.target,
            seen.medium,
            seen.untold,
        ];
        let all = all.map(|part| part.as_nanos());
        let sum_ns = all.iter().sum::<u128>();
        // Parallel work can add up to more than the wait, so scale it down to the wait.
        let [initiator_ns, wire_ns, target_ns, medium_ns, untold_ns] =
            match sum_ns > waited_ns.into() {
                false => all.map(|ns| ns as u64),
                true => all.map(|ns| (ns * u128::from(waited_ns) / sum_ns) as u64),
            };
        TimeSpent {
            volume_ns: waited_ns - initiator_ns - wire_ns - target_ns - medium_ns - untold_ns,
            initiator_ns,
            wire_ns,
            target_ns,
            medium_ns,
            untold_ns,
            is_partial: seen.is_partial,
        }
    }
}

/// The total of all operations, the given rows, and then the rows of their ways.
pub(crate) fn layers<T: Copy>(
    all: &[T],
    total_ns: fn(&T) -> u64,
    rows: &[LayerRow<T>],
    way: fn(&T) -> TimeSpent,
) -> Layers {
    let mut sorted = all.to_vec();
    sorted.sort_unstable_by_key(total_ns);
    let band = |from: f64, to: f64| {
        let last = sorted.len() as f64;
        let from = ((from * last) as usize).min(sorted.len() - 1);
        let to = ((to * last).ceil() as usize).clamp(from + 1, sorted.len());
        &sorted[from..to]
    };
    let (middle, late) = (band(0.45, 0.55), band(0.985, 0.995));
    let times = |of: &dyn Fn(&T) -> u64| {
        let mean_us = |of_these: &[T]| {
            of_these.iter().map(of).sum::<u64>() as f64 / 1e3 / of_these.len() as f64
        };
        OperationTimes {
            mean_us: mean_us(&sorted),
            p50_us: mean_us(middle),
            p99_us: mean_us(late),
        }
    };
    let layer = |name: &str, of: &dyn Fn(&T) -> u64| LayerShare {
        name: name.into(),
        times: times(of),
    };
    let own = rows.iter().map(|(name, of)| layer(name, of));
    // Omit rows without any time: nobody expects a wire on the way to a file.
    let taken = |of: fn(&TimeSpent) -> u64| all.iter().any(|operation| of(&way(operation)) > 0);
    let of_way = ROWS.iter().filter(|(_, of)| taken(*of));
    let of_way = of_way.map(|(name, of)| layer(name, &|operation| of(&way(operation))));
    Layers {
        total: times(&total_ns),
        layers: own.chain(of_way).collect(),
    }
}

/// Caveats for reading the rows of these ways.
pub(crate) fn notes(ways: impl Iterator<Item = TimeSpent> + Clone) -> Vec<String> {
    let mut notes = Vec::new();
    if ways.clone().any(|way| way.untold_ns > 0) {
        notes.push(
            "the target does not report where it spends the time (it is not Sanstone, or is older than \
             this version): what happens behind the initiator is not visible"
                .to_owned(),
        );
    }
    if ways.clone().any(|way| way.is_partial) {
        notes.push(
            "the target does not report how long all of its media worked (it is older than this \
             version): the time of the others counts in its own row"
                .to_owned(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn seen(parts: [u64; 5]) -> Seen {
        let [initiator, wire, target, medium, untold] = parts.map(Duration::from_nanos);
        Seen {
            initiator,
            wire,
            target,
            medium,
            untold,
            is_partial: false,
        }
    }

    fn rows_of(way: &TimeSpent) -> [u64; 6] {
        ROWS.map(|(_, of)| of(way))
    }

    #[test]
    fn rows_that_nothing_has_taken_time_in_are_left_out() {
        let names = |parts| {
            let ways = [TimeSpent::new(100, &seen(parts)); 2];
            let layers = layers(&ways, |_| 100, &[], |way| *way);
            let names = layers.layers.into_iter().map(|layer| layer.name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(
            names([5, 10, 20, 30, 0]),
            ["volume", "initiator", "wire", "target", "medium"]
        );
        // Without a session of ours nothing is the initiator's.
        assert_eq!(names([0, 0, 0, 30, 0]), ["volume", "medium"]);
        assert_eq!(
            names([5, 0, 0, 0, 70]),
            ["volume", "initiator", "wire and target: not visible"]
        );
    }

    #[test]
    fn what_went_on_while_nobody_waited_does_not_count() {
        let way = TimeSpent::new(100, &seen([0, 100, 50, 50, 0]));
        assert_eq!(rows_of(&way), [0, 0, 50, 25, 25, 0]);
    }

    #[test]
    fn what_is_not_visible_is_said() {
        let untold = TimeSpent::new(10, &seen([0, 0, 0, 0, 5]));
        let partial = TimeSpent {
            is_partial: true,
            ..TimeSpent::default()
        };
        assert_eq!(notes([TimeSpent::default()].into_iter()).len(), 0);
        for (way, said) in [(untold, "does not report"), (partial, "all of its media")] {
            let notes = notes([TimeSpent::default(), way].into_iter());
            assert!(notes.len() == 1 && notes[0].contains(said), "{notes:?}");
        }
    }

    proptest! {
        #[test]
        fn the_rows_add_up_to_the_whole_at_the_mean_the_median_and_the_99th_percentile(
            all in prop::collection::vec((1..1u64 << 40, any::<[u32; 5]>()), 1..400),
        ) {
            let all: Vec<(u64, TimeSpent)> = all
                .into_iter()
                .map(|(waited, parts)| (waited, TimeSpent::new(waited, &seen(parts.map(u64::from)))))
                .collect();
            for (waited, way) in &all {
                prop_assert_eq!(rows_of(way).iter().sum::<u64>(), *waited);
            }
            let layers = layers(&all, |all| all.0, &[], |all| all.1);
            for of in [|times: &OperationTimes| times.mean_us, |times: &OperationTimes| times.p50_us, |times: &OperationTimes| times.p99_us] {
                let parts: f64 = layers.layers.iter().map(|layer| of(&layer.times)).sum();
                prop_assert!((parts / of(&layers.total) - 1.0).abs() < 1e-6);
            }
        }
    }
}
