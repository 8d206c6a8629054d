//! The lane: one thread's executor and reactor, and the loop that drives both.
//!
//! Each turn runs ready tasks (each [share](crate::share) only up to its limit), fires due timers, submits the
//! operations that the tasks asked for, and takes completions. With nothing to do, the lane spins for a while where
//! that pays (`pause.rs`), then sleeps.

#[cfg(feature = "sim")]
mod calls;
mod handle;
mod inbox;
mod ops;
mod pause;
mod shares;
mod tasks;
mod timers;

use std::{
    any::Any,
    cell::{Cell, Ref, RefCell, RefMut},
    collections::{BTreeMap, VecDeque},
    fmt, fs,
    future::Future,
    io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use self::{
    inbox::Message,
    ops::OpTable,
    shares::Shares,
    tasks::TaskRef,
    timers::{Ahead, Timers},
};
use crate::{
    future::LaneFuture,
    instant::Instant,
    op::Op,
    reactor::{Completion, Reactor, Wait},
    ring::Ring,
};

pub use handle::LaneHandle;
pub(crate) use inbox::{Inbox, waker};
pub(crate) use ops::{Submitted, submit};
pub(crate) use pause::Pauses;
pub use pause::Waiting;
pub use shares::{Counts, Share, TURN_BYTES};
pub(crate) use tasks::Tasks;
pub(crate) use timers::TimerId;

/// The longest step of a spin: one that took longer was interrupted, and the thread did not have the CPU meanwhile.
const LOOK_STEP_MAX: Duration = Duration::from_micros(5);
/// Tasks polled per turn before the lane checks the reactor again.
const TASKS_PER_TURN: usize = 256;
/// Messages taken per turn: other lanes may send any number.
const MESSAGES_PER_TURN: usize = 256;

/// How a lane is set up.
#[derive(Clone, Debug)]
pub struct LaneConfig {
    /// Size of the submission queue, in operations; more are submitted in several calls.
    pub entries: u32,
    /// How the lane waits when it has nothing to do.
    pub waiting: Waiting,
}

impl Default for LaneConfig {
    fn default() -> Self {
        LaneConfig {
            entries: 512,
            waiting: Waiting::default(),
        }
    }
}

/// What performs a lane's operations: the ring or the simulated world.
#[cfg(feature = "sim")]
type LaneReactor = Box<dyn Reactor>;
/// What performs a lane's operations: the ring, since this build has no simulator.
#[cfg(not(feature = "sim"))]
type LaneReactor = Box<Ring>;

/// One executor with one reactor, driven by the thread that created it.
pub struct Lane(pub(crate) Rc<LaneInner>);

pub(crate) struct LaneInner {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) timers: RefCell<Timers>,
    reactor: RefCell<LaneReactor>,
    ops: RefCell<OpTable>,
    completed: RefCell<Vec<Completion>>,
    /// Taken out of the inbox, but not acted on yet.
    messages: RefCell<VecDeque<Message>>,
    /// What [`crate::local`] keeps, by key. Ordered, so that a simulated lane drops them in the same order each time.
    pub(crate) locals: RefCell<BTreeMap<u64, Box<dyn Any>>>,
    pub(crate) shares: Shares,
    /// When the current turn began.
    turn_began: Cell<Instant>,
    /// The last reading of the clock.
    last_known: Cell<Instant>,
    pauses: RefCell<Pauses>,
    #[cfg(feature = "sim")]
    pub(crate) calls: calls::Calls,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<LaneInner>>> = const { RefCell::new(None) };
}

/// Runs `f` with the current lane. Panics if this thread drives none: I/O or a spawn outside of a
/// lane is a bug, not bad input.
#[inline]
pub(crate) fn with<T>(f: impl FnOnce(&LaneInner) -> T) -> T {
    try_with(f).expect("this needs a running lane: call it from a future that a Lane drives")
}

/// The current lane itself, for callers that may make another lane current meanwhile. Panics as [`with`].
pub(crate) fn current() -> Rc<LaneInner> {
    let lane = CURRENT.with(|current| current.borrow().clone());
    lane.expect("this needs a running lane: call it from a future that a Lane drives")
}

