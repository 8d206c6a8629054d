//! Several paths to one disk: which ones are used, and what a target can do to them.

use engine::{Buf, Gather, spawn, task::JoinHandle};
use iscsi::LoginStatus;

use super::*;
use crate::kinds::iscsi::{PathConfig, Policy};

/// The port of a third portal group.
const THIRD_PORT: u16 = 3262;

/// NAA 6h, of a logical unit, with this last byte.
pub(super) fn designators(last: u8) -> Vec<u8> {
    let mut designators = vec![1, 3, 0, 16, 0x60, 1, 2, 3];
    designators.resize(19, 0);
    designators.push(last);
    designators
}

pub(super) fn named() -> Claims {
    Claims {
        designators: designators(1),
        ..Claims::default()
    }
}

pub(super) fn path(address: SocketAddr, qualifier: u16) -> PathConfig {
    PathConfig {
        address,
        source: None,
        isid: Isid::random([1, 2, 3], qualifier),
    }
}

/// The disk of `site` with a second path, to `address`.
pub(super) fn with_second(site: &Site, address: SocketAddr) -> IscsiConfig {
    IscsiConfig {
        multipath: Multipath {
            more: vec![path(address, 2)],
            policy: Policy::RoundRobin,
            ..Multipath::default()
        },
        ..site.config()
    }
}

/// Runs `test` with a disk on both portal groups.
pub(super) fn with_two_paths(test: impl AsyncFnOnce(&Rc<IscsiDisk>, &Foreign)) {
    let site = Site::new(Foreign::new(named()));
    let config = with_second(&site, site.host.addr(OTHER_PORT));
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("two logins");
        assert_eq!(disk.live_paths(), 2);
        test(&disk, &site.foreign).await;
        disk.close().await;
    });
}

/// Where every connection is answered by a program that does not speak iSCSI.
fn web_server(site: &Site) -> SocketAddr {
    let address = site.host.addr(80);
    site.host.spawn(async move {
        let listener = TcpListener::bind(address).expect("a free port");
        spawn(async move {
            let mut heard = Vec::new();
            while let Ok(stream) = listener.accept().await {
                let answer =
                    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                let mut gather = Gather::new();
                gather.push_bytes(answer);
                let _ = stream.send_all(gather).await;
                heard.push(stream);
            }
        });
    });
    site.world.run_for(Duration::from_millis(10));
    address
}

#[test]
fn what_answers_in_another_protocol_keeps_no_path_to_the_disk_out() {
    let site = Site::new(Foreign::new(named()));
    let nonsense = web_server(&site);
    let mut config = with_second(&site, site.host.addr(OTHER_PORT));
    config.address = nonsense;
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config)
            .await
            .expect("one of them is the disk's");
        for byte in 1..100 {
            disk.write(0, block(byte), Durability::Cached)
                .await
                .expect("a path");
            time::sleep(Duration::from_millis(100)).await;
        }
        disk.close().await;
    });
}

#[test]
fn where_no_path_works_each_says_why() {
    let site = Site::new(Foreign::new(named()));
    let mut config = with_second(&site, web_server(&site));
    config.reconnect_timeout = Duration::ZERO;
    site.foreign
        .at_login(|_| AtLogin::Refuse(LoginStatus::SERVICE_UNAVAILABLE));
    site.world.block_on(&site.client, async {
        let refused = IscsiDisk::open(config).await.err().expect("no path works");
        let refused = refused.to_string();
        for said in [
            "none of the 2 paths can be used (",
            ":80",
            "service unavailable",
        ] {
            assert!(refused.contains(said), "{refused}");
        }
    });
}

pub(super) fn block(byte: u8) -> Payload {
    Buf::copy_of(&[byte; 512]).into()
}

#[test]
fn commands_go_over_every_path() {
    with_two_paths(async |disk, _| {
        for _ in 0..10 {
            disk.read(0, 512).await.expect("a read");
        }
        let beside = disk.path_counts().beside_first;
        assert!((5..=20).contains(&beside), "{beside}");
    });
}

