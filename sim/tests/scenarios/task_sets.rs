//! Concurrent commands: which begins first (task attributes, SAM-5 8), and what happens to those aborted by an error or
//! by another initiator (QERR and TAS of the control mode page).

use std::{rc::Rc, time::Duration};

use engine::{sim::seeds, time};
use iscsi::TaskId;
use sim::{
    Count, Setup, Site, assert_occurred, content,
    raw::{self, Answer, RawSession},
};
use volume::layer::fault::{FaultAction, FaultOperation, Rule};

use crate::MS;

const GOOD: Option<u8> = Some(0);
const TASK_ABORTED: Option<u8> = Some(0x40);
const NO_SENSE: [u8; 3] = [0; 3];
const CLEARED: [u8; 3] = [6, 0x2F, 0];
const SLOW: Duration = Duration::from_secs(2);
const READY: [u8; 6] = [0; 6];

fn io(opcode: u8, blocks: usize) -> [u8; 10] {
    let [high, low] = (blocks as u16).to_be_bytes();
    [opcode, 0, 0, 0, 0, 0, 0, high, low, 0]
}

fn bytes(version: u64, blocks: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    (0..blocks as u64).for_each(|sector| content::append(sector, version, &mut bytes));
    bytes
}

/// Sessions that have consumed the power-on attention, on a site with a fault layer and 512-byte blocks.
struct Bench {
    site: Rc<Site>,
}

impl Bench {
    fn each(seed_count: u64, scenario: impl AsyncFn(&Bench)) {
        seeds(seed_count, |seed| {
            let mut setup = Setup::draw(seed).behind_faults();
            setup.served.block_size_bytes = 512;
            let bench = Bench {
                site: Site::new(seed, setup),
            };
            bench.site.run(async {
                bench.site.targets[0].ready().await;
                scenario(&bench).await;
            });
        });
    }

    async fn login(&self, name: &str) -> Rc<RawSession> {
        let session = RawSession::login_as(&self.site, 0, name).await;
        session.execute(&READY, &[], 0).await.expect("it is ready");
        session
    }

    /// Delays the next write.
    fn delay_a_write(&self) {
        let mut rule = Rule::always(FaultAction::Delay(SLOW));
        (rule.on, rule.times) = (Some(FaultOperation::Write), Some(1));
        self.site.targets[0].add_rule(rule);
    }

    /// A slow write that has reached the medium.
    async fn slow_write(&self, session: &RawSession, version: u64) -> TaskId {
        let target = &self.site.targets[0];
        self.delay_a_write();
        let acted = target.acted();
        let write = session.submit(&io(0x2A, 8), &bytes(version, 8), 0);
        while target.acted() == acted {
            time::sleep(MS / 10).await;
        }
        write.expect("it is sent")
    }
}

async fn execute(session: &RawSession, cdb: &[u8], data: &[u8]) -> Answer {
    let answer = session.execute(cdb, data, 0).await;
    answer.expect("the session lives")
}

/// Sends a command once, because its unit attention is what the test wants.
async fn once(session: &RawSession, cdb: &[u8]) -> Answer {
    let task = session.submit(cdb, &[], 0).expect("it is sent");
    session.answer(task).await.expect("the session lives")
}

/// Sets QERR and TAS, and has the other sessions consume the attention.
async fn set_control(by: &RawSession, others: &[&Rc<RawSession>], qerr: u8, tas: bool) {
    let mut list = vec![0; 4];
    let tas = if tas { 0x40 } else { 0 };
    list.extend([
        0x0A,
        0x0A,
        0x02,
        0x10 | qerr << 1,
        0,
        tas,
        0,
        0,
        0xFF,
        0xFF,
        0,
        0,
    ]);
    let answer = execute(by, &[0x15, 0x10, 0, 0, 16, 0], &list).await;
    assert_eq!((answer.status, answer.sense), (GOOD, NO_SENSE));
    for other in others {
        execute(other, &READY, &[]).await;
    }
}

