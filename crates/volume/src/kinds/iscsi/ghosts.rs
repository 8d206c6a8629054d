//! Ends the writes that lost nexuses may still have at the target, before any other write is sent.
//!
//! A nexus is known to be dead *at the target*:
//!
//! 1. when the same initiator port has logged in at the same target port, which makes the target end the old session
//!    first (RFC 7143 §6.3.5); the login may use the path itself or another portal of its group;
//! 2. or when LOGICAL UNIT RESET was answered over another nexus (SAM-5 7.10), sent some time after we aborted the lost
//!    connection: by then its last packet has arrived at the target or never will.
//!
//! A reset aborts everybody's commands. Ours are held back and drained before it, for a bounded time: a target that
//! does not answer must not stop the reads over the paths that work. A nexus that has commands in flight all the same
//! counts as lost.

use std::rc::{Rc, Weak};

use engine::{Duration, spawn, time};

use super::{
    nexus::{Nexus, Past},
    path::Path,
    unit::Unit,
};
use crate::{Error, ErrorKind, Result};

/// How long a lost connection must have been silent, with nothing of it leaving this machine, before the reset.
pub(super) const QUIET: Duration = Duration::from_secs(1);
/// How long all commands are held back for a reset, at most: until those in flight on its nexus have ended and the other
/// lanes send nothing, and then until the target has answered it.
const HOLD_MAX: Duration = Duration::from_secs(5);

impl Unit {
    /// Ends the writes of lost nexuses over a new nexus of `path` that reached another target port. If the target refuses,
    /// the writes of this path are given up; those of other paths may still be ended by a login there.
    pub(super) async fn end_past(&self, path: &Path, nexus: &Rc<Nexus>) -> Result<()> {
        // An earlier reset may have been in vain.
        let _ = time::timeout(self.reset_due_in(path), nexus.link().over()).await;
        if self.reset(path, nexus).await? {
            return self.hear(nexus).await;
        }
        let Some(lost) = path.ghost() else {
            return Ok(());
        };
        let target_name = &self.config().target_name;
        let consequence = "writes that were in flight have failed, but may still take effect";
        tracing::error!(
            target_name,
            consequence,
            "the new session is at another portal group, and LOGICAL UNIT RESET has failed there"
        );
        self.paths.leave_unfenced([lost].into_iter());
        Ok(())
    }

    /// Ends the writes of `lost`, the nexus of `path`, over another path. Failures are retried by the caller; resets
    /// that fail, less and less often.
    pub(super) async fn fence(&self, path: &Path, lost: &Rc<Nexus>, may_reset: bool) {
        for other in self.paths.all() {
            let Some(nexus) = other.usable() else {
                continue;
            };
            if !lost.haunts() {
                return;
            }
            let is_same_way = other.address() == path.address();
            if lost.port().is_same(&nexus.port()) && !is_same_way {
                self.reinstate_over(path, other, lost).await;
            }
            if lost.haunts() && may_reset && self.reset_due_in(other).is_zero() {
                let reset = async {
                    // A reset would abort a new owner's writes.
                    self.establish_claim(&nexus).await?;
                    self.reset(other, &nexus).await
                };
                if let Err(error) = reset.await {
                    tracing::debug!(%error, "the reset failed on this path");
                }
            }
        }
    }

    /// Logs in with the initiator port of `path` over `other`, at the same target port, which ends the lost session;
    /// then logs out again.
    async fn reinstate_over(&self, path: &Path, other: &Path, lost: &Nexus) {
        let deadline = time::now() + self.paths.login_limit();
        let Ok(session) = self.paths.log_in_over(path, other, deadline).await else {
            return;
        };
        if session.port().is_same(&lost.port()) {
            lost.settle_past(Past::Over);
            self.paths.counts.borrow_mut().reinstated_elsewhere += 1;
            self.paths.notify();
        }
        session.logout().await;
    }

    /// How long until a reset over `path` may be tried again. It holds up the commands of the other paths; if there are
    /// none, it may be tried at any time.
    fn reset_due_in(&self, path: &Path) -> Duration {
        match self.paths.usable().next() {
            Some(_) => path.resets.borrow().due_in(),
            None => Duration::ZERO,
        }
    }

