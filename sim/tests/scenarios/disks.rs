//! Failing disks: errors are reported, a failed flush is sticky, and nothing else goes wrong.

use engine::{
    sim::{FaultKind, InjectedFault, Occurred, seeds},
    spawn, time,
};
use sim::{
    Setup, Site, assert_occurred,
    raw::RawSession,
    workload::{self, Load, Tally, check_all, random_time},
};
use volume::ErrorKind;

use crate::MS;

const EIO: i32 = 5;

/// What the world and the client have met.
fn faulty_round(seed: u64, setup: Setup, kind: FaultKind) -> (Occurred, Tally) {
    let site = Site::new(seed, setup);
    let tally = site.run(async {
        let volume = site.open().await;
        let index = site.world.random().index(site.targets.len());
        let host = site.targets[index].host.clone();
        let faults = {
            let (host, mut random) = (host.clone(), site.world.random());
            spawn(async move {
                for _ in 0..3 {
                    time::sleep(random_time(&mut random, 40 * MS)).await;
                    let times = Some(1 + random.below(3) as u32);
                    host.add_fault(InjectedFault {
                        times,
                        ..InjectedFault::new(kind, EIO)
                    });
                }
            })
        };
        let load = Load {
            errors: true,
            ..Load::default()
        };
        let tally = workload::run(&site, &volume, load).await;
        faults.await;
        host.clear_faults();
        if kind == FaultKind::Read {
            assert_eq!(tally.flush_failed, []);
        }
        for kind in &tally.failed {
            let expected = [ErrorKind::Medium, ErrorKind::FlushFailed];
            assert!(expected.contains(kind), "{kind:?}");
        }
        check_all(&site, &volume).await;
        // The target opens its file again, and so does the client.
        site.targets[index].kill();
        site.targets[index].restart();
        if kind == FaultKind::Sync {
            site.model.borrow_mut().sync_failed();
        }
        let volume = site.reopen(volume).await;
        check_all(&site, &volume).await;
        let load = Load {
            requests: 20,
            ..Load::default()
        };
        workload::run(&site, &volume, load).await;
        workload::flush(&site, &volume).await.expect("a new start");
        site.power_cut(index);
        site.targets[index].restart();
        check_all(&site, &site.reopen(volume).await).await;
        tally
    });
    (site.world.occurred(), tally)
}

/// Seen through the target alone, without our initiator, which would remember failures itself.
#[test]
fn a_failed_sync_is_told_to_every_session_until_the_file_is_opened_again() {
    const SYNCHRONIZE_CACHE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    const HARDWARE_ERROR: u8 = 4;
    seeds(100, |seed| {
        let mut setup = Setup::draw(seed).volatile();
        setup.served.block_size_bytes = 512;
        let site = Site::new(seed, setup);
        site.run(async {
            let target = &site.targets[0];
            target.ready().await;
            // Which session asks, the sense key of the flush, and whether the write before it is refused.
            for (session, key, refused) in [
                ("one", 0, false),
                ("one", HARDWARE_ERROR, false),
                ("two", HARDWARE_ERROR, true),
                ("one", 0, false),
            ] {
                let session = RawSession::login_as(&site, 0, session).await;
                let write = session.execute(&WRITE, &[1; 8 * 512], 0).await;
                let flush = session.execute(&SYNCHRONIZE_CACHE, &[], 0).await;
                assert_eq!(flush.expect("an answer").sense[0], key);
                assert_eq!(write.expect("an answer").status != Some(0), refused);
                if key == 0 {
                    target.host.add_fault(InjectedFault {
                        times: Some(1),
                        ..InjectedFault::new(FaultKind::Sync, EIO)
                    });
                } else if refused {
                    target.host.clear_faults();
                    target.kill();
                    target.restart();
                    target.ready().await;
                }
            }
        });
    });
}

#[test]
fn a_sector_that_does_not_read_fails_its_reads() {
    let (mut faults, mut told) = (0, 0);
    seeds(100, |seed| {
        let (met, tally) = faulty_round(seed, Setup::draw(seed), FaultKind::Read);
        faults += met.faults_hit;
        told += tally.failed.len() as u64;
    });
    assert_occurred([("faults", faults), ("reads that failed", told)]);
}

#[test]
fn a_write_that_fails_is_told_and_may_have_happened() {
    let (mut faults, mut told) = (0, 0);
    seeds(200, |seed| {
        let (met, tally) = faulty_round(seed, Setup::draw(seed), FaultKind::Write);
        faults += met.faults_hit;
        told += tally.failed.len() as u64;
    });
    assert_occurred([("faults", faults), ("writes that failed", told)]);
}

#[test]
fn a_sync_that_fails_is_sticky_and_told() {
    let (mut faults, mut told) = (0, 0);
    seeds(200, |seed| {
        let setup = Setup::draw(seed).volatile();
        let (met, tally) = faulty_round(seed, setup, FaultKind::Sync);
        faults += met.faults_hit;
        told += tally.flush_failed.len() as u64;
    });
    assert_occurred([("faults", faults), ("flushes that failed", told)]);
}
