//! A simulated world as a test sees it: its machines, its clock, its seed.

use std::{
    fmt,
    future::Future,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use super::{Host, Occurred, Random, WorldConfig, driver::Driver};
use crate::{
    instant::Instant,
    lane::{Share, Tasks, waker},
};

/// A simulated world; see [`crate::sim`]. Dropping it ends all its tasks.
pub struct World(Rc<Driver>);

impl World {
    /// A world with the default [`WorldConfig`], driven by `seed`.
    pub fn new(seed: u64) -> World {
        World::with_config(seed, WorldConfig::default())
    }

    /// A world with `config`, driven by `seed`.
    pub fn with_config(seed: u64, config: WorldConfig) -> World {
        World(Rc::new(Driver::new(seed, config)))
    }

    /// The seed from which all randomness here derives.
    pub fn seed(&self) -> u64 {
        self.0.run.seed
    }

    /// Random numbers for the test's own use: derived from the seed, independent of the world's.
    pub fn random(&self) -> Random {
        self.0.state.borrow_mut().random.fork()
    }

    /// Adds a machine with one lane and switches it on. Addresses are 10.0.0.1 for the first machine, and so on.
    pub fn host(&self, name: &str) -> Host {
        self.host_with_lanes(name, 1)
    }

    /// Adds a machine with `count` lanes.
    pub fn host_with_lanes(&self, name: &str, count: usize) -> Host {
        assert!(count > 0, "a machine has at least one lane");
        Host {
            id: self.0.add_host(name, count),
            world: self.0.clone(),
        }
    }

    /// The current virtual time.
    pub fn now(&self) -> Instant {
        self.0.state.borrow().now
    }

    /// A hash of everything that has happened: equal for two runs of the same test with the same seed.
    pub fn trace_hash(&self) -> u64 {
        self.0.state.borrow().trace()
    }

    /// Counts of the hard cases that have occurred.
    pub fn occurred(&self) -> Occurred {
        self.0.state.borrow().occurred
    }

    /// Drives the world until `future` ends, running it on the first lane of `host`.
    ///
    /// Panics, naming the seed, if nothing is left that could happen, if virtual time or steps
    /// exceed the bounds of [`WorldConfig`], or if `host` stops.
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
                lane.0.shares.enter(Share::COMMON);
                let poll = world.within_limits(&lane, host.id, || future.as_mut().poll(&mut cx));
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

    /// Runs the world for `d` of virtual time.
    pub fn run_for(&self, d: Duration) {
        let end = self.now() + d;
        while self.now() < end {
            self.0.step(Some(end), None);
        }
    }

    /// Ends all tasks, as dropping the world does: for tests whose tasks keep the world alive.
    pub fn end(&self) {
        self.0.end();
    }

    /// Cuts the network between two machines until [`World::heal`]: packets wait, and connections
    /// survive until an end gives up.
    pub fn partition(&self, a: &Host, b: &Host) {
        a.partition(b);
    }

    /// Ends the partition between two machines.
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
        // Tasks may hold hosts and thereby the world, so nothing else would end them.
        self.end();
    }
}
