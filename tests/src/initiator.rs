//! The product's own initiator as a client of the tests: a lane to run it on, its settings for a
//! disk by URL, and requests by the dozen.

use crate::sanstone::IQN;
use engine::{Duration, Lane, LaneConfig, LaneHandle, task, time};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use volume::{IscsiConfig, IscsiDisk, Multipath};

/// Runs a test on a lane of its own, in this thread.
///
/// # Panics
/// If the kernel refuses a ring.
pub fn on_lane<T>(test: impl Future<Output = T>) -> T {
    let lane = Lane::new(&LaneConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    lane.block_on(test)
}

/// As [`on_lane`], with a second lane on a thread of its own; `test` gets both, its own first.
///
/// # Panics
/// If the kernel refuses a ring.
pub fn on_two_lanes<T>(test: impl AsyncFnOnce(&[LaneHandle]) -> T) -> T {
    let new = || Lane::new(&LaneConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let is_over = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let lane = new();
            sender.send(lane.handle()).expect("the test waits");
            lane.block_on(async {
                while !is_over.load(Ordering::Acquire) {
                    time::sleep(Duration::from_millis(10)).await;
                }
            });
        });
        let other = receiver.recv().expect("the lane starts");
        // Also when the test fails.
        let _ends = Ends(&is_over);
        let lane = new();
        let lanes = [lane.handle(), other];
        lane.block_on(test(&lanes))
    })
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// How to reach LUN 0 of [`IQN`] on this port of 127.0.0.1, with times that suit a test.
pub fn on_port(port: u16) -> IscsiConfig {
    at_url(&format!("iscsi://127.0.0.1:{port}/{IQN}/0"))
}

/// How to reach the disk at `iscsi://ADDRESS:PORT/IQN/LUN`, with times that suit a test.
///
/// # Panics
/// If it is no such URL.
pub fn at_url(url: &str) -> IscsiConfig {
    let parts: Vec<&str> = url.trim_start_matches("iscsi://").split('/').collect();
    let [address, target, lun] = parts[..] else {
        panic!("{url} is no iscsi://ADDRESS:PORT/IQN/LUN");
    };
    IscsiConfig {
        address: address.parse().expect("an address with a port"),
        target_name: target.to_owned(),
        lun: lun.parse().expect("a LUN"),
        initiator_name: "iqn.2026-11.io.sanstone:tests".to_owned(),
        isid: volume::next_isid(),
        multipath: Multipath::default(),
        chap: None,
        header_digest: false,
        data_digest: false,
        connect_timeout: Duration::from_secs(20),
        request_timeout: Duration::from_secs(20),
        reconnect_timeout: Duration::from_secs(20),
    }
}

/// Opens the disk, again if a pause of this machine was longer than the time for a login; for a
/// minute at most.
///
/// # Panics
/// If it cannot be opened.
pub async fn opened(config: IscsiConfig) -> Rc<IscsiDisk> {
    let deadline = time::now() + Duration::from_secs(60);
    loop {
        match IscsiDisk::open(config.clone()).await {
            Ok(disk) => return disk,
            Err(error) => assert!(time::now() < deadline, "no login: {error}"),
        }
    }
}

/// A clock that stands still while this lane does: for times that the product must keep, and that a
/// pause of the machine must not lengthen.
#[derive(Debug)]
pub struct Awake(Rc<Cell<Duration>>);

impl Awake {
    /// It starts now.
    pub fn begin() -> Awake {
        const TICK: Duration = Duration::from_millis(20);
        let passed = Rc::new(Cell::new(Duration::ZERO));
        let ticking = passed.clone();
        task::spawn(async move {
            while Rc::strong_count(&ticking) > 1 {
                let before = time::now();
                time::sleep(TICK).await;
                ticking.set(ticking.get() + (time::now() - before).min(2 * TICK));
            }
        });
        Awake(passed)
    }

    /// How long this lane has been awake since.
    pub fn elapsed(&self) -> Duration {
        self.0.get()
    }
}

/// Does `work` for each number below `count`, `depth` at a time, in that order of beginning.
pub async fn in_flight<F: Future<Output = ()>>(
    depth: usize,
    count: usize,
    work: impl Fn(usize) -> F,
) {
    let next = Rc::new(Cell::new(0));
    let worker = || async {
        loop {
            let number = next.replace(next.get() + 1);
            if number >= count {
                return;
            }
            work(number).await;
        }
    };
    task::join_all((0..depth.min(count)).map(|_| Box::pin(worker()))).await;
}
