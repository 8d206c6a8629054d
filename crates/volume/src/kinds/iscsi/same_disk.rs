//! Whether a nexus still leads to the disk of the volume: at each login, and when the target reports that its LUNs may
//! have changed. Until that is known, no request is sent over the nexus, or it might write on another disk.

use std::rc::{Rc, Weak};

use engine::{Duration, time};

use super::{
    access,
    cdb::{self, CdbBytes},
    claim::ClaimAnswer,
    identity::DiskIdentity,
    machine::PathEvent,
    nexus::Nexus,
    session::{Data, Reply},
    unit::RemoteUnit,
};
use crate::{Error, ErrorKind, Result};

/// Pause before a target whose answer settles nothing is asked again; it quadruples each time.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(4);

impl RemoteUnit {
    /// Sends a command once over `nexus`, which is no longer in doubt then.
    ///
    /// # Errors
    /// As [`Nexus::execute`]. `Configuration` when it leads to another disk.
    pub(super) async fn execute(
        &self,
        nexus: &Rc<Nexus>,
        cdb: &CdbBytes,
        data: Data,
    ) -> Result<Reply> {
        if nexus.is_in_doubt() && !cdb.suits_any_disk() {
            self.check_identity(nexus).await?;
        }
        nexus.execute(cdb, data).await
    }

    /// Makes sure that `nexus` leads to the disk.
    ///
    /// # Errors
    /// `Configuration` when it leads to another one; otherwise whatever kept us from finding out.
    pub(super) async fn check_identity(&self, nexus: &Rc<Nexus>) -> Result<()> {
        const LEN: u8 = 252;
        let (path, doubts) = (self.paths.path(nexus.path()), nexus.doubts());
        let Some(known) = self.identity.get() else {
            // It will be asked for anyway.
            nexus.is_sure(doubts);
            return Ok(());
        };
        let inquiry = cdb::inquiry(Some(0x83), LEN);
        let page = match self.tell(nexus, &inquiry, Data::In(LEN.into())).await? {
            ClaimAnswer::Good(page) if page.get(1) == Some(&0x83) => page,
            ClaimAnswer::Refused(why) if known.is_named() => {
                let message = format!("the target does not say which disk it is: {why}");
                return Err(Error::new(ErrorKind::TimedOut, message));
            }
            _ => Vec::new(),
        };
        let config = self.config();
        let found = DiskIdentity::parse(&config.target_name, config.lun, &page);
        // Two portals lead to one disk only if names say so.
        let is_placed = path.address() == config.address || known.is_named();
        let is_it = is_placed && known.is_shown_by(&found);
        let identified = PathEvent::Identified {
            // A redirection may have led to another one.
            port_group: access::port_group(&page),
            is_elsewhere: !is_it,
        };
        self.on_path(path, identified);
        if is_it {
            nexus.is_sure(doubts);
            return Ok(());
        }
        let message = format!(
            "LUN {} at {} is another disk: it identifies itself as {found}, but the disk of this \
             volume is {known}; check the portals in `paths`, and what the target serves there",
            config.lun,
            path.address()
        );
        Err(Error::new(ErrorKind::Configuration, message))
    }
}

/// Checks `nexus`, which is in use, whenever it is in doubt, until its session has ended. Ends the session if it leads to
/// another disk.
pub(super) async fn keep_sure(unit: Weak<RemoteUnit>, nexus: Rc<Nexus>) {
    let mut pause = PAUSE_FIRST;
    while nexus.in_doubt().await {
        let Some(this) = unit.upgrade() else { return };
        // Nobody sends on it any more.
        this.paths.notify();
        match this.check_identity(&nexus).await {
            Err(error) if error.kind() == ErrorKind::Configuration => {
                let target_name = &this.config().target_name;
                tracing::error!(target_name, %error, "a path no longer leads to the disk: it is not used");
                nexus.end(error);
                return;
            }
            Ok(()) if !nexus.is_in_doubt() => pause = PAUSE_FIRST,
            _ => {
                drop(this);
                time::sleep(pause).await;
                pause = (pause * 4).min(PAUSE_MAX);
                continue;
            }
        }
        this.paths.notify();
    }
}
