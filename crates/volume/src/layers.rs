//! Accounts for where the time of a request goes below its issuer: leaves tell a [`Watch`] when they work for the
//! request, and our initiator reports what the network and the target took of that.
//!
//! A watch travels with the futures that it is put on, with the tasks that these spawn, and with their requests to other
//! lanes. Nobody has to pass it on: whoever does the work asks for the current watch. Without a watch this costs one
//! thread-local read.
//!
//! All lanes that work for a request add to the same account, under a lock that only watched requests take. All
//! instants are those of one machine's clock.
//!
//! Parts of a request that run in parallel split each moment equally, so that all layers together never add up to
//! more than the request itself.
//!
//! A watch that traces also records what ran when: a [`Span`] for each request of a node and for each command.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{
    Duration, Instant, LaneFuture,
    task::{self, JoinHandle},
    time,
};

use crate::trace::Trace;
pub use crate::trace::{Ran, Span, TargetTimes, TracedRequest};

thread_local! {
    /// Whether there is a current watch: the only cost of an unwatched request.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
    /// Whether the current watch also traces: the only extra cost per node of a request that is watched but not
    /// traced.
    static IS_TRACED: Cell<bool> = const { Cell::new(false) };
    /// The watch of what runs now.
    static CURRENT: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// Shares are summed in units of 2^-16 ns.
const SHARE_BITS: u32 = 16;

/// Where the time of a request went. The rest was spent above: by the issuer and by the volume's layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    /// In requests of our initiator while no command of theirs was under way and no medium worked: waiting for the
    /// target's command window, sending, handing over the answer.
    pub initiator: Duration,
    /// On the way to and from targets that report their stage times: the kernels at both ends, the network between
    /// them, and the data transfer.
    pub wire: Duration,
    /// At these targets, excluding their media.
    pub target: Duration,
    /// At media: those of this machine, and those that these targets report.
    pub medium: Duration,
    /// At targets that do not report their stage times, and on the way to and from them.
    pub untold: Duration,
    /// Some of the work could not be observed: the medium of a target that does not report it.
    pub is_partial: bool,
}

impl Layers {
    /// All time spent below the volume's layers and our initiator; `None` if some of it is unknown.
    pub fn below(&self) -> Option<Duration> {
        let below = self.wire + self.target + self.medium + self.untold;
        (!self.is_partial).then_some(below)
    }
}

/// Accounts for the time of one request; clones share it, on any lane.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    state: Arc<NodeState>,
    /// The node of the tree that is working for it, if a trace records it.
    node: Option<Arc<str>>,
}

#[derive(Debug, Default)]
struct NodeState {
    account: Mutex<Account>,
    trace: Option<Mutex<Trace>>,
}

#[derive(Debug, Default)]
struct Account {
    layers: Layers,
    /// How many are working for it now.
    working: u32,
    /// How many of its requests our initiator has now.
    at_initiator: u32,
    /// The time, in share units, credited so far to a worker that has worked from the beginning.
    share: u64,
    shared_until: Instant,
}

impl Account {
    /// Advances the credit of each current worker to `now`; returns the total credit.
    fn share(&mut self, now: Instant) -> u64 {
        let passed_ns = now.since(self.shared_until).as_nanos() as u64;
        if self.working == 0 && self.at_initiator > 0 {
            self.layers.initiator += Duration::from_nanos(passed_ns);
        }
        let each = (passed_ns << SHARE_BITS).checked_div(u64::from(self.working));
        self.share = self.share.wrapping_add(each.unwrap_or(0));
        self.shared_until = self.shared_until.max(now);
        self.share
    }
}

impl Watch {
    /// A watch that has not seen any work yet.
    pub fn new() -> Watch {
        Watch::default()
    }

    /// The same, but also records [what ran when](Watch::take_spans).
    pub fn tracing() -> Watch {
        let state = NodeState {
            trace: Some(Mutex::default()),
            ..NodeState::default()
        };
        Watch {
            state: Arc::new(state),
            node: None,
        }
    }

    /// The times of all work that has ended.
    pub fn layers(&self) -> Layers {
        self.account().layers
    }

    /// The spans that have ended so far, in the order of their ends, and the number of spans left out because the
    /// trace was full.
    pub fn take_spans(&self) -> (Vec<Span>, usize) {
        let trace = self.state.trace.as_ref();
        trace.map_or_else(Default::default, |trace| {
            std::mem::take(&mut *lock(trace)).into_spans()
        })
    }

    fn is_tracing(&self) -> bool {
        self.state.trace.is_some()
    }

    fn note(&self, span: Span) {
        if let Some(trace) = &self.state.trace {
            lock(trace).add(span);
        }
    }

    /// Makes this the current watch of this thread until the returned guard is dropped.
    pub fn enter(&self) -> Entered {
        IS_WATCHED.set(true);
        IS_TRACED.set(self.is_tracing());
        Entered {
            before: CURRENT.replace(Some(self.clone())),
        }
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        lock(&self.state.account)
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a watch current on this thread while it lives.
#[derive(Debug)]
#[must_use = "dropping it at once ends the watch"]
pub struct Entered {
    before: Option<Watch>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        IS_WATCHED.set(self.before.is_some());
        IS_TRACED.set(self.before.as_ref().is_some_and(Watch::is_tracing));
        CURRENT.set(self.before.take());
    }
}

/// The current watch, if there is one.
pub(crate) fn current() -> Option<Watch> {
    match IS_WATCHED.get() {
        true => CURRENT.with_borrow(Clone::clone),
        false => None,
    }
}

/// A `request` of a node: work done for it is attributed to that node.
pub(crate) fn at_node<'a, T: 'a>(
    request: LaneFuture<'a, T>,
    what: impl FnOnce() -> Option<(Arc<str>, TracedRequest)>,
) -> LaneFuture<'a, T> {
    let Some((watch, (node, what))) = traced(what) else {
        return request;
    };
    LaneFuture::new(async move {
        let below = Watch {
            node: Some(node.clone()),
            ..watch.clone()
        };
        let began = time::now();
        let answer = watched(below, request).await;
        watch.note(Span {
            node,
            began,
            ended: time::now(),
            ran: Ran::Request(what),
        });
        answer
    })
}

