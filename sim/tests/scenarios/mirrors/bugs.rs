//! Tests the scenario itself: with each of these bugs it fails within a given number of seeds.
//!
//! `OldKeyOnReturn` does not show in it, but where all orders are explored (`crates/mirror/tests/explore/bugs.rs`): what a
//! session has sent that was given up arrives at once or never, because its connection is aborted, and what has arrived is
//! ended by the reset of the next fence, whatever its key.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ::mirror::planted::{Bug, Planted};
use sim::{
    mirrored::{Caches, Mirrored},
    two_owners::TwoOwners,
};
use volume::planted as daemons;

use super::{Met, hard_cases, rounds, two_owners::reliefs};

/// One seed of a mirror with one owner.
fn one_owner(caches: Caches) -> impl Fn(u64) {
    move |seed| {
        let site = Mirrored::new(seed, caches);
        site.run(rounds(&site, &Met::default()));
    }
}

/// One seed of two owners.
fn two_owners(seed: u64) {
    let site = TwoOwners::new(seed);
    site.run(reliefs(&site, &Met::default()));
}

/// Under which of the first `seeds_max` seeds a bug that is planted shows first.
#[track_caller]
fn shows(what: &str, seeds_max: u64, run: impl Fn(u64)) {
    let fails = |seed: &u64| catch_unwind(AssertUnwindSafe(|| run(*seed))).is_err();
    let found = (0..seeds_max).find(fails);
    println!("{what} shows with seed {found:?}");
    assert!(found.is_some(), "{what} does not show in {seeds_max} seeds");
}

fn in_the_machine(bug: Bug, seeds_max: u64, run: impl Fn(u64)) {
    let _planted = Planted::new(bug);
    shows(&format!("{bug:?}"), seeds_max, run);
}

fn in_the_daemon(bug: daemons::Bug, seeds_max: u64, run: impl Fn(u64)) {
    let _planted = daemons::Planted::new(bug);
    shows(&format!("{bug:?}"), seeds_max, run);
}

macro_rules! bugs {
    ($($name:ident: $bug:ident, $seeds_max:expr;)*) => {$(
        #[test]
        fn $name() {
            in_the_machine(Bug::$bug, $seeds_max, one_owner(Caches::None));
        }
    )*};
}

bugs! {
    a_restarted_owner_that_keeps_its_epoch: OldEpoch, 300;
    an_unfenced_copy_that_stays: UnfencedStays, 300;
    marks_that_are_ignored: MarksIgnored, 300;
    others_that_are_not_equalised: OthersNotEqualised, 300;
    an_acknowledgement_before_the_rest_has_noted_the_record: Unnoted, 600;
    overlap_after_the_answer: OverlapAfterAnswer, 300;
    data_before_its_bit: Unmarked, 300;
    a_bit_that_is_cleared_without_all_copies: ClearedAlone, 300;
    a_swap_in_that_waits_for_no_write: NotDrained, 300;
    a_foreign_copy_that_is_filled_from_bitmaps: AnyVersion, 300;
    a_copy_that_is_needed_once_it_is_in: NeededWhenIn, 300;
    a_copy_that_was_set_back_and_is_not_filled: SetBackIgnored, 300;
}

#[test]
fn a_register_that_is_not_made_durable_again() {
    in_the_daemon(
        daemons::Bug::RegisterUnsettled,
        300,
        one_owner(Caches::None),
    );
}

#[test]
fn copies_with_volatile_caches() {
    in_the_daemon(
        daemons::Bug::MirrorOverCaches,
        10,
        one_owner(Caches::Volatile),
    );
}

#[test]
fn a_copy_that_is_lost_while_nothing_is_asked_and_stays() {
    in_the_daemon(daemons::Bug::LostWhileIdle, 300, one_owner(Caches::None));
}

/// Bugs that take a second owner.
macro_rules! bugs_of_two {
    ($($name:ident: $bug:ident, $seeds_max:expr;)*) => {$(
        #[test]
        fn $name() {
            in_the_machine(Bug::$bug, $seeds_max, two_owners);
        }
    )*};
}

bugs_of_two! {
    a_claim_without_a_fence: Unfenced, 40;
    one_copy_without_a_fence: OneUnfenced, 40;
}

/// Bugs that take a case of their own.
macro_rules! bugs_of_cases {
    ($($name:ident: $bug:ident, $case:ident, $seeds_max:expr;)*) => {$(
        #[test]
        fn $name() {
            let run = |seed| hard_cases::run(seed, &hard_cases::$case);
            in_the_machine(Bug::$bug, $seeds_max, run);
        }
    )*};
}

bugs_of_cases! {
    an_acknowledgement_before_the_swap:
        AcknowledgedBeforeOut, the_register_is_lost_as_a_copy_leaves, 10;
    doubt_that_is_ignored: DoubtIgnored, the_last_copy_does_not_make_writes_durable, 40;
    a_read_without_proof: Unproven, a_copy_is_cut_off_from_the_next_owner, 20;
    a_copy_on_its_way_in_that_reads_do_not_need:
        PendingInUnread, a_copy_is_swapped_in_without_an_answer, 10;
    a_clear_that_is_overtaken: ClearOvertaken, a_region_is_written_while_it_is_cleared, 60;
    a_return_that_reads_one_bitmap:
        OneBitmap, a_copy_was_written_that_the_next_owner_begins_without, 10;
}

#[test]
fn a_swap_without_an_answer_that_counts_as_made() {
    let run = |seed| hard_cases::run(seed, &hard_cases::the_register_is_lost_as_a_copy_leaves);
    in_the_daemon(daemons::Bug::UnansweredIsMade, 10, run);
}

#[test]
fn a_fence_that_ends_nothing() {
    let run = |seed| hard_cases::run(seed, &hard_cases::writes_hang_as_it_is_taken_over);
    in_the_daemon(daemons::Bug::FenceEndsNothing, 400, run);
}

/// A floor keeps out an owner that makes its fence again; and one that does not, is kept out without.
#[test]
fn a_fence_that_is_made_again_where_there_is_no_floor() {
    let run = |seed| {
        let case = hard_cases::storages_forget_while_the_former_owner_stands_still;
        hard_cases::run(seed, &case);
    };
    {
        let _planted = Planted::new(Bug::NoFloor);
        run(0);
        in_the_daemon(daemons::Bug::FencedAgain, 10, run);
    }
    let _planted = daemons::Planted::new(daemons::Bug::FencedAgain);
    run(0);
}
