//! LUNs that `apply` removes, moves or makes another disk, under commands in progress.

use std::{cell::Cell, rc::Rc, time::Duration};

use engine::{
    sim::{World, seeds},
    spawn, time,
};
use sim::{
    Count, assert_occurred,
    raw::{
        ABORT_TASK_SET, CLEAR_TASK_SET, LOGICAL_UNIT_RESET, ORDERED, RawSession, TARGET_WARM_RESET,
        reserve_out,
    },
};

use super::{Ask, CONFIG, GOOD, KEPT, PORT, TEST_UNIT_READY, ask, described, login, start, target};
use crate::MS;

/// How a LUN becomes another disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Replaced {
    AtOnce,
    /// Removed by one `apply`, added by the next.
    InTwoSteps,
    /// Two LUNs exchange their disks.
    Swapped,
}

/// How often the hard cases of a replaced disk occurred, over all seeds.
#[derive(Default)]
struct Met {
    /// The initiator had writes in progress when its LUN became another disk.
    writing: Count,
    /// Of three things to be told, the next session had received none before it was lost, or some, or all.
    told_nothing: Count,
    told_some: Count,
    told_all: Count,
    /// It first asked for the LUNs.
    luns_first: Count,
}

/// Sends writes of `byte` to LUN 0, some of them ORDERED, and looks at no answer; ends with the session. Returns whether
/// it had writes in progress then.
async fn write_blindly(session: Rc<RawSession>, byte: u8) -> bool {
    let write = [0x2A, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    loop {
        let mut tasks = Vec::new();
        for attribute in [1, ORDERED, 1, 1] {
            match session.submit_as(attribute, &write, &[byte; 4096], 0) {
                Ok(task) => tasks.push(task),
                Err(_) => return !tasks.is_empty(),
            }
        }
        for task in tasks {
            if session.answer(task).await.is_err() {
                return true;
            }
        }
    }
}

/// LUN 0 becomes another disk while an initiator writes to it without looking.
fn replace_under_a_blind_initiator(seed: u64, how: Replaced, met: &Met) {
    let world = World::new(seed);
    let mut random = world.random();
    let lanes = 1 + random.index(2);
    let (server, client) = (world.host_with_lanes("server", lanes), world.host("client"));
    let delay_ms = random.below(30);
    let text = |luns: &str| {
        // Slow, so that there are always commands in progress and in line.
        let slow = |name: &str| {
            format!(
                "[volume.{name}]\nfault = {{ rules = [{{ on = \"write\", delay = \"{delay_ms}ms\" }}], \
                 of = {{ file = {{ path = \"{name}\", size = \"64KiB\" }} }} }}\n"
            )
        };
        format!(
            "lanes = {lanes}\nmemory = \"32MiB\"\n{}{}[volume.kept]\n\
             file = {{ path = \"kept\", size = \"64KiB\" }}\n\
             [target.\"{KEPT}\"]\nluns = [\"kept\"]\nallow = [\"*\"]\n\
             [target.\"{}\"]\nluns = {{ {luns} }}\nallow = [\"*\"]\n",
            slow("old"),
            slow("new"),
            target(0)
        )
    };
    let (before, between, after) = match how {
        Replaced::AtOnce => ("0 = \"old\"", None, "0 = \"new\""),
        Replaced::InTwoSteps => (
            "0 = \"old\", 1 = \"kept\"",
            Some("1 = \"kept\""),
            "0 = \"new\", 1 = \"kept\"",
        ),
        Replaced::Swapped => ("0 = \"old\", 1 = \"new\"", None, "0 = \"new\", 1 = \"old\""),
    };
    server.put_file(CONFIG, text(before).as_bytes());
    world.block_on(&client, async {
        let asks = start(&server, lanes);
        // It serves when it answers.
        described(&asks).await;
        let other = login(&server, KEPT).await;
        let blind = login(&server, &target(0)).await;
        let writing = spawn(write_blindly(blind, 7));
        for luns in between.into_iter().chain([after]) {
            time::sleep(MS * random.below(100) as u32).await;
            server.put_file(CONFIG, text(luns).as_bytes());
            let applied = ask(&asks, Ask::Apply).await;
            let changes = applied.unwrap_or_else(|failure| panic!("{failure}"));
            let is_announced = changes
                .iter()
                .any(|line| line.contains("becomes another disk"));
            assert_eq!(is_announced, how != Replaced::InTwoSteps, "{changes:?}");
        }
        let is_over = time::timeout(Duration::from_secs(1), writing).await;
        let was_writing = is_over.expect("its session is over when the change is");
        met.writing.when(was_writing);

        // The next session of the same initiator port is told before it is served, except of what an earlier one has
        // received, which was lost after so many commands. The last of these may not have been answered.
        const POWER_ON: [u8; 3] = [6, 0x29, 0];
        const NEXUS_LOSS: [u8; 3] = [6, 0x29, 7];
        const INQUIRY_CHANGED: [u8; 3] = [6, 0x3F, 3];
        const LUNS_CHANGED: [u8; 3] = [6, 0x3F, 0xE];
        let reports = [POWER_ON, INQUIRY_CHANGED, LUNS_CHANGED];
        let (mut commands, mut tells) = ([&TEST_UNIT_READY[..]; 4], reports);
        if random.chance(0.3) {
            // Its answer is what the third report is about.
            met.luns_first.add(1);
            commands[0] = &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0];
            tells.rotate_right(1);
        }
        let lost_after = random.index(commands.len() + 1);
        let lost = RawSession::login_at(server.addr(PORT), &target(0), "client").await;
        for cdb in &commands[..lost_after] {
            let task = lost.submit(cdb, &[], 16).expect("a session");
            lost.answer(task).await.expect("an answer");
        }
        lost.end();
        let received = &tells[..lost_after.saturating_sub(1)];
        met.told_nothing.when(received.is_empty());
        met.told_some
            .when(!received.is_empty() && received.len() < tells.len());
        met.told_all.when(received.len() == tells.len());
        let mut expected = reports.to_vec();
        expected.retain(|report| !received.contains(report));
        if received.contains(&POWER_ON) {
            expected.insert(0, NEXUS_LOSS);
        }
        let session = RawSession::login_at(server.addr(PORT), &target(0), "client").await;
        let mut told = Vec::new();
        loop {
            let task = session.submit(&TEST_UNIT_READY, &[], 0).expect("a session");
            let answer = session.answer(task).await.expect("an answer");
            match answer.sense {
                [0, ..] => break,
                sense => told.push(sense),
            }
        }
        assert_eq!(told, expected, "after {:?}", &commands[..lost_after]);
        let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
        let seen = session.execute(&read, &[], 4096).await.expect("a read");
        assert!(
            seen.data == [0; 4096],
            "a write to the old disk has reached the new one"
        );
        session.end();
        let answer = other.submit(&TEST_UNIT_READY, &[], 0).expect("it goes on");
        let answer = other.answer(answer).await.expect("it goes on");
        assert_eq!(
            answer.sense, [0; 3],
            "the session of another target hears of it"
        );
        other.end();
        ask(&asks, Ask::Stop).await;
    });
}

