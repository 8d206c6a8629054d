//! One rule at a time, where the exploration has no room for it: several ranges, several requests, set-back copies.

mod rig;

use mirror::{
    CopyCommand, CopySet, MirrorAction, MirrorEvent, MirrorPhase, Outcome, Range, Stopped,
    planted::{Bug, Planted},
};

use self::rig::{REGION_BLOCKS, REGIONS, Rig, at, copy};

fn is_write(command: &CopyCommand) -> bool {
    matches!(command, CopyCommand::Write { .. })
}

#[test]
fn a_write_is_acknowledged_when_both_copies_have_it() {
    let mut rig = Rig::new();
    let write = rig.write(at(3, 2));
    assert_eq!(rig.end(Outcome::Good, |at, _| at == copy(1)), 1);
    assert!(!rig.has_acknowledged(write));
    assert_eq!(rig.end(Outcome::Good, |at, _| at == copy(0)), 1);
    assert!(rig.has_acknowledged(write) && rig.mirror.is_quiet());
}

#[test]
fn a_copy_leaves_before_a_write_is_acknowledged_without_it() {
    let mut rig = Rig::new();
    let write = rig.write(at(3, 2));
    rig.end(Outcome::Good, |at, _| at == copy(0));
    rig.register_is_away = true;
    rig.apply(MirrorEvent::Failed(copy(1)));
    assert!(
        matches!(rig.done[..], [MirrorAction::Swap(_)]),
        "{:?}",
        rig.done
    );
    let MirrorAction::Swap(swap) = rig.done[0].clone() else {
        unreachable!();
    };
    rig.holds_metadata = true;
    rig.apply(MirrorEvent::Swapped(swap.land(rig.register)));
    assert_eq!(rig.mirror.record().in_sync, CopySet::from(copy(0)));
    assert!(!rig.has_acknowledged(write), "the rest has not noted it");
    let is_note = |command: &CopyCommand| matches!(command, CopyCommand::Keep(kept) if kept.record == swap.new);
    assert_eq!(
        rig.end(Outcome::Good, |at, command| at == copy(0)
            && is_note(command)),
        1
    );
    assert!(rig.has_acknowledged(write));
}

#[test]
fn the_last_copy_stays_and_its_failed_write_fails() {
    let mut rig = Rig::new();
    rig.apply(MirrorEvent::Failed(copy(1)));
    rig.apply(MirrorEvent::Failed(copy(0)));
    assert_eq!(rig.mirror.record().in_sync, CopySet::from(copy(0)));
    let write = rig.write(at(3, 2));
    rig.end(Outcome::Failed, |_, command| is_write(command));
    assert!(rig.done.contains(&MirrorAction::Fail(write)));
    // What it may have written is read, and written once more, because a power cut could take it back: before anybody sees
    // it.
    let read = rig.read(at(3, 1));
    let is_answered = |rig: &Rig| {
        let mut done = rig.done.iter();
        done.any(|one| matches!(one, MirrorAction::Answer { request, .. } if *request == read))
    };
    let is_read = |command: &CopyCommand| matches!(command, CopyCommand::Read(_));
    assert_eq!(rig.end(Outcome::Good, |_, command| is_read(command)), 1);
    assert!(!is_answered(&rig) && !rig.mirror.is_quiet());
    assert_eq!(rig.end(Outcome::Good, |_, command| is_write(command)), 1);
    rig.settle();
    assert!(is_answered(&rig) && rig.mirror.is_quiet());
}

#[test]
fn a_read_that_the_last_copy_fails_fails_also_after_it_has_carried_out_other_commands() {
    let mut rig = Rig::new();
    rig.apply(MirrorEvent::Failed(copy(1)));
    let read = rig.read(at(3, 2));
    let write = rig.write(at(5, 1));
    rig.end(Outcome::Good, |_, command| is_write(command));
    assert!(rig.has_acknowledged(write));
    rig.end(Outcome::Failed, |_, command| {
        matches!(command, CopyCommand::Read(_))
    });
    assert!(
        rig.done.contains(&MirrorAction::Fail(read)),
        "{:?}",
        rig.done
    );
    assert!(rig.mirror.is_quiet());
}

