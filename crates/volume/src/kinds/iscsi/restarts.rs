//! Which restarts of the target count. Every nexus reports a restart once, by a unit attention, an idle or a new one
//! perhaps long after the others: the same restart must not count again, or what was written since would be held to be
//! lost with it.

use std::rc::{Rc, Weak};

use engine::{Duration, Instant, spawn, task, time};

use super::{
    cdb,
    machine::{Action, Event, News, NexusId, OwnershipEvent},
    nexus::Nexus,
    path::Path,
    patience::AT_ONCE_MAX,
    sense::Verdict,
    session::Data,
    unit::RemoteUnit,
};
use crate::{Error, ErrorKind, Result};

/// How long to wait for a nexus that is asked whether the target has restarted before another one is asked as well.
const VOUCH_MAX: Duration = Duration::from_secs(1);
/// Pause before it is asked again.
const VOUCH_PAUSE: Duration = Duration::from_millis(100);

impl RemoteUnit {
    /// Consumes the target's pending unit attentions. We have to know about a restart before anything is resent;
    /// otherwise a flush could succeed before the unit attention, delivered with another command, is seen.
    pub(super) async fn hear(&self, nexus: &Rc<Nexus>) -> Result<()> {
        match self.hear_out(nexus).await? {
            None => Ok(()),
            Some(why) => Err(Error::new(ErrorKind::TimedOut, why)),
        }
    }

    /// As [`RemoteUnit::hear`]; returns why the disk is not ready although the target has nothing to report any more, which it
    /// does before that.
    async fn hear_out(&self, nexus: &Rc<Nexus>) -> Result<Option<String>> {
        for _ in 0..AT_ONCE_MAX {
            let command = cdb::test_unit_ready();
            let reply = nexus.execute(&command, Data::None).await?;
            match self.judge(nexus, &reply) {
                None | Some((Verdict::Fail(_), _)) => return Ok(None),
                Some((Verdict::Retry | Verdict::Restarted, _)) => {}
                Some((Verdict::RetryLater, why)) if reply.sense().is_some() => {
                    return Ok(Some(why));
                }
                Some((Verdict::RetryLater, why)) => {
                    return Err(Error::new(ErrorKind::TimedOut, why));
                }
            }
        }
        let message = "the target answers every command with a unit attention";
        Err(Error::new(ErrorKind::Protocol, message))
    }

    /// Counts the restart that `nexus` has reported while it was new, unless another nexus has been in use since: that
    /// one has reported it itself. It may be about to log out. Where a mirror uses the disk, a reset counts as well, as that
    /// may be all that a target reports which was started again.
    pub(super) async fn account_for(&self, nexus: &Rc<Nexus>) {
        if !nexus.is_new() {
            return;
        }
        let News {
            has_restarted,
            was_reset,
        } = nexus.take_news();
        let is_watched = self.machine.borrow().is_watched();
        let counts = has_restarted || was_reset && is_watched;
        if !counts {
            return;
        }
        let path = self.paths.path(nexus.path());
        let is_first = path.last().is_none();
        // Asked again each time: writes may be acknowledged while the others are asked.
        let matters = || self.unflushed.at_stake().is_some() || is_watched;
        if self.is_told_by_another(matters).await {
            return;
        }
        if is_first && matters() && self.is_old_news(path, nexus).await {
            return;
        }
        match has_restarted {
            true => drop(self.handle(Event::Restarted)),
            false => self.tell_ownership(OwnershipEvent::StartedAgain),
        }
    }

    /// Whether a nexus in use has reported whatever it has to report. Where it `matters`, a slow one is waited for until it
    /// answers or is lost, as nobody else may know.
    async fn is_told_by_another(&self, matters: impl Fn() -> bool) -> bool {
        let (mut asked, mut slow) = (Vec::new(), Vec::new());
        loop {
            // One that goes into use while others are asked may be the only one that answers.
            let has_answered = match self.next_in_use(&asked) {
                Some(other) => {
                    let mut answer = spawn(hear_on(self.me.clone(), other.clone()));
                    asked.push(other);
                    let in_time = time::timeout(VOUCH_MAX, &mut answer).await;
                    slow.extend(in_time.is_none().then_some(answer));
                    in_time == Some(true)
                }
                None => match slow.pop().filter(|_| matters()) {
                    Some(answer) => answer.await,
                    None => return false,
                },
            };
            if has_answered {
                return true;
            }
        }
    }

    /// A nexus in use that is none of `asked`.
    fn next_in_use(&self, asked: &[Rc<Nexus>]) -> Option<Rc<Nexus>> {
        let is_asked = |nexus: &Rc<Nexus>| asked.iter().any(|it| Rc::ptr_eq(it, nexus));
        let mut live = self.paths.live();
        live.find(|nexus| !nexus.is_new() && !is_asked(nexus))
    }

