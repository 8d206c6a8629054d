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
use crate::{Error, ErrorKind, Result};

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
    /// Checks over `nexus` that a disk which was opened as one without a volatile cache still has none; if it has one,
    /// writes and flushes fail from now on.
    ///
    /// # Errors
    /// When the target does not answer.
    pub(super) async fn look_at_cache(&self, nexus: &Rc<Nexus>) -> Result<()> {
        if !self.writes_through.get() {
            return Ok(());
        }
        let mode = match self.tell(nexus, &query(), Data::In(LEN.into())).await? {
            Told::Good(mode) => mode,
            Told::Refused(_) => Vec::new(),
            Told::Conflict => {
                let message = "another initiator has reserved the disk, and it is not known whether it still writes \
                               through";
                return Err(Error::new(ErrorKind::ReservationConflict, message));
            }
        };
        if is_volatile(&mode) && self.unflushed.check().is_ok() {
            let target_name = &self.config().target_name;
            tracing::error!(
                target_name,
                "the disk has a volatile write cache now, and had none: writes are refused"
            );
            self.unflushed.find_cache();
        }
        Ok(())
    }
}
