//! Passing values between lanes: a oneshot for an answer, a channel for a stream of requests. Not
//! meant for every I/O, since each message takes a lock.
//!
//! If a running lane drops a request unanswered, that is a bug, and the requested work may still be going on, so
//! nobody may take it as done. A lane that has ended owes no answer: its work has ended with it.

use std::{
    collections::VecDeque,
    fmt,
    future::{Future, poll_fn},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::{
    lane::{self, LaneHandle},
    share,
};

/// The cost of taking one value out of a channel, in bytes moved.
const RECEIVE_BYTES: usize = 2 << 10;

/// What both ends share. The lock is held for each change as a whole, so a panic elsewhere leaves
/// the state consistent.
struct ChannelState<T> {
    values: VecDeque<T>,
    senders: usize,
    receiver_gone: bool,
    /// A sender was dropped because its lane ended.
    lane_ended: bool,
    waker: Option<Waker>,
}

type SharedChannel<T> = Arc<Mutex<ChannelState<T>>>;

fn lock<T>(shared: &SharedChannel<T>) -> MutexGuard<'_, ChannelState<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sending end of a channel; clones send to the same receiver.
pub struct Sender<T>(SharedChannel<T>);

/// The receiving end of a channel.
pub struct Receiver<T>(SharedChannel<T>);

/// A channel between lanes.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = ChannelState {
        values: VecDeque::new(),
        senders: 1,
        receiver_gone: false,
        lane_ended: false,
        waker: None,
    };
    let shared = Arc::new(Mutex::new(state));
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// Sends `value`. Returns it if there is no receiver any more.
    pub fn send(&self, value: T) -> Result<(), T> {
        let waker = {
            let mut state = lock(&self.0);
            if state.receiver_gone {
                return Err(value);
            }
            state.values.push_back(value);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        lock(&self.0).senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let lane_ended = lane::is_ending();
        let waker = {
            let mut state = lock(&self.0);
            state.senders -= 1;
            state.lane_ended |= lane_ended;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The next value; `None` once all senders are gone and the channel is empty. Taking one is charged, so that a task
    /// that answers whatever comes leaves its lane to others in between, however much comes.
    pub async fn receive(&self) -> Option<T> {
        share::spend(RECEIVE_BYTES).await;
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.0);
        match state.values.pop_front() {
            Some(value) => Poll::Ready(Some(value)),
            None if state.senders == 0 => Poll::Ready(None),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let unread = {
            let mut state = lock(&self.0);
            state.receiver_gone = true;
            std::mem::take(&mut state.values)
        };
        drop(unread);
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

/// Sends a single value.
#[derive(Debug)]
pub struct OneshotSender<T>(Sender<T>);

/// Receives a single value: by [`answered`] if the sender owes it, by [`OneshotReceiver::outcome`] if it may be dropped.
#[derive(Debug)]
#[must_use = "it does not wait by itself"]
pub struct OneshotReceiver<T>(Receiver<T>);

/// Why no value came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The lane that should have sent it has ended, with all its tasks.
    LaneEnded,
    /// The sender was dropped on a lane that is still running.
    Dropped,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unanswered::LaneEnded => "its lane has ended",
            Unanswered::Dropped => "its lane has dropped the request",
        })
    }
}

impl std::error::Error for Unanswered {}

/// A channel for one value between lanes.
pub fn oneshot<T>() -> (OneshotSender<T>, OneshotReceiver<T>) {
    let (sender, receiver) = channel();
    (OneshotSender(sender), OneshotReceiver(receiver))
}

impl<T> OneshotSender<T> {
    /// Whether somebody still waits for the value.
    pub fn is_awaited(&self) -> bool {
        !lock(&self.0.0).receiver_gone
    }

    /// Sends `value`; drops it if nobody waits for it any more.
    pub fn send(self, value: T) {
        drop(self.0.send(value));
    }
}

impl<T> OneshotReceiver<T> {
    /// The value, or why there is none; for senders that need not send one.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn outcome(self) -> Result<T, Unanswered> {
        let value = poll_fn(|cx| self.0.poll(cx)).await;
        value.ok_or_else(|| match lock(&self.0.0).lane_ended {
            true => Unanswered::LaneEnded,
            false => Unanswered::Dropped,
        })
    }
}

