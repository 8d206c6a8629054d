//! Whether the path of an open file still leads to it, asked again and again for people. A file system that hangs holds up
//! nobody, and is asked no second time meanwhile.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use engine::{Duration, blocking};

/// For how long an answer is waited for; after that the last one counts.
const LOOK_LIMIT: Duration = Duration::from_millis(200);

/// What the last look has found.
#[derive(Debug, Default)]
pub(super) struct LastLook {
    is_under_way: AtomicBool,
    is_lost: AtomicBool,
}

/// A look; also one that is never begun is over at its end.
struct Look(Arc<LastLook>);

impl Drop for Look {
    fn drop(&mut self) {
        self.0.is_under_way.store(false, Ordering::Release);
    }
}

impl LastLook {
    /// What `looks` finds, which may block; or what the last look has found, if that takes long.
    pub(super) async fn again(
        self: &Arc<Self>,
        looks: impl FnOnce() -> bool + Send + 'static,
    ) -> bool {
        if !self.is_under_way.swap(true, Ordering::Acquire) {
            let look = Look(self.clone());
            let looking = move || look.0.is_lost.store(looks(), Ordering::Relaxed);
            let looked = blocking::run_within(LOOK_LIMIT, blocking::WorkKind::Looks, looking);
            // Else the one before counts.
            let _ = looked.await;
        }
        self.is_lost.load(Ordering::Relaxed)
    }
}
