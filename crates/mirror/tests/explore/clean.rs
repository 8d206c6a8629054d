//! Within these budgets nothing goes wrong.

use std::time::Instant;

use crate::{
    budget::{Budget, Flaw},
    search::search,
    world::World,
};

#[track_caller]
fn explore(budget: Budget, flaw: Option<Flaw>, states_max: usize) {
    let begun = Instant::now();
    let found = search(&World::new(budget, flaw), states_max);
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
    assert!(found.is_exhausted, "more than {states_max} states");
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

macro_rules! budgets {
    ($($(#[$attribute:meta])* $name:ident: $flaw:expr, { $($field:ident: $value:expr),* };)*) => {$(
        #[test]
        $(#[$attribute])*
        fn $name() {
            explore(Budget { $($field: $value,)* ..ONE }, $flaw, 40_000_000);
        }
    )*};
}

budgets! {
    a_failover: None, {};
    a_failover_with_a_crash: None, { crashes: 1 };
    #[ignore = "for make test-long"]
    a_failover_with_two_reads_and_an_abandon: None, { reads: 2, abandons: 1, sessions_end: true };
    a_failover_with_two_writes_and_a_clear: None, { writes: 2, clears: 1 };
    a_crash_that_loses_the_fence: None, { crashes: 1, lost: 1 };
    a_fence_made_again_over_floors: Some(Flaw::FencedAgain), { crashes: 1, lost: 1, has_floor: true };
    slow_metadata: None, { is_slow: true };
    a_read_beside_a_write: None, { asks_both: true };
    a_return_that_fills_two_blocks: None, { epochs: 1, returns: 1, has_other_block: true };
    a_replaced_copy: None, { epochs: 1, returns: 1, replaced: 1 };
    two_writes_a_return_a_clear_and_an_abandon: None, { writes: 2, epochs: 1, returns: 1, clears: 1, abandons: 1, sessions_end: true };
    a_return_with_a_failover: None, { returns: 1 };
    slow_metadata_and_a_return: None, { epochs: 1, returns: 1, clears: 1, is_slow: true, has_other_block: true };
    two_returns_of_a_replaced_copy: None, { epochs: 1, returns: 2, clears: 1, replaced: 1 };
    #[ignore = "for make test-long"]
    a_return_with_a_failover_and_slow_metadata: None, { reads: 0, returns: 1, is_slow: true };
    #[ignore = "for make test-long"]
    a_return_with_a_failover_two_writes_and_a_crash: None, { writes: 2, reads: 0, crashes: 1, returns: 1 };
}
