//! Every former defect, planted: its script finds it, and so do random events.

use super::*;

/// A script that shows it.
type Script = fn();

const FORMER_DEFECTS: [(Bug, Script); 15] = [
    (
        Bug::ResendAtOnce,
        no_write_is_sent_before_the_lost_ones_have_ended,
    ),
    (
        Bug::LoginEndsWrites,
        no_write_is_sent_before_the_lost_ones_have_ended,
    ),
    (
        Bug::GivenUpForgotten,
        what_cannot_be_ended_is_known_to_be_left,
    ),
    (
        Bug::UnfencedForgotten,
        what_cannot_be_ended_is_known_to_be_left,
    ),
    (
        Bug::ResetAtOnce,
        a_reset_waits_for_what_is_on_the_way_but_not_after_a_login,
    ),
    (
        Bug::OwnResetCounts,
        our_own_reset_counts_once_for_each_nexus_and_only_if_it_was_done,
    ),
    (
        Bug::RemovedPathForgotten,
        paths::what_a_removed_path_has_left_holds_writes_back,
    ),
    (
        Bug::IdlePathForgotten,
        paths::a_lone_path_that_nobody_waits_for_comes_back_at_leisure,
    ),
    (
        Bug::RestartCountedByEach,
        a_restart_that_every_session_reports_counts_once,
    ),
    (
        Bug::SecondRestartForgotten,
        a_second_restart_during_the_questions_loses_what_was_written_since,
    ),
    (
        Bug::SettledByOldAnswer,
        a_claim_is_settled_only_by_an_answer_to_a_question_asked_after_the_event,
    ),
    (
        Bug::ResetLoses,
        neither_a_reset_nor_the_old_news_of_a_new_session_is_a_restart,
    ),
    (
        Bug::OtherBlocksTaken,
        a_disk_whose_blocks_have_another_size_is_neither_read_nor_written,
    ),
    (
        Bug::RedirectionKept,
        paths::where_a_target_has_once_moved_to_is_not_tried_for_ever,
    ),
    (Bug::FencedAgain, a_fence_is_not_the_same_after_a_restart),
];

/// What finds `bug` when it is planted.
fn find(bug: Bug, finder: impl Fn() + std::panic::UnwindSafe) {
    let _planted = Planted::new(bug);
    let found = std::panic::catch_unwind(finder);
    found.expect_err(&format!("{bug:?} is found"));
}

#[test]
fn each_former_defect_is_found_by_its_script() {
    for (bug, script) in FORMER_DEFECTS {
        script();
        find(bug, script);
    }
}

#[test]
fn each_former_defect_is_found_by_random_events() {
    for (bug, _) in FORMER_DEFECTS {
        find(
            bug,
            world::what_must_hold_holds_after_each_of_a_million_random_events,
        );
    }
}