#[test]
fn a_path_to_another_disk_is_refused() {
    for last in [Some(2), None] {
        let site = Site::new(Foreign::new(named()));
        let other = Rc::new(Foreign::new(Claims {
            designators: last.map(designators).unwrap_or_default(),
            ..Claims::default()
        }));
        let address = site.host.addr(THIRD_PORT);
        site.host.spawn(async move {
            let listener = TcpListener::bind(address).expect("a free port");
            other.serve(listener, Group(1));
        });
        site.world.run_for(Duration::from_millis(10));
        site.world.block_on(&site.client, async {
            let opened = IscsiDisk::open(with_second(&site, address)).await;
            let error = opened.err().expect("they are two");
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
            let said = "is another disk: it identifies itself as ";
            assert!(error.to_string().contains(said), "{error}");
        });
    }
}

/// At the start one path is enough, whatever is wrong with the others.
#[test]
fn a_path_that_is_refused_at_the_start_comes_when_it_is_let_in() {
    let site = Site::new(Foreign::new(named()));
    let config = with_second(&site, site.host.addr(OTHER_PORT));
    for refused in [1, 2] {
        site.foreign.at_login(move |Group(tag)| match tag {
            tag if tag == refused => AtLogin::Refuse(iscsi::LoginStatus::AUTHORIZATION_FAILURE),
            _ => AtLogin::LetIn,
        });
        site.world.block_on(&site.client, async {
            let disk = IscsiDisk::open(config.clone()).await.expect("one path");
            assert_eq!(disk.live_paths(), 1);
            let before = site.foreign.attempts.get();
            time::sleep(Duration::from_secs(100)).await;
            let attempts = site.foreign.attempts.get() - before;
            assert!((5..=15).contains(&attempts), "{attempts} in 100 s");
            site.foreign.at_login(|_| AtLogin::LetIn);
            while disk.live_paths() < 2 {
                time::sleep(Duration::from_millis(10)).await;
            }
            disk.close().await;
        });
    }
}

