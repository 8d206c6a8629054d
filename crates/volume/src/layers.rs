//! Where the time of a request goes below whoever made it: a [`Watch`] is told by the leaves when they work
//! for it, and by our initiator what the network and the target had of that.
//!
//! A watch goes with the futures that it is put over, and with what these spawn for it. Nobody has to pass
//! it on: who works for the current one asks for it. Without one that is a look at a thread's variable.
//!
//! Parts of a request that are worked on side by side share the time among them, each moment in equal
//! parts. So all layers together never take longer than the request itself.
//!
//! A watch that traces also keeps what ran when: a [`Span`] for each request of a node and each command.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    sync::Arc,
};

use engine::{
    Duration, Instant, LaneFuture,
    task::{self, JoinHandle},
    time,
};

use crate::trace::Trace;
pub use crate::trace::{Ran, Request, Span, Told};

thread_local! {
    /// Whether somebody watches: a request that nobody watches costs this look.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
    /// Whether who watches also traces: what is only watched costs each node no more than this look.
    static IS_TRACED: Cell<bool> = const { Cell::new(false) };
    /// Who watches what runs now.
    static CURRENT: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// Shares are added up in so small a part of a nanosecond, as a power of two.
const SHARE_BITS: u32 = 16;

/// Where the time of a request went. What is left of it was spent above: by whoever asked, by layers, by
/// our initiator before a command was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    /// On the way to targets that tell what they had of it, and back: the kernels of both ends, what lies
    /// between them, and the transfer of data.
    pub wire: Duration,
    /// At these targets, without their media.
    pub target: Duration,
    /// At media: those of this machine, and those that these targets tell of.
    pub medium: Duration,
    /// On the way to and at targets that do not tell.
    pub untold: Duration,
    /// Somebody worked for it out of sight: a layer that lives on another lane.
    pub is_partial: bool,
}

impl Layers {
    /// All that was spent below the volume's layers; `None` if some of it is not known.
    pub fn below(&self) -> Option<Duration> {
        let below = self.wire + self.target + self.medium + self.untold;
        (!self.is_partial).then_some(below)
    }
}

/// Sees where the time of a request goes; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    state: Rc<State>,
    /// The node of the tree that works for it, where a trace wants to know.
    node: Option<Arc<str>>,
}

#[derive(Debug, Default)]
struct State {
    layers: Cell<Layers>,
    /// How many work for it now.
    working: Cell<u32>,
    /// What each that has worked for it all the time would have got by then.
    share: Cell<u64>,
    shared_until: Cell<Instant>,
    trace: Option<RefCell<Trace>>,
}

impl Watch {
    /// A watch over what nobody has worked for yet.
    pub fn new() -> Watch {
        Watch::default()
    }

    /// The same, which also keeps [what ran when](Watch::take_spans).
    pub fn tracing() -> Watch {
        let state = State {
            trace: Some(RefCell::default()),
            ..State::default()
        };
        Watch {
            state: Rc::new(state),
            node: None,
        }
    }

    /// What it has seen to its end.
    pub fn layers(&self) -> Layers {
        self.state.layers.get()
    }

    /// What ran until now and has ended, in the order of the ends, with how many more there were than a trace keeps.
    pub fn take_spans(&self) -> (Vec<Span>, usize) {
        let trace = self.state.trace.as_ref();
        trace.map_or_else(Default::default, |trace| trace.take().into_spans())
    }

    fn is_tracing(&self) -> bool {
        self.state.trace.is_some()
    }

    fn note(&self, span: Span) {
        if let Some(trace) = &self.state.trace {
            trace.borrow_mut().add(span);
        }
    }

    /// Watches over all that is begun on this thread from now on, until that is dropped.
    pub fn enter(&self) -> Entered {
        IS_WATCHED.set(true);
        IS_TRACED.set(self.is_tracing());
        Entered {
            before: CURRENT.replace(Some(self.clone())),
        }
    }

    fn add(&self, what: impl FnOnce(&mut Layers)) {
        let mut layers = self.state.layers.get();
        what(&mut layers);
        self.state.layers.set(layers);
    }

    /// What each of those that work for it gets is counted up to `now`; gives how much that is so far.
    fn share(&self, now: Instant) -> u64 {
        let state = &*self.state;
        let (until, working) = (state.shared_until.get(), u64::from(state.working.get()));
        let passed_ns = now.since(until).as_nanos() as u64;
        let each = (passed_ns << SHARE_BITS).checked_div(working);
        let share = state.share.get().wrapping_add(each.unwrap_or(0));
        state.share.set(share);
        state.shared_until.set(until.max(now));
        share
    }
}

