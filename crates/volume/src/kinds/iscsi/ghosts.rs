//! Ends the writes that lost nexuses may still have at the target, before any other write is sent.
//!
//! They are ended by LOGICAL UNIT RESET (SAM-5 7.10), over a new session of the same path or over another path: at once
//! when the same initiator port has logged in again at the same target port, where the new session is or over another
//! portal of its group; otherwise some time after we aborted the lost connection. [`machine`](super::machine) decides.
//!
//! A reset aborts everybody's commands. Ours are held back and drained before it, for a bounded time: a target that
//! does not answer must not stop the reads over the paths that work. A nexus that has commands in flight all the same
//! counts as lost.

use std::rc::{Rc, Weak};

use engine::{Duration, spawn, task, time};

use super::{
    machine::{Event, PathEvent, QUIET},
    nexus::Nexus,
    path::Path,
    unit::RemoteUnit,
};
use crate::{Error, ErrorKind, Result};

/// How long all commands are held back for a reset, at most: until those in flight on its nexus have ended and the other
/// lanes send nothing, and then until the target has answered it.
const HOLD_MAX: Duration = Duration::from_secs(5);

impl RemoteUnit {
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
        if !lost.is_reinstated() {
            let target_name = &self.config().target_name;
            let consequence = "writes that were in flight have failed, but may still take effect";
            tracing::error!(
                target_name,
                consequence,
                "the new session is at another portal group, and LOGICAL UNIT RESET has failed there"
            );
        }
        self.handle(Event::GivenUp(lost.id()));
        Ok(())
    }

    /// Ends the writes of `lost`, the nexus of `path`, over another path. Failures are retried by the caller; resets
    /// that fail, less and less often.
    pub(super) async fn fence(&self, path: &Path, lost: &Rc<Nexus>, may_reset: bool) {
        for other in self.paths.all() {
            let Some(nexus) = other.usable() else {
                continue;
            };
            if !lost.may_still_write() {
                return;
            }
            let is_same_way = other.address() == path.address();
            if lost.port().is_same(&nexus.port()) && !is_same_way {
                self.reinstate_over(path, other, lost).await;
            }
            let is_time = may_reset || lost.is_reinstated();
            if lost.may_still_write() && is_time && self.reset_due_in(other).is_zero() {
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
            self.paths.counts.borrow_mut().reinstated_elsewhere += 1;
            self.handle(Event::Reinstated(lost.id()));
        }
        session.logout().await;
    }

    /// How long until a reset over `path` may be tried again.
    fn reset_due_in(&self, path: &Path) -> Duration {
        self.paths.notice();
        self.machine.borrow().reset_due_in(path.id(), time::now())
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
        let is_done = matches!(done, Ok(true));
        self.on_path(path, PathEvent::ResetTried { began, is_done });
        done
    }

    /// The lost nexuses that left writes, once the last of them has been silent for long enough. Nobody but writers
    /// waits meanwhile.
    async fn quiet_ghosts(&self) -> Vec<Rc<Nexus>> {
        loop {
            let ghosts: Vec<_> = self.paths.all().iter().filter_map(Path::ghost).collect();
            let now = time::now();
            let quiet_at = |lost: &Rc<Nexus>| lost.can_be_ended_at().unwrap_or(now);
            match ghosts.iter().map(quiet_at).max() {
                Some(quiet_at) if quiet_at > now => time::sleep_until(quiet_at).await,
                _ => return ghosts,
            }
        }
    }

    /// Resets the logical unit for the fence of a mirror, whoever has commands there.
    pub(super) async fn reset_for_fence(&self, nexus: &Rc<Nexus>) -> Result<bool> {
        let _turn = self.resetting.take(1).await;
        let ghosts = self.quiet_ghosts().await;
        self.reset_for(&ghosts, nexus).await
    }

    /// As [`RemoteUnit::reset`], for the writes of `ghosts`.
    async fn reset_for(&self, ghosts: &[Rc<Nexus>], nexus: &Rc<Nexus>) -> Result<bool> {
        const FUNCTION_COMPLETE: u8 = 0;
        let frozen = self.paths.freeze();
        let held_until = time::now() + HOLD_MAX;
        let drained = async {
            self.grants_revoked(|| true).await;
            nexus.idle().await;
        };
        if time::timeout(HOLD_MAX, drained).await.is_none() {
            let message = "commands are still in flight on the path of the reset";
            return Err(Error::new(ErrorKind::TimedOut, message));
        }
        // A session that has a command in flight when the reset comes will be lost, perhaps with a write, which asks for
        // another reset: most commands end soon.
        let others: Vec<_> = self.paths.live().collect();
        let others = others.iter().map(|other| Box::pin(other.idle()));
        let _ = time::timeout(QUIET, task::join_all(others)).await;
        self.paths.counts.borrow_mut().resets += 1;
        // Before the answer: once commands are no longer held back, one of them may be told first.
        let told: Vec<_> = self.paths.live().chain([nexus.clone()]).collect();
        let ids = |all: &[Rc<Nexus>]| all.iter().map(|it| it.id()).collect::<Vec<_>>();
        self.handle(Event::ResetBegins(ids(&told)));
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
            self.handle(Event::ResetFailed(ids(&told)));
            return response.map(|_| false);
        }
        let target_name = &self.config().target_name;
        if !ghosts.is_empty() {
            tracing::warn!(
                target_name,
                "LOGICAL UNIT RESET has aborted the writes of a lost session"
            );
        }
        let live: Vec<_> = self.paths.live().collect();
        let is_told = |it: &Rc<Nexus>| told.iter().any(|told| Rc::ptr_eq(told, it));
        let new: Vec<_> = live.iter().filter(|it| !is_told(it)).cloned().collect();
        self.handle(Event::ResetDone {
            stale: ids(ghosts),
            live: ids(&new),
        });
        // What was in flight on them during the reset may have been aborted, and is then never answered.
        for other in &live {
            if is_held && Rc::ptr_eq(other, nexus) {
                continue;
            }
            let message = "its commands may have been aborted by our LOGICAL UNIT RESET";
            let error = Error::new(ErrorKind::Unreachable, message);
            other.end_if_busy(error).await;
        }
        for told in live.into_iter().chain([nexus.clone()]) {
            spawn(hear_of_reset(self.me.clone(), told));
        }
        drop(frozen);
        Ok(true)
    }
}

/// Has `nexus` report our reset. A reset that it reports after that is not ours.
async fn hear_of_reset(unit: Weak<RemoteUnit>, nexus: Rc<Nexus>) {
    let Some(unit) = unit.upgrade() else { return };
    if unit.hear(&nexus).await.is_ok() {
        unit.handle(Event::ResetHeard(nexus.id()));
    }
}
