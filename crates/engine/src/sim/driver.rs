//! The loop that drives all lanes of a world, and advances the clock when all are idle.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use super::{
    WorldConfig,
    keys::{HostId, LaneKey},
    reactor::SimReactor,
    seeds::SeededRun,
    state::WorldState,
    watchdog::Watched,
};
use crate::{
    buf,
    instant::Instant,
    lane::{Inbox, Lane, Pauses, Waiting},
};

pub(super) struct Driver {
    pub(super) state: Rc<RefCell<WorldState>>,
    hosts: RefCell<Vec<HostLanes>>,
    /// The running lanes, in the order in which they started.
    lanes: RefCell<Vec<RunningLane>>,
    /// The inboxes of all lanes that ever existed. Holding them here keeps their ids from being
    /// reused by other lanes of the process, so a late waker of this world cannot disturb one.
    inboxes: RefCell<Vec<Arc<Inbox>>>,
    next_lane: Cell<u32>,
    steps: Cell<u64>,
    /// Turns since all lanes last waited.
    busy_turns: Cell<u64>,
    pub(super) run: SeededRun,
    watched: Watched,
    /// Indices of the lanes that have work, computed anew in each step.
    due: Cell<Vec<usize>>,
    pub(super) running: Cell<Option<HostId>>,
    /// Machines to stop once the current turn is over, and whether by a power cut.
    stops: RefCell<Vec<(HostId, bool)>>,
    config: WorldConfig,
}

struct HostLanes {
    count: usize,
    lanes: Vec<LaneKey>,
}

#[derive(Clone)]
struct RunningLane {
    key: LaneKey,
    host: HostId,
    lane: Rc<Lane>,
    /// It gets no turn before this time.
    held_until: Rc<Cell<Instant>>,
}

impl Driver {
    pub(super) fn new(seed: u64, config: WorldConfig) -> Driver {
        buf::fix_what_is_kept();
        let run = SeededRun::current(seed);
        Driver {
            state: Rc::new(RefCell::new(WorldState::new(seed, config.clone()))),
            hosts: RefCell::default(),
            lanes: RefCell::default(),
            inboxes: RefCell::default(),
            next_lane: Cell::new(0),
            steps: Cell::new(0),
            busy_turns: Cell::new(0),
            watched: Watched::new(run.clone(), config.turn_cpu_max),
            run,
            due: Cell::default(),
            running: Cell::new(None),
            stops: RefCell::default(),
            config,
        }
    }

    /// Adds a machine with `count` lanes and switches it on.
    pub(super) fn add_host(&self, name: &str, count: usize) -> HostId {
        let id = self.state.borrow_mut().add_host(name);
        self.hosts.borrow_mut().push(HostLanes {
            count,
            lanes: Vec::new(),
        });
        self.boot(id);
        id
    }

    /// Ends every lane and everything in flight.
    pub(super) fn end(&self) {
        let lanes = std::mem::take(&mut *self.lanes.borrow_mut());
        for RunningLane { key, lane, .. } in lanes {
            drop(lane);
            self.state.borrow_mut().forget_lane(key);
        }
        let flights = std::mem::take(&mut self.state.borrow_mut().flights);
        drop(flights);
    }

    /// Gives a machine fresh lanes.
    pub(super) fn boot(&self, host: HostId) {
        let mut hosts = self.hosts.borrow_mut();
        let host_lanes = &mut hosts[host.0];
        for _ in 0..host_lanes.count {
            let key = LaneKey(self.next_lane.get());
            self.next_lane.set(key.0 + 1);
            let held_until = Rc::new(Cell::new(Instant::default()));
            let reactor = SimReactor {
                state: self.state.clone(),
                host,
                lane: key,
                held_until: held_until.clone(),
            };
            let inbox = Inbox::register(None);
            self.inboxes.borrow_mut().push(inbox.clone());
            let lane =
                Lane::with_reactor(Box::new(reactor), inbox, Pauses::new(Waiting::Cpu, false));
            let mut random = self.state.borrow_mut().random.fork();
            lane.0.tasks.borrow_mut().chooser = Some(Box::new(move |n| random.index(n)));
            self.limit_calls(&lane, host);
            self.lanes.borrow_mut().push(RunningLane {
                key,
                host,
                lane: Rc::new(lane),
                held_until,
            });
            host_lanes.lanes.push(key);
        }
    }