/// Waits for these commands to succeed, and checks that they were answered in this order.
async fn end_in_order(session: &RawSession, tasks: &[TaskId]) {
    for task in tasks {
        let answer = session.answer(*task).await.expect("the session lives");
        assert_eq!((answer.status, answer.sense), (GOOD, NO_SENSE));
    }
    assert_eq!(session.ended(), tasks);
}

/// Blocks: a length that goes as immediate data, and one for which the target sends R2Ts.
const LENGTHS: [usize; 2] = [8, 128];

#[test]
fn an_ordered_command_is_after_all_before_it_and_before_all_after_it() {
    let [with_the_command, solicited] = [const { Count::new() }; 2];
    Bench::each(120, async |bench| {
        let session = bench.login("one").await;
        for (version, blocks) in (1..).step_by(10).zip(LENGTHS) {
            let write = |attribute, version| {
                let (cdb, data) = (io(0x2A, blocks), bytes(version, blocks));
                let task = session.submit_as(attribute, &cdb, &data, 0);
                task.expect("it is sent")
            };
            bench.delay_a_write();
            session.ended();
            let begun = time::now();
            let tasks = [
                write(1, version),
                write(raw::ORDERED, version + 1),
                write(1, version + 2),
                write(raw::ORDERED, version + 3),
            ];
            end_in_order(&session, &tasks).await;
            let took = time::now() - begun;
            assert!(
                took < 2 * SLOW,
                "{took:?}: they have waited for the next PDU"
            );
            let held_back = match blocks == LENGTHS[0] {
                true => &with_the_command,
                false => &solicited,
            };
            held_back.when(took >= SLOW);
            let len = 512 * blocks as u32;
            let seen = session.execute(&io(0x28, blocks), &[], len).await;
            assert!(seen.expect("an answer").data == bytes(version + 3, blocks));
        }
    });
    assert_occurred([
        ("writes held back with their data", with_the_command.get()),
        ("writes held back before their data", solicited.get()),
    ]);
}

#[test]
fn a_function_does_not_concern_what_comes_after_it() {
    let overtaken = Count::new();
    Bench::each(120, async |bench| {
        let session = bench.login("one").await;
        for function in [
            raw::ABORT_TASK_SET,
            raw::CLEAR_TASK_SET,
            raw::LOGICAL_UNIT_RESET,
        ] {
            let before = bench.slow_write(&session, 1).await;
            let begun = time::now();
            let function = session.submit_function(function).expect("it is sent");
            let write = session.submit(&io(0x2A, 8), &bytes(2, 8), 0);
            let after = session.answer(write.expect("it is sent")).await;
            let after = after.expect("the session lives");
            assert_eq!((after.status, after.sense), (GOOD, NO_SENSE));
            assert_eq!(session.response(function).await, Ok(0));
            overtaken.when(time::now() - begun > SLOW / 2);
            let before = session.answer(before).await.expect("the session lives");
            assert_eq!(before.status, None, "aborted without a word");
            session.execute(&READY, &[], 0).await.expect("it is ready");
        }
    });
    assert_occurred([("functions that overtook a write", overtaken.get())]);
}

#[test]
fn an_ordered_command_waits_for_what_other_sessions_have_at_work() {
    let waited = Count::new();
    Bench::each(120, async |bench| {
        let (one, two) = (bench.login("one").await, bench.login("two").await);
        let slow = bench.slow_write(&one, 1).await;
        let begun = time::now();
        let ordered = two.submit_as(raw::ORDERED, &io(0x2A, 8), &bytes(2, 8), 0);
        let answer = two.answer(ordered.expect("it is sent")).await;
        waited.when(time::now() - begun > SLOW / 2);
        assert_eq!(answer.expect("an answer").status, GOOD);
        assert_eq!(one.answer(slow).await.expect("an answer").status, GOOD);
        let seen = two.execute(&io(0x28, 8), &[], 8 * 512).await;
        assert!(seen.expect("an answer").data == bytes(2, 8));
    });
    assert_occurred([("commands that waited", waited.get())]);
}

