//! Tests loads in virtual time, where the correct results are known.

use std::rc::Rc;

use engine::{sim::World, spawn, time};
use volume::{
    config::Rate,
    layer::{
        fault::{Fault, FaultAction, FaultHandle, Rule},
        throttle::Throttle,
    },
    leaf::ram::Region,
};

use super::*;

const MS: Duration = Duration::from_millis(1);

/// A disk in memory that takes `latency` for each request, with a handle that can stall it.
fn disk(latency: Duration) -> (Lun, FaultHandle) {
    let ram = Region::new(4 << 20, 512).expect("little memory");
    let rate = Rate::from_bits_per_s(1 << 50).expect("above zero");
    let link = Throttle::new(Rc::new(ram.on_lane()), rate, latency);
    let handle = FaultHandle::new();
    let volume: SharedVolume = Rc::new(Fault::new(Rc::new(link), handle.clone()));
    (Lun::from(volume), handle)
}

async fn load(luns: &[Lun], workload: &Workload, duration: Duration) -> Done {
    let loaded = generate(luns, workload, duration, &Stop::default()).await;
    loaded.expect("it answers")
}

/// Loads a disk with a latency of one millisecond for two seconds, during which it stalls for `stopped`.
fn stopped_for(stopped: Duration, arrivals: Arrivals) -> Done {
    let world = World::new(1);
    let host = world.host("a");
    world.block_on(&host, async move {
        let (lun, handle) = disk(MS);
        spawn(async move {
            time::sleep(700 * MS).await;
            if !stopped.is_zero() {
                handle.add(Rule::always(FaultAction::Hang));
                time::sleep(stopped).await;
                handle.clear();
            }
        });
        let workload = Workload {
            arrivals,
            ..Workload::closed(Operation::Read, 4096, 1)
        };
        load(&[lun], &workload, 2000 * MS).await
    })
}

const EVEN: Arrivals = Arrivals::Open {
    rate_per_s: 100.0,
    spacing: Spacing::Even,
};

#[test]
fn the_open_loop_shows_the_latency_that_coordinated_omission_hides() {
    let quiet = stopped_for(Duration::ZERO, EVEN);
    assert!(
        quiet.quantile_us(1.0) < 1_100.0,
        "{}",
        quiet.quantile_us(1.0)
    );

    // The disk stalls for a quarter of the time. Of the I/Os that arrive in these 500 ms, the first waits for
    // all of them and the last for none. So an eighth of all I/Os wait longer than 250 ms.
    let open = stopped_for(500 * MS, EVEN);
    assert_eq!(open.ios, 199);
    assert_eq!(open.not_begun, 0);
    let p99 = open.quantile_us(0.99);
    assert!((470_000.0..505_000.0).contains(&p99), "{p99}");
    let p875 = open.quantile_us(0.875);
    assert!((230_000.0..270_000.0).contains(&p875), "{p875}");
    // The generator was on time: the disk was late.
    assert!(open.late_ns.max() < 1_000_000, "{}", open.late_ns.max());
    let longest = open.series.iter().map(|point| point.queue).max();
    assert!((48..=51).contains(&longest.unwrap_or(0)), "{longest:?}");

    // The closed loop had a single I/O in flight meanwhile.
    let closed = stopped_for(500 * MS, Arrivals::Closed { outstanding: 1 });
    let p99 = closed.quantile_us(0.99);
    assert!(p99 < 1_100.0, "{p99}");
}

/// The mean latency of all I/Os, and of the watched ones, in microseconds, on a disk with bursts of slow I/Os.
fn means_in_bursts(arrivals: Arrivals) -> [f64; 2] {
    let world = World::new(1);
    let host = world.host("a");
    let done = world.block_on(&host, async move {
        let (lun, handle) = disk(MS / 5);
        for burst in 1..=40 {
            handle.add(Rule {
                skip: 460 * burst,
                times: Some(60),
                ..Rule::always(FaultAction::Delay(8 * MS))
            });
        }
        let workload = Workload {
            arrivals,
            is_watched: true,
            ios_max: Some(20_000),
            ..Workload::closed(Operation::Read, 4096, 1)
        };
        load(&[lun], &workload, 60_000 * MS).await
    });
    let seen = done.seen.iter().map(|io| io.service_ns as f64 / 1e3);
    let count = done.seen.len() as f64;
    assert!(count > 250.0, "{count}");
    [done.service_ns.mean() / 1e3, seen.sum::<f64>() / count]
}

