//! An abort, reset, repeated login or preemption is answered only when the writes it overtakes have ended. Over real
//! sockets: a slow write is overtaken, and as soon as the overtaking function is answered, other data is written to the
//! same blocks. No later read may ever return the older data.

use harness::directory::Directory;
use harness::sanstone::{IQN, Sanstone};
use harness::wire::{Direction, Session, read_10, write_10};
use std::thread::sleep;
use std::time::{Duration, Instant};

const BLOCKS: u16 = 16;
const BYTES: usize = BLOCKS as usize * 512;
/// How long the disk takes for the one slow write.
const SLOW: Duration = Duration::from_millis(1000);
const KEYS: [&str; 3] = [
    "ImmediateData=Yes",
    "InitialR2T=No",
    "FirstBurstLength=65536",
];

const ABORT_TASK: u8 = 1;
const ABORT_TASK_SET: u8 = 2;
const CLEAR_TASK_SET: u8 = 4;
const LOGICAL_UNIT_RESET: u8 = 5;
const TARGET_WARM_RESET: u8 = 6;

/// The initiators by number: the one whose write is slow, and the one that overtakes it.
const SLOW_ONE: u16 = 1;
const OTHER_ONE: u16 = 2;

/// A disk whose first write is delayed, on one lane or across two.
fn slow_disk(lanes: u32) -> Sanstone {
    let directory = Directory::new();
    let volume = format!(
        "lanes = {lanes}\n[volume.disk]\nfault = {{ rules = [{{ on = \"write\", delay = \"{}ms\", times = 1 }}], \
         of = {{ ram = {{ size = \"16MiB\" }} }} }}\n",
        SLOW.as_millis()
    );
    Sanstone::serve(directory.path(), &volume, &["disk"]).owning(directory)
}

fn login(server: &Sanstone, number: u16) -> Session {
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, number, &KEYS).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    session
}

/// Sends a task management function, which must succeed.
fn manage(session: &mut Session, function: u8, referenced: Option<u32>) {
    let task = session.task_management(function, referenced);
    let responses = session
        .responses_to(&[task.expect("a request")])
        .expect("an answer");
    assert_eq!(responses[0].0, 0, "function {function} was not done");
}

/// PERSISTENT RESERVE OUT (SPC-4 6.16) with these keys.
fn reserve_out(session: &mut Session, action: u8, key: u64, action_key: u64) {
    let cdb = [0x5f, action, 0, 0, 0, 0, 0, 0, 24, 0];
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&action_key.to_be_bytes());
    let (status, _) = session.execute(&cdb, &list, 0).expect("an answer");
    assert_eq!(status, 0, "PERSISTENT RESERVE OUT {action:#x}");
}