#[test]
fn a_head_of_queue_command_passes_those_that_wait() {
    Bench::each(120, async |bench| {
        let session = bench.login("one").await;
        let slow = bench.slow_write(&session, 1).await;
        session.ended();
        let verify = |attribute| {
            let cdb = [0x2F, 0, 0, 0, 1, 0, 0, 0, 8, 0];
            let task = session.submit_as(attribute, &cdb, &[], 0);
            task.expect("it is sent")
        };
        let (ordered, simple) = (verify(raw::ORDERED), verify(1));
        let head = verify(raw::HEAD_OF_QUEUE);
        end_in_order(&session, &[head, slow, ordered, simple]).await;
    });
}

#[test]
fn a_command_that_waits_its_turn_can_be_aborted_and_holds_nobody_back_then() {
    let waiting = Count::new();
    Bench::each(80, async |bench| {
        let session = bench.login("one").await;
        let slow = bench.slow_write(&session, 1).await;
        let ordered = session.submit_as(raw::ORDERED, &io(0x2A, 128), &bytes(2, 128), 0);
        let last = session.submit(&io(0x2A, 8), &bytes(3, 8), 0);
        session.ended();
        assert_eq!(session.abort(ordered.expect("it is sent")).await, Ok(0));
        // It cannot have begun before the slow write has ended.
        waiting.when(!session.ended().contains(&slow));
        for task in [slow, last.expect("it is sent")] {
            assert_eq!(session.answer(task).await.expect("an answer").status, GOOD);
        }
        let seen = session.execute(&io(0x28, 16), &[], 16 * 512).await;
        let seen = seen.expect("an answer").data;
        assert!(seen[..8 * 512] == bytes(3, 8) && seen[8 * 512..] != bytes(2, 16)[8 * 512..]);
    });
    assert_occurred([("commands aborted while they waited", waiting.get())]);
}

#[test]
fn an_aca_command_is_refused() {
    Bench::each(20, async |bench| {
        let session = bench.login("one").await;
        for attribute in [4, 5, 7] {
            let task = session.submit_as(attribute, &READY, &[], 0);
            let answer = session.answer(task.expect("it is sent")).await;
            assert_eq!(answer.expect("an answer").sense, [5, 0x49, 0]);
        }
        assert_eq!(once(&session, &READY).await.status, GOOD);
    });
}

#[test]
fn who_loses_commands_hears_of_it_in_one_way() {
    Bench::each(120, async |bench| {
        let (one, two) = (bench.login("one").await, bench.login("two").await);
        let idle = bench.login("idle").await;
        set_control(&two, &[&one, &idle], 0, false).await;
        let lost = bench.slow_write(&one, 1).await;
        assert_eq!(two.task_management(raw::CLEAR_TASK_SET).await, Ok(0));
        assert_eq!(once(&one, &READY).await.sense, CLEARED);
        assert_eq!(once(&one, &READY).await.sense, NO_SENSE, "told once");
        assert_eq!(once(&idle, &READY).await.sense, NO_SENSE, "it lost nothing");
        let waiting = time::timeout(SLOW, one.answer(lost)).await;
        assert!(waiting.is_none(), "an answer to what was aborted");
        // With TAS the aborted command itself reports it, once its write has ended.
        set_control(&two, &[&one, &idle], 0, true).await;
        let told = bench.slow_write(&one, 2).await;
        let begun = time::now();
        assert_eq!(two.task_management(raw::CLEAR_TASK_SET).await, Ok(0));
        assert_eq!(
            one.answer(told).await.expect("an answer").status,
            TASK_ABORTED
        );
        assert!(time::now() - begun > SLOW / 2, "its write had not ended");
        assert_eq!(once(&one, &READY).await.sense, NO_SENSE);
        // The initiator whose function it is gets no answers for its own commands.
        let own = bench.slow_write(&one, 3).await;
        assert_eq!(one.task_management(raw::CLEAR_TASK_SET).await, Ok(0));
        assert_eq!(once(&one, &READY).await.sense, NO_SENSE);
        assert_eq!(one.answer(own).await.expect("an answer").status, None);
        let told = bench.slow_write(&one, 4).await;
        assert_eq!(two.task_management(raw::LOGICAL_UNIT_RESET).await, Ok(0));
        assert_eq!(
            one.answer(told).await.expect("an answer").status,
            TASK_ABORTED
        );
        assert_eq!(once(&one, &READY).await.sense, [6, 0x29, 3]);
    });
}