/// How often the hard cases of a fence occurred, over all seeds.
#[derive(Default)]
struct MetByFence {
    moved: Count,
    removed: Count,
    /// The change was waiting for the write.
    amid_change: Count,
}

/// What fences off an initiator whose LUN has just been removed or moved.
#[derive(Clone, Copy, Debug)]
enum Fence {
    ClearTaskSet,
    PreemptAndAbort,
}

/// How long a write of the disk of [`at_two_targets`] takes.
const SLOW: Duration = Duration::from_secs(2);
const WRITE: [u8; 10] = [0x2A, 0, 0, 0, 0, 0, 0, 0, 8, 0];
const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];

/// A disk whose first write is slow, at a target with these LUNs and at another one.
fn at_two_targets(luns: &str) -> String {
    let (changed, fixed) = (target(0), target(1));
    format!(
        "lanes = 2\nmemory = \"32MiB\"\n[volume.db]\n\
         fault = {{ rules = [{{ on = \"write\", delay = \"{}ms\", times = 1 }}], \
         of = {{ file = {{ path = \"db\", size = \"64KiB\" }} }} }}\n\
         [volume.spare]\nram = {{ size = \"64KiB\" }}\n\
         [target.\"{changed}\"]\nluns = {{ {luns} }}\nallow = [\"*\"]\n\
         [target.\"{fixed}\"]\nluns = {{ 0 = \"db\" }}\nallow = [\"*\"]\n",
        SLOW.as_millis()
    )
}

