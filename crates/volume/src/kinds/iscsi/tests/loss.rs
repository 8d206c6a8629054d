//! What happens to a disk whose sessions are lost: how often it logs in, and that no write of an earlier session
//! overtakes a later one.

use engine::{Buf, spawn};

use super::{paths::with_two_paths, *};

fn block(byte: u8) -> Payload {
    Buf::copy_of(&[byte; 512]).into()
}

/// Holds the first WRITE until [`Foreign::land`].
fn first_write_is_late() -> impl FnMut(&[u8]) -> Option<Instead> {
    const WRITE_10: u8 = 0x2a;
    let first = Cell::new(true);
    move |cdb| (cdb[0] == WRITE_10 && first.replace(false)).then_some(Instead::Late)
}

#[test]
fn sessions_that_are_dropped_at_once_are_not_had_in_a_hot_loop() {
    const TEST_UNIT_READY: u8 = 0;
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        foreign.answer(|cdb| (cdb[0] != TEST_UNIT_READY).then_some(Instead::Drop));
        let before = foreign.logins.get();
        let reads = (0..8).map(|_| disk.read(0, 512));
        for read in engine::task::join_all(reads).await {
            read.expect_err("no session holds");
        }
        // The pause doubles from 10 ms to a second, within 20 seconds.
        let logins = foreign.logins.get() - before;
        assert!(logins < 40, "{logins} logins");
        foreign.answer(|_| None);
        disk.read(0, 512).await.expect("it holds");
    });
}

/// Whether a disk with one session has one again a while after it was lost, although nobody asks for anything.
fn comes_back_unasked() -> bool {
    let comes_back = std::cell::Cell::new(false);
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        foreign.drop_connections();
        time::sleep(Duration::from_secs(5)).await;
        comes_back.set(disk.live_paths() == 1);
        let before = foreign.logins.get();
        for _ in 0..600 {
            foreign.drop_connections();
            time::sleep(Duration::from_secs(1)).await;
        }
        let logins = foreign.logins.get() - before;
        assert!(
            logins < 20,
            "{logins} logins: another may use the same port"
        );
        disk.read(0, 512).await.expect("it is there");
    });
    comes_back.get()
}

#[test]
fn a_lone_session_that_nobody_waits_for_comes_back_and_not_all_the_time() {
    assert!(comes_back_unasked());
    let _planted = crate::planted::Planted::new(crate::planted::Bug::IdlePathForgotten);
    assert!(!comes_back_unasked());
}

fn to_the_other_group(address: String) -> impl FnMut(Group) -> AtLogin {
    move |group| match group {
        Group(1) => AtLogin::Redirect(address.clone()),
        _ => AtLogin::LetIn,
    }
}

/// A write is in flight when its session is lost, and the next login is redirected to another portal group. Returns
/// how that write ended and what the block held once the late write could have landed.
fn lost_to_another_group(reset_response: u8) -> (crate::Result<()>, u8, u64) {
    let site = Site::new(Foreign::new(Claims::default()));
    let other = site.host.addr(OTHER_PORT).to_string();
    let mut outcome = None;
    site.run(async |disk, foreign| {
        foreign.reset_response.set(reset_response);
        foreign.answer(first_write_is_late());
        let writing = {
            let disk = disk.clone();
            spawn(async move { disk.write(0, block(1), Durability::Cached).await })
        };
        foreign.holds(1).await;
        foreign.at_login(to_the_other_group(other));
        foreign.drop_connections();
        let written = writing.await;
        let newer = disk.write(0, block(2), Durability::Cached).await;
        newer.expect("it was written over the new session");
        foreign.land();
        outcome = Some((written, foreign.first_byte(0), foreign.resets.get()));
    });
    outcome.expect("the test has run")
}

#[test]
fn a_write_of_the_session_before_a_redirection_is_ended_before_it_is_sent_again() {
    let (written, holds, resets) = lost_to_another_group(0);
    written.expect("it was sent again");
    assert_eq!((holds, resets), (2, 1));
}