#[test]
fn the_watched_are_as_slow_as_all_of_them_also_in_bursts() {
    let open = Arrivals::Open {
        rate_per_s: 500.0,
        spacing: Spacing::Even,
    };
    for arrivals in [Arrivals::Closed { outstanding: 1 }, open] {
        let [all, seen] = means_in_bursts(arrivals);
        // A burst more or less among some three hundred watched.
        assert!(
            (0.7..1.4).contains(&(seen / all)),
            "{arrivals:?}: {seen} of {all}"
        );
    }
}

#[test]
fn a_closed_loop_keeps_its_number_outstanding_and_agrees_with_little() {
    let done = stopped_for(Duration::ZERO, Arrivals::Closed { outstanding: 32 });
    assert!((done.iops() - 32_000.0).abs() < 320.0, "{}", done.iops());
    assert!(
        (done.mean_queue() - 32.0).abs() < 0.5,
        "{}",
        done.mean_queue()
    );
    let by_little = done.queue_by_little();
    assert!((by_little - 32.0).abs() < 0.7, "{by_little}");
}

#[test]
fn a_closed_loop_begins_the_next_when_one_has_ended() {
    let lane = engine::Lane::new(&engine::LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let luns = [disk(MS).0];
        let workload = Workload::closed(Operation::Read, 4096, 256);
        let done = load(&luns, &workload, 300 * MS).await;
        let mut queues: Vec<u64> = done.series.iter().map(|point| point.queue).collect();
        queues.sort_unstable();
        // Independent of this machine's speed: only in its last moments does it have fewer.
        assert_eq!(queues[queues.len() / 2], 256);
    });
}

#[test]
fn poisson_arrivals_keep_their_rate_and_agree_with_little() {
    let arrivals = Arrivals::Open {
        rate_per_s: 5000.0,
        spacing: Spacing::Poisson,
    };
    let done = stopped_for(Duration::ZERO, arrivals);
    assert!((done.iops() - 5000.0).abs() < 150.0, "{}", done.iops());
    let (seen, by_little) = (done.mean_queue(), done.queue_by_little());
    assert!(
        (seen / by_little - 1.0).abs() < 0.15,
        "{seen} and {by_little}"
    );
}

#[test]
fn a_rate_above_what_the_disk_can_do_is_seen_in_the_queue_and_in_what_did_not_begin() {
    let world = World::new(1);
    let host = world.host("a");
    let done = world.block_on(&host, async {
        // One at a time through the adapter: 1,000 per second.
        let (lun, _) = disk(MS);
        let workload = Workload {
            arrivals: Arrivals::Open {
                rate_per_s: 8000.0,
                spacing: Spacing::Even,
            },
            adapter: Some(Adapter {
                per_lun: 1,
                total: 4,
            }),
            ..Workload::closed(Operation::Read, 4096, 1)
        };
        load(&[lun], &workload, 1000 * MS).await
    });
    assert!((done.iops() - 1000.0).abs() < 20.0, "{}", done.iops());
    assert!(done.not_begun > 2000, "{}", done.not_begun);
    let longest = done.series.iter().map(|point| point.queue).max();
    assert!(longest > Some(6000), "{longest:?}");
    assert!(done.series.iter().all(|point| point.at_volume <= 1));
    // The disk's own latency is unchanged.
    assert!(
        done.service_ns.max() < 1_100_000,
        "{}",
        done.service_ns.max()
    );
    assert!(done.late_ns.max() < 1_000_000, "{}", done.late_ns.max());
}

