//! How often a path is tried: logins, and attempts that hold others up.

use engine::{Duration, Instant};

const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Pause after a refused login while there is another path.
const PAUSE_REFUSED: Duration = Duration::from_secs(10);
/// Pause after a failed attempt that held others up; it doubles with each further one.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// The pace of logins on one path, shared by all requests that wait for a session: immediate after a session that lasted
/// for a while, and backing off when sessions fail or are lost in quick succession.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// When the last login began.
    began: Instant,
    pause: Duration,
}

impl Pace {
    /// A login begins `now`.
    pub(super) fn begin(now: Instant) -> Pace {
        Pace {
            began: now,
            pause: Duration::ZERO,
        }
    }

    /// How long until the next login is due.
    pub(super) fn due_in(self, now: Instant) -> Duration {
        self.pause.saturating_sub(now - self.began)
    }

    /// The last login was refused and no request depends on the next.
    pub(super) fn refused(&mut self) {
        self.pause = PAUSE_REFUSED;
    }

    /// The next login begins `now`.
    pub(super) fn next(&mut self, now: Instant) {
        self.pause = match now - self.began > self.pause + PAUSE_MAX {
            true => Duration::ZERO,
            false => (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX),
        };
        self.began = now;
    }
}

/// The pace of attempts that hold others up, and so may fail only so often: the pause grows with each failure in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff(Option<LastFailure>);

/// The last failure.
#[derive(Clone, Copy, Debug)]
struct LastFailure {
    at: Instant,
    /// The pause after it.
    pause: Duration,
}

impl Backoff {
    /// How long until the next attempt is due.
    pub(super) fn due_in(self, now: Instant) -> Duration {
        let due_in = |failure: LastFailure| failure.pause.saturating_sub(now - failure.at);
        self.0.map(due_in).unwrap_or_default()
    }

    /// The attempt that `began` then and ends `now` has failed.
    pub(super) fn failed(&mut self, began: Instant, now: Instant) {
        let pause = match &self.0 {
            Some(last) if began - last.at <= last.pause + BACKOFF_MAX => last.pause * 2,
            _ => BACKOFF_FIRST,
        };
        self.0 = Some(LastFailure {
            at: now,
            pause: pause.min(BACKOFF_MAX),
        });
    }

    /// The last attempt has succeeded.
    pub(super) fn succeeded(&mut self) {
        self.0 = None;
    }
}