/// Has `overtake` overtake a slow write of `slow`, then checks what the disk holds. `overtake` returns the session to
/// continue with.
fn check(
    lanes: u32,
    prepare: impl FnOnce(&mut Session, &mut Session),
    overtake: impl FnOnce(&Sanstone, Session, Session, u32) -> Session,
) {
    let server = slow_disk(lanes);
    let mut slow = login(&server, SLOW_ONE);
    let mut other = login(&server, OTHER_ONE);
    prepare(&mut slow, &mut other);
    let (older, newer) = (harness::noise(1, BYTES), harness::noise(2, BYTES));
    let write = write_10(0, BLOCKS);
    let begun = Instant::now();
    let task = slow
        .command(&write, Direction::Write, BYTES as u32, &older)
        .expect("a command");
    // Commands of a session begin in order: once this one is answered, the write has begun.
    let ready = slow.execute(&[0; 6], &[], 0).expect("an answer");
    assert_eq!(ready.0, 0);
    let mut next = overtake(&server, slow, other, task);
    next.wait_until_ready().expect("a ready disk");
    let (status, _) = next.execute(&write, &newer, 0).expect("an answer");
    assert_eq!(status, 0, "the newer write");
    // Beyond the time at which a write that nobody waited for would have landed.
    let late = SLOW + Duration::from_millis(300);
    loop {
        let over = begun.elapsed() > late;
        let (status, seen) = next
            .execute(&read_10(0, BLOCKS), &[], BYTES as u32)
            .expect("an answer");
        assert_eq!(status, 0, "a read");
        assert!(
            seen == newer,
            "the overtaken write has landed after the newer one"
        );
        if over {
            return;
        }
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_reset_of_a_copys_destination_waits_for_the_copy() {
    let directory = Directory::new();
    let volumes = format!(
        "[volume.source]\nram = {{ size = \"16MiB\" }}\n[volume.disk]\nfault = {{ rules = [{{ on = \"write\", \
         delay = \"{}ms\", times = 1 }}], of = {{ ram = {{ size = \"16MiB\" }} }} }}\n",
        SLOW.as_millis()
    );
    let luns = ["source", "disk"];
    let server = Sanstone::serve(directory.path(), &volumes, &luns).owning(directory);
    let address = format!("127.0.0.1:{}", server.port());
    let mut sessions = [(SLOW_ONE, 0), (OTHER_ONE, 1)].map(|(number, lun)| {
        let mut session = Session::login(&address, IQN, lun, number, &KEYS).expect("a login");
        session.wait_until_ready().expect("a ready disk");
        session
    });
    let [copying, other] = &mut sessions;
    let older = harness::noise(1, 512);
    let (status, _) = copying
        .execute(&write_10(0, 1), &older, 0)
        .expect("an answer");
    assert_eq!(status, 0);
    let list = copy_a_block(&name_of(copying), &name_of(other));
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x83, list.len() as u8);
    let copy = copying.command(&cdb, Direction::Write, list.len() as u32, &list);
    copy.expect("a command");
    // Until the copy is running: it has read its block by then, and its write is slow.
    sleep(SLOW / 4);
    manage(other, LOGICAL_UNIT_RESET, None);
    other.wait_until_ready().expect("a ready disk");
    let newer = harness::noise(2, 512);
    let (status, _) = other
        .execute(&write_10(0, 1), &newer, 0)
        .expect("an answer");
    assert_eq!(status, 0);
    sleep(SLOW + Duration::from_millis(300));
    let (_, seen) = other.execute(&read_10(0, 1), &[], 512).expect("an answer");
    assert!(seen == newer, "the copy has landed after the newer write");
    // The same copy undisturbed.
    copying.wait_until_ready().expect("a ready disk");
    let (status, _) = copying.execute(&cdb, &list, 0).expect("an answer");
    assert_eq!(status, 0, "the copy");
    let (_, seen) = other.execute(&read_10(0, 1), &[], 512).expect("an answer");
    assert!(seen == older, "the copy has done nothing");
}

/// The NAA designator of a session's disk, from VPD page 83h.
fn name_of(session: &mut Session) -> Vec<u8> {
    let cdb = [0x12, 1, 0x83, 0, 255, 0];
    let (_, page) = session.execute(&cdb, &[], 255).expect("an answer");
    let mut rest = &page[4..];
    while rest[1] & 0xf != 3 || rest[3] != 16 {
        rest = &rest[4 + usize::from(rest[3])..];
    }
    rest[4..20].to_vec()
}

/// The parameter list of an EXTENDED COPY (LID1) of one block (SPC-4 6.4).
fn copy_a_block(source: &[u8], destination: &[u8]) -> Vec<u8> {
    let descriptor = |name: &[u8]| [&[0xe4, 0, 0, 0, 1, 3, 0, 16][..], name, &[0; 8]].concat();
    let mut segment = [0; 28];
    segment[..12].copy_from_slice(&[2, 0, 0, 24, 0, 0, 0, 1, 0, 0, 0, 1]);
    let mut list = vec![0; 16];
    (list[0], list[3], list[11]) = (1, 64, segment.len() as u8);
    list.extend(descriptor(source));
    list.extend(descriptor(destination));
    list.extend(segment);
    list
}

fn nothing(_: &mut Session, _: &mut Session) {}

/// With one lane, and with the overtaking session on another lane than the overtaken one.
const LANES: [u32; 2] = [1, 2];

#[test]
fn abort_task_waits_for_the_write() {
    check(1, nothing, |_, mut slow, other, task| {
        manage(&mut slow, ABORT_TASK, Some(task));
        drop(slow);
        other
    });
}

#[test]
fn abort_task_set_waits_for_the_write() {
    check(1, nothing, |_, mut slow, other, _| {
        manage(&mut slow, ABORT_TASK_SET, None);
        drop(slow);
        other
    });
}

#[test]
fn clear_task_set_waits_for_the_write() {
    for lanes in LANES {
        check(lanes, nothing, |_, slow, mut other, _| {
            manage(&mut other, CLEAR_TASK_SET, None);
            drop(slow);
            other
        });
    }
}

#[test]
fn resets_wait_for_the_write() {
    for lanes in LANES {
        for function in [LOGICAL_UNIT_RESET, TARGET_WARM_RESET] {
            check(lanes, nothing, |_, slow, mut other, _| {
                manage(&mut other, function, None);
                drop(slow);
                other
            });
        }
    }
}

#[test]
fn a_login_in_a_sessions_place_waits_for_the_write() {
    for lanes in LANES {
        check(lanes, nothing, |server, slow, other, _| {
            // An extra connection in between puts the new one on another lane.
            let again = login(server, SLOW_ONE);
            drop((slow, other));
            again
        });
    }
}

#[test]
fn a_login_after_a_lost_connection_waits_for_the_write() {
    for lanes in LANES {
        check(lanes, nothing, |server, slow, other, _| {
            drop((slow, other));
            login(server, SLOW_ONE)
        });
    }
}

#[test]
fn preempt_and_abort_waits_for_the_write() {
    const REGISTER: u8 = 0;
    const PREEMPT_AND_ABORT: u8 = 5;
    for lanes in LANES {
        let prepare = |slow: &mut Session, other: &mut Session| {
            reserve_out(slow, REGISTER, 0, 1);
            reserve_out(other, REGISTER, 0, 2);
        };
        check(lanes, prepare, |_, slow, mut other, _| {
            reserve_out(&mut other, PREEMPT_AND_ABORT, 2, 1);
            drop(slow);
            other
        });
    }
}
