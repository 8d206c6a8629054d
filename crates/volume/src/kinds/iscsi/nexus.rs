//! One I_T nexus with a logical unit: a session from its login to its end, without a second try.
//! Whoever made it named its initiator port, and what its loss means is [`paths`](super::paths)'s.

use std::{cell::Cell, rc::Rc};

use engine::{Duration, Instant, LaneFuture, sync::Notify, time};
use iscsi::LunField;

use super::{
    cdb::Cdb,
    link::Link,
    session::{Data, Port, Reply},
};
use crate::{Error, Result};

/// How much of the last answer's time goes into the mean, as a power of two.
const LATENCY_SHIFT: u32 = 3;

/// A way to one logical unit that ends once.
pub(super) struct Nexus {
    link: Link,
    lun: LunField,
    /// The number of its path.
    path: usize,
    /// Nothing was sent on it but what makes it fit for use.
    is_new: Cell<bool>,
    /// While it was new the target has said that it has restarted, at some time before.
    told_of_restart: Cell<bool>,
    /// A reset of ours is to be told by a unit attention.
    expects_reset: Cell<bool>,
    /// When its loss was seen.
    lost_at: Cell<Option<Instant>>,
    /// What becomes of writes that were in flight at its loss.
    past: Cell<Past>,
    outstanding: Cell<u32>,
    idle: Notify,
    latency: Cell<Duration>,
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
            told_of_restart: Cell::new(false),
            expects_reset: Cell::new(false),
            lost_at: Cell::new(None),
            past: Cell::new(Past::Open),
            outstanding: Cell::new(0),
            idle: Notify::new(),
            latency: Cell::new(Duration::ZERO),
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
        let running = Running::begin(self);
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

    /// Whether it is lost, and writes that were in flight may still happen at a time of their own.
    pub(super) fn haunts(&self) -> bool {
        self.is_over() && self.link.has_left_writes() && self.past.get() == Past::Open
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
            Some(distant) => {
                let ended = distant.ask(|nexus: Rc<Nexus>| async move {
                    if nexus.outstanding() > 0 {
                        nexus.end(error);
                    }
                    Ok(nexus.link.end_now())
                });
                // A lane that has ended has no session.
                if let Ok(Some(end)) = ended.await {
                    distant.ended(end);
                }
            }
        }
    }

    pub(super) fn is_new(&self) -> bool {
        self.is_new.get()
    }

    /// From now on requests may be sent on it.
    pub(super) fn goes_into_use(&self) {
        self.is_new.set(false);
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
        self.outstanding.get()
    }

    /// Waits until every command was answered.
    pub(super) async fn idle(&self) {
        let is_idle = || (self.outstanding.get() == 0).then_some(());
        self.idle.wait_for(is_idle).await;
        if let Some(distant) = self.link.there() {
            let idle = distant.ask(|nexus: Rc<Nexus>| {
                LaneFuture::new(async move {
                    nexus.idle().await;
                    Ok(())
                })
            });
            let _ = idle.await;
        }
    }

    /// What an answer takes, of late.
    pub(super) fn latency(&self) -> Duration {
        self.latency.get()
    }
}

/// A command on its way.
struct Running<'a> {
    nexus: &'a Nexus,
    began: Instant,
}

impl<'a> Running<'a> {
    fn begin(nexus: &'a Nexus) -> Running<'a> {
        nexus.outstanding.set(nexus.outstanding.get() + 1);
        Running {
            nexus,
            began: time::turn_began(),
        }
    }

    fn answered(&self) {
        let (took, mean) = (time::turn_began() - self.began, self.nexus.latency.get());
        let mean = mean - mean / (1 << LATENCY_SHIFT) + took / (1 << LATENCY_SHIFT);
        self.nexus.latency.set(mean);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let left = self.nexus.outstanding.get() - 1;
        self.nexus.outstanding.set(left);
        if left == 0 {
            self.nexus.idle.notify();
        }
    }
}