#[test]
fn a_fill_whose_source_cannot_be_read_holds_nobody_up_and_is_tried_again() {
    let mut rig = Rig::new();
    rig.apply(MirrorEvent::Failed(copy(1)));
    rig.write(at(3, 2));
    rig.settle();
    rig.apply(MirrorEvent::Back(copy(1)));
    rig.apply(MirrorEvent::Room);
    let is_read = |_, command: &CopyCommand| matches!(command, CopyCommand::Read(_));
    assert_eq!(rig.end(Outcome::Failed, is_read), 1);
    let write = rig.write(at(3, 2));
    rig.settle();
    assert!(rig.has_acknowledged(write));
    assert_eq!(rig.mirror.record().in_sync, CopySet::from(copy(0)));
    rig.apply(MirrorEvent::Tick);
    for _ in 0..3 {
        rig.apply(MirrorEvent::Room);
        rig.settle();
    }
    assert_eq!(rig.mirror.record().in_sync, CopySet::first(2));
}

#[test]
fn the_last_copy_whose_metadata_fails_waits_for_a_tick() {
    let mut rig = Rig::new();
    rig.apply(MirrorEvent::Failed(copy(1)));
    rig.disks[0].is_broken = true;
    let write = rig.write(at(3, 2));
    assert!(rig.waiting.is_empty(), "no data before its bit");
    rig.disks[0].is_broken = false;
    rig.apply(MirrorEvent::Tick);
    rig.settle();
    assert!(rig.has_acknowledged(write));
}

#[test]
fn what_overlaps_waits_in_order_and_others_pass() {
    let mut rig = Rig::new();
    let first = rig.write(at(0, 4));
    let second = rig.write(at(0, 8));
    let third = rig.read(Range::new(6, 1)); // Overlaps the second alone.
    let other = rig.write(at(1, 4));
    assert_eq!(rig.at(copy(0)).len(), 2, "{:?}", rig.waiting);
    rig.end(Outcome::Good, |_, _| true);
    assert!(rig.has_acknowledged(first) && rig.has_acknowledged(other));
    assert!(!rig.has_acknowledged(second));
    assert_eq!(rig.at(copy(0)).len(), 1, "the second, and not yet the read");
    rig.end(Outcome::Good, |_, _| true);
    assert!(rig.has_acknowledged(second));
    rig.settle();
    assert!(
        rig.done
            .iter()
            .any(|one| matches!(one, MirrorAction::Answer { request, .. } if *request == third))
    );
}

#[test]
fn one_proof_serves_all_reads_that_wait() {
    let mut rig = Rig::new();
    rig.read(at(0, 1));
    assert_eq!(rig.at(copy(1)), [&CopyCommand::Prove]);
    rig.read(at(1, 1));
    rig.read(at(2, 1));
    assert_eq!(
        rig.at(copy(1)),
        [&CopyCommand::Prove],
        "it was sent before they came"
    );
    rig.end(Outcome::Good, |at, _| at == copy(0));
    assert!(rig.done.is_empty());
    rig.end(Outcome::Good, |at, _| at == copy(1));
    assert_eq!(rig.done.len(), 1);
    assert_eq!(rig.at(copy(1)), [&CopyCommand::Prove], "one for both");
    rig.end(Outcome::Good, |at, _| at == copy(1));
    assert_eq!(rig.done.len(), 3);
}

#[test]
fn a_write_proves_what_came_before_it() {
    let mut rig = Rig::new();
    rig.read(at(0, 1));
    rig.write(at(1, 1));
    rig.end(Outcome::Good, |at, command| {
        at == copy(0) || is_write(command)
    });
    assert!(
        rig.done
            .iter()
            .any(|one| matches!(one, MirrorAction::Answer { .. }))
    );
}

#[test]
fn copies_are_compared_when_nothing_is_written_there() {
    let mut rig = Rig::new();
    let write = rig.write(at(3, 2));
    let compare = rig.compare(at(3, 4));
    assert_eq!(
        rig.waiting.len(),
        2,
        "the comparison waits: {:?}",
        rig.waiting
    );
    let later = rig.write(at(3, 1));
    rig.end(Outcome::Good, |_, command| is_write(command));
    assert!(rig.has_acknowledged(write));
    let read = CopyCommand::Read(at(3, 4));
    assert_eq!(rig.at(copy(0)), [&read], "the later write waits");
    assert_eq!(rig.at(copy(1)), [&read]);
    rig.end(Outcome::Good, |_, _| true);
    let is_compared = |one: &MirrorAction| matches!(one, MirrorAction::Compared { request, data } if *request == compare && data.len() == 2);
    assert!(rig.done.iter().any(is_compared), "{:?}", rig.done);
    rig.settle();
    assert!(rig.has_acknowledged(later));
    // With one copy there is nothing to compare, and what fails puts nothing in doubt.
    let cut = rig.compare(at(3, 4));
    rig.apply(MirrorEvent::Failed(copy(1)));
    rig.settle();
    assert!(
        rig.done.contains(&MirrorAction::Fail(cut)),
        "{:?}",
        rig.done
    );
    assert!(rig.mirror.is_quiet());
}

