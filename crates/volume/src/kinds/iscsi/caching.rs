//! Asks the disk for its mode parameters: when it is opened, again whenever they may have changed, and before a write is
//! refused because it was protected. [`machine`](super::machine) has what follows from them.

use std::{rc::Rc, sync::atomic::Ordering::Relaxed};

use super::{
    claim::ClaimAnswer,
    inquiry,
    machine::{Event, Mode, Subject},
    mode_page::{LEN, queries},
    nexus::Nexus,
    session::Data,
    unit::RemoteUnit,
};
use crate::Result;

impl RemoteUnit {
    /// The mode parameters may have changed: they are looked at before the next command.
    pub(super) fn doubt_cache(&self) {
        self.handle(Event::Doubted(Subject::Mode));
    }

    /// Reads the mode parameters again over `nexus`, if there is a doubt. If a disk which was opened as one without a
    /// volatile cache has one, writes and flushes fail from now on. If another initiator has reserved the disk, the doubt
    /// stays and the commands are sent all the same: the conflict ends most of them, but no flush succeeds.
    ///
    /// # Errors
    /// When the target does not answer in time.
    pub(super) async fn settle_cache(&self, nexus: &Rc<Nexus>) -> Result<()> {
        if !self.machine.borrow().is_open(Subject::Mode) {
            return Ok(());
        }
        let events = self.machine.borrow().events(Subject::Mode);
        let mut refused = String::new();
        for query in queries() {
            match self.tell(nexus, &query, Data::In(LEN.into())).await {
                Ok(ClaimAnswer::Good(data)) => {
                    if let Some(mode) = Mode::parse(&data) {
                        self.handle(Event::Mode(mode));
                        refused.clear();
                        break;
                    }
                }
                Ok(ClaimAnswer::Refused(why)) => refused = why,
                Ok(ClaimAnswer::Conflict) => return Ok(()),
                Err(_) if nexus.is_over() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if self.machine.borrow().writes_through() && !refused.is_empty() {
            tracing::warn!(
                target_name = self.config().target_name,
                why = refused,
                "the target no longer says whether the disk has a volatile write cache; it had none"
            );
        }
        self.handle(Event::Settled(Subject::Mode, events));
        Ok(())
    }

    /// Asks a disk whose cache had appeared whether it still has one.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) async fn look_for_cache(&self) -> Result<()> {
        if !self.machine.borrow().has_found_cache() {
            return Ok(());
        }
        let nexus = self.nexus(&mut self.patience()).await?;
        self.doubt_cache();
        self.settle_cache(&nexus).await
    }

    /// Asks the disk, which is known as write-protected, whether it still is. It tells of a change only with the answer to
    /// some command, and perhaps nobody sends any: the writes are refused here.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) async fn look_at_protection(&self) -> Result<()> {
        let patience = &mut self.patience();
        for query in queries() {
            let data = inquiry::read_if_known(self, &query, LEN.into(), patience).await?;
            if let Some(mode) = Mode::parse(&data) {
                self.handle(Event::Mode(mode));
                break;
            }
        }
        Ok(())
    }

    /// The mode parameters are no longer what they were.
    pub(super) fn follow(&self, mode: Mode) {
        let (Some(facts), target_name) = (self.facts.get(), &self.config().target_name) else {
            return;
        };
        facts.takes_fua.store(mode.takes_fua, Relaxed);
        if facts.shape.read_only.is_on() != mode.is_protected {
            facts.shape.read_only.set(mode.is_protected);
            match mode.is_protected {
                true => tracing::warn!(target_name, "the target has write-protected the disk"),
                false => tracing::info!(target_name, "the disk is no longer write-protected"),
            }
            self.announce();
        }
    }

    /// There is a volatile write cache that is not flushed.
    pub(super) fn refuse_writes(&self) {
        tracing::error!(
            target_name = self.config().target_name,
            "the disk has a volatile write cache now, and had none: writes are refused"
        );
        self.unflushed.find_cache();
    }
}
