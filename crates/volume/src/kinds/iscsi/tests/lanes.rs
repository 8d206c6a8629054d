//! A disk used by two lanes, each over its own session.

use engine::{
    Buf, LaneHandle, spawn,
    task::{JoinHandle, join_all},
};

use super::{same_disk::designators, *};
use crate::{
    Claim, SharedVolume,
    claim::{LABEL_AT, Others, Owner},
    kinds::iscsi::{PathConfig, cdb, nexus::Nexus, session::Data},
    member::Order,
};

/// A client with `lanes` lanes.
pub(super) fn site_of(lanes: usize) -> (Site, Vec<LaneHandle>) {
    seeded_site_of(1, lanes)
}

fn seeded_site_of(seed: u64, lanes: usize) -> (Site, Vec<LaneHandle>) {
    let claims = Claims {
        designators: designators(1),
        ..Claims::default()
    };
    let mut site = Site::with_seed(seed, Foreign::new(claims));
    site.client = site.world.host_with_lanes("client of lanes", lanes);
    let lanes = (0..lanes).map(|lane| site.client.lane(lane)).collect();
    (site, lanes)
}

/// Runs `test` with the disk on its home lane, and with its volumes for the other lanes.
fn with_lanes<const OTHERS: usize>(
    test: impl AsyncFnOnce(&Rc<IscsiDisk>, &[SharedVolume; OTHERS], &Foreign),
) {
    with_seeded_lanes(1, test);
}

/// As [`with_lanes`] in the order of events of a seed.
fn with_seeded_lanes<const OTHERS: usize>(
    seed: u64,
    test: impl AsyncFnOnce(&Rc<IscsiDisk>, &[SharedVolume; OTHERS], &Foreign),
) {
    let (site, lanes) = seeded_site_of(seed, 1 + OTHERS);
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open_on(sessions(&site, 1 + OTHERS as u16, 0), &lanes).await;
        let disk = disk.expect("as many logins");
        let branches = disk.from_branches().await.expect("the lanes run");
        let branches: [SharedVolume; OTHERS] = branches
            .try_into()
            .unwrap_or_else(|branches: Vec<_>| panic!("{} branches", branches.len()));
        for other in &branches {
            is_let(&disk, other).await;
        }
        test(&disk, &branches, &site.foreign).await;
        disk.close().await;
    });
}

/// As [`with_lanes`] with one other lane.
fn with_two_lanes(test: impl AsyncFnOnce(&Rc<IscsiDisk>, &SharedVolume, &Foreign)) {
    with_lanes(async |disk, [other], foreign| test(disk, other, foreign).await);
}

/// Waits until a lane uses its own session, which needs a grant of the home lane.
async fn is_let(disk: &IscsiDisk, other: &SharedVolume) {
    let before = disk.path_counts().beside_home;
    while disk.path_counts().beside_home == before {
        other.read(0, 512).await.expect("a read");
        time::sleep(Duration::from_millis(1)).await;
    }
}

fn sessions(site: &Site, count: u16, spare: usize) -> IscsiConfig {
    let more = (2..=count).map(|qualifier| PathConfig {
        address: site.host.addr(PORT),
        source: None,
        isid: Isid::random([1, 2, 3], qualifier),
    });
    IscsiConfig {
        multipath: Multipath {
            more: more.collect(),
            spare,
            ..Multipath::default()
        },
        ..site.config()
    }
}

fn block(byte: u8) -> Payload {
    Buf::copy_of(&[byte; 512]).into()
}

#[test]
fn a_flush_covers_what_another_lane_wrote() {
    with_two_lanes(async |disk, other, foreign| {
        const SYNCHRONIZE_CACHE: u8 = 0x35;
        disk.flush().await.expect("others may have written");
        let flushes = Rc::new(Cell::new(0));
        let count = flushes.clone();
        foreign.answer(move |cdb| {
            count.set(count.get() + u32::from(cdb[0] == SYNCHRONIZE_CACHE));
            None
        });
        disk.flush().await.expect("nothing is to be done");
        assert_eq!(flushes.get(), 0);
        for flushed_by in [disk.clone() as SharedVolume, other.clone()] {
            let before = (flushes.get(), disk.path_counts().beside_home);
            let write = other.write(0, Payload::zeroes(512), Durability::Cached);
            write.await.expect("a write");
            flushed_by.flush().await.expect("a flush");
            let after = (flushes.get(), disk.path_counts().beside_home);
            assert_eq!(after, (before.0 + 1, before.1 + 1));
        }
    });
}

