//! Whether a command is still wanted while it waits for its turn: its front may have aborted it.

use std::pin::pin;

use engine::{
    LaneFuture,
    task::{Either, either},
};

/// Whether a command is still wanted.
pub trait Wanted {
    /// Whether it is now.
    fn is_wanted(&self) -> bool;

    /// Resolves once it is not any more.
    fn until_unwanted(&self) -> LaneFuture<'_, ()>;
}

/// For commands that nobody aborts while they wait.
impl<F: Fn() -> bool> Wanted for F {
    fn is_wanted(&self) -> bool {
        self()
    }

    fn until_unwanted(&self) -> LaneFuture<'_, ()> {
        LaneFuture::new(std::future::pending())
    }
}

/// What `waited` returns; `None`, at once, if the command is not `wanted` any more.
pub(crate) async fn while_wanted<T>(
    wanted: &impl Wanted,
    waited: impl Future<Output = T>,
) -> Option<T> {
    let waited = pin!(waited);
    match either(wanted.until_unwanted(), waited).await {
        Either::One(()) => None,
        Either::Other(result) => Some(result),
    }
}