    /// Lets `lane` of `host` panic if it calls the engine too often in one turn.
    fn limit_calls(&self, lane: &Lane, host: HostId) {
        let calls = self.config.turn_calls_max;
        let name = self.state.borrow().hosts[host.0].name.clone();
        let run = self.run.clone();
        lane.0.calls.limit(Box::new(move || {
            let what = format!(
                "a task on {name} has called the engine {calls} times without waiting: it loops, and no simulated time \
                 passes (Config::turn_calls_max)"
            );
            panic!("{}", run.failed(&what));
        }));
        lane.0.calls.allow(calls);
    }

    /// Runs `turn` on a lane of `host`, within the limits of one turn.
    pub(super) fn within_limits<T>(
        &self,
        lane: &Lane,
        host: HostId,
        turn: impl FnOnce() -> T,
    ) -> T {
        lane.0.calls.allow(self.config.turn_calls_max);
        let before = self.running.replace(Some(host));
        let watched = self.watched.begin_turn();
        let output = turn();
        drop(watched);
        self.running.set(before);
        output
    }

    pub(super) fn is_on(&self, host: HostId) -> bool {
        !self.hosts.borrow()[host.0].lanes.is_empty()
    }

    pub(super) fn lane(&self, host: HostId, n: usize) -> Rc<Lane> {
        let key = self.hosts.borrow()[host.0].lanes.get(n).copied();
        match key.and_then(|key| self.find(key)) {
            Some(lane) => lane,
            None => self.fail(&format!(
                "{} has no lane {n} now: it has fewer, or is switched off",
                self.state.borrow().hosts[host.0].name
            )),
        }
    }

    /// Gives lane `n` of a machine no turn for `d`.
    pub(super) fn hold(&self, host: HostId, n: usize, d: Duration) {
        let key = self.hosts.borrow()[host.0].lanes[n];
        let until = self.state.borrow().now + d;
        let lanes = self.lanes.borrow();
        if let Some(held) = lanes.iter().find(|it| it.key == key) {
            held.held_until.set(until);
        }
    }

    fn find(&self, key: LaneKey) -> Option<Rc<Lane>> {
        let lanes = self.lanes.borrow();
        let found = lanes.iter().find(|running| running.key == key);
        found.map(|running| running.lane.clone())
    }

    pub(super) fn fail(&self, what: &str) -> ! {
        let (now, waiting) = {
            let state = self.state.borrow();
            (state.now.as_ns(), state.describe_waiting())
        };
        let mut tasks = String::new();
        for (host, lanes) in self.hosts.borrow().iter().enumerate() {
            for key in &lanes.lanes {
                if let Some(lane) = self.find(*key) {
                    let alive = lane.0.tasks.borrow().alive();
                    let name = &self.state.borrow().hosts[host].name;
                    tasks.push_str(&format!("\n  {name} has {alive} tasks"));
                }
            }
        }
        let what = format!("at {now} ns: {what}{tasks}{waiting}");
        panic!("{}", self.run.failed(&what))
    }

    /// Stops a machine's software: at once, or after the turn if the machine is running now.
    pub(super) fn stop(&self, host: HostId, power_cut: bool) {
        self.stops.borrow_mut().push((host, power_cut));
        if self.running.get() != Some(host) {
            self.stop_due();
        }
    }

