//! The target is stopped (SIGSTOP): its machine still acknowledges TCP segments, but nothing answers. If that is
//! shorter than the time limits, it is a pause; if longer, requests fail in time, and afterwards the disk can be used
//! again.

use engine::{Buf, Duration, Payload, task, time};
use harness::directory::Directory;
use harness::initiator::{Awake, on_lane, on_port, opened};
use harness::sanstone::Sanstone;
use std::rc::Rc;
use volume::{Durability, ErrorKind, IscsiConfig, IscsiDisk, Volume};

fn share(cache: &str) -> Sanstone {
    let directory = Directory::new();
    let volume = format!(
        "[volume.disk]\nfile = {{ path = \"disk.img\", size = \"16MiB\", cache = \"{cache}\" }}\n"
    );
    Sanstone::serve(directory.path(), &volume, &["disk"]).owning(directory)
}

fn with_limits(server: &Sanstone, request_s: u64, reconnect_s: u64) -> IscsiConfig {
    let mut config = on_port(server.port());
    config.connect_timeout = Duration::from_secs(1);
    config.request_timeout = Duration::from_secs(request_s);
    config.reconnect_timeout = Duration::from_secs(reconnect_s);
    config
}

fn block(byte: u8) -> Payload {
    Buf::copy_of(&[byte; 4096]).into()
}

/// 16 durable writes that begin now.
fn writes(disk: &Rc<IscsiDisk>, byte: u8) -> Vec<task::JoinHandle<volume::Result<()>>> {
    let write = |i: u64| {
        let disk = disk.clone();
        task::spawn(async move { disk.write(i * 4096, block(byte), Durability::Fua).await })
    };
    (0..16).map(write).collect()
}

/// 16 durable writes that succeed, retried for a minute at most, because a pause of this machine may exceed the limits.
async fn written(disk: &Rc<IscsiDisk>, byte: u8) {
    let deadline = time::now() + Duration::from_secs(60);
    while let Err(error) = task::join_all(writes(disk, byte))
        .await
        .into_iter()
        .collect::<volume::Result<()>>()
    {
        assert!(time::now() < deadline, "no write: {error}");
    }
}

async fn all_hold(disk: &IscsiDisk, byte: u8) {
    let read = disk.read(0, 16 * 4096).await.expect("a read").to_vec();
    assert!(read.iter().all(|&found| found == byte));
}

#[test]
fn a_short_standstill_is_a_pause() {
    let mut server = share("direct");
    on_lane(async {
        let disk = opened(with_limits(&server, 60, 60)).await;
        server.daemon().stop();
        let writing = writes(&disk, 1);
        time::sleep(Duration::from_secs(2)).await;
        server.daemon().signal("CONT");
        for result in task::join_all(writing).await {
            result.expect("it waited");
        }
        all_hold(&disk, 1).await;
        disk.flush().await.expect("a flush");
    });
    let log = server.daemon().log();
    assert_eq!(log.matches("logged in").count(), 1, "one session:\n{log}");
}

#[test]
fn a_standstill_beyond_the_request_timeout_costs_the_session_and_no_io() {
    let mut server = share("direct");
    on_lane(async {
        let disk = opened(with_limits(&server, 1, 60)).await;
        let written = disk.write(1 << 20, block(9), Durability::Cached).await;
        written.expect("a write");
        server.daemon().stop();
        let writing = writes(&disk, 2);
        time::sleep(Duration::from_secs(4)).await;
        server.daemon().signal("CONT");
        for result in task::join_all(writing).await {
            result.expect("it was sent again");
        }
        all_hold(&disk, 2).await;
        // The target reports only the loss of the session, so no unflushed data is lost.
        disk.flush().await.expect("a flush");
    });
}

#[test]
fn a_long_standstill_is_an_error_in_time_and_not_for_ever() {
    let mut server = share("direct");
    on_lane(async {
        let disk = opened(with_limits(&server, 1, 2)).await;
        written(&disk, 3).await;
        server.daemon().stop();
        let begun = Awake::begin();
        for result in task::join_all(writes(&disk, 4)).await {
            let error = result.expect_err("nobody answers");
            let kinds = [ErrorKind::TimedOut, ErrorKind::Unreachable];
            assert!(kinds.contains(&error.kind()), "{error}");
        }
        let took = begun.elapsed();
        // A second for the request, two to come back, and one for each of two attempts to log in.
        assert!(took < Duration::from_secs(6), "errors came after {took:?}");
        server.daemon().signal("CONT");
        written(&disk, 5).await;
        all_hold(&disk, 5).await;
    });
}

#[test]
fn every_flush_waits_for_the_target() {
    let mut server = share("direct");
    on_lane(async {
        let disk = opened(with_limits(&server, 60, 60)).await;
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("a write");
        server.daemon().stop();
        let flush = || {
            let disk = disk.clone();
            task::spawn(async move { disk.flush().await })
        };
        let flushes = [flush(), flush()];
        time::sleep(Duration::from_millis(300)).await;
        let early = flushes.iter().filter(|flush| flush.is_finished()).count();
        server.daemon().signal("CONT");
        assert_eq!(early, 0, "a flush ended while the target stood still");
        for result in task::join_all(flushes).await {
            result.expect("a flush");
        }
    });
}