/// Waits until another lane has answered; `None` if that lane has ended, and its work with it. `request`
/// describes for the log what was asked.
///
/// If the lane is still running but has dropped the request, this panics in a debug build. In a release
/// build it logs an error and never returns.
pub async fn answered<T>(answer: OneshotReceiver<T>, request: &str) -> Option<T> {
    match answer.outcome().await {
        Ok(value) => Some(value),
        Err(Unanswered::LaneEnded) => None,
        Err(Unanswered::Dropped) => lost(request).await,
    }
}

/// Never returns, because a running lane has dropped `request`.
async fn lost(request: &str) -> ! {
    tracing::error!(
        request,
        "a lane dropped a request without answering it, so the requester waits forever: restart the daemon, and \
         report this bug"
    );
    debug_assert!(
        false,
        "a lane dropped a request without answering it: {request}"
    );
    std::future::pending().await
}

impl LaneHandle {
    /// Runs `make`'s future on that lane and returns its result; `None` if the lane has ended. If the lane is still
    /// running but has dropped the future, as [`answered`].
    pub async fn call<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot();
        self.spawn(move || {
            let future = make();
            async move { sender.send(future.await) }
        });
        match receiver.outcome().await {
            Ok(value) => Some(value),
            // Where a message that the ended lane had not taken is dropped, no lane or another one may be current.
            Err(Unanswered::LaneEnded) => None,
            Err(Unanswered::Dropped) if self.0.has_ended() => None,
            Err(Unanswered::Dropped) => lost(std::any::type_name::<F>()).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        time::Duration,
    };

    use crate::{Lane, LaneConfig, sim::World, spawn, task::JoinHandle, time};

    use super::*;

    #[test]
    fn an_answer_is_given_on() {
        let world = World::new(1);
        let host = world.host("machine");
        let answer = world.block_on(&host, async {
            let (done, answer) = oneshot();
            spawn(async move { done.send(7) });
            answered(answer, "a test").await
        });
        assert_eq!(answer, Some(7));
    }

    #[test]
    #[cfg_attr(
        debug_assertions,
        should_panic(expected = "dropped a request without answering it")
    )]
    fn a_dropped_request_is_never_done() {
        let world = World::new(1);
        let host = world.host("machine");
        world.block_on(&host, async {
            let (done, answer) = oneshot::<()>();
            spawn(async move { drop(done) });
            let waited = time::timeout(Duration::from_secs(3600), answered(answer, "a test")).await;
            assert!(waited.is_none(), "nobody answered");
        });
    }

    #[test]
    fn a_lane_that_has_ended_owes_nothing() {
        let (done, answer) = oneshot::<()>();
        let ends = lane();
        ends.block_on(async {
            spawn(async move {
                std::future::pending::<()>().await;
                done.send(());
            });
        });
        drop(ends);
        assert_eq!(lane().block_on(answered(answer, "a test")), None);
    }

    fn lane() -> Lane {
        Lane::new(&LaneConfig::default()).expect("a ring")
    }

    /// Starts `task` on `lane`.
    #[expect(
        clippy::async_yields_async,
        reason = "the caller waits for the task later"
    )]
    fn start<T: 'static>(lane: &Lane, task: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        lane.block_on(async { spawn(task) })
    }

    /// Has `other` take a call that panics, which the lane survives.
    fn call_that_panics(asker: &Lane, other: &Lane) -> JoinHandle<Option<()>> {
        let handle = other.handle();
        let call = start(asker, async move {
            handle.call(|| async { panic!("a test") }).await
        });
        let survives = AssertUnwindSafe(|| {
            other.block_on(async { time::sleep(Duration::from_millis(1)).await })
        });
        catch_unwind(survives).expect_err("the call panics");
        call
    }

    #[test]
    #[cfg_attr(
        debug_assertions,
        should_panic(expected = "dropped a request without answering it")
    )]
    fn a_call_that_a_living_lane_dropped_is_never_done() {
        let (asker, other) = (lane(), lane());
        let call = call_that_panics(&asker, &other);
        let waited = asker.block_on(async { time::timeout(Duration::from_millis(50), call).await });
        assert!(waited.is_none(), "nobody answered");
    }

    #[test]
    fn a_call_that_was_dropped_is_over_once_its_lane_has_ended() {
        let (asker, other) = (lane(), lane());
        let call = call_that_panics(&asker, &other);
        drop(other);
        assert_eq!(asker.block_on(call), None);
    }

    #[test]
    fn a_call_that_was_not_taken_when_its_lane_ended_is_over() {
        let (asker, other) = (lane(), lane());
        let handle = other.handle();
        let call = start(&asker, async move { handle.call(|| async {}).await });
        drop(other);
        assert_eq!(asker.block_on(call), None);
    }
}