/// Records a request of a node that was answered immediately.
pub(crate) fn at_once(what: impl FnOnce() -> Option<(Arc<str>, TracedRequest)>) {
    if let Some((watch, (node, what))) = traced(what) {
        let now = time::now();
        watch.note(Span {
            node,
            began: now,
            ended: now,
            ran: Ran::Request(what),
        });
    }
}

/// The current watch, if it traces, with the result of `what`.
fn traced<T>(what: impl FnOnce() -> Option<T>) -> Option<(Watch, T)> {
    let watch = IS_TRACED.get().then(|| CURRENT.with_borrow(Clone::clone));
    Some((watch??, what()?))
}

/// A request that is executed by a local medium.
pub(crate) fn at_medium<'a, T: 'a>(request: LaneFuture<'a, T>) -> LaneFuture<'a, T> {
    let Some(watch) = current() else {
        return request;
    };
    LaneFuture::new(async move {
        let mut work = Work::new(watch);
        work.begin(time::now());
        let answer = request.await;
        work.end_at_medium(time::now());
        answer
    })
}

/// A request that our initiator executes: what it takes beside its commands is the initiator's time.
pub(crate) fn at_initiator<'a, T: 'a>(request: LaneFuture<'a, T>) -> LaneFuture<'a, T> {
    let Some(watch) = current() else {
        return request;
    };
    LaneFuture::new(async move {
        let there = AtInitiator::new(watch, time::now());
        let answer = request.await;
        there.end(time::now());
        answer
    })
}

/// A request that our initiator has.
struct AtInitiator {
    watch: Watch,
}

impl AtInitiator {
    fn new(watch: Watch, now: Instant) -> AtInitiator {
        let mut account = watch.account();
        account.share(now);
        account.at_initiator += 1;
        drop(account);
        AtInitiator { watch }
    }

    fn end(self, now: Instant) {
        self.watch.account().share(now);
    }
}

impl Drop for AtInitiator {
    fn drop(&mut self) {
        self.watch.account().at_initiator -= 1;
    }
}

/// Spawns `future` as a task under the current watch.
pub(crate) fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    match current() {
        Some(watch) => task::spawn(watched(watch, future)),
        None => task::spawn(future),
    }
}

/// Runs `future` under `watch`.
pub async fn watched<F: Future>(watch: Watch, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _entered = watch.enter();
        future.as_mut().poll(cx)
    })
    .await
}

/// A piece of work for a request. Its time is counted when it ends; if it is dropped before, the time counts as spent
/// by the caller that gave it up.
#[derive(Debug)]
pub(crate) struct Work {
    watch: Watch,
    /// When it was requested, if a trace records it.
    asked: Option<Instant>,
    /// Once it has begun: when, and the total credit at that time.
    began: Option<(Instant, u64)>,
}

impl Work {
    /// Work about to be done for the request under `watch`.
    pub(crate) fn new(watch: Watch) -> Work {
        Work {
            asked: watch.is_tracing().then(time::now),
            watch,
            began: None,
        }
    }

    /// The work begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        debug_assert!(self.began.is_none(), "work begins once");
        let mut account = self.watch.account();
        self.began = Some((now, account.share(now)));
        account.working += 1;
    }

    /// The time it took until `now`, and its share of the request's time.
    fn end(&self, now: Instant) -> (Duration, Duration) {
        let Some((began, share)) = self.began else {
            return (Duration::ZERO, Duration::ZERO);
        };
        let share = self.watch.account().share(now).wrapping_sub(share);
        (now.since(began), Duration::from_nanos(share >> SHARE_BITS))
    }

    /// The work of a local medium has ended.
    pub(crate) fn end_at_medium(self, now: Instant) {
        let (_, share) = self.end(now);
        self.watch.account().layers.medium += share;
    }

    /// A target has answered the command; `told` is the time it reports.
    pub(crate) fn end_at_target(self, told: Option<TargetTimes>, now: Instant) {
        let (took, share) = self.end(now);
        self.note_command(told, now);
        let Some(told) = told else {
            self.watch.account().layers.untold += share;
            return;
        };
        // Do not trust the target: it cannot have had the command for longer than the command took here.
        let total = told.total.min(took);
        let medium = told.medium.unwrap_or_default().min(total);
        let part = |of: Duration| match took.as_nanos() {
            0 => Duration::ZERO,
            whole => {
                let part = share.as_nanos() * of.as_nanos() / whole;
                Duration::from_nanos(u64::try_from(part).unwrap_or(u64::MAX))
            }
        };
        let layers = &mut self.watch.account().layers;
        layers.target += part(total - medium);
        layers.medium += part(medium);
        layers.wire += share.saturating_sub(part(total - medium) + part(medium));
        layers.is_partial |= told.medium.is_none();
    }

    fn note_command(&self, told: Option<TargetTimes>, ended: Instant) {
        let (Some(asked), Some((sent, _)), Some(node)) = (self.asked, self.began, &self.watch.node)
        else {
            return;
        };
        self.watch.note(Span {
            node: node.clone(),
            began: asked,
            ended,
            ran: Ran::Command { sent, told },
        });
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.began.is_some() {
            self.watch.account().working -= 1;
        }
    }
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