/// An initiator whose write is in progress at a LUN that has just been removed resets or logs in again, and then writes
/// through another target.
fn retry_after_a_removed_lun(seed: u64, function: Option<u8>) {
    let world = World::new(seed);
    let mut random = world.random();
    let (server, client) = (world.host_with_lanes("server", 2), world.host("client"));
    let before = at_two_targets("0 = \"db\", 1 = \"spare\"");
    server.put_file(CONFIG, before.as_bytes());
    world.block_on(&client, async {
        let asks = Rc::new(start(&server, 2));
        described(&asks).await;
        let session = login(&server, &target(0)).await;
        let elsewhere = RawSession::login_at(server.addr(PORT), &target(1), "client").await;
        for session in [&session, &elsewhere] {
            session
                .execute(&TEST_UNIT_READY, &[], 0)
                .await
                .expect("it is ready");
        }
        session.submit(&WRITE, &[1; 4096], 0).expect("it is sent");
        time::sleep(MS * 200).await;
        server.put_file(CONFIG, at_two_targets("1 = \"spare\"").as_bytes());
        let applying = spawn({
            let asks = asks.clone();
            async move { ask(&asks, Ask::Apply).await }
        });
        time::sleep(MS * (100 + random.below(300) as u32)).await;
        match function {
            Some(function) => {
                let done = u8::from(function != TARGET_WARM_RESET) * 2;
                assert_eq!(session.task_management(function).await, Ok(done));
            }
            None => drop(login(&server, &target(0)).await),
        }
        let newer = elsewhere.execute(&WRITE, &[2; 4096], 0).await;
        assert_eq!(newer.expect("an answer").status, GOOD);
        applying.await.unwrap_or_else(|failure| panic!("{failure}"));
        time::sleep(2 * SLOW).await;
        let seen = elsewhere.execute(&READ, &[], 4096).await.expect("a read");
        assert!(
            seen.data == [2; 4096],
            "{function:?}: the write has landed after the newer one"
        );
        ask(&asks, Ask::Stop).await;
    });
}

