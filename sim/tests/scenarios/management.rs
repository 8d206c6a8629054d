//! An abort, reset or repeated login is answered only when the writes it overtakes have ended, so that data written
//! afterwards is never overwritten by an older write (RFC 7143 §6.3.5, SAM-5 7).

use std::{rc::Rc, time::Duration};

use engine::{
    sim::{Random, seeds},
    spawn, time,
};
use sim::{
    Setup, Site, assert_occurred, content,
    raw::{self, RawSession},
    target_machine::{OTHER_PORTS, PORT, second_name},
    workload::{self, Load, check_all, random_time},
};
use volume::layer::fault::{FaultAction, FaultOperation, Rule};

use crate::MS;

/// How the slow write is overtaken.
#[derive(Clone, Copy, Debug)]
enum By {
    AbortTask,
    AbortTaskSet,
    ClearTaskSet,
    LogicalUnitReset,
    TargetWarmReset,
    SameLogin,
    LoginAfterReset,
}

/// Where the overtaking initiator is logged in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Through {
    /// At the same target port.
    TheSame,
    /// At the same target, through its other portal group.
    OtherGroup,
    /// At another target that serves the same disk.
    OtherTarget,
}

const ALL: [By; 7] = [
    By::AbortTask,
    By::AbortTaskSet,
    By::ClearTaskSet,
    By::LogicalUnitReset,
    By::TargetWarmReset,
    By::SameLogin,
    By::LoginAfterReset,
];

const BLOCKS: usize = 8;

fn write_10(lba: u8) -> [u8; 10] {
    [0x2a, 0, 0, 0, 0, lba, 0, 0, BLOCKS as u8, 0]
}

fn read_10(lba: u8) -> [u8; 10] {
    [0x28, 0, 0, 0, 0, lba, 0, 0, BLOCKS as u8, 0]
}

fn bytes(version: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    (0..BLOCKS as u64).for_each(|sector| content::append(sector, version, &mut bytes));
    bytes
}

async fn login(site: &Site, name: &str) -> Rc<RawSession> {
    RawSession::login_as(site, 0, name).await
}

/// A slow write, overtaken by another initiator.
async fn overtake(site: &Rc<Site>, by: By, through: Through, random: &mut Random) {
    let target = &site.targets[0];
    target.ready().await;
    let slow = login(site, "one").await;
    let other = second_name(&target.iqn);
    let (port, name) = match through {
        Through::TheSame => (PORT, &target.iqn),
        Through::OtherGroup => (OTHER_PORTS[0], &target.iqn),
        Through::OtherTarget => (OTHER_PORTS[1], &other),
    };
    let login_quick = || RawSession::login_at(target.host.addr(port), name, "two");
    let quick = login_quick().await;
    for session in [&slow, &quick] {
        session.execute(&[0; 6], &[], 0).await.expect("it is ready");
    }
    let delay = 200 * MS + random_time(random, 3_000 * MS);
    let mut rule = Rule::always(FaultAction::Delay(delay));
    (rule.on, rule.times) = (Some(FaultOperation::Write), Some(1));
    target.add_rule(rule);

    let write = slow.submit(&write_10(0), &bytes(1), 0).expect("it is sent");
    while target.acted() == 0 {
        time::sleep(MS / 10).await;
    }
    time::sleep(random_time(random, 100 * MS)).await;
    const COMPLETE: u8 = 0;
    let answer = match by {
        By::AbortTask => slow.abort(write).await,
        By::AbortTaskSet => slow.task_management(raw::ABORT_TASK_SET).await,
        By::ClearTaskSet => quick.task_management(raw::CLEAR_TASK_SET).await,
        By::LogicalUnitReset => quick.task_management(raw::LOGICAL_UNIT_RESET).await,
        By::TargetWarmReset => quick.task_management(raw::TARGET_WARM_RESET).await,
        By::SameLogin => {
            login(site, "one").await;
            Ok(COMPLETE)
        }
        By::LoginAfterReset => {
            site.client.reset_connections(&target.host);
            login(site, "one").await;
            Ok(COMPLETE)
        }
    };
    assert_eq!(answer, Ok(COMPLETE), "{by:?} {through:?}");
    let quick = login_quick().await;
    let newer = quick.execute(&write_10(0), &bytes(2), 0).await;
    assert_eq!(newer.expect("an answer").status, Some(0));
    time::sleep(5_000 * MS).await;
    let seen = quick.execute(&read_10(0), &[], 8 * 512).await;
    assert!(
        seen.expect("an answer").data == bytes(2),
        "{by:?} {through:?}: the aborted write has landed after the newer one"
    );
}

