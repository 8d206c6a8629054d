//! One I_T nexus with a logical unit: a session from login to end, never retried. Its creator chooses the initiator
//! port; [`paths`](super::paths) handles its loss.

use std::cell::Cell;

use engine::{Duration, Instant, sync::Notify, task, time};

use super::{
    cdb::Cdb,
    config::Policy,
    doubt::Doubt,
    in_flight::InFlight,
    link::Link,
    session::{Data, Port, Reply},
};
use crate::{
    Error, ErrorKind, Result,
    planted::{Bug, is_planted},
};

/// A single-use connection to one logical unit: once ended, it stays ended.
pub(super) struct Nexus {
    link: Link,
    /// The index of its path.
    path: usize,
    /// Only the commands that prepare it have been sent on it.
    is_new: Cell<bool>,
    /// While it is being prepared: until when commands may be sent, and how long that is.
    ready_within: Cell<Option<(Instant, Duration)>>,
    /// How many restarts that another nexus reported it may report as well.
    catches_up: Cell<u32>,
    /// While new or catching up, it reported that the target restarted at some earlier time.
    told_of_restart: Cell<bool>,
    /// A unit attention for our own reset is pending.
    expects_reset: Cell<bool>,
    /// Whether it still leads to the disk. The events are those of the session, as far as they are known here.
    disk: Doubt,
    /// There was such an event.
    doubted: Notify,
    /// When its loss was noticed.
    lost_at: Cell<Option<Instant>>,
    /// The fate of writes that were in flight when it was lost.
    past: Cell<Past>,
    in_flight: InFlight,
}

/// The fate of writes that were in flight when a nexus was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Past {
    /// Unknown: they may still take effect.
    Open,
    /// They have taken effect, or never will.
    Over,
    /// They may take effect at any time, and the target cannot be kept from it.
    Unfenced,
}

impl Nexus {
    pub(super) fn new(link: Link, path: usize) -> Nexus {
        Nexus {
            link,
            path,
            is_new: Cell::new(true),
            ready_within: Cell::new(None),
            catches_up: Cell::new(0),
            told_of_restart: Cell::new(false),
            expects_reset: Cell::new(false),
            disk: Doubt::default(),
            doubted: Notify::new(),
            lost_at: Cell::new(None),
            past: Cell::new(Past::Open),
            in_flight: InFlight::default(),
        }
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    pub(super) fn path(&self) -> usize {
        self.path
    }

    pub(super) fn port(&self) -> Port {
        self.link.port()
    }

    /// Sends a command once.
    ///
    /// # Errors
    /// When the session ends before the answer, the target did not execute the command, or the LUN may have become
    /// another disk, which this command must not reach.
    pub(super) async fn execute(&self, cdb: &Cdb, data: Data) -> Result<Reply> {
        self.check_time()?;
        if self.is_in_doubt() && !cdb.suits_any_disk() {
            let message = "the target reported that the LUN may be another disk";
            return Err(Error::new(ErrorKind::TimedOut, message));
        }
        let doubts = self.doubts();
        let running = self.in_flight.begin();
        let reply = self.link.execute(cdb, data).await?;
        running.answered();
        self.doubt(reply.doubts);
        Ok(reply.knowing(doubts))
    }

    /// From now on, and until it is ready, commands are sent only for `limit`. One that was sent by then is waited for:
    /// its answer may be a unit attention, which the target reports only once.
    pub(super) fn must_be_ready_within(&self, limit: Duration) {
        self.ready_within.set(Some((time::now() + limit, limit)));
    }

    /// It has been prepared.
    pub(super) fn is_ready(&self) {
        self.ready_within.set(None);
    }

    fn check_time(&self) -> Result<()> {
        match self.ready_within.get() {
            Some((end, limit)) if time::now() > end => {
                let message = format!("the target was not ready within {:?}", time::brief(limit));
                Err(Error::new(ErrorKind::TimedOut, message))
            }
            _ => Ok(()),
        }
    }

    /// Sends LOGICAL UNIT RESET; returns the response code (RFC 7143 §11.6.1).
    pub(super) async fn reset_logical_unit(&self) -> Result<u8> {
        self.link.reset_logical_unit().await
    }

    pub(super) fn is_over(&self) -> bool {
        self.link.is_over()
    }

    /// Whether requests may be sent on it: it is not over, it leads to the disk as far as we know, and the target has
    /// not asked for a logout.
    pub(super) fn takes_requests(&self) -> bool {
        !self.is_over() && !self.is_in_doubt() && !self.link.is_asked_to_log_out()
    }

    /// The target has reported over its session, `doubts` times in all, that the disk may not be what it was.
    pub(super) fn doubt(&self, doubts: u64) {
        if doubts > self.doubts() {
            self.disk.raise_to(doubts);
            self.doubted.notify();
        }
    }

    /// How many times the target has reported that, as far as is known here.
    pub(super) fn doubts(&self) -> u64 {
        self.disk.events()
    }

    /// Its LUN was the disk when it was asked, after `doubts` such reports.
    pub(super) fn is_sure(&self, doubts: u64) {
        self.disk.settle(doubts);
    }

    /// Whether it may lead to another disk.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.disk.is_open()
    }

