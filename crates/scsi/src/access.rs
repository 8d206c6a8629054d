//! The access checks of reservations (SPC-4 5.13, SBC-3 4.17): how each command accesses the unit, and whether
//! reservations allow that.

use crate::nexus::NexusId;
use crate::shared::Rights;

/// The kinds of access that reservations distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Allowed under every reservation (INQUIRY, RELEASE).
    Always,
    /// Queries the unit: allowed under persistent reservations, but not under another nexus's RESERVE (6).
    Ask,
    /// Reads the medium.
    Read,
    /// Changes the medium or the unit, or queries what only its users may query.
    Change,
    /// Checks persistent reservations itself, but not a RESERVE (6): PERSISTENT RESERVE, RESERVE.
    Own,
}

impl Rights {
    /// Whether the reservations allow `nexus` this access.
    pub(crate) fn allow(&self, nexus: NexusId, access: Access) -> bool {
        if access == Access::Always {
            return true;
        }
        if self.reserved_by.is_some_and(|holder| holder != nexus) {
            return false;
        }
        if matches!(access, Access::Ask | Access::Own) {
            return true;
        }
        match &self.persistent {
            None => true,
            Some((_, may)) if may.contains(&nexus) => true,
            Some((kind, _)) => access == Access::Read && !kind.excludes_readers(),
        }
    }
}