#[inline]
pub(crate) fn try_with<T>(f: impl FnOnce(&LaneInner) -> T) -> Option<T> {
    let call = |lane: &LaneInner| {
        #[cfg(feature = "sim")]
        lane.calls.count();
        f(lane)
    };
    CURRENT
        .try_with(|current| current.borrow().as_deref().map(call))
        .ok()?
}

/// How long the lanes of this process have looked for work in vain: CPU time that they spent on waiting. It only grows,
/// as long as no lane ends.
pub fn looked() -> Duration {
    Duration::from_nanos(Inbox::looked_ns_of_all())
}

/// Whether a lane drives this thread that has not ended. One that ends drops its remaining tasks where they are.
pub fn is_running() -> bool {
    try_with(|lane| lane.inbox.has_ended()) == Some(false)
}

/// Whether the current lane has ended and is dropping its remaining tasks.
pub(crate) fn is_ending() -> bool {
    try_with(|lane| lane.inbox.has_ended()) == Some(true)
}

/// Makes a lane current for as long as it lives, then restores the previous one.
pub(crate) struct Entered(Option<Rc<LaneInner>>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with(|current| *current.borrow_mut() = self.0.take());
    }
}

impl Lane {
    /// A lane on io_uring.
    ///
    /// # Errors
    /// If the kernel refuses to create a ring; the message names the cause and the remedy.
    pub fn new(config: &LaneConfig) -> io::Result<Lane> {
        let (ring, bell) = Ring::new(config.entries)?;
        let inbox = Inbox::register(Some(bell));
        let processors = fs::read_to_string("/sys/devices/system/cpu/online");
        let is_alone = processors.is_ok_and(|processors| processors.trim() == "0");
        let pauses = Pauses::new(config.waiting, is_alone);
        Ok(Lane::with_reactor(Box::new(ring), inbox, pauses))
    }

    pub(crate) fn with_reactor(reactor: LaneReactor, inbox: Arc<Inbox>, pauses: Pauses) -> Lane {
        Lane(Rc::new(LaneInner {
            turn_began: Cell::new(reactor.now()),
            last_known: Cell::new(reactor.now()),
            inbox,
            tasks: RefCell::default(),
            timers: RefCell::default(),
            reactor: RefCell::new(reactor),
            ops: RefCell::default(),
            completed: RefCell::default(),
            messages: RefCell::default(),
            locals: RefCell::default(),
            shares: Shares::new(),
            pauses: RefCell::new(pauses),
            #[cfg(feature = "sim")]
            calls: calls::Calls::unlimited(),
        }))
    }

    /// A handle to reach this lane from other threads.
    pub fn handle(&self) -> LaneHandle {
        LaneHandle(self.0.inbox.clone())
    }

    /// Drives the lane until `future` ends. Other tasks of the lane run meanwhile, and pause where
    /// they are when it returns; the next call resumes them. A future that is ready at once costs
    /// no system call.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let lane = &self.0;
        let _entered = lane.enter();
        let waker = waker(lane.inbox.id, Tasks::MAIN);
        let mut cx = Context::from_waker(&waker);
        let mut future = std::pin::pin!(future);
        lane.tasks.borrow_mut().main_woken = true;
        loop {
            if std::mem::take(&mut lane.tasks.borrow_mut().main_woken) {
                lane.turn_began.set(lane.now());
                lane.shares.enter(Share::COMMON);
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    if lane.tasks.borrow().ready_len() > 0 {
                        lane.turn(false);
                    }
                    return output;
                }
            }
            lane.turn(true);
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({})", self.0.inbox.id.0)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.0.inbox.end();
        let _entered = self.0.enter();
        drop(self.0.messages.take());
        // A task's end may start others (a Drop that spawns), so repeat until none is left.
        loop {
            let futures = self.0.tasks.borrow_mut().drain();
            if !futures.is_empty() {
                drop(futures);
                continue;
            }
            let locals = self.0.locals.take();
            if locals.is_empty() {
                break;
            }
            drop(locals);
        }
    }
}

impl LaneInner {
    pub(crate) fn enter(self: &Rc<Self>) -> Entered {
        CURRENT.with(|current| Entered(current.borrow_mut().replace(self.clone())))
    }