    /// Waits until it is in doubt. Returns whether it can still be asked: its session has not ended.
    pub(super) async fn in_doubt(&self) -> bool {
        let doubted = self.doubted.wait_for(|| self.is_in_doubt().then_some(()));
        task::either(self.link.over(), doubted).await;
        !self.is_over()
    }

    /// Whether it is lost and writes that were in flight may still take effect.
    pub(super) fn haunts(&self) -> bool {
        self.is_over()
            && self.link.has_left_writes()
            && self.past.get() == Past::Open
            && !is_planted(Bug::ResendAtOnce)
    }

    pub(super) fn settle_past(&self, past: Past) {
        self.past.set(past);
    }

    /// Whether it left writes that could not be fenced.
    pub(super) fn is_unfenced(&self) -> bool {
        self.past.get() == Past::Unfenced && self.link.has_left_writes()
    }

    pub(super) fn lost_at(&self) -> Option<Instant> {
        self.lost_at.get()
    }

    /// Records the time of its loss.
    pub(super) fn lost(&self) {
        self.lost_at.set(Some(time::now()));
    }

    pub(super) fn end(&self, error: Error) {
        self.link.end(error);
    }

    /// Ends it if commands are in flight on it.
    pub(super) async fn end_if_busy(&self, error: Error) {
        match self.link.there() {
            None if self.outstanding() > 0 => self.end(error),
            None => {}
            Some(distant) => distant.end_if_busy(error).await,
        }
    }

    pub(super) fn is_new(&self) -> bool {
        self.is_new.get()
    }

    /// From now on requests may be sent on it.
    pub(super) fn goes_into_use(&self) {
        self.is_new.set(false);
    }

    /// Another nexus reported a restart; this one may report the same restart.
    pub(super) fn catch_up(&self) {
        self.catches_up.set(self.catches_up.get() + 1);
    }

    /// It has reported everything that was pending at such an event.
    pub(super) fn has_caught_up(&self) {
        let left = self.catches_up.get() - 1;
        self.catches_up.set(left);
        if left == 0 {
            self.told_of_restart.set(false);
        }
    }

    /// Whether a restart that it reports may already be known.
    pub(super) fn tells_old_stories(&self) -> bool {
        self.is_new.get() || self.catches_up.get() > 0
    }

    pub(super) fn hear_of_restart(&self) {
        self.told_of_restart.set(true);
    }

    /// Whether it reported a restart that has not been taken since.
    pub(super) fn take_restart(&self) -> bool {
        self.told_of_restart.take()
    }

    pub(super) fn has_heard_of_restart(&self) -> bool {
        self.told_of_restart.get()
    }

    pub(super) fn expect_reset(&self) {
        self.expects_reset.set(true);
    }

    /// No unit attention is due to our reset: it was not done, or has been reported.
    pub(super) fn forget_reset(&self) {
        self.expects_reset.set(false);
    }

    /// Whether a unit attention for a reset is due to our own reset, which each nexus is told once.
    pub(super) fn was_our_reset(&self) -> bool {
        self.expects_reset.take()
    }

    /// Commands not yet answered.
    pub(super) fn outstanding(&self) -> u32 {
        self.in_flight.count()
    }

    /// Waits until no command is outstanding.
    pub(super) async fn idle(&self) {
        self.in_flight.idle().await;
        if let Some(distant) = self.link.there() {
            distant.idle().await;
        }
    }

    /// Its cost under `policy`: the nexus with the lowest is chosen.
    pub(super) fn load(&self, policy: Policy) -> u64 {
        self.in_flight.load(policy)
    }
}
