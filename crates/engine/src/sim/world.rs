//! A simulated world as a test sees it: its machines, its clock, its seed.

use std::{
    fmt,
    future::Future,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use super::{Config, Host, Occurred, Random, driver::Driver};
use crate::{
    instant::Instant,
    lane::{Share, Tasks, waker},
};

/// A simulated world; see [`crate::sim`]. Dropping it ends all its tasks.
pub struct World(Rc<Driver>);

impl World {
    /// The world of `seed`, as [`Config`]'s default has it.
    pub fn new(seed: u64) -> World {
        World::with_config(seed, Config::default())
    }

    /// The world of `seed` that behaves as `config` says.
    pub fn with_config(seed: u64, config: Config) -> World {
        World(Rc::new(Driver::new(seed, config)))
    }

    /// What all chance here comes from.
    pub fn seed(&self) -> u64 {
        self.0.state.borrow().seed
    }

    /// Chance for the test's own use: part of the seed, apart from the world's.
    pub fn random(&self) -> Random {
        self.0.state.borrow_mut().random.fork()
    }

    /// A new machine with one lane, switched on. Its address is 10.0.0.1 for the first, and so on.
    pub fn host(&self, name: &str) -> Host {
        self.host_with_lanes(name, 1)
    }

    /// A new machine with `count` lanes.
    pub fn host_with_lanes(&self, name: &str, count: usize) -> Host {
        assert!(count > 0, "a machine has at least one lane");
        Host {
            id: self.0.add_host(name, count),
            world: self.0.clone(),
        }
    }

    /// The present.
    pub fn now(&self) -> Instant {
        self.0.state.borrow().now
    }

    /// A hash of everything that has happened: equal for two runs of the same test with one seed.
    pub fn trace_hash(&self) -> u64 {
        self.0.state.borrow().trace()
    }

    /// The hard cases that have occurred.
    pub fn occurred(&self) -> Occurred {
        self.0.state.borrow().occurred
    }

    /// Drives the world until `future` ends; it runs on the first lane of `host`.
    ///
    /// Panics, naming the seed, when nothing is left that could happen, when virtual time or
    /// steps pass the bound of [`Config`], and when `host` stops.
    pub fn block_on<T>(&self, host: &Host, future: impl Future<Output = T>) -> T {
        let world = &*self.0;
        let lane = world.lane(host.id, 0);
        let _entered = lane.0.enter();
        let waker = waker(lane.0.inbox.id, Tasks::MAIN);
        let mut cx = Context::from_waker(&waker);
        let mut future = std::pin::pin!(future);
        lane.0.tasks.borrow_mut().main_woken = true;
        loop {
            if std::mem::take(&mut lane.0.tasks.borrow_mut().main_woken) {
                let before = world.running.replace(Some(host.id));
                lane.0.shares.enter(Share::COMMON);
                let poll = future.as_mut().poll(&mut cx);
                world.running.set(before);
                world.stop_due();
                if let Poll::Ready(output) = poll {
                    return output;
                }
            }
            if Rc::strong_count(&lane) == 1 {
                world.fail("the machine of block_on has stopped");
            }
            if !world.step(None, Some(&lane)) {
                world.fail("deadlock: no lane has anything to do");
            }
        }
    }

    /// Lets the world run for `d` of its time.
    pub fn run_for(&self, d: Duration) {
        let end = self.now() + d;
        while self.now() < end {
            self.0.step(Some(end), None);
        }
    }

    /// Ends all its tasks, as dropping it does: for those that hold what holds the world.
    pub fn end(&self) {
        self.0.end();
    }

    /// Cuts the network between two machines: what is sent waits, connections live on until an
    /// end gives up. [`World::heal`] ends it.
    pub fn partition(&self, a: &Host, b: &Host) {
        a.partition(b);
    }

    /// Lets two machines reach each other again.
    pub fn heal(&self, a: &Host, b: &Host) {
        a.heal(b);
    }

    /// See [`Host::power_cut`].
    pub fn power_cut(&self, host: &Host) {
        host.power_cut();
    }

    /// See [`Host::restart`].
    pub fn restart(&self, host: &Host) {
        host.restart();
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World(seed {} at {:?})", self.seed(), self.now())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Tasks may hold hosts and so the world: end them here, or nobody will.
        self.end();
    }
}
