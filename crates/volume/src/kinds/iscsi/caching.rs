//! The disk's volatile write cache (the caching mode page, SBC-3 6.4.5): read when the disk is opened, and again
//! whenever it may have changed. A disk that was opened as one without a cache is never flushed, so a cache that
//! appears later fails its writes and flushes.

use std::rc::Rc;

use super::{
    cdb::{self, Cdb},
    claim::Told,
    nexus::Nexus,
    session::Data,
    unit::Unit,
};
use crate::Result;

const PAGE: u8 = 0x08;
/// The most that is read of the mode page with its header.
pub(super) const LEN: u8 = 64;

/// The command that reads the caching mode page.
pub(super) fn query() -> Cdb {
    cdb::mode_sense_6(PAGE, LEN)
}

/// Whether the disk has a volatile cache by the answer to [`query`]. A target that does not say is assumed to have
/// one.
pub(super) fn is_volatile(mode: &[u8]) -> bool {
    const WCE: u8 = 0x04;
    let byte = |index: usize| mode.get(index).copied().unwrap_or(0);
    let page = 4 + usize::from(byte(3));
    byte(page) & 0x3f != PAGE || byte(page + 2) & WCE != 0
}

impl Unit {
    /// The write cache may have changed: it is looked at before the next command.
    pub(super) fn doubt_cache(&self) {
        if self.writes_through.get() {
            self.cache.raise();
            self.paths.notify();
        }
    }

    /// Checks over `nexus` that a disk which was opened as one without a volatile cache still has none, if there is a
    /// doubt. If it has one, writes and flushes fail from now on. If another initiator has reserved the disk, the doubt
    /// stays and the commands are sent all the same: the conflict ends most of them, but no flush succeeds.
    ///
    /// # Errors
    /// When the target does not answer in time.
    pub(super) async fn settle_cache(&self, nexus: &Rc<Nexus>) -> Result<()> {
        if !self.cache.is_open() {
            return Ok(());
        }
        let events = self.cache.events();
        let target_name = &self.config().target_name;
        match self.tell(nexus, &query(), Data::In(LEN.into())).await {
            Ok(Told::Good(mode)) => {
                if is_volatile(&mode) && self.unflushed.check().is_ok() {
                    tracing::error!(
                        target_name,
                        "the disk has a volatile write cache now, and had none: writes are refused"
                    );
                    self.unflushed.find_cache();
                }
            }
            Ok(Told::Refused(why)) => tracing::warn!(
                target_name,
                why,
                "the target no longer says whether the disk has a volatile write cache; it had none"
            ),
            Ok(Told::Conflict) => return Ok(()),
            Err(_) if nexus.is_over() => return Ok(()),
            Err(error) => return Err(error),
        }
        self.cache.settle(events);
        self.paths.notify();
        Ok(())
    }
}
