//! How long a target may be silent, pinged or not, before its session counts as lost.
//!
//! Silence is not slowness: a command may take as long as the medium needs, while a target that is there answers a ping
//! at once. So where requests can go another way, silence ends a session long before the limit of a command does. Where
//! there is one way only, giving up early gains nothing.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use engine::Duration;

use crate::SHOWN_WITHIN;

/// The default where there is another way. The watchdog looks eight times as often, so a loss is noticed within four
/// seconds, and the other way carries the load within five.
const WITH_ANOTHER_WAY: Duration = Duration::from_millis(3500);
const _: () = assert!(WITH_ANOTHER_WAY.as_millis() / 8 * 9 < SHOWN_WITHIN.as_millis());

/// The limit on the silence of a disk's sessions, on whichever lanes, and on their commands once another has been set.
#[derive(Clone, Debug, Default)]
pub struct PingTimeout(Arc<SharedLimits>);

// Relaxed throughout: a watchdog may as well see a change a moment later.
#[derive(Debug, Default)]
struct SharedLimits {
    /// The user's setting; 0: none.
    written_ns: AtomicU64,
    /// The limit on commands that was set while the disk was open; 0: none was.
    request_ns: AtomicU64,
    has_another_way: AtomicBool,
}

fn ns_of(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

impl PingTimeout {
    /// The limit that the user has set, or else the default.
    pub fn new(written: Option<Duration>) -> Self {
        let timeout = PingTimeout::default();
        timeout
            .0
            .written_ns
            .store(written.map_or(0, ns_of), Relaxed);
        timeout
    }

    /// The same for a disk of its own, which may have another way.
    pub(super) fn for_disk(&self, has_another_way: bool) -> Self {
        let own = PingTimeout::new(self.written());
        own.follow(has_another_way);
        own
    }

    /// From now on the disk has another way, or has none. The limit of sessions that are open changes with it.
    pub(super) fn follow(&self, has_another_way: bool) {
        self.0.has_another_way.store(has_another_way, Relaxed);
    }

    /// From now on these are the user's setting and the limit on commands, also for sessions that are open.
    pub(super) fn set(&self, written: Option<Duration>, request: Duration) {
        self.0.written_ns.store(written.map_or(0, ns_of), Relaxed);
        self.0.request_ns.store(ns_of(request), Relaxed);
    }

    fn written(&self) -> Option<Duration> {
        match self.0.written_ns.load(Relaxed) {
            0 => None,
            ns => Some(Duration::from_nanos(ns)),
        }
    }

    /// The limit on commands as of now, where a session began with `first`.
    pub(super) fn request(&self, first: Duration) -> Duration {
        match self.0.request_ns.load(Relaxed) {
            0 => first,
            ns => Duration::from_nanos(ns),
        }
    }

    /// The limit as of now, where `request` is that of a command.
    pub(super) fn limit(&self, request: Duration) -> Duration {
        match self.written() {
            Some(limit) => limit,
            None if self.0.has_another_way.load(Relaxed) => request.min(WITH_ANOTHER_WAY),
            None => request,
        }
    }
}