#[test]
fn a_write_that_was_overtaken_does_not_land_later() {
    seeds(280, |seed| {
        let mut setup = Setup::draw(seed).behind_faults();
        setup.served.block_size_bytes = 512;
        let site = Site::new(seed, setup);
        let mut random = site.world.random();
        let by = ALL[seed as usize % ALL.len()];
        site.run(overtake(&site, by, Through::TheSame, &mut random));
    });
}

#[test]
fn a_write_is_overtaken_through_whatever_port_it_came() {
    let ways = [By::ClearTaskSet, By::LogicalUnitReset, By::TargetWarmReset];
    seeds(240, |seed| {
        let mut setup = Setup::draw(seed).behind_faults();
        setup.served.block_size_bytes = 512;
        setup.served.everywhere = true;
        let site = Site::new(seed, setup);
        let mut random = site.world.random();
        let by = ways[seed as usize % ways.len()];
        let through = match seed as usize / ways.len() % 2 {
            0 => Through::OtherGroup,
            _ => Through::OtherTarget,
        };
        site.run(overtake(&site, by, through, &mut random));
    });
}

/// The outcomes of aborted commands.
#[derive(Default)]
struct Aborts {
    /// The function came in time.
    in_time: u64,
    /// The command had ended before the function came (TASK DOES NOT EXIST).
    too_late: u64,
    /// The command was never answered.
    without_answer: u64,
}

/// Commands of all sizes, aborted at random moments, singly and all together.
async fn abort_at_random(site: &Rc<Site>, random: &mut Random, aborts: &mut Aborts) {
    let target = &site.targets[0];
    target.ready().await;
    let mut rule = Rule::always(FaultAction::Delay(20 * MS));
    rule.skip = 10;
    target.add_rule(rule);
    for _ in 0..4 {
        let session = login(site, "one").await;
        session.execute(&[0; 6], &[], 0).await.expect("it is ready");
        for _ in 0..25 {
            let data = bytes(random.below(1 << 40) + 1);
            let task = match random.below(2) {
                0 => session.submit(&write_10(0), &data, 0),
                _ => session.submit(&read_10(0), &[], 8 * 512),
            };
            let task = task.expect("the window is open");
            time::sleep(random_time(random, MS)).await;
            match random.below(4) {
                0 | 1 => {
                    if let Ok(code) = session.abort(task).await {
                        assert!(code <= 1);
                        match code {
                            0 => aborts.in_time += 1,
                            _ => aborts.too_late += 1,
                        }
                    }
                }
                2 => {
                    let function = [raw::ABORT_TASK_SET, raw::LOGICAL_UNIT_RESET];
                    let function = function[random.index(2)];
                    assert_eq!(session.task_management(function).await, Ok(0));
                }
                _ => {}
            }
            let answer = session.answer(task).await.expect("each command ends");
            aborts.without_answer += u64::from(answer.status.is_none());
        }
        session.end();
    }
}

#[test]
fn commands_may_be_aborted_at_any_moment() {
    let mut aborts = Aborts::default();
    seeds(200, |seed| {
        let mut setup = Setup::draw(seed).behind_faults();
        setup.served.block_size_bytes = 512;
        let site = Site::new(seed, setup);
        let mut random = site.world.random();
        site.run(abort_at_random(&site, &mut random, &mut aborts));
    });
    assert_occurred([
        ("aborts in time", aborts.in_time),
        ("aborts too late", aborts.too_late),
        ("commands without an answer", aborts.without_answer),
    ]);
}

/// A disk so slow that the client gives sessions up: each login ends the writes of the previous session, so a resent
/// write is never overwritten by its first transmission.
#[test]
fn a_slow_disk_makes_sessions_that_do_not_overtake_each_other() {
    let mut slow_writes = 0;
    seeds(200, |seed| {
        let site = Site::new(seed, Setup::draw(seed).behind_faults());
        site.run(async {
            let volume = site.open().await;
            let slow = {
                let (site, mut random) = (site.clone(), site.world.random());
                spawn(async move {
                    for _ in 0..4 {
                        time::sleep(random_time(&mut random, 50 * MS)).await;
                        let delay = Duration::from_secs(1) + random_time(&mut random, 6_000 * MS);
                        let mut rule = Rule::always(FaultAction::Delay(delay));
                        (rule.on, rule.times) = (Some(FaultOperation::Write), Some(1));
                        site.targets[random.index(2)].add_rule(rule);
                    }
                })
            };
            let load = Load {
                requests: 30,
                ..Load::default()
            };
            workload::run(&site, &volume, load).await;
            slow.await;
            site.targets.iter().for_each(|target| target.clear_rules());
            workload::flush(&site, &volume).await.expect("a flush");
            check_all(&site, &volume).await;
        });
        slow_writes += site
            .targets
            .iter()
            .map(|target| target.acted())
            .sum::<u64>();
    });
    assert_occurred([("slow writes", slow_writes)]);
}