#[test]
fn writes_to_marked_regions_cost_no_metadata() {
    let mut rig = Rig::new();
    for block in 0..16 {
        rig.write(Range::new(block, 1));
        rig.settle();
    }
    assert_eq!(
        rig.disks.iter().map(|disk| disk.marks).collect::<Vec<_>>(),
        [1, 1]
    );
}

#[test]
fn sequential_writes_mark_ahead_what_they_reach() {
    let mut rig = Rig::new();
    let marks = |rig: &Rig| rig.disks[0].marks;
    for block in 0..REGION_BLOCKS * REGIONS as u64 {
        rig.write(Range::new(block, 1));
        rig.settle();
    }
    // With regions 0, 1 (and 2), 3 (to 6), 7, 15, 31 (to 62) and 63.
    assert_eq!(marks(&rig), 7);
    // Others do not, wherever they are.
    let mut rig = Rig::new();
    for region in [9, 8, 10, 40, 39, 41] {
        rig.write(at(region, 1));
        rig.settle();
    }
    assert_eq!(marks(&rig), 6);
    assert_eq!(rig.disks[0].marked.len(), 6);
}

#[test]
fn sequential_writers_beside_each_other_are_told_apart() {
    let mut rig = Rig::new();
    for block in 0..REGION_BLOCKS * REGIONS as u64 / 4 {
        for writer in 0..4 {
            let first = writer * REGION_BLOCKS * REGIONS as u64 / 4;
            rig.write(Range::new(first + block, 1));
        }
        rig.settle();
    }
    // Each with its regions 0, 1, 3, 7 and 15.
    assert!(rig.disks[0].marks <= 4 * 5, "{}", rig.disks[0].marks);
}

#[test]
fn regions_are_cleared_when_they_are_cold_or_too_many() {
    let mut rig = Rig::new();
    rig.write(at(0, 1));
    rig.settle();
    rig.apply(MirrorEvent::Tick);
    assert_eq!(rig.disks[0].marked.len(), 1, "just written");
    rig.write(at(1, 1));
    rig.settle();
    rig.apply(MirrorEvent::Tick);
    assert_eq!(rig.disks[1].marked.iter().collect::<Vec<_>>(), [1]);
    for region in 0..9 {
        rig.write(at(region, 1));
    }
    rig.end(
        Outcome::Good,
        |_, command| matches!(command, CopyCommand::Write { range, .. } if range.start > 0),
    );
    rig.apply(MirrorEvent::Tick);
    assert_eq!(
        rig.disks[1].marked.iter().collect::<Vec<_>>(),
        [0],
        "only what is being written"
    );
}

#[test]
fn nothing_is_cleared_while_a_copy_is_out() {
    let mut rig = Rig::new();
    rig.apply(MirrorEvent::Failed(copy(1)));
    rig.write(at(0, 1));
    rig.settle();
    rig.apply(MirrorEvent::Tick);
    rig.apply(MirrorEvent::Tick);
    assert_eq!(rig.disks[0].marked.len(), 1);
}

/// How many blocks are filled when copy 1 returns.
fn filled_blocks(rig: &mut Rig) -> u64 {
    rig.apply(MirrorEvent::Back(copy(1)));
    let mut blocks = 0;
    for _ in 0..1000 {
        rig.apply(MirrorEvent::Room);
        let writes = rig.at(copy(1));
        blocks += writes
            .iter()
            .map(|command| match command {
                CopyCommand::Write { range, .. } => range.end - range.start,
                _ => 0,
            })
            .sum::<u64>();
        rig.end(Outcome::Good, |_, _| true);
    }
    assert_eq!(rig.mirror.record().in_sync, CopySet::first(2));
    blocks
}

#[test]
fn a_copy_that_was_away_is_filled_with_what_it_missed() {
    let mut rig = Rig::new();
    rig.write(at(9, 1));
    rig.apply(MirrorEvent::Failed(copy(1)));
    rig.write(at(5, 1));
    rig.settle();
    assert_eq!(
        filled_blocks(&mut rig),
        2 * rig::REGION_BLOCKS,
        "what either bitmap marks"
    );
    assert_eq!(
        filled_after_setting_back(&mut rig, |_| {}),
        2 * rig::REGION_BLOCKS
    );
}

