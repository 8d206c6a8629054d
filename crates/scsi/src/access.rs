//! What a command does to the unit as seen by reservations (SPC-4 5.12, SBC-3 4.17), and whether
//! they let it through.

use crate::attention::NexusId;
use crate::shared::Rights;

/// The kinds of commands that reservations tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Passes every reservation (INQUIRY, RELEASE).
    Always,
    /// Asks about the unit: passes persistent reservations, not a RESERVE (6) of another.
    Ask,
    /// Reads the medium.
    Read,
    /// Changes the medium or the unit, or asks what only users of the unit may ask.
    Change,
    /// Looks after reservations by itself, except for a RESERVE (6): PERSISTENT RESERVE, RESERVE.
    Own,
}

impl Rights {
    /// Whether reservations let `nexus` do this.
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