    pub(crate) fn reactor(&self) -> Ref<'_, impl Reactor + ?Sized> {
        Ref::map(self.reactor.borrow(), |reactor| &**reactor)
    }

    pub(crate) fn reactor_mut(&self) -> RefMut<'_, impl Reactor + ?Sized> {
        RefMut::map(self.reactor.borrow_mut(), |reactor| &mut **reactor)
    }

    pub(crate) fn now(&self) -> Instant {
        let now = self.reactor.borrow().now();
        self.last_known.set(now);
        now
    }

    pub(crate) fn last_known(&self) -> Instant {
        self.last_known.get()
    }

    pub(crate) fn turn_began(&self) -> Instant {
        self.turn_began.get()
    }

    /// One turn of the loop. With `wait`, sleeps when there is nothing to do.
    pub(crate) fn turn(&self, wait: bool) {
        self.turn_began.set(self.now());
        self.run_ready();
        self.fire_timers();
        let idle = self.is_idle();
        if !(wait && idle) {
            self.poll_reactor(Wait::No);
        } else {
            self.pause();
        }
        self.shares.begin_turn();
        self.tasks.borrow_mut().begin_turn();
        self.take_messages();
    }

    /// Whether no task is ready and no message waits.
    pub(crate) fn is_idle(&self) -> bool {
        let tasks = self.tasks.borrow();
        let is_heard = self.messages.borrow().is_empty() && self.inbox.is_empty();
        tasks.ready_len() == 0 && !tasks.main_woken && is_heard
    }

    /// Polls ready tasks, up to a bound. Tasks that become ready meanwhile may wait for the next turn,
    /// and so do those whose share is used up.
    pub(crate) fn run_ready(&self) {
        for _ in 0..TASKS_PER_TURN {
            let may_run = |share| {
                self.shares.enter(share);
                !self.shares.is_spent()
            };
            let next = self.tasks.borrow_mut().next(may_run);
            let Some((task, share, future)) = next else {
                break;
            };
            self.poll_task(task, share, future);
        }
    }

    pub(crate) fn poll_task(
        &self,
        task: TaskRef,
        share: Share,
        mut future: LaneFuture<'static, ()>,
    ) {
        self.shares.enter(share);
        self.shares.charge_poll();
        let waker = waker(self.inbox.id, task);
        match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => self.tasks.borrow_mut().put_back(task, future),
            Poll::Ready(()) => {
                drop(future);
                self.tasks.borrow_mut().finish(task);
            }
        }
    }

    /// Adds a task and polls it at once if it may run now.
    pub(crate) fn begin(&self, future: LaneFuture<'static, ()>) {
        let mut tasks = self.tasks.borrow_mut();
        let share = self.shares.current();
        if tasks.chooser.is_some() || self.shares.is_spent() {
            return tasks.add(share, future);
        }
        let task = tasks.reserve(share);
        drop(tasks);
        self.poll_task(task, share, future);
    }

    pub(crate) fn fire_timers(&self) {
        if self.timers.borrow().next_deadline().is_none() {
            return;
        }
        let now = self.turn_began();
        loop {
            let due = self.timers.borrow_mut().pop_due(now);
            match due {
                Some(waker) => waker.wake(),
                None => break,
            }
        }
    }

    /// Waits for work: spins if that pays or a timer demands it, otherwise sleeps.
    fn pause(&self) {
        let began = self.now();
        let look_ns = self.pauses.borrow().look_ns();
        let has_found =
            look_ns.is_some_and(|look_ns| self.look_until(began + Duration::from_nanos(look_ns)));
        if !has_found {
            let ahead = self.timers.borrow().ahead(self.last_known());
            match ahead {
                Ahead::Spin(deadline) => {
                    self.look_until(deadline);
                }
                Ahead::Sleep(until) if self.inbox.fall_asleep() => {
                    self.poll_reactor(Wait::Until(until));
                    self.inbox.wake_up();
                }
                Ahead::Sleep(_) => {}
            }
        }
        self.pauses
            .borrow_mut()
            .ended(began, self.now(), || self.reactor().thread_cpu_ns());
    }

    /// Spins. Returns true if work was found or a timer is due.
    fn look_until(&self, end: Instant) -> bool {
        let deadline = self.timers.borrow().next_deadline();
        let mut last = self.last_known();
        let mut in_vain = Duration::ZERO;
        let has_found = loop {
            self.poll_reactor(Wait::No);
            let now = self.now();
            if !self.is_idle() {
                break true;
            }
            in_vain += now.since(last).min(LOOK_STEP_MAX);
            last = now;
            if deadline.is_some_and(|deadline| now >= deadline) {
                break true;
            }
            if now >= end {
                break false;
            }
            std::hint::spin_loop();
        };
        self.inbox.add_looked(in_vain.as_nanos() as u64);
        has_found
    }

    /// Polls the reactor and wakes the tasks whose operations have completed.
    pub(crate) fn poll_reactor(&self, wait: Wait) {
        let mut completed = self.completed.take();
        self.reactor.borrow_mut().poll(wait, &mut completed);
        let mut moved_bytes = 0;
        for Completion { id, op, result } in completed.drain(..) {
            if op.moves_bytes() {
                moved_bytes += u64::try_from(result).unwrap_or(0);
            }
            let (waker, unwanted) = self.ops.borrow_mut().complete(id, op, result);
            if let Some(op) = unwanted {
                self.discard(op, result);
            }
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        *self.completed.borrow_mut() = completed;
        self.pauses.borrow_mut().moved(moved_bytes);
    }

    /// Cleans up after an operation that nobody waits for any more: closes an accepted connection.
    fn discard(&self, op: Op, result: i32) {
        if matches!(op, Op::Accept { .. }) && result >= 0 {
            drop(self.reactor.borrow().adopt(result));
        }
        drop(op);
    }

    /// Acts on messages, up to a bound: those beyond it wait for the next turn, after the reactor has been polled.
    pub(crate) fn take_messages(&self) {
        let mut messages = self.messages.take();
        self.inbox.take(&mut messages);
        for _ in 0..MESSAGES_PER_TURN {
            let Some(message) = messages.pop_front() else {
                break;
            };
            match message {
                Message::Wake(task) => self.tasks.borrow_mut().schedule(task),
                Message::Run(share, run) => {
                    // The closure starts now, perhaps long after the turn began.
                    self.turn_began.set(self.now());
                    self.shares.enter(share);
                    run();
                }
            }
        }
        *self.messages.borrow_mut() = messages;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cross, share::counts, time::sleep};

    fn looked_ns(lane: &Lane) -> u64 {
        lane.0.inbox.looked_ns()
    }

    #[test]
    fn the_reactor_is_polled_between_many_messages() {
        const TURNS: usize = 10;
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        let handle = lane.handle();
        for _ in 0..TURNS * MESSAGES_PER_TURN {
            handle.spawn(|| async {});
        }
        let (done, last) = cross::oneshot();
        handle.spawn(move || async move { done.send(counts().looks) });
        let looks = lane.block_on(last.outcome()).expect("it is answered");
        assert!(looks >= TURNS as u64, "{looks}");
    }

    #[test]
    fn who_answers_whatever_comes_through_a_channel_leaves_the_lane_to_others() {
        const VALUES: usize = 10_000;
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let (sender, receiver) = cross::channel();
            for value in 0..VALUES {
                sender.send(value).expect("it is received");
            }
            let before = counts().looks;
            for _ in 0..VALUES {
                receiver.receive().await;
            }
            let looks = counts().looks - before;
            assert!(looks >= 10, "{looks}");
        });
    }

    #[test]
    fn spinning_counts_as_looking_and_sleeping_does_not() {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async { sleep(Duration::from_millis(20)).await });
        assert_eq!(looked_ns(&lane), 0);
        // An exact timer that is due this soon is spun for.
        let exact = Duration::from_micros(20);
        lane.block_on(async {
            for _ in 0..100 {
                sleep(exact).exactly().await;
            }
        });
        let spun_ns = looked_ns(&lane);
        assert!(spun_ns > 0);
        assert!(looked() >= Duration::from_nanos(spun_ns));
    }
}