#[test]
fn a_write_that_could_not_be_ended_is_an_error_and_not_sent_again() {
    const NOT_SUPPORTED: u8 = 5;
    let (written, _, resets) = lost_to_another_group(NOT_SUPPORTED);
    let error = written.expect_err("it may still happen");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(resets, 1);
}

#[test]
fn a_reset_disturbs_others_only_where_writes_were_left() {
    // A target may answer the login that ends a session while the session's last write is on its way to the disk.
    for elsewhere in [false, true] {
        let site = Site::new(Foreign::new(Claims::default()));
        let other = site.host.addr(OTHER_PORT).to_string();
        site.run(async |disk, foreign| {
            if elsewhere {
                foreign.at_login(to_the_other_group(other));
                foreign.drop_connections();
                disk.read(0, 512).await.expect("over the other group");
            } else {
                foreign.answer(first_write_is_late());
                let writing = {
                    let disk = disk.clone();
                    spawn(async move { disk.write(0, block(1), Durability::Cached).await })
                };
                foreign.holds(1).await;
                foreign.drop_connections();
                writing.await.expect("it was sent again");
            }
            let resets = u64::from(!elsewhere);
            assert_eq!((foreign.logins.get(), foreign.resets.get()), (2, resets));
        });
    }
}

/// A unit attention reports the reset, which is no restart: nothing written is lost.
/// Many targets report a power-on to each new session. Whether that was one is known to the other session, when it answers.
#[test]
fn a_power_on_that_is_told_at_a_login_loses_nothing_because_another_session_answers_late() {
    const TEST_UNIT_READY: u8 = 0;
    const READ_10: u8 = 0x28;
    with_two_paths(async |disk, foreign| {
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("two paths work");
        let (mut asked, mut is_dropped) = (0, false);
        foreign.answer(move |cdb| match cdb[0] {
            READ_10 => (!std::mem::replace(&mut is_dropped, true)).then_some(Instead::Drop),
            TEST_UNIT_READY => {
                asked += 1;
                match asked {
                    1 => Some(Instead::Sense([UNIT_ATTENTION, 0x29, 0x00])),
                    // The second is for the new session too, the third for the other one.
                    3 => Some(Instead::Slow(Duration::from_secs(3))),
                    _ => None,
                }
            }
            _ => None,
        });
        let logins = foreign.logins.get();
        disk.read(0, 512).await.expect("the other path works");
        while foreign.logins.get() == logins || disk.live_paths() < 2 {
            time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(foreign.logins.get(), logins + 1, "one was lost");
        disk.flush().await.expect("there was no restart");
    });
}

#[test]
fn our_own_reset_does_not_fail_the_flush() {
    let site = Site::new(Foreign::new(Claims::default()));
    let other = site.host.addr(OTHER_PORT).to_string();
    site.run(async |disk, foreign| {
        let written = disk.write(512, block(3), Durability::Cached).await;
        written.expect("a write that is not durable yet");
        foreign.answer(first_write_is_late());
        let writing = {
            let disk = disk.clone();
            spawn(async move { disk.write(0, block(1), Durability::Cached).await })
        };
        foreign.holds(1).await;
        foreign.at_login(to_the_other_group(other));
        foreign.drop_connections();
        writing.await.expect("it was sent again");
        assert_eq!(foreign.resets.get(), 1);
        disk.flush().await.expect("the target has not restarted");
    });
}

#[test]
fn a_window_that_stays_closed_ends_the_session() {
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        let shut = Cell::new(true);
        foreign.answer(move |_| shut.replace(false).then_some(Instead::Shut));
        let before = foreign.logins.get();
        // More than the target's window has room for.
        for _ in 0..200 {
            let read = time::timeout(3 * RECONNECT, disk.read(0, 512)).await;
            read.expect("it ends").expect("over a new session");
        }
        assert_eq!(foreign.logins.get(), before + 1);
    });
}