/// A target that accepts logins on one path only, while the other is lost repeatedly.
#[test]
fn a_path_that_is_refused_leaves_the_other_one_alone() {
    with_two_paths(async |disk, foreign| {
        foreign.at_login(|Group(tag)| match tag {
            1 => AtLogin::LetIn,
            _ => AtLogin::Refuse(iscsi::LoginStatus::AUTHORIZATION_FAILURE),
        });
        for round in 0..20 {
            foreign.drop_connections();
            let written = disk.write(0, block(round), Durability::Cached).await;
            written.expect("over the first path");
            disk.read(0, 512).await.expect("over the first path");
            time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!((disk.live_paths(), foreign.first_byte(0)), (1, 19));
        foreign.at_login(|_| AtLogin::LetIn);
        while disk.live_paths() < 2 {
            time::sleep(Duration::from_millis(10)).await;
        }
    });
}

/// The path that comes back later is told of the restart while the other one, on which something was written since, is
/// about to log out.
#[test]
fn a_restart_that_is_known_counts_once_although_the_path_that_knows_it_is_leaving() {
    use scsi::opcode::{SYNCHRONIZE_CACHE_10, TEST_UNIT_READY, WRITE_10};
    with_two_paths(async |disk, foreign| {
        let is_written = Rc::new(Cell::new(false));
        let (may_come, leaves) = (is_written.clone(), is_written.clone());
        foreign.at_login(move |Group(tag)| match tag == 1 || may_come.get() {
            true => AtLogin::LetIn,
            false => AtLogin::Refuse(iscsi::LoginStatus::SERVICE_UNAVAILABLE),
        });
        let (flushed, told) = (Cell::new(false), Cell::new(false));
        foreign.answer(move |cdb| match cdb[0] {
            WRITE_10 if !leaves.replace(true) => Some(Instead::AskForLogout),
            SYNCHRONIZE_CACHE_10 if !flushed.replace(true) => Some(Instead::Late),
            TEST_UNIT_READY if leaves.get() && !told.replace(true) => {
                Some(Instead::Sense([UNIT_ATTENTION, 0x29, 0x00]))
            }
            _ => None,
        });
        foreign.drop_connections();
        disk.read(0, 512).await.expect("over the first path");
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("over the first path");
        while disk.live_paths() < 2 {
            time::sleep(Duration::from_millis(10)).await;
        }
        let flushed = disk.flush().await;
        flushed.expect("it was written after the restart");
        assert!(is_written.get());
    });
}

/// The path that comes back later is told of the restart, and the target does not say whether the other one, on which
/// something was written before it, knows of it.
#[test]
fn a_path_to_a_busy_target_does_not_hide_a_restart() {
    const BUSY: u8 = 0x08;
    const TEST_UNIT_READY: u8 = 0;
    with_two_paths(async |disk, foreign| {
        foreign.at_login(|Group(tag)| match tag {
            1 => AtLogin::LetIn,
            _ => AtLogin::Refuse(iscsi::LoginStatus::SERVICE_UNAVAILABLE),
        });
        foreign.drop_connections();
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("over the first path");
        let mut polls = [
            Some(Instead::Sense([UNIT_ATTENTION, 0x29, 0x00])),
            None,
            Some(Instead::Status(BUSY)),
        ]
        .into_iter();
        foreign.answer(move |cdb| match cdb[0] {
            TEST_UNIT_READY => polls.next().flatten(),
            _ => None,
        });
        foreign.at_login(|_| AtLogin::LetIn);
        while disk.live_paths() < 2 {
            time::sleep(Duration::from_millis(10)).await;
        }
        let error = disk.flush().await.expect_err("the write may be lost");
        assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
    });
}

/// All nexuses are polled when one was told of a restart, and one of them answers late, with something else.
#[test]
fn an_attention_that_comes_late_to_a_poll_is_not_forgotten() {
    const TEST_UNIT_READY: u8 = 0;
    const READ_10: u8 = 0x28;
    const SLOW: Duration = Duration::from_secs(3);
    with_two_paths(async |disk, foreign| {
        let (read, polled) = (Cell::new(false), Cell::new(false));
        foreign.answer(move |cdb| match cdb[0] {
            READ_10 if !read.replace(true) => Some(Instead::Sense([UNIT_ATTENTION, 0x29, 0x00])),
            TEST_UNIT_READY if !polled.replace(true) => {
                Some(Instead::SlowSense(SLOW, [UNIT_ATTENTION, 0x2a, 0x09]))
            }
            _ => None,
        });
        disk.read(0, 512).await.expect("it is sent again");
        time::sleep(SLOW / 2).await;
        let before = disk.shape().len.bytes();
        foreign.len_blocks.set(2 * before / 512);
        time::sleep(SLOW).await;
        disk.read(0, 512).await.expect("a read");
        assert_eq!(disk.shape().len.bytes(), 2 * before);
    });
}

/// Begins a write that the target has when its path falls silent: our initiator gives the path up. From now on the target
/// lets nobody log in, so that only a reset over the other path ends the write.
pub(super) async fn begin_late_write(
    disk: &Rc<IscsiDisk>,
    foreign: &Foreign,
) -> JoinHandle<crate::Result<()>> {
    const WRITE_10: u8 = 0x2a;
    let first = Cell::new(true);
    foreign
        .answer(move |cdb| (cdb[0] == WRITE_10 && first.replace(false)).then_some(Instead::Late));
    let disk = disk.clone();
    let writing = spawn(async move { disk.write(0, block(1), Durability::Cached).await });
    foreign.holds(1).await;
    foreign.at_login(|_| AtLogin::Refuse(iscsi::LoginStatus::SERVICE_UNAVAILABLE));
    writing
}

/// Returns how a write ended that only a reset can end, how a newer one did, what the block held once the first one
/// could have landed, and the number of resets.
fn lost_with_a_late_write(reset_response: u8) -> (crate::Result<()>, crate::Result<()>, u8, u64) {
    let mut outcome = None;
    with_two_paths(async |disk, foreign| {
        foreign.reset_response.set(reset_response);
        let writing = begin_late_write(disk, foreign).await;
        let newer = disk.write(0, block(2), Durability::Cached).await;
        let written = writing.await;
        foreign.land();
        outcome = Some((written, newer, foreign.first_byte(0), foreign.resets.get()));
        foreign.at_login(|_| AtLogin::LetIn);
    });
    outcome.expect("the test has run")
}

#[test]
fn a_write_is_sent_again_when_a_reset_over_another_path_has_ended_it() {
    let (written, newer, holds, resets) = lost_with_a_late_write(0);
    written.expect("it was sent again");
    newer.expect("the other path works");
    assert_eq!(resets, 1);
    assert_ne!(holds, 0);
}

#[test]
fn nothing_is_written_over_another_path_while_a_lost_write_may_land() {
    const NOT_SUPPORTED: u8 = 5;
    let (written, _, _, resets) = lost_with_a_late_write(NOT_SUPPORTED);
    let error = written.expect_err("it may still happen");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(resets >= 1);
}

/// A path is lost with a write in flight that nothing ends, because the target answers no reset: reads over the path
/// that works are held back for short times only, and less and less often.
#[test]
fn a_reset_that_is_not_answered_does_not_stop_the_reads_over_the_other_path() {
    const WATCHED: Duration = Duration::from_secs(300);
    with_two_paths(async |disk, foreign| {
        foreign.ignores_resets.set(true);
        let writing = begin_late_write(disk, foreign).await;
        while disk.live_paths() > 1 {
            time::sleep(Duration::from_millis(100)).await;
        }
        let began = time::now();
        let (mut longest, mut held_up) = (Duration::ZERO, Duration::ZERO);
        while time::now() - began < WATCHED {
            let before = time::now();
            disk.read(0, 512).await.expect("a path works");
            let took = time::now() - before;
            (longest, held_up) = (longest.max(took), held_up + took);
            time::sleep(Duration::from_millis(100)).await;
        }
        assert!(longest < Duration::from_secs(6), "{longest:?}");
        assert!(held_up < WATCHED / 5, "{held_up:?}");
        writing.await.expect_err("nothing has ended it");
        let resets = foreign.resets.get();
        assert!((3..=10).contains(&resets), "{resets}");
        // The target is as it should be again.
        foreign.ignores_resets.set(false);
        foreign.at_login(|_| AtLogin::LetIn);
        let written = disk.write(0, block(2), Durability::Cached).await;
        written.expect("the lost write is ended");
    });
}

/// A restart that both paths report, one long after the other, counts once.
#[test]
fn a_path_that_comes_back_later_does_not_lose_what_was_written_meanwhile() {
    with_two_paths(async |disk, foreign| {
        foreign.at_login(|Group(tag)| match tag {
            1 => AtLogin::LetIn,
            _ => AtLogin::Refuse(iscsi::LoginStatus::SERVICE_UNAVAILABLE),
        });
        foreign.drop_connections();
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("over the first path");
        // As tgt does, which reports a power on to every new nexus.
        foreign.answer(once([UNIT_ATTENTION, 0x29, 0x00]));
        foreign.at_login(|_| AtLogin::LetIn);
        while disk.live_paths() < 2 {
            time::sleep(Duration::from_millis(10)).await;
        }
        disk.flush().await.expect("nothing was lost");
    });
}

#[test]
fn attentions_to_every_command_are_an_error_in_time_over_any_number_of_paths() {
    for qualifier in [0x00, 0x03] {
        with_two_paths(async |disk, foreign| {
            foreign.answer(move |_| Some(Instead::Sense([UNIT_ATTENTION, 0x29, qualifier])));
            let before = foreign.commands.get();
            for lost in [false, true] {
                if lost {
                    foreign.drop_connections();
                }
                let read = time::timeout(2 * RECONNECT, disk.read(0, 512)).await;
                read.expect("it ends").expect_err("there is no answer");
            }
            let commands = foreign.commands.get() - before;
            assert!(commands < 2500, "{commands}");
            foreign.answer(|_| None);
            disk.read(0, 512).await.expect("the target answers again");
        });
    }
}

#[test]
fn connections_that_are_dropped_over_and_over_cost_time_and_nothing_else() {
    with_two_paths(async |disk, foreign| {
        let before = foreign.logins.get();
        for round in 0..40 {
            foreign.drop_connections();
            let written = disk.write(0, block(round), Durability::Cached).await;
            written.expect("a path comes back");
            assert_eq!(foreign.first_byte(0), round);
            time::sleep(Duration::from_millis(100)).await;
        }
        // Two paths, each logging in once a second at most.
        let logins = foreign.logins.get() - before;
        assert!(logins < 120, "{logins}");
    });
}

const ACTIVE: u8 = 0;
const NON_OPTIMIZED: u8 = 1;
const STANDBY: u8 = 2;

/// How many of ten reads go over the second path, once the states are known.
async fn over_second(disk: &IscsiDisk) -> u64 {
    time::sleep(Duration::from_secs(5)).await;
    let before = disk.path_counts().beside_first;
    for _ in 0..10 {
        disk.read(0, 512).await.expect("a path may be used");
    }
    disk.path_counts().beside_first - before
}

#[test]
fn a_path_is_used_as_its_target_port_group_allows() {
    const STATE_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x06];
    let site = Site::new(Foreign::new(named()));
    let foreign = site.foreign.clone();
    let states = |first, second| {
        *foreign.access.borrow_mut() = [(1, first), (2, second)].into();
    };
    // The first path is on standby: the second one opens the disk.
    states(STANDBY, ACTIVE);
    let config = with_second(&site, site.host.addr(OTHER_PORT));
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("one path is active");
        assert_eq!(over_second(&disk).await, 10);
        // They swap states without a unit attention: the path refuses.
        states(ACTIVE, STANDBY);
        disk.read(0, 512)
            .await
            .expect("over the other one, when it is known");
        assert_eq!(over_second(&disk).await, 0);
        // Now with a unit attention.
        states(NON_OPTIMIZED, ACTIVE);
        site.foreign.answer(once(STATE_CHANGED));
        disk.read(0, 512).await.expect("it is sent again");
        assert_eq!(over_second(&disk).await, 10);
        // None may be used for a while.
        states(STANDBY, STANDBY);
        let reading = {
            let disk = disk.clone();
            spawn(async move { disk.read(0, 512).await })
        };
        time::sleep(Duration::from_secs(5)).await;
        states(ACTIVE, ACTIVE);
        reading.await.expect("it waited");
        disk.close().await;
    });
}