#[test]
fn every_lane_asks_a_protected_disk_whether_it_still_is() {
    const MODE_PARAMETERS_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x01];
    with_two_lanes(async |disk, other, foreign| {
        foreign.is_protected.set(true);
        foreign.answer(once(MODE_PARAMETERS_CHANGED));
        disk.read(0, 512).await.expect("reads go on");
        disk.read(0, 512).await.expect("reads go on");
        let write = || other.write(0, block(1), Durability::Cached);
        let refused = write().await.expect_err("it is protected");
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        foreign.is_protected.set(false);
        write().await.expect("it asks first");
        assert_eq!(foreign.first_byte(0), 1);
    });
}

#[test]
fn a_restart_told_on_any_lane_fails_the_flush_of_what_any_lane_wrote() {
    for (told_here, written_here) in [(true, false), (false, true), (false, false)] {
        with_two_lanes(async |disk, other, foreign| {
            let here: SharedVolume = disk.clone();
            let pick = |is_here: bool| if is_here { &here } else { other };
            let zeroes = Payload::zeroes(512);
            let write = pick(written_here).write(0, zeroes, Durability::Cached);
            write.await.expect("a write");
            foreign.answer(once([UNIT_ATTENTION, 0x29, 0x00]));
            let read = pick(told_here).read(0, 512).await;
            read.expect("it is sent again");
            for volume in [&here, other] {
                let error = volume.flush().await.expect_err("it may be lost");
                assert_eq!(error.kind(), ErrorKind::FlushFailed);
                let write = volume.write(0, Payload::zeroes(512), Durability::Cached);
                let error = write.await.expect_err("it would build on what is lost");
                assert_eq!(error.kind(), ErrorKind::FlushFailed);
            }
        });
    }
}

/// Each session reports a restart, even one that stays idle for a long time after it.
#[test]
fn what_was_written_after_a_restart_is_not_lost_when_an_idle_lane_hears_of_it() {
    const TEST_UNIT_READY: u8 = 0;
    const READ_10: u8 = 0x28;
    const RESET: Instead = Instead::Sense([UNIT_ATTENTION, 0x29, 0x00]);
    for is_vouched_for in [true, false] {
        with_two_lanes(async |disk, other, foreign| {
            disk.flush().await.expect("a flush");
            let (mut told_home, mut told_other) = (false, false);
            foreign.answer(move |cdb| match (cdb[0], cdb[5]) {
                (READ_10, 0) => (!std::mem::replace(&mut told_home, true)).then_some(RESET),
                (TEST_UNIT_READY, _) | (READ_10, 8) if !told_other => {
                    told_other = true;
                    Some(RESET)
                }
                // It is unknown whether there was another restart.
                (TEST_UNIT_READY, _) if !is_vouched_for => Some(Instead::Late),
                _ => None,
            });
            disk.read(0, 512).await.expect("it is sent again");
            let write = disk.write(0, block(1), Durability::Cached);
            write.await.expect("a write");
            if is_vouched_for {
                time::sleep(Duration::from_secs(600)).await;
                other.read(8 * 512, 512).await.expect("a read");
            }
            let flushed = disk.flush().await.map_err(|error| error.kind());
            let expected = match is_vouched_for {
                true => Ok(()),
                false => Err(ErrorKind::FlushFailed),
            };
            assert_eq!(flushed, expected);
        });
    }
}