#[test]
fn a_disk_that_waits_for_nothing_makes_one_attempt() {
    let site = Site::new(Foreign::new(Claims::default()));
    let config = IscsiConfig {
        reconnect_timeout: Duration::ZERO,
        ..site.config()
    };
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("a login");
        site.foreign.answer(once([UNIT_ATTENTION, 0x29, 0x07]));
        disk.read(0, 512).await.expect("the attention is heard");
        for _ in 0..2 {
            time::sleep(Duration::from_secs(10)).await;
            site.foreign.drop_connections();
            disk.read(0, 512).await.expect("over another session");
        }
        site.foreign
            .at_login(|_| AtLogin::Refuse(iscsi::LoginStatus::TARGET_ERROR));
        let before = time::now();
        site.foreign.drop_connections();
        disk.read(0, 512).await.expect_err("it is refused");
        assert!(time::now() - before < Duration::from_secs(5));
        disk.read(0, 512).await.expect_err("and again");
    });
}

#[test]
fn a_restart_that_a_login_in_vain_was_told_of_is_not_forgotten() {
    const BUSY: u8 = 0x08;
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("a write that is not durable yet");
        let mut told = [
            Instead::Sense([UNIT_ATTENTION, 0x29, 0x01]),
            Instead::Status(BUSY),
        ]
        .into_iter();
        foreign.answer(move |_| told.next());
        let before = foreign.logins.get();
        foreign.drop_connections();
        let error = disk.flush().await.expect_err("the write may be lost");
        assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
        assert_eq!(foreign.logins.get(), before + 2);
    });
}

/// It is told after the time that a request waits for a session.
#[test]
fn a_restart_that_a_slow_target_tells_of_is_not_forgotten() {
    const SLOW: Duration = Duration::from_secs(6);
    let site = Site::new(Foreign::new(Claims::default()));
    let config = IscsiConfig {
        reconnect_timeout: Duration::ZERO,
        ..site.config()
    };
    let foreign = &site.foreign;
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("a login");
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("a write that is not durable yet");
        let told = Cell::new(Some(Instead::SlowSense(SLOW, [UNIT_ATTENTION, 0x29, 0x01])));
        foreign.answer(move |_| told.take());
        foreign.drop_connections();
        disk.read(0, 512).await.expect_err("it takes too long");
        time::sleep(2 * SLOW).await;
        disk.read(0, 512).await.expect("over another session");
        let error = disk.flush().await.expect_err("the write may be lost");
        assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
        disk.close().await;
    });
}

/// A target that asks for a logout may be about to stop, and after a restart it reports nothing else. Returns the
/// result of a flush after such a restart, where SYNCHRONIZE CACHE before the logout was answered with `flushes`.
fn restarted_after_a_logout(flushes: Option<Instead>) -> crate::Result<()> {
    use scsi::opcode::{SYNCHRONIZE_CACHE_10, WRITE_10};
    let site = Site::new(Foreign::new(Claims::default()));
    let mut outcome = None;
    site.run(async |disk, foreign| {
        let flushed = Rc::new(Cell::new(0));
        let counted = flushed.clone();
        foreign.answer(move |cdb| match cdb[0] {
            WRITE_10 => Some(Instead::AskForLogout),
            SYNCHRONIZE_CACHE_10 => {
                counted.set(counted.get() + 1);
                flushes.clone()
            }
            _ => None,
        });
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("a write");
        while foreign.connected.get() > 0 {
            time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(flushed.get(), 1, "a flush before the logout");
        assert_eq!(disk.live_paths(), 0);
        foreign.answer(once([UNIT_ATTENTION, 0x29, 0x01]));
        disk.read(0, 512).await.expect("over another session");
        assert_eq!(foreign.logins.get(), 2);
        outcome = Some(disk.flush().await);
    });
    outcome.expect("the test has run")
}

#[test]
fn what_was_flushed_before_a_logout_is_not_lost_by_a_restart() {
    restarted_after_a_logout(None).expect("all of it was durable");
    const MEDIUM_ERROR: u8 = 0x03;
    let failed = Instead::Sense([MEDIUM_ERROR, 0x0c, 0x00]);
    let error = restarted_after_a_logout(Some(failed)).expect_err("it was not");
    assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
}
