//! Decides which lanes may use their own sessions right now. The home lane decides: normally every lane has a grant, and
//! its reads and writes go over its own sessions without involving the home lane. When a session is lost with writes in
//! flight, a reset is about to be sent, or the claim has to be re-established, the home lane revokes the grants, each by a
//! message that is acknowledged, and every command goes through the home lane until all is well again.
//!
//! Revoking a grant a little late is harmless. A write whose session was lost is completed, with success or error, only
//! when it can no longer take effect late or every grant is revoked. Until then it may take effect at any time, like
//! any write that has not been answered.

use std::{
    rc::{Rc, Weak},
    sync::{Arc, atomic::AtomicU64},
};

use engine::{LaneFuture, LaneHandle, spawn};

use super::{
    branch::{AtHome, Branch, BranchCommand, Common, Trouble},
    cdb::CdbBytes,
    facts::DiskFacts,
    lane_grants::{LaneGrant, Terms},
    machine::Event,
    patience::Patience,
    session::{Data, Reply},
    unit::RemoteUnit,
};
use crate::{
    Error, ErrorKind, Result,
    flush_epochs::Epoch,
    part::Resident,
    planted::{Bug, is_planted},
};

/// Marks a lane's failed command as handled when dropped.
struct TroubleGuard<'a>(&'a RemoteUnit, usize);

impl Drop for TroubleGuard<'_> {
    fn drop(&mut self) {
        let TroubleGuard(unit, index) = self;
        let troubles = &unit.grants.all()[*index].troubles;
        troubles.set(troubles.get() - 1);
        unit.paths.notify();
    }
}

/// Gives each of `lanes` except the first, the current one, its own access to `disk`, as far as there are sessions.
pub(super) async fn branch_out(
    unit: &RemoteUnit,
    disk: Weak<dyn AtHome>,
    facts: &Arc<DiskFacts>,
    lanes: &[LaneHandle],
) -> Result<()> {
    let others = unit.paths.all().len().min(lanes.len());
    let Some(home) = lanes.first().filter(|_| others > 1) else {
        return Ok(());
    };
    let this = Resident::keep(home.clone(), disk);
    let mut grants = Vec::new();
    for (index, lane) in lanes[1..others].iter().enumerate() {
        let commands = Arc::new(AtomicU64::new(0));
        let common = Common {
            disk: this.clone(),
            index,
            facts: facts.clone(),
            policy: unit.config().multipath.policy,
            written: unit.unflushed.lane(),
            failure: unit.unflushed.failure(),
            commands: commands.clone(),
        };
        let make = || LaneFuture::new(async { Ok((Rc::new(Branch::new(common)), ())) });
        let (branch, ()) = Resident::settle(lane, make).await?;
        grants.push(LaneGrant::new(branch, commands));
    }
    unit.grants.set(grants);
    for index in 0..unit.grants.all().len() {
        spawn(keep(unit.me.clone(), index));
    }
    Ok(())
}

/// Grants and revokes what one lane may use, for as long as the disk exists.
async fn keep(unit: Weak<RemoteUnit>, index: usize) {
    loop {
        let Some(this) = unit.upgrade() else { return };
        let changed = this.paths.changed();
        let notified = changed.notified();
        let wanted = this.wanted(index);
        let grant = &this.grants.all()[index];
        if *grant.granted.borrow() == wanted {
            drop(this);
            notified.await;
            continue;
        }
        let told = match &wanted {
            Some(terms) => {
                let nexuses = this.paths.there().into_iter().filter_map(|there| {
                    let mut granted = terms.nexuses.iter();
                    let (_, doubts) = granted.find(|(number, _)| *number == there.number())?;
                    Some((there.kept().clone(), *doubts))
                });
                let nexuses: Vec<_> = nexuses.collect();
                let term = grant.term.get() + 1;
                let claim = this.claim.borrow().clone();
                grant.term.set(term);
                grant.granted.replace(wanted.clone());
                LaneFuture::new(grant.branch.call(move |branch: Rc<Branch>| async move {
                    branch.grant(term, &nexuses, claim);
                    Ok(())
                }))
            }
            None => LaneFuture::new(grant.branch.call(revoke)),
        };
        drop(this);
        let told = told.await;
        let Some(this) = unit.upgrade() else { return };
        if wanted.is_none() || told.is_err() {
            this.grants.all()[index].granted.replace(None);
            this.paths.notify();
        }
        if told.is_err() {
            // The lane has ended: a running one answers.
            return;
        }
    }
}

async fn revoke(branch: Rc<Branch>) -> Result<()> {
    branch.revoke();
    Ok(())
}