/// The target executed it before the restart and may have lost it.
#[test]
fn a_write_whose_answer_comes_after_a_restart_was_told_elsewhere_is_sent_again() {
    const WRITE_10: u8 = 0x2a;
    for (written_by, told_to) in [(0, 1), (1, 0), (1, 2)] {
        with_lanes(async |disk, [one, two], foreign| {
            let all = [disk.clone() as SharedVolume, one.clone(), two.clone()];
            let (writes, restarted) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let (count, is_told) = (writes.clone(), restarted.clone());
            foreign.answer(move |cdb| match cdb[0] {
                WRITE_10 => {
                    count.set(count.get() + 1);
                    (count.get() == 1).then_some(Instead::Slow(Duration::from_secs(1)))
                }
                _ => is_told
                    .take()
                    .then_some(Instead::Sense([UNIT_ATTENTION, 0x29, 0x00])),
            });
            let writer = all[written_by].clone();
            let writing = spawn(async move { writer.write(0, block(1), Durability::Cached).await });
            time::sleep(Duration::from_millis(500)).await;
            restarted.set(true);
            let reader = all[told_to].clone();
            let reading = spawn(async move { reader.read(0, 512).await });
            time::sleep(Duration::from_millis(100)).await;
            assert!(!restarted.get() && writes.get() == 1);
            writing.await.expect("it is sent again, too");
            assert_eq!(writes.get(), 2);
            reading.await.expect("so is this");
            disk.flush()
                .await
                .expect("nothing that was promised is lost");
        });
    }
}