/// Both paths report a reset, the second one only when its port may be used again.
#[test]
fn a_reset_that_a_path_on_standby_tells_of_later_counts_once() {
    const STATE_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x06];
    const RESET: [u8; 3] = [UNIT_ATTENTION, 0x29, 0x00];
    let site = Site::new(Foreign::new(named()));
    let foreign = site.foreign.clone();
    let config = with_second(&site, site.host.addr(OTHER_PORT));
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("two logins");
        *foreign.access.borrow_mut() = [(1, ACTIVE), (2, ACTIVE)].into();
        assert_eq!(over_second(&disk).await, 5);
        foreign.access.borrow_mut().insert(2, STANDBY);
        foreign.answer(once(STATE_CHANGED));
        disk.read(0, 512).await.expect("it is sent again");
        assert_eq!(over_second(&disk).await, 0);
        disk.flush().await.expect("a flush");
        *foreign.attentions.borrow_mut() = [(1, RESET), (2, RESET)].into();
        disk.read(0, 512).await.expect("it is sent again");
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("over the first path");
        foreign.access.borrow_mut().insert(2, ACTIVE);
        time::sleep(Duration::from_secs(15)).await;
        assert_eq!(over_second(&disk).await, 5);
        assert_eq!(*foreign.attentions.borrow(), [].into(), "both were told");
        disk.flush().await.expect("it was written after the reset");
        disk.close().await;
    });
}