impl RemoteUnit {
    /// What a lane may use now.
    fn wanted(&self, index: usize) -> Option<Terms> {
        let grant = &self.grants.all()[index];
        let is_well = self.paths.is_well()
            && !self.is_unsettled()
            && !self.machine.borrow().is_judging()
            && self.check_owned().is_ok()
            && grant.troubles.get() == 0;
        if !is_well {
            return None;
        }
        let lane = grant.branch.lane();
        let own = self.paths.best_there().into_iter();
        let own = own.filter(|(there, _)| there.lane() == lane);
        let nexuses: Vec<_> = own
            .map(|(there, doubts)| (there.number(), doubts))
            .collect();
        let is_claimed = self.claim.borrow().is_some();
        (!nexuses.is_empty()).then_some(Terms {
            nexuses,
            is_claimed,
        })
    }

    /// Waits until no other lane sends anything by itself, or `is_needed` no longer holds.
    pub(super) async fn grants_revoked(&self, is_needed: impl Fn() -> bool) {
        let are_revoked = || {
            let is_so = self.grants.are_revoked() || is_planted(Bug::RevocationNotAwaited);
            (is_so || !is_needed()).then_some(())
        };
        self.paths.changed().wait_for(are_revoked).await;
    }

    /// Finishes a command that another lane could not complete by itself.
    pub(super) async fn go_on(
        &self,
        index: usize,
        trouble: Option<Trouble>,
        command: BranchCommand,
    ) -> Result<Reply> {
        let BranchCommand {
            cdb,
            data,
            is_volatile,
        } = command;
        let data = Data::from(data);
        let len = match &data {
            Data::Out(payload) => Some(payload.len()),
            _ => None,
        };
        let mut patience = self.patience();
        let done = match trouble {
            None => Ok(()),
            Some(trouble) => self.see_to(index, trouble, &cdb, &mut patience).await,
        };
        let done = match done {
            Ok(()) => self.run(&cdb, data, &mut patience).await,
            Err(error) => Err(error),
        };
        if is_volatile {
            let well = done
                .as_ref()
                .is_ok_and(|reply| Some(reply.transferred) == len);
            self.unflushed.wrote(well);
        }
        done
    }

    /// Waits until a command that failed on another lane may be resent.
    async fn see_to(
        &self,
        index: usize,
        trouble: Trouble,
        cdb: &CdbBytes,
        patience: &mut Patience,
    ) -> Result<()> {
        let grant = &self.grants.all()[index];
        if trouble.term == Some(grant.term.get()) {
            grant.granted.replace(None);
        }
        grant.troubles.set(grant.troubles.get() + 1);
        let _guard = TroubleGuard(self, index);
        self.paths.notify();
        let sent = trouble.sent.map(Reply::from);
        let Some(nexus) = self.paths.find_there(trouble.number) else {
            return match cdb.changes_medium() && self.machine.borrow().has_unfenced() {
                true => Err(RemoteUnit::unfenced()),
                false => Ok(()),
            };
        };
        if let (Some(end), Some(there)) = (trouble.end, nexus.link().there()) {
            there.ended(end);
        }
        if let Ok(reply) = &sent {
            nexus.doubt(reply.doubts);
        }
        match sent {
            Ok(reply) if reply.is_good() => Ok(()),
            sent => self.failed(&nexus, sent, cdb, patience).await,
        }
    }

    /// The target has restarted: the other lanes stop using their sessions until it is known what they had written
    /// before.
    pub(super) fn judge_lanes(&self, covered: Epoch) {
        let grants = self.grants.all();
        if grants.is_empty() {
            self.handle(Event::LanesJudged);
            return;
        }
        let told: Vec<_> = grants
            .iter()
            .map(|grant| grant.branch.call(revoke))
            .collect();
        let unit = self.me.clone();
        spawn(async move {
            for told in told {
                // An error: the lane has ended, and writes nothing.
                let _ = told.await;
            }
            if let Some(unit) = unit.upgrade() {
                unit.tell_losses(unit.unflushed.restarted_elsewhere(covered));
                unit.handle(Event::LanesJudged);
            }
        });
    }

    /// Waits until it is known what the target's restarts have lost.
    pub(super) async fn judged(&self) {
        let is_judged = || (!self.machine.borrow().is_judging()).then_some(());
        self.paths.changed().wait_for(is_judged).await;
    }

    /// The error for a write that was lost with its session and may still take effect.
    pub(super) fn unfenced() -> Error {
        let message = "the session was lost with the write in flight, and the target could not be \
                       made to abort it: it is not resent";
        Error::new(ErrorKind::Unreachable, message)
    }
}
