//! One I_T nexus with a logical unit: a session from its login to its end, without a second try.
//! Whoever made it named its initiator port, and what its loss means is [`paths`](super::paths)'s.

use std::cell::Cell;

use engine::{Instant, time};
use iscsi::LunField;

use super::{
    cdb::Cdb,
    config::Policy,
    in_flight::InFlight,
    link::Link,
    session::{Data, Port, Reply},
};
use crate::{
    Error, Result,
    planted::{Bug, is_planted},
};

/// A way to one logical unit that ends once.
pub(super) struct Nexus {
    link: Link,
    lun: LunField,
    /// The number of its path.
    path: usize,
    /// Nothing was sent on it but what makes it fit for use.
    is_new: Cell<bool>,
    /// What the target tells on it of a restart may be known from another one.
    catches_up: Cell<bool>,
    /// While it was new, or caught up, the target has said that it has restarted, at some time before.
    told_of_restart: Cell<bool>,
    /// A reset of ours is to be told by a unit attention.
    expects_reset: Cell<bool>,
    /// When its loss was seen.
    lost_at: Cell<Option<Instant>>,
    /// What becomes of writes that were in flight at its loss.
    past: Cell<Past>,
    in_flight: InFlight,
}

/// What becomes of writes that were in flight when a nexus was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Past {
    /// Nobody knows: they may still happen.
    Open,
    /// They have happened, or never will.
    Over,
    /// They may happen at any time, and the target cannot be kept from it.
    Unfenced,
}

impl Nexus {
    pub(super) fn new(link: Link, lun: LunField, path: usize) -> Nexus {
        Nexus {
            link,
            lun,
            path,
            is_new: Cell::new(true),
            catches_up: Cell::new(false),
            told_of_restart: Cell::new(false),
            expects_reset: Cell::new(false),
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
    /// When the session ends before the answer, or the target did not execute it.
    pub(super) async fn execute(&self, cdb: &Cdb, data: Data) -> Result<Reply> {
        let running = self.in_flight.begin();
        let replied = self.link.execute(self.lun, cdb, data).await;
        if replied.is_ok() {
            running.answered();
        }
        replied
    }

    /// LOGICAL UNIT RESET: gives the response code (RFC 7143 §11.6.1).
    pub(super) async fn reset_logical_unit(&self) -> Result<u8> {
        self.link.reset_logical_unit(self.lun).await
    }

    pub(super) fn is_over(&self) -> bool {
        self.link.is_over()
    }

    /// Whether requests may be sent on it: it is not over, and not asked to be.
    pub(super) fn takes_requests(&self) -> bool {
        !self.is_over() && !self.link.is_asked_to_log_out()
    }

    /// Whether it is lost, and writes that were in flight may still happen at a time of their own.
    pub(super) fn haunts(&self) -> bool {
        self.is_over()
            && self.link.has_left_writes()
            && self.past.get() == Past::Open
            && !is_planted(Bug::ResendAtOnce)
    }

    pub(super) fn settle_past(&self, past: Past) {
        self.past.set(past);
    }

    /// Whether the target could not be made to forget its writes.
    pub(super) fn is_unfenced(&self) -> bool {
        self.past.get() == Past::Unfenced && self.link.has_left_writes()
    }

    pub(super) fn lost_at(&self) -> Option<Instant> {
        self.lost_at.get()
    }

    /// Its loss is seen now.
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

    /// A restart was told on another nexus, and this one may tell of it, too.
    pub(super) fn catch_up(&self) {
        self.catches_up.set(true);
        self.told_of_restart.set(false);
    }

    /// It has told what it had to tell.
    pub(super) fn has_caught_up(&self) {
        self.catches_up.set(false);
    }

    /// Whether a restart that it tells of may be an old story.
    pub(super) fn tells_old_stories(&self) -> bool {
        self.is_new.get() || self.catches_up.get()
    }

    pub(super) fn hear_of_restart(&self) {
        self.told_of_restart.set(true);
    }

    pub(super) fn has_heard_of_restart(&self) -> bool {
        self.told_of_restart.get()
    }

    pub(super) fn expect_reset(&self) {
        self.expects_reset.set(true);
    }

    /// Whether a unit attention about a reset is about our own, which each nexus is told once.
    pub(super) fn was_our_reset(&self) -> bool {
        self.expects_reset.take()
    }

    /// Commands that are not answered.
    pub(super) fn outstanding(&self) -> u32 {
        self.in_flight.count()
    }

    /// Waits until every command was answered.
    pub(super) async fn idle(&self) {
        self.in_flight.idle().await;
        if let Some(distant) = self.link.there() {
            distant.idle().await;
        }
    }

    /// Of several it is taken if this is least.
    pub(super) fn load(&self, policy: Policy) -> u64 {
        self.in_flight.load(policy)
    }
}
