//! Drives the requests to several children together within the caller's task.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

use engine::LaneFuture;

use super::map::PerChild;

enum Request<'a, T> {
    Running(LaneFuture<'a, T>),
    Ended(T),
}

/// Starts all at once, ends when all have ended, and gives their outputs in order. Every future is
/// driven to its end, also when another one failed before: a write must be.
pub(super) async fn all<'a, T>(futures: impl Iterator<Item = LaneFuture<'a, T>>) -> PerChild<T> {
    let mut requests: PerChild<Request<'a, T>> = futures.map(Request::Running).collect();
    poll_fn(|cx| {
        let mut running = false;
        for request in &mut requests {
            if let Request::Running(future) = request {
                match Pin::new(future).poll(cx) {
                    Poll::Ready(output) => *request = Request::Ended(output),
                    Poll::Pending => running = true,
                }
            }
        }
        if running {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    requests
        .into_iter()
        .filter_map(|request| match request {
            Request::Ended(output) => Some(output),
            Request::Running(_) => None,
        })
        .collect()
}
