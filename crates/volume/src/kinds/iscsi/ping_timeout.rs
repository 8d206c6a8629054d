//! How long a target may be silent, pinged or not, before its session counts as lost.
//!
//! Silence is not slowness: a command may take as long as the medium needs, while a target that is there answers a ping
//! at once. So where requests can go another way, silence ends a session long before the limit of a command does. Where
//! there is one way only, giving up early gains nothing.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use engine::Duration;

/// The default where there is another way. The watchdog looks eight times as often, so a loss is noticed within four
/// seconds, and the other way carries the load within five.
const WITH_ANOTHER_WAY: Duration = Duration::from_millis(3500);

/// The limit on the silence of a disk's sessions, on whichever lanes.
#[derive(Clone, Debug, Default)]
pub struct PingTimeout {
    /// The user's setting.
    written: Option<Duration>,
    has_another_way: Arc<AtomicBool>,
}

impl PingTimeout {
    /// The limit that the user has set, or else the default.
    pub fn new(written: Option<Duration>) -> Self {
        PingTimeout {
            written,
            has_another_way: Arc::default(),
        }
    }

    /// The same for a disk of its own, which may have another way.
    pub(super) fn for_disk(&self, has_another_way: bool) -> Self {
        let own = PingTimeout::new(self.written);
        own.follow(has_another_way);
        own
    }

    /// From now on the disk has another way, or has none. The limit of sessions that are open changes with it.
    pub(super) fn follow(&self, has_another_way: bool) {
        // Relaxed: a watchdog may as well see it a moment later.
        self.has_another_way
            .store(has_another_way, Ordering::Relaxed);
    }

    /// The limit as of now, where `request` is that of a command.
    pub(super) fn limit(&self, request: Duration) -> Duration {
        match self.written {
            Some(limit) => limit,
            None if self.has_another_way.load(Ordering::Relaxed) => request.min(WITH_ANOTHER_WAY),
            None => request,
        }
    }
}
