//! Tests the scenarios themselves: each bug here is planted, and its scenario must fail within a given number of seeds.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
};

use sim::target_machine::Networks;
use volume::planted::{Bug, Planted};

use crate::{claims, path_changes, paths};

/// Runs `scenario` with `bug` under one seed after another until it fails.
///
/// # Panics
/// If it fails under none of the first `seeds_max` seeds.
#[track_caller]
fn finds(bug: Bug, seeds_max: u64, mut scenario: impl FnMut(u64)) {
    let _planted = Planted::new(bug);
    let fails = |&seed: &u64| catch_unwind(AssertUnwindSafe(|| scenario(seed))).is_err();
    let found = (0..seeds_max).find(fails);
    let seed = found.unwrap_or_else(|| panic!("{bug:?} is not found in {seeds_max} seeds"));
    println!("{bug:?} is found by seed {seed}");
}

#[test]
fn a_flush_of_one_path_only_is_found() {
    finds(Bug::FlushOfOnePath, 10, |seed| {
        paths::cut_power_after_flushes(seed, &mut paths::Met::default());
    });
}

#[test]
fn a_write_that_is_sent_again_before_its_nexus_is_dead_is_found() {
    finds(Bug::ResendAtOnce, 20, |seed| {
        paths::lose_late_writes(seed, Networks::TwoGroups, &mut paths::Met::default());
    });
}

#[test]
fn a_removed_path_whose_writes_are_forgotten_is_found() {
    finds(Bug::RemovedPathForgotten, 600, |seed| {
        let mut met = paths::Met::default();
        path_changes::networks_fail(seed, Networks::TwoGroups, &Rc::default(), &mut met);
    });
}

#[test]
fn a_cache_that_is_kept_over_anothers_writes_is_found() {
    finds(Bug::CacheKeptInDoubt, 10, |seed| {
        claims::overwrite_what_is_cached(seed, &mut claims::Stale::default());
    });
}

#[test]
fn lanes_that_write_while_a_lost_nexus_still_may_are_found() {
    finds(Bug::LanesGrantedDespiteGhost, 60, |seed| {
        paths::lose_writes_that_hang(seed, &mut paths::Met::default());
    });
}