#[test]
fn a_lane_uses_its_session_again_when_what_was_told_on_it_is_seen_to() {
    with_two_lanes(async |disk, other, foreign| {
        const MODE_PARAMETERS_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x01];
        for round in 0..3 {
            foreign.answer(once(MODE_PARAMETERS_CHANGED));
            other.read(0, 512).await.expect("it is sent again");
            let before = disk.path_counts().beside_home;
            while disk.path_counts().beside_home == before {
                other.read(0, 512).await.expect("a read");
            }
            foreign.drop_connections();
            let write = other.write(0, Payload::zeroes(512), Durability::Cached);
            write
                .await
                .unwrap_or_else(|error| panic!("{round}: {error}"));
            let before = disk.path_counts().beside_home;
            while disk.path_counts().beside_home == before {
                other.read(0, 512).await.expect("a read");
                time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
}

#[test]
fn a_disk_that_is_closed_has_no_session_on_any_lane_and_has_them_again_when_it_is_used() {
    with_two_lanes(async |disk, other, _| {
        disk.close().await;
        assert_eq!(disk.live_paths(), 0);
        other.read(0, 512).await.expect("it logs in again");
        while disk.live_paths() < 2 {
            time::sleep(Duration::from_millis(10)).await;
        }
    });
}

/// Its last owner may be dropped when the lane has ended, and with it the clock.
#[test]
fn a_disk_may_be_dropped_outside_its_lane() {
    let (site, lanes) = site_of(2);
    let disk = site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open_on(sessions(&site, 2, 0), &lanes).await;
        disk.expect("it opens")
    });
    drop(disk);
}

#[test]
fn a_target_that_takes_one_session_is_used_with_one_and_asked_for_more_as_far_as_they_matter() {
    use iscsi::LoginStatus;
    for (spare, status, attempts) in [
        // An optional session, and the target will never accept it.
        (1, LoginStatus::AUTHORIZATION_FAILURE, 0..=0),
        // It may have room later.
        (1, LoginStatus::OUT_OF_RESOURCES, 4..=8),
        (0, LoginStatus::AUTHORIZATION_FAILURE, 4..=8),
    ] {
        let (site, lanes) = site_of(2);
        let has_one = Cell::new(false);
        site.foreign.at_login(move |_| match has_one.replace(true) {
            false => AtLogin::LetIn,
            true => AtLogin::Refuse(status),
        });
        site.world.block_on(&site.client, async {
            let disk = IscsiDisk::open_on(sessions(&site, 2, spare), &lanes).await;
            let disk = disk.expect("one login is enough");
            for other in disk.from_branches().await.expect("the lanes run") {
                other.read(0, 512).await.expect("over the home lane");
                let write = other.write(0, block(1), Durability::Cached);
                write.await.expect("over the home lane");
            }
            let before = site.foreign.attempts.get();
            time::sleep(Duration::from_secs(60)).await;
            let again = site.foreign.attempts.get() - before;
            assert!(attempts.contains(&again), "{again} after {status}");
            site.foreign.at_login(|_| AtLogin::LetIn);
            while !attempts.contains(&0) && disk.live_paths() < 2 {
                time::sleep(Duration::from_millis(10)).await;
            }
            disk.close().await;
        });
    }
}

/// The first write is outstanding when its session is given up, and neither a login nor a reset ends it. Returns
/// the write's task, and a counter of the writes that reach the target.
async fn ghost_write(
    other: &SharedVolume,
    foreign: &Foreign,
) -> (JoinHandle<crate::Result<()>>, Rc<Cell<u32>>) {
    const WRITE_10: u8 = 0x2a;
    const NOT_SUPPORTED: u8 = 5;
    let writes = Rc::new(Cell::new(0));
    let count = writes.clone();
    foreign.reset_response.set(NOT_SUPPORTED);
    foreign.answer(move |cdb| {
        count.set(count.get() + u32::from(cdb[0] == WRITE_10));
        (cdb[0] == WRITE_10 && count.get() == 1).then_some(Instead::Late)
    });
    let writing = {
        let other = other.clone();
        spawn(async move { other.write(0, block(1), Durability::Cached).await })
    };
    foreign.holds(1).await;
    foreign.at_login(|_| AtLogin::Refuse(iscsi::LoginStatus::SERVICE_UNAVAILABLE));
    (writing, writes)
}

#[test]
fn a_write_that_another_lane_has_lost_is_sent_again_when_its_session_is_dead_at_the_target() {
    // A write during which another session hears of the reset does not count, and is sent once more.
    const CROSSED: u32 = 3;
    let sent = (1..=12).map(|seed| {
        let mut sent = 0;
        with_seeded_lanes(seed, async |disk, [one, _two], foreign| {
            let (writing, writes) = ghost_write(one, foreign).await;
            while disk.path_counts().lost == 0 {
                time::sleep(Duration::from_millis(10)).await;
            }
            time::sleep(RECONNECT / 4).await;
            assert_eq!(writes.get(), 1, "it may still happen");
            one.read(0, 512).await.expect("reads go on");
            foreign.reset_response.set(0);
            writing.await.expect("it is sent again");
            sent = writes.get();
            assert_eq!(foreign.first_byte(0), 1);
            foreign.at_login(|_| AtLogin::LetIn);
            disk.flush().await.expect("nothing is lost");
        });
        sent
    });
    let sent: Vec<_> = sent.collect();
    assert!(
        sent.iter().all(|sent| (2..=CROSSED).contains(sent)),
        "{sent:?}"
    );
    assert!(
        sent.iter().filter(|sent| **sent < CROSSED).count() > sent.len() / 2,
        "{sent:?}"
    );
}

#[test]
fn after_a_write_that_has_failed_no_lane_writes_until_it_cannot_happen_any_more() {
    with_lanes(async |disk, [one, two], foreign| {
        let (writing, writes) = ghost_write(one, foreign).await;
        let error = writing.await.expect_err("it may still happen");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        // Between two fencing attempts, each of which holds all commands back.
        time::sleep(Duration::from_millis(500)).await;
        let newer: Vec<_> = [disk.clone() as SharedVolume, one.clone(), two.clone()]
            .into_iter()
            .map(|volume| spawn(async move { volume.write(0, block(2), Durability::Cached).await }))
            .collect();
        time::sleep(Duration::from_millis(200)).await;
        assert_eq!(writes.get(), 1, "the one that has failed");
        foreign.land();
        foreign.reset_response.set(0);
        for newer in newer {
            newer.await.expect("the past is over");
        }
        assert_eq!(foreign.first_byte(0), 2);
        foreign.at_login(|_| AtLogin::LetIn);
    });
}

/// A unit attention reported to a new session, outside any request, is handled before any lane goes on.
#[test]
fn every_lane_sees_that_a_disk_has_grown_whoever_was_told() {
    const I_T_NEXUS_LOSS: [u8; 3] = [UNIT_ATTENTION, 0x29, 0x07];
    with_two_lanes(async |disk, other, foreign| {
        for (len_blocks, lost) in [(4096, 2), (8192, 4)] {
            foreign.len_blocks.set(len_blocks);
            foreign.answer(once(I_T_NEXUS_LOSS));
            foreign.drop_connections();
            while disk.path_counts().lost < lost || disk.live_paths() < 2 {
                time::sleep(Duration::from_millis(10)).await;
            }
            time::sleep(Duration::from_secs(1)).await;
            other.read(0, 512).await.expect("a read");
            let len = 512 * len_blocks;
            assert_eq!(
                (disk.shape().len.bytes(), other.shape().len.bytes()),
                (len, len)
            );
            let write = other.write(len - 512, block(1), Durability::Cached);
            write.await.expect("there is more of it");
            is_let(disk, other).await;
        }
    });
}

#[test]
fn grants_are_revoked_when_every_lane_has_said_that_it_sends_nothing() {
    const WRITE_10: u8 = 0x2a;
    with_two_lanes(async |disk, other, foreign| {
        let writes = Rc::new(Cell::new(0));
        let count = writes.clone();
        foreign.answer(move |cdb| {
            count.set(count.get() + u32::from(cdb[0] == WRITE_10));
            None
        });
        let grants = &disk.unit.grants;
        assert!(!grants.are_revoked());
        let frozen = disk.unit.paths.freeze();
        disk.unit.grants_revoked(|| true).await;
        assert!(grants.are_revoked());
        let writer = other.clone();
        let writing = spawn(async move { writer.write(0, block(1), Durability::Cached).await });
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(writes.get(), 0);
        drop(frozen);
        writing.await.expect("it waited");
        is_let(disk, other).await;
    });
}

#[test]
fn a_claim_that_has_ended_stops_every_lane_at_once() {
    const ILLEGAL_REQUEST: u8 = 0x05;
    with_two_lanes(async |disk, other, foreign| {
        foreign.answer(|cdb| {
            let is_reservation = matches!(cdb[0], 0x5e | 0x5f);
            is_reservation.then_some(Instead::Sense([ILLEGAL_REQUEST, 0x20, 0x00]))
        });
        let claim = Claim::single(&Owner::passing("a test"), Others::Refuse);
        disk.member(Order::Take(claim.clone()))
            .await
            .expect("nobody has it");
        is_let(disk, other).await;
        let before = foreign.commands.get();
        claim.close();
        for volume in [other, &(disk.clone() as SharedVolume)] {
            volume.read(0, 512).await.expect_err("it is not ours");
            let write = volume.write(0, block(1), Durability::Cached);
            write.await.expect_err("it is not ours");
        }
        assert_eq!(foreign.commands.get(), before);
    });
}

#[test]
fn an_owner_that_was_preempted_is_told_so_on_every_lane() {
    const REGISTRATIONS_PREEMPTED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x05];
    const MARK: u64 = LABEL_AT / 512;
    const ILLEGAL_REQUEST: u8 = 0x05;
    let is_reservation = |cdb: &[u8]| matches!(cdb[0], 0x5e | 0x5f);
    let refused = || Instead::Sense([ILLEGAL_REQUEST, 0x20, 0x00]);
    for told in 0..3 {
        with_lanes(async |disk, [one, two], foreign| {
            foreign.answer(move |cdb| is_reservation(cdb).then(refused));
            let claim = Claim::single(&Owner::passing("a test"), Others::Refuse);
            disk.member(Order::Take(claim.clone()))
                .await
                .expect("nobody has it");
            for other in [one, two] {
                is_let(disk, other).await;
            }
            let mark = Claim::single(&Owner::passing("another"), Others::Refuse);
            let mark = mark.block();
            let marked = disk.write(LABEL_AT, mark, Durability::Fua).await;
            marked.expect("a write");
            let mut attention = once(REGISTRATIONS_PREEMPTED);
            foreign.answer(move |cdb| match cdb[0] {
                _ if is_reservation(cdb) => Some(refused()),
                0x28 if u64::from(cdb[5]) | u64::from(cdb[4]) << 8 != MARK => attention(&[]),
                _ => None,
            });
            let all = [disk.clone() as SharedVolume, one.clone(), two.clone()];
            let error = all[told].read(0, 512).await.expect_err("it is another's");
            assert_eq!(error.kind(), ErrorKind::Preempted, "{error}");
            let before = foreign.commands.get();
            for volume in &all {
                let error = volume.read(0, 512).await.expect_err("it is another's");
                assert_eq!(error.kind(), ErrorKind::Preempted, "{error}");
                let write = volume.write(0, block(1), Durability::Cached).await;
                assert_eq!(write.map_err(|e| e.kind()), Err(ErrorKind::Preempted));
            }
            assert_eq!(foreign.commands.get(), before, "nothing is sent");
        });
    }
}

