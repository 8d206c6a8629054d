//! Whether a nexus still leads to the disk of the volume: at each login, and when the target reports that its LUNs may
//! have changed. Until that is known, no request is sent over the nexus, or it might write on another disk.

use std::rc::{Rc, Weak};

use engine::{Duration, spawn, time};

use super::{
    access, cdb, claim::Told, identity::DiskIdentity, nexus::Nexus, paths::Path, session::Data,
    unit::Unit,
};
use crate::{Error, ErrorKind, Result};

/// Pause before a target whose answer settles nothing is asked again; it doubles each time.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(4);

impl Unit {
    /// The target has reported over `nexus` that its LUNs may have changed.
    pub(super) fn doubt_disk(&self, nexus: &Nexus) {
        // An identity that is not known yet will be asked for anyway.
        if self.identity.get().is_none() {
            return;
        }
        let is_in_doubt = nexus.is_in_doubt();
        nexus.doubt();
        let known = self.paths.all()[nexus.path()].last();
        let known = known.filter(|known| std::ptr::eq(&**known, nexus));
        // A nexus that is being prepared is checked before it goes into use.
        if let Some(nexus) = known.filter(|nexus| !is_in_doubt && !nexus.is_new()) {
            self.paths.notify();
            spawn(check_again(self.me.clone(), nexus));
        }
    }

    /// Rejects a path that leads to another disk.
    pub(super) async fn check_identity(&self, path: &Path, nexus: &Rc<Nexus>) -> Result<()> {
        let Some(known) = self.identity.get() else {
            return Ok(());
        };
        const LEN: u8 = 252;
        let doubts = nexus.doubts();
        let inquiry = cdb::inquiry(Some(0x83), LEN);
        let page = match self.tell(nexus, &inquiry, Data::In(LEN.into())).await? {
            Told::Good(page) if page.get(1) == Some(&0x83) => page,
            _ => Vec::new(),
        };
        path.leads_elsewhere.set(false);
        // A redirection may have led to another one.
        path.port_group.set(access::port_group(&page));
        let config = self.config();
        let found = DiskIdentity::parse(&config.target_name, config.lun, &page);
        let is_same = match known.in_common(&found) {
            Some(_) => true,
            // A portal leads to one disk unless the names say otherwise.
            None if path.config.address == config.address => !known.is_named() || !found.is_named(),
            None => false,
        };
        if is_same {
            nexus.is_sure(doubts);
            return Ok(());
        }
        path.leads_elsewhere.set(true);
        let message = format!(
            "LUN {} at {} is another disk: it identifies itself as {found}, but the disk of this \
             volume is {known}; check the portals in `paths`, and what the target serves there",
            config.lun, path.config.address
        );
        Err(Error::new(ErrorKind::Configuration, message))
    }
}

/// Checks `nexus` until it is known which disk it leads to, or its session has ended. Ends the session if that is
/// another disk.
pub(super) async fn check_again(unit: Weak<Unit>, nexus: Rc<Nexus>) {
    let mut pause = PAUSE_FIRST;
    while nexus.is_in_doubt() && !nexus.is_over() {
        let Some(this) = unit.upgrade() else { return };
        let path = &this.paths.all()[nexus.path()];
        match this.check_identity(path, &nexus).await {
            Err(error) if error.kind() == ErrorKind::Configuration => {
                let target_name = &this.config().target_name;
                tracing::error!(target_name, %error, "a path no longer leads to the disk: it is not used");
                nexus.end(error);
            }
            _ if nexus.is_in_doubt() => {
                drop(this);
                time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
                continue;
            }
            _ => {}
        }
        this.paths.notify();
    }
}
