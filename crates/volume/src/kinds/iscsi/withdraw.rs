//! Takes back what a nexus holds of the claim before it logs out for good.

use std::rc::Rc;

use super::{
    cdb::ReserveOut,
    claim::{ClaimAnswer, EXCLUSIVE_REGISTRANTS},
    nexus::Nexus,
    path::Path,
    unit::RemoteUnit,
};
use crate::{Claim, Result};

impl RemoteUnit {
    /// Ends the registration of `nexus`. If it holds the reservation, another nexus takes that over.
    pub(super) async fn withdraw(&self, nexus: &Rc<Nexus>) {
        let claim = self.claim.borrow().clone();
        let is_reserved = self.machine.borrow().is_reserved();
        let Some(claim) = claim.filter(|claim| is_reserved && claim.is_held()) else {
            return;
        };
        {
            let _establishing = self.establishing.take(1).await;
            let path = self.paths.path(nexus.path());
            let holding = self.holding_path(nexus).await;
            let is_holding = holding.is_some_and(|holding| std::ptr::eq(holding, path));
            let other = self.paths.wanted().find_map(Path::usable);
            let is_taken_over = match other.filter(|_| is_holding) {
                Some(other) => self.take_over(&other, &claim).await.unwrap_or(false),
                None => false,
            };
            if !is_taken_over {
                self.unregister(nexus, &claim).await;
            }
            self.shake_claim();
        }
        // Our other registrations may have ended, too.
        for other in self.paths.wanted().filter_map(Path::usable) {
            // An error: the next command over it tries again.
            let _ = self.establish_claim(&other).await;
        }
    }

    /// Has `nexus` take over the reservation, which another one of ours holds. PREEMPT leaves the disk reserved at any
    /// time, and aborts nothing.
    async fn take_over(&self, nexus: &Rc<Nexus>, claim: &Claim) -> Result<bool> {
        let key = claim.key();
        let preempt = ReserveOut::preempt(EXCLUSIVE_REGISTRANTS, key, key, false);
        let told = self.reserve_out(nexus, preempt).await?;
        Ok(matches!(told, ClaimAnswer::Good(_)))
    }
}
