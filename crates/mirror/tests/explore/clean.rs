//! Within these budgets nothing goes wrong.

use std::time::Instant;

use crate::{budget::Budget, search::search, world::World};

#[track_caller]
fn explore(budget: Budget, states_max: usize) {
    let begun = Instant::now();
    let found = search(&World::new(budget, None), states_max);
    let seconds = begun.elapsed().as_secs_f64();
    let end = if found.is_exhausted {
        "exhausted"
    } else {
        "stopped"
    };
    println!("{budget:?}: {} states, {end}, {seconds:.1} s", found.states);
    if let Some((what, story)) = found.violation {
        panic!("{what}:\n{}", story.join("\n"));
    }
}

pub(crate) const ONE: Budget = Budget {
    writes: 1,
    reads: 1,
    epochs: 2,
    crashes: 0,
    returns: 0,
    clears: 0,
    abandons: 0,
    lost: 0,
    replaced: 0,
    has_floor: false,
    is_slow: false,
    sessions_end: false,
    has_other_block: false,
    asks_both: false,
};

#[test]
fn a_failover() {
    explore(ONE, 1_000_000);
}

macro_rules! budgets {
    ($($(#[$attribute:meta])* $name:ident: { $($field:ident: $value:expr),* };)*) => {$(
        #[test]
        $(#[$attribute])*
        fn $name() {
            explore(Budget { $($field: $value,)* ..ONE }, 40_000_000);
        }
    )*};
}

budgets! {
    a_failover_with_a_crash: { crashes: 1 };
    a_crash_that_loses_the_fence: { crashes: 1, lost: 1 };
}