/// As LIO does: it reports the change only through the affected port, where nobody is listening.
#[test]
fn a_path_that_gets_as_good_as_the_others_is_used_though_nobody_is_told() {
    let site = Site::new(Foreign::new(named()));
    let foreign = site.foreign.clone();
    let config = with_second(&site, site.host.addr(OTHER_PORT));
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("two logins");
        for worse in [NON_OPTIMIZED, STANDBY] {
            *foreign.access.borrow_mut() = [(1, ACTIVE), (2, worse)].into();
            foreign.answer(once([UNIT_ATTENTION, 0x2a, 0x06]));
            disk.read(0, 512).await.expect("it is sent again");
            assert_eq!(over_second(&disk).await, 0, "{worse}");
            *foreign.access.borrow_mut() = [(1, ACTIVE), (2, ACTIVE)].into();
            time::sleep(Duration::from_secs(10)).await;
            assert_eq!(over_second(&disk).await, 5, "{worse}");
        }
        // No queries where all ports are optimal.
        let before = foreign.commands.get();
        time::sleep(Duration::from_secs(60)).await;
        assert_eq!(foreign.commands.get(), before);
        disk.close().await;
    });
}

impl Site {
    /// Serves a third portal group as well; returns its address.
    pub(super) fn serve_third(&self) -> SocketAddr {
        let (served, address) = (self.foreign.clone(), self.host.addr(THIRD_PORT));
        self.host.spawn(async move {
            let listener = TcpListener::bind(address).expect("a free port");
            served.serve(listener, Group(3));
        });
        self.world.run_for(Duration::from_millis(10));
        address
    }
}

