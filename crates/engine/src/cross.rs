//! Passing values between lanes: a oneshot for an answer, a channel for a stream of requests. Not
//! meant for every I/O, since each message takes a lock.

use std::{
    collections::VecDeque,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::lane::{self, LaneHandle};

/// What both ends share. The lock is held for each change as a whole, so a panic elsewhere leaves
/// the state consistent.
struct State<T> {
    values: VecDeque<T>,
    senders: usize,
    receiver_gone: bool,
    /// A sender was dropped because its lane ended.
    lane_ended: bool,
    waker: Option<Waker>,
}

type Shared<T> = Arc<Mutex<State<T>>>;

fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, State<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sending end of a channel; clones send to the same receiver.
pub struct Sender<T>(Shared<T>);

/// The receiving end of a channel.
pub struct Receiver<T>(Shared<T>);

/// A channel between lanes.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = State {
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
    /// The next value; `None` once all senders are gone and the channel is empty.
    pub async fn receive(&self) -> Option<T> {
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

/// Receives a single value.
#[derive(Debug)]
pub struct OneshotReceiver<T>(Receiver<T>);

/// Why no value came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The lane that should have sent it has ended, with all its tasks.
    LaneEnded,
    /// The sender was dropped on a lane that is still running.
    Dropped,
}

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
    /// The value, or why there is none.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn answer(self) -> Result<T, Unanswered> {
        let value = self.0.receive().await;
        value.ok_or_else(|| match lock(&self.0.0).lane_ended {
            true => Unanswered::LaneEnded,
            false => Unanswered::Dropped,
        })
    }
}

impl<T> Future for OneshotReceiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll(cx)
    }
}

impl LaneHandle {
    /// Runs `make`'s future on that lane and returns its result; `None` if the lane has ended.
    pub async fn call<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot();
        self.spawn(move || {
            let future = make();
            async move { sender.send(future.await) }
        });
        receiver.await
    }
}