    pub(super) fn stop_due(&self) {
        loop {
            let due = {
                let mut stops = self.stops.borrow_mut();
                let found = stops
                    .iter()
                    .position(|(host, _)| self.running.get() != Some(*host));
                found.map(|at| stops.remove(at))
            };
            let Some((host, power_cut)) = due else {
                return;
            };
            self.state.borrow_mut().stop_host(host, power_cut);
            let keys = std::mem::take(&mut self.hosts.borrow_mut()[host.0].lanes);
            for key in keys {
                let mut lanes = self.lanes.borrow_mut();
                let found = lanes.iter().position(|running| running.key == key);
                let ended = found.map(|at| lanes.remove(at));
                drop(lanes);
                drop(ended);
                self.state.borrow_mut().forget_lane(key);
            }
        }
    }

    /// Runs one turn of one lane, or moves the clock to the next event, but not past `end`. Returns
    /// false if nothing is left that could happen.
    pub(super) fn step(&self, end: Option<Instant>, main: Option<&Rc<Lane>>) -> bool {
        self.steps.set(self.steps.get() + 1);
        if self.steps.get() > self.config.steps_max {
            self.fail("the world does not come to rest: it has exceeded Config::steps_max");
        }
        let mut state = self.state.borrow_mut();
        state.settle();
        let now = state.now;
        drop(state);
        if now.as_ns() > self.config.time_max.as_nanos() as u64 {
            self.fail("the world has exceeded Config::time_max");
        }
        let mut due = self.due.take();
        due.clear();
        let next = self.find_due(&mut due, main);
        let chosen = (!due.is_empty()).then(|| self.choose(&due));
        self.due.set(due);
        if let Some(chosen) = chosen {
            self.run_turn(chosen);
            return true;
        }
        self.busy_turns.set(0);
        let next = match (next, end) {
            (Some(next), Some(end)) => next.min(end),
            (None, Some(end)) => end,
            (Some(next), None) => next,
            (None, None) => return false,
        };
        self.state.borrow_mut().advance(next);
        true
    }

    /// Collects the indices of the lanes that have work, and returns when the others will at the latest, as far as that is
    /// known.
    fn find_due(&self, due: &mut Vec<usize>, main: Option<&Rc<Lane>>) -> Option<Instant> {
        let lanes = self.lanes.borrow();
        let state = self.state.borrow();
        let now = state.now;
        let mut next = state.next_event();
        for (place, running) in lanes.iter().enumerate() {
            let RunningLane { key, lane, .. } = running;
            if !main.is_some_and(|main| Rc::ptr_eq(main, lane)) {
                // The flag comes from a late waker of an earlier block_on.
                lane.0.tasks.borrow_mut().main_woken = false;
            }
            let held_until = running.held_until.get();
            if held_until > now {
                next = Some(next.map_or(held_until, |next| next.min(held_until)));
                continue;
            }
            let deadline = lane.0.timers.borrow().next_deadline();
            if !lane.0.is_idle()
                || state.has_completions(*key)
                || deadline.is_some_and(|deadline| deadline <= now)
            {
                due.push(place);
            }
            if let Some(deadline) = deadline {
                next = Some(next.map_or(deadline, |next| next.min(deadline)));
            }
        }
        next
    }

    /// Chooses one of the lanes that are due.
    fn choose(&self, due: &[usize]) -> RunningLane {
        let mut state = self.state.borrow_mut();
        let chosen = due[state.random.index(due.len())];
        let running = self.lanes.borrow()[chosen].clone();
        state.note(&[8, u64::from(running.key.0)]);
        running
    }

    /// Runs one turn of a lane, which takes a little simulated time.
    fn run_turn(&self, RunningLane { host, lane, .. }: RunningLane) {
        self.busy_turns.set(self.busy_turns.get() + 1);
        if self.busy_turns.get() > self.config.busy_turns_max {
            self.fail(
                "a lane never waits: the world has exceeded Config::busy_turns_max, so a task that is ready again at \
                 once never ends",
            );
        }
        {
            let _entered = lane.0.enter();
            self.within_limits(&lane, host, || lane.0.turn(false));
        }
        drop(lane);
        self.stop_due();
        let mut state = self.state.borrow_mut();
        let takes = state.random.within(&self.config.turn_ns);
        let now = state.now + Duration::from_nanos(takes);
        state.advance(now);
    }
}