#[test]
fn an_adapter_limits_each_disk_and_all_of_them() {
    let world = World::new(1);
    let host = world.host("a");
    world.block_on(&host, async {
        for (luns, expected) in [(1, 4.0), (2, 8.0), (4, 10.0)] {
            let luns: Vec<Lun> = (0..luns).map(|_| disk(MS).0).collect();
            let workload = Workload {
                adapter: Some(Adapter {
                    per_lun: 4,
                    total: 10,
                }),
                ..Workload::closed(Operation::Read, 4096, 64)
            };
            let done = load(&luns, &workload, 300 * MS).await;
            let at_once = done.iops() / 1000.0;
            assert!(
                (at_once / expected - 1.0).abs() < 0.05,
                "{at_once}, not {expected}"
            );
        }
    });
}

#[test]
fn verified_writes_are_read_again_and_a_lost_one_is_found() {
    let world = World::new(1);
    let host = world.host("a");
    world.block_on(&host, async {
        let (mut lun, handle) = disk(MS / 10);
        lun.ledger = Some(Rc::new(Ledger::new(64 << 10, 4096).expect("small")));
        let mut workload = Workload::closed(Operation::Write, 4096, 12);
        workload.read_percent = 50;
        workload.span_bytes = Some(64 << 10);
        // Two sessions with one disk.
        let luns = [lun.clone(), lun.clone()];
        let done = generate(&luns, &workload, 500 * MS, &Stop::default()).await;
        assert!(done.expect("all is as it was written").ios > 10_000);

        // A disk that forgets acknowledged writes.
        let forgetful = disk(MS / 10).0.volume;
        lun.volume = forgetful;
        let error = generate(&[lun], &workload, 500 * MS, &Stop::default()).await;
        let error = error.expect_err("it is noticed").to_string();
        assert!(error.contains("verify"), "{error}");
        assert_eq!(handle.acted(), 0);
    });
}

#[test]
fn the_first_error_ends_a_load_and_a_stop_keeps_what_was_measured() {
    let world = World::new(1);
    let host = world.host("a");
    world.block_on(&host, async {
        let (lun, handle) = disk(MS);
        let workload = Workload::closed(Operation::Read, 4096, 4);
        let stop = Stop::default();
        let asked = stop.clone();
        spawn(async move {
            time::sleep(100 * MS).await;
            asked.0.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let begun = time::now();
        let done = generate(std::slice::from_ref(&lun), &workload, 60_000 * MS, &stop).await;
        assert!((390..=410).contains(&done.expect("it was stopped").ios));
        assert!(time::now() - begun < 200 * MS);

        handle.add(Rule::always(FaultAction::Fail(volume::ErrorKind::Medium)));
        let failed = generate(
            std::slice::from_ref(&lun),
            &workload,
            60_000 * MS,
            &Stop::default(),
        )
        .await;
        assert_eq!(
            failed.expect_err("it fails").kind(),
            volume::ErrorKind::Medium
        );

        let odd = Workload::closed(Operation::Read, 1000, 1);
        let error = generate(&[lun], &odd, MS, &Stop::default()).await;
        let error = error.expect_err("no whole blocks").to_string();
        assert!(error.contains("1000 bytes are not whole blocks"), "{error}");
    });
}

#[test]
fn a_disk_with_data_is_told_from_an_empty_one_and_from_our_own() {
    let world = World::new(1);
    let host = world.host("a");
    world.block_on(&host, async {
        let volume = disk(Duration::ZERO).0.volume;
        assert!(is_free_to_write(&volume).await.expect("it reads"));
        fill(&*volume).await.expect("it writes");
        assert!(is_free_to_write(&volume).await.expect("it reads"));
        let data = Payload::from(engine::Buf::copy_of(&[7; 512]));
        let written = volume.write(65536, data, Durability::Cached).await;
        written.expect("it writes");
        assert!(!is_free_to_write(&volume).await.expect("it reads"));
    });
}
