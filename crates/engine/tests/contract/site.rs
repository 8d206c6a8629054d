//! The environment of a contract test: a lane with a directory and two neighbour lanes, real or simulated.

use std::{
    future::{Future, poll_fn},
    net::SocketAddr,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, mpsc},
    task::{Poll, Waker},
    thread,
    time::Duration,
};

use engine::{
    Buf, Lane, LaneConfig, LaneHandle,
    sim::{World, seeds},
    time,
};

/// The number of seeds for each contract test in the simulation.
const SEEDS: u64 = 20;

pub(crate) struct Site {
    dir: PathBuf,
    /// Another lane of the same machine.
    pub(crate) other: LaneHandle,
    /// A lane that [`Site::end_doomed`] ends.
    pub(crate) doomed: LaneHandle,
    end_doomed: Box<dyn Fn()>,
}

impl Site {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn end_doomed(&self) {
        (self.end_doomed)();
    }
}

/// Loopback with any free port.
pub(crate) fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// `n` random bytes, determined by `salt`.
pub(crate) fn pattern(n: usize, salt: u64) -> Buf {
    let mut buf = Buf::new(n);
    engine::sim::Random::new(salt).fill(&mut buf);
    buf
}

/// Polls `future` once and asserts that it is pending.
pub(crate) async fn begin<F: Future>(future: Pin<&mut F>) {
    let mut future = Some(future);
    poll_fn(|cx| {
        if let Some(future) = future.take() {
            assert!(future.poll(cx).is_pending());
        }
        Poll::Ready(())
    })
    .await;
}

pub(crate) const MS: Duration = Duration::from_millis(1);

/// A thread that runs a lane until told to stop.
struct Neighbour {
    handle: LaneHandle,
    stop: Arc<Mutex<(bool, Option<Waker>)>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Neighbour {
    fn start() -> Neighbour {
        let stop = Arc::new(Mutex::new((false, None::<Waker>)));
        let stopped = stop.clone();
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let lane = Lane::new(&small()).expect("a ring");
            sender.send(lane.handle()).expect("the test waits for it");
            lane.block_on(poll_fn(|cx| {
                let mut stopped = stopped.lock().expect("nobody panics here");
                stopped.1 = Some(cx.waker().clone());
                if stopped.0 {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }));
        });
        Neighbour {
            handle: receiver.recv().expect("the thread sends it"),
            stop,
            thread: Some(thread),
        }
    }

    fn end(&mut self) {
        let waker = {
            let mut stop = self.stop.lock().expect("nobody panics here");
            stop.0 = true;
            stop.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the neighbour ends well");
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.end();
    }
}

/// A ring small enough for the tests to overflow it.
fn small() -> LaneConfig {
    LaneConfig {
        entries: 16,
        ..LaneConfig::default()
    }
}

pub(crate) fn on_the_ring<F: Future<Output = ()>>(name: &str, test: impl FnOnce(Site) -> F) {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("contract-{name}"));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a directory for the test");
    let other = Neighbour::start();
    let doomed = Arc::new(Mutex::new(Neighbour::start()));
    let ended = doomed.clone();
    let site = Site {
        dir: dir.clone(),
        other: other.handle.clone(),
        doomed: doomed.lock().expect("nobody panics here").handle.clone(),
        end_doomed: Box::new(move || ended.lock().expect("nobody panics here").end()),
    };
    let lane = Lane::new(&small()).expect("a ring");
    let done = lane.block_on(async { time::timeout(Duration::from_secs(300), test(site)).await });
    assert!(done.is_some(), "the test hangs");
    drop(lane);
    let _ = std::fs::remove_dir_all(&dir);
}

pub(crate) fn in_the_simulation<F: Future<Output = ()>>(test: impl Fn(Site) -> F) {
    seeds(SEEDS, |seed| {
        let world = World::new(seed);
        let here = world.host_with_lanes("here", 2);
        let there = world.host("there");
        let site = Site {
            dir: PathBuf::from("/"),
            other: here.lane(1),
            doomed: there.lane(0),
            end_doomed: Box::new(move || there.kill()),
        };
        world.block_on(&here, test(site));
    });
}
