//! Tasks as lane code sees them: futures that are spawned, joined, or raced.

use std::{
    cell::RefCell,
    future::Future,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker},
};

use smallvec::SmallVec;

use crate::{
    future::LaneFuture,
    lane::{self, Share},
};

/// Starts `future` on the current lane, for the caller's share. It runs to its end even if the
/// handle is dropped.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    spawn_for(Share::current(), future)
}

/// As [`spawn`], for `share`.
pub fn spawn_for<T: 'static>(
    share: Share,
    future: impl Future<Output = T> + 'static,
) -> JoinHandle<T> {
    let state = Rc::new(RefCell::new(Join {
        output: None,
        waker: None,
    }));
    let shared = state.clone();
    let task = LaneFuture::new(async move {
        let output = future.await;
        let waker = {
            let mut join = shared.borrow_mut();
            join.output = Some(output);
            join.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    });
    lane::with(|lane| lane.tasks.borrow_mut().add(share, task));
    JoinHandle { state }
}

/// Starts `future` on the current lane and polls it at once, unless its share is used up. If it need not wait, it has
/// ended when this returns. A simulation may start it later, in any order with other ready tasks, so that no code
/// comes to rely on either.
///
/// # Panics
/// Outside a lane.
#[inline(always)] // as [`LaneFuture::new`]
pub fn begin(future: impl Future<Output = ()> + 'static) {
    lane::current().begin(LaneFuture::new(future));
}

struct Join<T> {
    output: Option<T>,
    waker: Option<Waker>,
}

/// Waits for a task's output. Dropping it leaves the task running.
pub struct JoinHandle<T> {
    state: Rc<RefCell<Join<T>>>,
}

impl<T> JoinHandle<T> {
    /// Whether the task has ended and its output has not been taken.
    pub fn is_finished(&self) -> bool {
        self.state.borrow().output.is_some()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut join = self.state.borrow_mut();
        match join.output.take() {
            Some(output) => Poll::Ready(output),
            None => {
                join.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JoinHandle")
    }
}

/// Lets every other ready task run once.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Which of two futures ended first.
#[derive(Debug)]
pub enum Either<A, B> {
    /// The first one has ended; perhaps both have.
    One(A),
    /// The second one has ended.
    Other(B),
}

/// Runs both on the current task until one of them ends.
pub async fn either<A, B>(
    one: impl Future<Output = A>,
    other: impl Future<Output = B>,
) -> Either<A, B> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(ended) = one.as_mut().poll(cx) {
            return Poll::Ready(Either::One(ended));
        }
        other.as_mut().poll(cx).map(Either::Other)
    })
    .await
}

/// One of several futures, with its output once it has ended.
enum Joined<F: Future> {
    Running(F),
    Ended(F::Output),
}

/// Runs all futures concurrently on the current task and returns their outputs in order. Each is driven to its
/// end whatever happens to the others, as writes must be. Up to four need no allocation. Futures must be
/// `Unpin` because they are stored inline, so one that is not must be boxed or be a [`LaneFuture`].
pub async fn join_all<F: Future + Unpin>(
    futures: impl IntoIterator<Item = F>,
) -> SmallVec<[F::Output; 4]> {
    let mut all: SmallVec<[Joined<F>; 4]> = futures.into_iter().map(Joined::Running).collect();
    std::future::poll_fn(|cx| {
        let mut running = false;
        for one in &mut all {
            if let Joined::Running(future) = one {
                match Pin::new(future).poll(cx) {
                    Poll::Ready(output) => *one = Joined::Ended(output),
                    Poll::Pending => running = true,
                }
            }
        }
        match running {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    })
    .await;
    all.into_iter()
        .filter_map(|one| match one {
            Joined::Ended(output) => Some(output),
            Joined::Running(_) => None,
        })
        .collect()
}