/// Copy 1 goes away, changes, and returns.
fn filled_after_setting_back(rig: &mut Rig, change: impl Fn(&mut Rig)) -> u64 {
    rig.apply(MirrorEvent::Failed(copy(1)));
    change(rig);
    filled_blocks(rig)
}

#[test]
fn a_copy_that_was_set_back_is_filled_whole() {
    let mut rig = Rig::new();
    rig.apply(MirrorEvent::Beat);
    let snapshot = rig.disks[1].clone();
    // Each heartbeat says of the other copy what was durable before it.
    rig.apply(MirrorEvent::Beat);
    rig.apply(MirrorEvent::Beat);
    let whole = REGIONS as u64 * rig::REGION_BLOCKS;
    assert_eq!(filled_after_setting_back(&mut rig, |_| {}), 0);
    let kept = rig.disks[1].kept;
    let set_back = |rig: &mut Rig| {
        // As it was, but for what says since when it was in sync.
        let heartbeats = snapshot.kept.heartbeats;
        rig.disks[1].kept = mirror::copy::CopyState { heartbeats, ..kept };
    };
    assert_eq!(filled_after_setting_back(&mut rig, set_back), whole);
}

#[test]
fn a_whole_fill_that_another_owner_goes_on_with_is_whole() {
    let mut rig = Rig::new();
    rig.apply(MirrorEvent::Beat);
    rig.apply(MirrorEvent::Beat);
    rig.apply(MirrorEvent::Failed(copy(1)));
    rig.disks[1].kept.heartbeats[1] = 0;
    rig.apply(MirrorEvent::Back(copy(1)));
    rig.apply(MirrorEvent::Room);
    rig.end(Outcome::Good, |_, _| true);
    assert_eq!(
        rig.disks[1].kept.record,
        *rig.mirror.record(),
        "it says that it is not in sync"
    );
    assert_eq!(
        rig.disks[1].kept.heartbeats[1], 2,
        "and that it was not set back"
    );
    let mut next = Rig::claim(rig.register, rig.disks);
    next.settle();
    let whole = REGIONS as u64 * rig::REGION_BLOCKS;
    assert_eq!(filled_blocks(&mut next), whole);
}

#[test]
fn a_claim_takes_out_a_copy_that_was_set_back() {
    let mut rig = Rig::new();
    rig.apply(MirrorEvent::Beat);
    rig.apply(MirrorEvent::Beat);
    rig.disks[1].kept.heartbeats[1] = 0;
    let next = Rig::claim(rig.register, rig.disks);
    assert_eq!(next.mirror.phase(), MirrorPhase::Serving);
    assert_eq!(next.mirror.record().in_sync, CopySet::from(copy(0)));
}

#[test]
fn a_claim_that_leaves_no_trace_takes_an_older_copy_for_the_current_one() {
    let _planted = Planted::new(Bug::ClaimNotNoted);
    let rig = Rig::new();
    let snapshot = rig.disks[1].clone();
    let mut last = Rig::claim(rig.register, rig.disks);
    last.disks[1] = snapshot;
    let next = Rig::claim(last.register, last.disks);
    assert_eq!(next.mirror.record().in_sync, CopySet::first(2));
}

/// What it missed since then is marked nowhere any more.
#[test]
fn a_copy_that_was_set_back_to_before_the_last_claim_is_filled_whole() {
    let whole = REGIONS as u64 * rig::REGION_BLOCKS;
    let rig = Rig::new();
    let snapshot = rig.disks[1].clone();
    let last = Rig::claim(rig.register, rig.disks);
    assert_eq!(last.mirror.record().in_sync, CopySet::first(2));
    let mut disks = last.disks.clone();
    disks[1] = snapshot.clone();
    let mut next = Rig::claim(last.register, disks);
    assert_eq!(next.mirror.record().in_sync, CopySet::from(copy(0)));
    assert_eq!(filled_blocks(&mut next), whole);
    // So it is when it was away at the time. As it was left, it lacks nothing.
    for (returns, missed) in [(Some(snapshot), whole), (None, 0)] {
        let mut next = Rig::claim(last.register, last.disks.clone());
        next.apply(MirrorEvent::Failed(copy(1)));
        if let Some(returns) = returns {
            next.disks[1] = returns;
        }
        assert_eq!(filled_blocks(&mut next), missed);
    }
}