const SLOW: Duration = Duration::from_millis(100);

/// The LUN becomes another disk. The target tells each session once, with the first command that it gets after that,
/// and executes the commands behind that one; `told_to` is the operation code of that command on the lane's session.
fn becomes_another(
    told_to: u8,
    test: impl AsyncFnOnce(&Rc<IscsiDisk>, &SharedVolume) -> Vec<crate::Result<()>>,
) {
    const INQUIRY: u8 = 0x12;
    const REPORTED_LUNS_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x3f, 0x0e];
    with_two_lanes(async |disk, other, foreign| {
        foreign.designators.replace(Some(designators(2)));
        let mut behind = None;
        foreign.answer(move |cdb| match (&mut behind, cdb[0]) {
            (_, INQUIRY) => None,
            (None, code) if code == told_to => {
                behind = Some(3);
                Some(Instead::SlowSense(SLOW, REPORTED_LUNS_CHANGED))
            }
            (Some(1..), _) => {
                behind = behind.map(|left| left - 1);
                None
            }
            // The home lane's session is told by its first command.
            _ => Some(Instead::Sense(REPORTED_LUNS_CHANGED)),
        });
        for done in test(disk, other).await {
            let error = done.expect_err("it is another disk");
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        }
    });
}

#[test]
fn a_lanes_commands_in_flight_when_the_lun_became_another_disk_do_not_count() {
    becomes_another(0x2a, async |_, other| {
        let write = |at: u64| other.write(512 * at, block(1), Durability::Cached);
        join_all((0..4).map(write)).await.into_vec()
    });
    becomes_another(0x28, async |_, other| {
        let reads = (0..4).map(|at: u64| other.read(512 * at, 512));
        let read = join_all(reads).await;
        read.into_iter().map(|read| read.map(drop)).collect()
    });
}

