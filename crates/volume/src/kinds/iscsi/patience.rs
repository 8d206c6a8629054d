//! How long a request goes on when its target does not do what it is asked. Whatever a peer
//! answers, a request sends a bounded number of commands and ends in bounded time: some may be sent
//! again at once, after that it pauses longer and longer, and its time begins with the first answer
//! that is no success.

use engine::{Duration, Instant, time};

use crate::{Error, ErrorKind, Result};

/// How often a command is sent again without a pause: for each unit attention that may be pending.
pub(super) const AT_ONCE_MAX: u32 = 16;
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// After a refusal, where there is another path.
const PAUSE_REFUSED: Duration = Duration::from_secs(10);
/// What may be sent again at once has so long in any case: a unit attention is no outage.
const AT_ONCE_TIME: Duration = Duration::from_secs(1);

/// What one request has left, over all of its attempts and sessions.
#[derive(Debug)]
pub(super) struct Patience {
    limit: Duration,
    /// When it was first to be tried again.
    since: Option<Instant>,
    at_once_left: u32,
    pause: Duration,
    attempts: u32,
}

impl Patience {
    /// Of a request that gives up after `limit` of trouble.
    pub(super) fn new(limit: Duration) -> Patience {
        Patience {
            limit,
            since: None,
            at_once_left: AT_ONCE_MAX,
            pause: PAUSE_FIRST,
            attempts: 0,
        }
    }

    /// How long there has been trouble, if this is trouble.
    fn elapsed(&mut self) -> Duration {
        let now = time::now();
        now - *self.since.get_or_insert(now)
    }

    /// The time that is left, now that there is trouble; `None`: it is over. With a limit of zero it
    /// is not over at the first trouble: that leaves one attempt.
    pub(super) fn left(&mut self) -> Option<Duration> {
        self.limit.checked_sub(self.elapsed())
    }

    /// Waits until a command that has ended with `why` may be sent again.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] with `why`, when the time is up.
    pub(super) async fn again(&mut self, at_once: bool, why: &str) -> Result<()> {
        self.attempts += 1;
        if at_once && self.at_once_left > 0 && self.elapsed() <= self.limit.max(AT_ONCE_TIME) {
            self.at_once_left -= 1;
            return Ok(());
        }
        let left = self.left().unwrap_or_default();
        if left.is_zero() {
            let message = format!(
                "{why}; it answered so {} times within {:?}",
                self.attempts, self.limit
            );
            return Err(Error::new(ErrorKind::TimedOut, message));
        }
        time::sleep(self.pause.min(left)).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }
}

/// The pace of logins to one target, for all requests that wait for one: at once after a session
/// that held for a while, and slower the more often it was lost, or not had, shortly after.
#[derive(Debug)]
pub(super) struct Pace {
    /// When the last login began.
    began: Instant,
    pause: Duration,
}

impl Pace {
    /// A login begins now.
    pub(super) fn begin() -> Pace {
        Pace {
            began: time::now(),
            pause: Duration::ZERO,
        }
    }

    /// How long the next login is to wait.
    pub(super) fn due_in(&self) -> Duration {
        self.pause.saturating_sub(time::now() - self.began)
    }

    /// The last login was refused, and nobody waits for the next.
    pub(super) fn refused(&mut self) {
        self.pause = PAUSE_REFUSED;
    }

    /// The next login begins now.
    pub(super) fn next(&mut self) {
        let now = time::now();
        self.pause = match now - self.began > self.pause + PAUSE_MAX {
            true => Duration::ZERO,
            false => (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX),
        };
        self.began = now;
    }
}