/// Both paths are lost with a write in flight, the first portal redirects, and the target refuses the reset. That
/// concerns the first path's write alone: the second path's login can still end the other one.
#[test]
fn a_redirected_path_gives_up_on_no_write_but_its_own() {
    const WRITE_10: u8 = 0x2a;
    const NOT_SUPPORTED: u8 = 5;
    let site = Site::new(Foreign::new(named()));
    let third = site.serve_third().to_string();
    let config = with_second(&site, site.host.addr(OTHER_PORT));
    let foreign = site.foreign.clone();
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("two logins");
        foreign.reset_response.set(NOT_SUPPORTED);
        let mut late = 2;
        foreign.answer(move |cdb| {
            let is_late = cdb[0] == WRITE_10 && late > 0;
            late -= u32::from(is_late);
            is_late.then_some(Instead::Late)
        });
        let write = |at: u64, byte| {
            let disk = disk.clone();
            spawn(async move { disk.write(at, block(byte), Durability::Cached).await })
        };
        let writing = [write(0, 1), write(512, 1)];
        foreign.holds(2).await;
        let redirect = third.clone();
        foreign.at_login(move |Group(tag)| match tag {
            1 => AtLogin::Redirect(redirect.clone()),
            2 => AtLogin::Refuse(iscsi::LoginStatus::SERVICE_UNAVAILABLE),
            _ => AtLogin::LetIn,
        });
        foreign.drop_connections();
        time::sleep(Duration::from_secs(5)).await;
        assert!(foreign.resets.get() >= 1);
        assert_eq!(disk.live_paths(), 1);
        foreign.at_login(move |Group(tag)| match tag {
            1 => AtLogin::Redirect(third.clone()),
            _ => AtLogin::LetIn,
        });
        let mut failed = Vec::new();
        for writing in writing {
            failed.extend(writing.await.err());
        }
        assert_eq!(failed.len(), 1, "{failed:?}");
        disk.close().await;
    });
}

/// The first path is lost with a write in flight, and its portal redirects to a third portal group, of which the
/// target says `third_state` once it has answered a command there. Returns how many resets there were when a newer
/// write was answered.
fn resets_after_a_redirection(third_state: u8) -> u64 {
    const TEST_UNIT_READY: u8 = 0;
    const UNAVAILABLE: u8 = 3;
    const WRITE_10: u8 = 0x2a;
    let site = Site::new(Foreign::new(named()));
    let third = site.serve_third().to_string();
    let config = with_second(&site, site.host.addr(OTHER_PORT));
    let foreign = site.foreign.clone();
    let states = [(1, ACTIVE), (2, NON_OPTIMIZED), (3, ACTIVE)];
    *foreign.access.borrow_mut() = states.into();
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("two logins");
        assert_eq!(over_second(&disk).await, 0);
        let first = Cell::new(true);
        let target = Rc::downgrade(&foreign);
        let is_redirected = Rc::new(Cell::new(false));
        let is_there = is_redirected.clone();
        foreign.answer(move |cdb| {
            if cdb[0] == TEST_UNIT_READY && is_there.get() {
                let target = target.upgrade().expect("it serves");
                target.access.borrow_mut().insert(3, third_state);
            }
            (cdb[0] == WRITE_10 && first.replace(false)).then_some(Instead::Late)
        });
        let writing = {
            let disk = disk.clone();
            spawn(async move { disk.write(0, block(1), Durability::Cached).await })
        };
        foreign.holds(1).await;
        foreign.access.borrow_mut().insert(1, UNAVAILABLE);
        foreign.at_login(move |Group(tag)| match tag {
            1 => AtLogin::Redirect(third.clone()),
            tag => {
                is_redirected.set(tag == 3);
                AtLogin::LetIn
            }
        });
        foreign.drop_connections();
        let newer = disk.write(0, block(2), Durability::Cached).await;
        newer.expect("a path may be used");
        let resets = foreign.resets.get();
        writing.await.expect("it was sent again");
        disk.close().await;
        resets
    })
}

#[test]
fn a_redirected_path_is_used_as_its_new_target_port_group_allows() {
    assert_eq!(resets_after_a_redirection(ACTIVE), 1);
}

#[test]
fn a_redirected_path_on_standby_does_not_hide_what_may_still_land() {
    assert_eq!(resets_after_a_redirection(STANDBY), 1);
}