#[test]
fn a_lanes_commands_do_not_count_when_the_home_lane_is_told_that_the_lun_is_another_disk() {
    becomes_another(0x00, async |disk, other| {
        let there = |nexus: &Rc<_>| Nexus::link(nexus).there().is_some();
        let nexus = disk.unit.paths.live().find(there).expect("a session");
        let told = spawn(async move {
            let told = nexus.execute(&cdb::test_unit_ready(), Data::None).await;
            told.map(drop)
        });
        // They are sent after it, and before it is answered.
        time::sleep(SLOW / 2).await;
        let write = |at: u64| other.write(512 * at, block(1), Durability::Cached);
        let written = join_all((0..3).map(write)).await.into_vec();
        told.await.expect("it is told");
        written
    });
}

/// Plants each bug that these tests are meant to catch.
mod planted {
    use crate::planted::{Bug, Planted};

    #[test]
    #[should_panic(expected = "assertion failed: grants.are_revoked()")]
    fn lanes_that_are_not_waited_for_are_found() {
        let _planted = Planted::new(Bug::RevocationNotAwaited);
        super::grants_are_revoked_when_every_lane_has_said_that_it_sends_nothing();
    }

    #[test]
    #[should_panic(expected = "it is not ours")]
    fn lanes_that_do_not_look_at_the_claim_are_found() {
        let _planted = Planted::new(Bug::ClaimUncheckedByLanes);
        super::a_claim_that_has_ended_stops_every_lane_at_once();
    }

    #[test]
    #[should_panic]
    fn lanes_that_write_while_a_lost_nexus_still_may_are_found() {
        let _planted = Planted::new(Bug::LanesGrantedDespiteGhost);
        super::after_a_write_that_has_failed_no_lane_writes_until_it_cannot_happen_any_more();
    }
}