/// A thread is watched over as long as this is there.
#[derive(Debug)]
#[must_use = "dropped at once it watches over nothing"]
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

/// The watch over what runs now.
pub(crate) fn current() -> Option<Watch> {
    match IS_WATCHED.get() {
        true => CURRENT.with_borrow(Clone::clone),
        false => None,
    }
}

/// A `request` of a node: whoever works for it works there.
pub(crate) fn at_node<'a, T: 'a>(
    request: LaneFuture<'a, T>,
    what: impl FnOnce() -> Option<(Arc<str>, Request)>,
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

/// A request of a node that was answered as soon as it was made.
pub(crate) fn at_once(what: impl FnOnce() -> Option<(Arc<str>, Request)>) {
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

/// The current watch, if it traces, with what it is told.
fn traced<T>(what: impl FnOnce() -> Option<T>) -> Option<(Watch, T)> {
    let watch = IS_TRACED.get().then(|| CURRENT.with_borrow(Clone::clone));
    Some((watch??, what()?))
}

/// A request that a medium works for.
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

/// A request that somebody works for who cannot be watched.
pub(crate) fn out_of_sight<T>(request: LaneFuture<'_, T>) -> LaneFuture<'_, T> {
    if let Some(watch) = current() {
        watch.add(|layers| layers.is_partial = true);
    }
    request
}

/// Begins `future` as a task of its own, under the watch over what runs now.
pub(crate) fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    match current() {
        Some(watch) => task::spawn(watched(watch, future)),
        None => task::spawn(future),
    }
}

/// `future`, watched over by `watch`.
pub async fn watched<F: Future>(watch: Watch, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _entered = watch.enter();
        future.as_mut().poll(cx)
    })
    .await
}

/// Something that works for a request. What it takes counts when it has ended; dropped before that, it
/// counts as spent by whoever gave it up.
#[derive(Debug)]
pub(crate) struct Work {
    watch: Watch,
    /// Since when it is to be done, where a trace wants to know.
    asked: Option<Instant>,
    /// Once it has: when, and what each had got by then.
    began: Option<(Instant, u64)>,
}

impl Work {
    /// Work to come, for the request that `watch` is over.
    pub(crate) fn new(watch: Watch) -> Work {
        Work {
            asked: watch.is_tracing().then(time::now),
            watch,
            began: None,
        }
    }

    /// It begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        debug_assert!(self.began.is_none(), "work begins once");
        self.began = Some((now, self.watch.share(now)));
        self.watch
            .state
            .working
            .set(self.watch.state.working.get() + 1);
    }

    /// How long it has taken until `now`, and its part of the time.
    fn end(&self, now: Instant) -> (Duration, Duration) {
        let Some((began, share)) = self.began else {
            return (Duration::ZERO, Duration::ZERO);
        };
        let share = self.watch.share(now).wrapping_sub(share);
        (now.since(began), Duration::from_nanos(share >> SHARE_BITS))
    }

    /// A medium has ended it.
    pub(crate) fn end_at_medium(self, now: Instant) {
        let (_, share) = self.end(now);
        self.watch.add(|layers| layers.medium += share);
    }

    /// A target has answered it; `told` is what it says of its time.
    pub(crate) fn end_at_target(self, told: Option<Told>, now: Instant) {
        let (took, share) = self.end(now);
        self.note_command(told, now);
        let Some(told) = told else {
            return self.watch.add(|layers| layers.untold += share);
        };
        // A target may say what it likes: it had the command no longer than it took here.
        let total = told.total.min(took);
        let medium = told.medium.unwrap_or_default().min(total);
        let part = |of: Duration| match took.as_nanos() {
            0 => Duration::ZERO,
            whole => {
                let part = share.as_nanos() * of.as_nanos() / whole;
                Duration::from_nanos(u64::try_from(part).unwrap_or(u64::MAX))
            }
        };
        self.watch.add(|layers| {
            layers.target += part(total - medium);
            layers.medium += part(medium);
            layers.wire += share.saturating_sub(part(total - medium) + part(medium));
            layers.is_partial |= told.medium.is_none();
        });
    }

    fn note_command(&self, told: Option<Told>, ended: Instant) {
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
            let working = &self.watch.state.working;
            working.set(working.get() - 1);
        }
    }
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