/// What the register knows of is nowhere else when the only copy that has it was set back.
#[test]
fn a_claim_serves_nothing_where_all_that_is_in_sync_was_set_back() {
    let serves = |rig: &Rig| rig.mirror.phase() == MirrorPhase::Serving;
    for (is_alone, is_left, is_other_away) in [
        (false, false, false),
        (true, false, false),
        (true, true, false),
        (true, true, true),
        (true, false, true),
    ] {
        let mut rig = Rig::new();
        rig.apply(MirrorEvent::Beat);
        let snapshot = rig.disks.clone();
        rig.apply(MirrorEvent::Beat);
        if is_left {
            rig.apply(MirrorEvent::Failed(copy(1)));
            rig.write(at(0, 1));
            rig.settle();
        }
        let mut disks = rig.disks.clone();
        disks[0] = snapshot[0].clone();
        if !is_alone {
            disks[1] = snapshot[1].clone();
        }
        disks[1].is_away = is_other_away;
        let next = Rig::claim(rig.register, disks.clone());
        let has_other = is_alone && !is_left && !is_other_away;
        assert_eq!(
            serves(&next),
            has_other,
            "{is_alone} {is_left} {is_other_away}"
        );
        if has_other {
            assert_eq!(next.mirror.record().in_sync, CopySet::from(copy(1)));
            continue;
        }
        // Not however often it is tried, until somebody says so, or what it had is there again.
        let again = Rig::claim(next.register, next.disks.clone());
        assert!(!serves(&again));
        let mut forced = Rig::claim_as(again.register, again.disks.clone(), true);
        assert!(serves(&forced));
        forced.settle();
        assert!(serves(&Rig::claim(forced.register, forced.disks)));
        disks[0] = rig.disks[0].clone();
        assert!(serves(&Rig::claim(again.register, disks)));
    }
}

#[test]
fn an_owner_that_is_killed_while_the_register_hears_of_a_heartbeat_leaves_nothing_behind() {
    let mut rig = Rig::new();
    rig.apply(MirrorEvent::Failed(copy(1)));
    for _ in 0..4 {
        // It has not landed, and then it has, which nobody was told.
        for landed in [0, 1] {
            let before = rig.register;
            rig.register_is_away = true;
            rig.apply(MirrorEvent::Beat);
            assert_eq!(rig.register, before);
            rig.register.version += landed;
            rig.register.beats += landed;
            rig = Rig::claim(rig.register, rig.disks);
            assert_eq!(rig.mirror.phase(), MirrorPhase::Serving);
        }
        rig.apply(MirrorEvent::Beat);
    }
}

#[test]
fn a_claim_equalises_what_any_bitmap_marks_first_where_requests_wait() {
    let mut rig = Rig::new();
    rig.write(at(2, 1));
    rig.write(at(7, 1));
    let mut next = Rig::claim(rig.register, rig.disks);
    let reads = next.at(copy(0)).len();
    assert_eq!(reads, 4, "pieces of the two regions");
    let read = next.read(at(7, 1));
    assert!(next.at(copy(1)).is_empty(), "no request runs before");
    next.settle();
    assert!(next.mirror.is_quiet());
    assert!(
        next.done
            .iter()
            .any(|one| matches!(one, MirrorAction::Answer { request, .. } if *request == read))
    );
}

#[test]
fn a_register_that_is_older_than_a_copy_is_refused() {
    let mut rig = Rig::new();
    let older = rig.register;
    rig.apply(MirrorEvent::Failed(copy(1)));
    rig.write(at(0, 1));
    rig.settle();
    let next = Rig::claim(older, rig.disks);
    assert_eq!(next.mirror.phase(), MirrorPhase::Stopped);
    let stopped = Stopped::RegisterIsOlder {
        copy: copy(0),
        seen: rig.register.version,
    };
    assert!(
        next.done.contains(&MirrorAction::Stop(stopped)),
        "{:?}",
        next.done
    );
}

#[test]
fn a_fenced_owner_fails_all_requests_and_stops() {
    let mut rig = Rig::new();
    let (write, read) = (rig.write(at(0, 1)), rig.read(at(1, 1)));
    rig.end(Outcome::Fenced, |at, command| {
        at == copy(1) && is_write(command)
    });
    assert_eq!(
        rig.done,
        [
            MirrorAction::Stop(Stopped::Fenced(copy(1))),
            MirrorAction::Fail(write),
            MirrorAction::Fail(read),
        ]
    );
    let late = rig.mirror.next_id();
    rig.apply(MirrorEvent::Write {
        id: late,
        range: at(0, 1),
    });
    assert_eq!(rig.done.len(), 3, "nothing more is done");
}