#[test]
fn an_error_aborts_what_qerr_says() {
    Bench::each(120, async |bench| {
        const ABORT_ALL: u8 = 1;
        const ABORT_OWN: u8 = 3;
        let (one, two) = (bench.login("one").await, bench.login("two").await);
        let beyond = [0x28, 0, 0xFF, 0, 0, 0, 0, 0, 1, 0];
        for qerr in [0, ABORT_OWN, ABORT_ALL] {
            set_control(&two, &[&one], qerr, false).await;
            let own = bench.slow_write(&one, 1).await;
            let other = bench.slow_write(&two, 2).await;
            assert_eq!(once(&one, &beyond).await.sense, [5, 0x21, 0]);
            let ends = async |session: &RawSession, task| {
                let answer = time::timeout(3 * SLOW, session.answer(task)).await;
                answer.is_some_and(|answer| answer.expect("the session lives").status == GOOD)
            };
            assert_eq!(ends(&one, own).await, qerr == 0, "{qerr}");
            assert_eq!(ends(&two, other).await, qerr != ABORT_ALL, "{qerr}");
            let cleared = if qerr == ABORT_ALL { CLEARED } else { NO_SENSE };
            assert_eq!(once(&two, &READY).await.sense, cleared);
            assert_eq!(once(&one, &READY).await.sense, NO_SENSE);
        }
    });
}

#[test]
fn preempt_and_abort_answers_after_the_writes_that_it_overtakes() {
    let overtaken = Count::new();
    Bench::each(120, async |bench| {
        let (one, two) = (bench.login("one").await, bench.login("two").await);
        let reserve_out = |action, key: u8, new_key: u8| {
            let mut list = [0; 24];
            (list[7], list[15]) = (key, new_key);
            ([0x5F, action, 5, 0, 0, 0, 0, 0, 24, 0], list)
        };
        for (tas, version) in [(false, 1), (true, 3)] {
            set_control(&two, &[&one], 0, tas).await;
            for (session, (cdb, list)) in [
                (&one, reserve_out(6, 0, 1)),
                (&two, reserve_out(6, 0, 2)),
                (&one, reserve_out(1, 1, 0)),
            ] {
                assert_eq!(execute(session, &cdb, &list).await.status, GOOD);
            }
            let fenced = bench.slow_write(&one, version).await;
            let (cdb, list) = reserve_out(5, 2, 1);
            let begun = time::now();
            assert_eq!(execute(&two, &cdb, &list).await.status, GOOD);
            overtaken.when(time::now() - begun > SLOW / 2);
            let newer = execute(&two, &io(0x2A, 8), &bytes(version + 1, 8)).await;
            assert_eq!(newer.status, GOOD);
            if tas {
                let told = one.answer(fenced).await;
                assert_eq!(told.expect("an answer").status, TASK_ABORTED);
            }
            assert_eq!(once(&one, &READY).await.sense, [6, 0x2A, 5]);
            time::sleep(2 * SLOW).await;
            let seen = two.execute(&io(0x28, 8), &[], 8 * 512).await;
            assert!(
                seen.expect("an answer").data == bytes(version + 1, 8),
                "the write of who was fenced off has landed after the newer one"
            );
            // Clear the reservation.
            let (cdb, list) = reserve_out(3, 2, 0);
            assert_eq!(execute(&two, &cdb, &list).await.status, GOOD);
        }
    });
    assert_occurred([("writes overtaken", overtaken.get())]);
}
