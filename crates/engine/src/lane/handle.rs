//! How other threads, other lanes included, give a lane work.

use std::{fmt, future::Future, sync::Arc};

use super::{
    current,
    inbox::{Inbox, Message},
    shares::Share,
    try_with,
};
use crate::future::LaneFuture;

/// Gives access to a lane from any thread.
#[derive(Clone)]
pub struct LaneHandle(pub(crate) Arc<Inbox>);

impl LaneHandle {
    /// Starts a task on that lane: `make` runs there and returns the future.
    pub fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        make: impl FnOnce() -> F + Send + 'static,
    ) {
        let run = Box::new(move || current().begin(LaneFuture::new(make())));
        self.0.push(Message::Run(Share::current(), run));
    }

    /// Whether this is the lane running on the current thread.
    pub fn is_current(&self) -> bool {
        try_with(|lane| lane.inbox.id == self.0.id) == Some(true)
    }
}

impl PartialEq for LaneHandle {
    /// Whether both refer to the same lane.
    fn eq(&self, other: &LaneHandle) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for LaneHandle {}

impl fmt::Debug for LaneHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LaneHandle({})", self.0.id.0)
    }
}
