//! Each planted bug is found, in the budget where it shows: as a history that has no order, or as copies that differ.

use mirror::planted::{Bug, Planted};

use crate::{
    budget::{Budget, Flaw},
    clean::ONE,
    search::search,
    world::World,
};

/// More than any of them takes.
const STATES_MAX: usize = 3_000_000;

#[track_caller]
fn is_found(budget: Budget, bug: Option<Bug>, flaw: Option<Flaw>) {
    let _planted = bug.map(Planted::new);
    let found = search(&World::new(budget, flaw), STATES_MAX);
    let (what, story) = found
        .violation
        .unwrap_or_else(|| panic!("{bug:?} {flaw:?} is not found in {} states", found.states));
    println!(
        "{bug:?} {flaw:?}: {what}, after {} states:\n  {}",
        found.states,
        story.join("\n  ")
    );
}

macro_rules! bugs {
    ($($name:ident: $bug:expr, $flaw:expr, { $($field:ident: $value:expr),* };)*) => {$(
        #[test]
        fn $name() {
            is_found(Budget { $($field: $value,)* ..ONE }, $bug, $flaw);
        }
    )*};
}

bugs! {
    a_restarted_owner_that_keeps_its_epoch: Some(Bug::OldEpoch), Some(Flaw::KeysComeBack), { writes: 2, crashes: 1 };
    a_returning_copy_that_keeps_its_key: Some(Bug::OldKeyOnReturn), None, { writes: 2, epochs: 1, returns: 1 };
    a_claim_without_a_fence: Some(Bug::Unfenced), None, {};
    a_local_copy_that_is_reached_past_the_fence: None, Some(Flaw::LocalUnfenced), {};
    a_fence_that_is_made_again: None, Some(Flaw::FencedAgain), { writes: 2, crashes: 1, lost: 1 };
    an_unfenced_copy_that_stays: Some(Bug::UnfencedStays), None, { epochs: 3 };
    marks_that_are_ignored: Some(Bug::MarksIgnored), None, {};
    others_that_are_not_equalised: Some(Bug::OthersNotEqualised), None, {};
    an_acknowledgement_before_the_swap: Some(Bug::AcknowledgedBeforeOut), None, {};
    doubt_that_is_ignored: Some(Bug::DoubtIgnored), None, { reads: 2, epochs: 1, abandons: 1, sessions_end: true };
    overlap_after_the_answer: Some(Bug::OverlapAfterAnswer), None, { writes: 2, epochs: 1, abandons: 1, sessions_end: true };
    a_read_without_proof: Some(Bug::Unproven), None, {};
    a_proof_that_passes_fences: None, Some(Flaw::ProofPassesFences), {};
    a_copy_on_its_way_in_that_reads_do_not_need: Some(Bug::PendingInUnread), None, { returns: 1 };
    data_before_its_bit: Some(Bug::Unmarked), None, {};
    a_bit_that_is_cleared_without_all_copies: Some(Bug::ClearedAlone), None, { writes: 2, epochs: 1, returns: 1, clears: 1 };
    a_clear_that_is_overtaken: Some(Bug::ClearOvertaken), None, { writes: 2, clears: 1 };
    a_swap_in_that_waits_for_no_write: Some(Bug::NotDrained), None, { epochs: 1, returns: 1, sessions_end: true, has_other_block: true };
    a_return_that_reads_one_bitmap: Some(Bug::OneBitmap), None, { epochs: 2, returns: 1 };
    a_blank_copy_that_is_filled_from_bitmaps: Some(Bug::AnyVersion), None, { epochs: 1, returns: 1, clears: 1, replaced: 1 };
    a_copy_that_is_needed_once_it_is_in: Some(Bug::NeededWhenIn), None, { returns: 1 };
}
