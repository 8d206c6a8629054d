//! Retry limits. Whatever the target answers, a request sends a bounded number of commands and ends in bounded time:
//! the first few retries are immediate, later ones back off, and the clock starts with the first unsuccessful answer.

use std::{cell::Cell, rc::Rc};

use engine::{Duration, Instant, time};

use crate::{Error, ErrorKind, Result};

/// How many times a command is resent without a pause: once for each unit attention that may be pending.
pub(super) const AT_ONCE_MAX: u32 = 16;
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Between these two a pause is this part of the time since the first trouble.
const PAUSE_PART: u32 = 8;
/// Immediate retries are allowed for at least this long: a unit attention is no outage.
const AT_ONCE_TIME: Duration = Duration::from_secs(1);

/// The retry budget of one request, over all its attempts and sessions.
#[derive(Debug)]
pub(super) struct Patience {
    /// It may change meanwhile.
    limit: Rc<Cell<Duration>>,
    /// When it first needed a retry.
    since: Option<Instant>,
    at_once_left: u32,
    attempts: u32,
    losses: u32,
}

impl Patience {
    /// For a request that gives up after `limit` of trouble, as it is by then.
    pub(super) fn new(limit: &Rc<Cell<Duration>>) -> Patience {
        Patience {
            limit: limit.clone(),
            since: None,
            at_once_left: AT_ONCE_MAX,
            attempts: 0,
            losses: 0,
        }
    }

    /// Time since the first trouble; starts the clock on the first call.
    fn elapsed(&mut self) -> Duration {
        let now = time::now();
        now - *self.since.get_or_insert(now)
    }

    /// The time left for a target that is there and answers, whatever the limit; starts the clock on the first call. `None`:
    /// it is up.
    pub(super) fn left_to_answer(&mut self) -> Option<Duration> {
        self.limit
            .get()
            .max(AT_ONCE_TIME)
            .checked_sub(self.elapsed())
    }

    /// The time left; starts the clock on the first call. `None`: it is up. A limit of zero still leaves one retry,
    /// because no time has passed at the first trouble.
    pub(super) fn left(&mut self) -> Option<Duration> {
        self.limit.get().checked_sub(self.elapsed())
    }

    /// The session that carried a command was lost, with `why`, before the command was answered. The clock runs from the
    /// first such loss, however many sessions the target accepts after it.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] with `why`, when the time is up.
    pub(super) fn lost(&mut self, why: &Error) -> Result<()> {
        self.losses += 1;
        if self.left().is_some() {
            return Ok(());
        }
        let (losses, limit) = (self.losses, time::brief(self.limit.get()));
        let message = format!(
            "{why}; {losses} sessions were lost with this request, for more than {limit:?}"
        );
        Err(Error::new(ErrorKind::TimedOut, message))
    }

    /// Waits until a command that failed with `why` may be resent.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] with `why`, when the time is up.
    pub(super) async fn again(&mut self, at_once: bool, why: &str) -> Result<()> {
        self.attempts += 1;
        if at_once && self.at_once_left > 0 && self.elapsed() <= self.limit.get().max(AT_ONCE_TIME)
        {
            self.at_once_left -= 1;
            return Ok(());
        }
        let left = self.left().unwrap_or_default();
        if left.is_zero() {
            let message = format!(
                "{why}; it gave this answer {} times within {:?}",
                self.attempts,
                time::brief(self.limit.get())
            );
            return Err(Error::new(ErrorKind::TimedOut, message));
        }
        // A part of the time that it has taken already: whatever ends soon is noticed soon, a full task set above all.
        let pause = (self.elapsed() / PAUSE_PART).clamp(PAUSE_FIRST, PAUSE_MAX);
        time::sleep(pause.min(left)).await;
        Ok(())
    }
}