    /// Whether the restart that `nexus` has reported is one from before our time. Many targets report a power-on to each
    /// initiator port that they have not seen before, and that of `path`, which was added, is one. If a port of ours that the
    /// target knows is told of nothing, there was no restart. Such a port may be about to come back.
    async fn is_old_news(&self, path: &Path, nexus: &Rc<Nexus>) -> bool {
        let config = self.config();
        let limit = config.request_timeout + config.reconnect_timeout;
        let is_old = self.is_denied(path, time::now() + limit).await;
        nexus.must_be_ready_within(limit);
        is_old
    }

    /// Whether a port that the target knows denies, by `deadline`, the restart that was reported over `path`.
    async fn is_denied(&self, path: &Path, deadline: Instant) -> bool {
        let is_known = |other: &&Path| other.last().is_some_and(|last| !last.is_new());
        let known = || self.paths.wanted().filter(is_known);
        let is_back = || known().any(|other| other.live().is_some());
        let changed = self.paths.changed();
        let mut limit = self.paths.login_limit();
        loop {
            // Each answers, or is lost, within the request timeout.
            for other in known().filter_map(Path::live) {
                if self.hear(&other).await.is_ok() {
                    return true;
                }
            }
            time::sleep(VOUCH_PAUSE).await;
            let has_changed = || (is_back() || known().next().is_none()).then_some(());
            let left = deadline - time::now();
            let waited = time::timeout(limit.min(left), changed.wait_for(has_changed)).await;
            if left.is_zero() || known().next().is_none() {
                return false;
            }
            if waited.is_some() || limit > left {
                continue;
            }
            for other in known() {
                if let Some(has_restarted) = self.ask_as(other, path).await {
                    return !has_restarted;
                }
            }
            limit = Duration::MAX;
        }
    }

    /// Logs in with the initiator port of `known`, which is lost, over the route of `path`. Returns whether the target
    /// reports a restart to it; `None`: that is another target port, or there is no answer.
    async fn ask_as(&self, known: &Path, path: &Path) -> Option<bool> {
        let lost = known.last().filter(|lost| lost.is_over())?;
        let deadline = time::now() + self.paths.login_limit();
        let link = self.paths.log_in_over(known, path, deadline).await.ok()?;
        let nexus = self.paths.nexus_over(link, lost.path());
        let is_same = lost.port().is_same(&nexus.port());
        if is_same {
            self.handle(Event::Reinstated(lost.id()));
        }
        let has_answered = is_same && self.hear(&nexus).await.is_ok();
        nexus.link().logout().await;
        // The target has told it, and tells nobody again, even if there is no answer to what was asked next.
        let News { has_restarted, .. } = nexus.take_news();
        (has_answered || has_restarted).then_some(has_restarted)
    }

    /// Every session reports the restart that `told` reported, an idle one perhaps much later. Asks them all now.
    pub(super) fn hear_others(&self, told: NexusId, others: Vec<NexusId>) {
        let (unit, covered) = (self.me.clone(), self.unflushed.covered());
        spawn(async move {
            let Some(this) = unit.upgrade() else { return };
            // Each answers or ends within the request timeout. One that is gone reports nothing.
            let asked: Vec<_> = others
                .iter()
                .filter_map(|it| this.paths.find(*it))
                .collect();
            let asked = asked.iter().map(|other| this.hear(other));
            task::join_all(asked.map(Box::pin)).await;
            let heard = Event::Heard {
                told,
                others: others.clone(),
            };
            let mut actions = this.handle(heard);
            if actions.contains(&Action::AskAgain) {
                let has_answered = match this.paths.find(told) {
                    Some(told) => hear_on(unit.clone(), told).await,
                    None => false,
                };
                actions = this.handle(Event::HeardAgain {
                    told,
                    others,
                    has_answered,
                });
            }
            if actions.contains(&Action::LoseOfRound) {
                this.tell_losses(this.unflushed.restarted(covered));
            }
        });
    }

    /// `told` has reported that another initiator has aborted commands. The same is pending on every other nexus, where
    /// it says which of our commands are gone; it need not wait for the next one there.
    pub(super) fn hear_of_aborts(&self, told: NexusId) {
        let is_other = |other: &Rc<Nexus>| other.id() != told && !other.is_new();
        let others: Vec<_> = self.paths.live().filter(is_other).collect();
        let unit = self.me.clone();
        spawn(async move {
            let asked = others.into_iter().map(|other| hear_on(unit.clone(), other));
            task::join_all(asked.map(Box::pin)).await;
            if let Some(unit) = unit.upgrade() {
                unit.handle(Event::AbortsHeard);
            }
        });
    }
}

/// As [`RemoteUnit::hear`]; returns whether nothing is pending any more.
async fn hear_on(unit: Weak<RemoteUnit>, nexus: Rc<Nexus>) -> bool {
    match unit.upgrade() {
        Some(unit) => unit.hear_out(&nexus).await.is_ok(),
        None => false,
    }
}