    /// Sends LOGICAL UNIT RESET over `nexus` of `path`, after draining it; returns whether it was done, or no longer
    /// needed.
    async fn reset(&self, path: &Path, nexus: &Rc<Nexus>) -> Result<bool> {
        let _turn = self.resetting.take(1).await;
        let ghosts = self.quiet_ghosts().await;
        if ghosts.is_empty() {
            return Ok(true);
        }
        if !self.reset_due_in(path).is_zero() {
            let message = "another LOGICAL UNIT RESET over this path has failed just now";
            return Err(Error::new(ErrorKind::TimedOut, message));
        }
        // Another disk's commands must not be aborted, nor those of this one count as aborted.
        if let Err(error) = self.check_identity(nexus).await {
            if error.kind() == ErrorKind::Configuration {
                nexus.end(error.clone());
            }
            return Err(error);
        }
        let began = time::now();
        let done = self.reset_for(&ghosts, nexus).await;
        match done {
            Ok(true) => path.resets.borrow_mut().succeeded(),
            _ => path.resets.borrow_mut().failed(began),
        }
        done
    }

    /// The lost nexuses that left writes, once the last of them has been silent for long enough. Nobody but writers
    /// waits meanwhile.
    async fn quiet_ghosts(&self) -> Vec<Rc<Nexus>> {
        loop {
            let ghosts: Vec<_> = self.paths.all().iter().filter_map(Path::ghost).collect();
            let now = time::now();
            let quiet_at = |lost: &Rc<Nexus>| lost.lost_at().unwrap_or(now) + QUIET;
            match ghosts.iter().map(quiet_at).max() {
                Some(quiet_at) if quiet_at > now => time::sleep_until(quiet_at).await,
                _ => return ghosts,
            }
        }
    }

    /// As [`Unit::reset`], for the writes of `ghosts`.
    async fn reset_for(&self, ghosts: &[Rc<Nexus>], nexus: &Rc<Nexus>) -> Result<bool> {
        const FUNCTION_COMPLETE: u8 = 0;
        let frozen = self.paths.freeze();
        let held_until = time::now() + HOLD_MAX;
        let drained = async {
            self.closed_doors(|| true).await;
            nexus.idle().await;
        };
        if time::timeout(HOLD_MAX, drained).await.is_none() {
            let message = "commands are still in flight on the path of the reset";
            return Err(Error::new(ErrorKind::TimedOut, message));
        }
        self.paths.counts.borrow_mut().resets += 1;
        // Before the answer: once commands are no longer held back, one of them may be told first.
        let told: Vec<_> = self.paths.live().chain([nexus.clone()]).collect();
        told.iter().for_each(|nexus| nexus.expect_reset());
        let mut answer = std::pin::pin!(nexus.reset_logical_unit());
        let in_time = time::timeout(held_until - time::now(), answer.as_mut()).await;
        let is_held = in_time.is_some();
        let frozen = is_held.then_some(frozen);
        let response = match in_time {
            Some(response) => response,
            None => answer.await,
        };
        if !matches!(response, Ok(FUNCTION_COMPLETE)) {
            // Whatever reset is reported later counts as a restart, to be safe.
            told.iter().for_each(|nexus| nexus.forget_reset());
            return response.map(|_| false);
        }
        let target_name = &self.config().target_name;
        tracing::warn!(
            target_name,
            "LOGICAL UNIT RESET has aborted the writes of a lost session"
        );
        for lost in ghosts {
            lost.settle_past(Past::Over);
        }
        let is_among =
            |all: &[Rc<Nexus>], it: &Rc<Nexus>| all.iter().any(|one| Rc::ptr_eq(one, it));
        let live: Vec<_> = self.paths.live().collect();
        for other in live.iter().filter(|other| !is_among(&told, other)) {
            other.expect_reset();
        }
        // What was in flight on them during the reset may have been aborted, and is then never answered.
        for other in &live {
            if is_held && Rc::ptr_eq(other, nexus) {
                continue;
            }
            let message = "its commands may have been aborted by our LOGICAL UNIT RESET";
            let error = Error::new(ErrorKind::Unreachable, message);
            other.end_if_busy(error).await;
        }
        drop(frozen);
        for told in live.into_iter().chain([nexus.clone()]) {
            spawn(hear_of_reset(self.me.clone(), told));
        }
        Ok(true)
    }
}

/// Has `nexus` report our reset. A reset that it reports after that is not ours.
async fn hear_of_reset(unit: Weak<Unit>, nexus: Rc<Nexus>) {
    let Some(unit) = unit.upgrade() else { return };
    if unit.hear(&nexus).await.is_ok() {
        nexus.forget_reset();
    }
}