/// An initiator fences off another one, on the other lane, whose write was in progress when its LUN was removed or moved.
fn fence_over_a_moved_lun(seed: u64, fence: Fence, met: &MetByFence) {
    let world = World::new(seed);
    let mut random = world.random();
    let (server, client) = (world.host_with_lanes("server", 2), world.host("client"));
    let is_moved = random.chance(0.5);
    met.moved.when(is_moved);
    met.removed.when(!is_moved);
    let after = match is_moved {
        true => "5 = \"db\", 1 = \"spare\"",
        false => "1 = \"spare\"",
    };
    server.put_file(
        CONFIG,
        at_two_targets("0 = \"db\", 1 = \"spare\"").as_bytes(),
    );
    world.block_on(&client, async {
        let asks = Rc::new(start(&server, 2));
        described(&asks).await;
        // One after the other, they get different lanes.
        let slow = login(&server, &target(0)).await;
        let quick = RawSession::login_at(server.addr(PORT), &target(1), "other").await;
        for (session, key) in [(&slow, 1), (&quick, 2)] {
            let (cdb, list) = reserve_out(0, 0, 0, key);
            let registered = session.execute(&cdb, &list, 0).await;
            assert_eq!(registered.expect("an answer").status, GOOD);
        }
        let lanes = ask(&asks, Ask::Describe).await.sessions;
        assert_eq!(lanes.len(), 2);
        assert_ne!(
            lanes[0].lane, lanes[1].lane,
            "they are to be on different lanes"
        );
        let written = slow.submit(&WRITE, &[1; 4096], 0).expect("it is sent");
        time::sleep(MS * 200).await;
        server.put_file(CONFIG, at_two_targets(after).as_bytes());
        let is_applied = Rc::new(Cell::new(false));
        let applying = spawn({
            let (asks, is_applied) = (asks.clone(), is_applied.clone());
            async move {
                let applied = ask(&asks, Ask::Apply).await;
                is_applied.set(true);
                applied
            }
        });
        time::sleep(MS * (100 + random.below(300) as u32)).await;
        met.amid_change.when(!is_applied.get());
        match fence {
            Fence::ClearTaskSet => {
                let response = quick.task_management(CLEAR_TASK_SET).await;
                assert_eq!(response, Ok(0));
            }
            Fence::PreemptAndAbort => {
                let (cdb, list) = reserve_out(5, 1, 2, 1);
                let preempted = quick.execute(&cdb, &list, 0).await;
                assert_eq!(preempted.expect("an answer").status, GOOD);
            }
        }
        let newer = quick.execute(&WRITE, &[2; 4096], 0).await;
        assert_eq!(newer.expect("an answer").status, GOOD);
        let aborted = slow.answer(written).await.expect("the session goes on");
        assert_eq!(aborted.status, Some(0x40), "TASK ABORTED");
        let applied = applying.await;
        applied.unwrap_or_else(|failure| panic!("{failure}"));
        time::sleep(2 * SLOW).await;
        let seen = quick.execute(&READ, &[], 4096).await.expect("a read");
        assert!(
            seen.data == [2; 4096],
            "{fence:?}: the aborted write has landed after the newer one"
        );
        ask(&asks, Ask::Stop).await;
    });
}

#[test]
fn an_initiator_that_does_not_look_never_writes_to_the_disk_that_took_the_place_of_its_own() {
    let met = Met::default();
    for how in [Replaced::AtOnce, Replaced::InTwoSteps, Replaced::Swapped] {
        seeds(20, |seed| replace_under_a_blind_initiator(seed, how, &met));
    }
    assert_occurred([
        ("writes in progress", met.writing.get()),
        ("told nothing before", met.told_nothing.get()),
        ("told something before", met.told_some.get()),
        ("told everything before", met.told_all.get()),
        ("asked for the LUNs first", met.luns_first.get()),
    ]);
}

#[test]
fn a_fence_waits_for_the_write_of_a_lun_that_was_removed_or_moved() {
    let met = MetByFence::default();
    for fence in [Fence::ClearTaskSet, Fence::PreemptAndAbort] {
        seeds(20, |seed| fence_over_a_moved_lun(seed, fence, &met));
    }
    assert_occurred([
        ("LUNs moved", met.moved.get()),
        ("LUNs removed", met.removed.get()),
        ("fences amid the change", met.amid_change.get()),
    ]);
}

#[test]
fn a_retry_waits_for_the_write_at_a_lun_that_was_removed() {
    let functions = [
        ABORT_TASK_SET,
        CLEAR_TASK_SET,
        LOGICAL_UNIT_RESET,
        TARGET_WARM_RESET,
    ];
    for function in functions.map(Some).into_iter().chain([None]) {
        seeds(5, |seed| retry_after_a_removed_lun(seed, function));
    }
}
