//! The removal of the medium: ejecting and loading it, unless an initiator prevents that.

use crate::attention::Attention;
use crate::ending::Ending;
use crate::medium::MediumOp;
use crate::nexus::NexusId;
use crate::sense::{Asc, Sense, SenseKey};
use crate::shared::UnitState;
use crate::unit::LogicalUnit;

/// An eject that must flush first: perform [`Eject::flush`], and if that succeeds, [`Eject::flushed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eject {
    /// What to do with the medium.
    pub flush: MediumOp,
    pub(crate) nexus: NexusId,
}

impl Eject {
    /// Ejects, if nobody has prevented removal during the flush, which has succeeded.
    pub fn flushed(&self, unit: &LogicalUnit) -> Ending {
        let ejected = unit.shared().change(|state| load(state, false, self.nexus));
        ejected.map_or_else(Ending::check, |()| Ending::GOOD)
    }
}

/// Refuses a removal that an initiator prevents.
pub(crate) fn check_allowed(state: &UnitState) -> Result<(), Sense> {
    match state.preventing.is_empty() {
        true => Ok(()),
        false => Err(Sense::new(
            SenseKey::IllegalRequest,
            Asc::MEDIUM_REMOVAL_PREVENTED,
        )),
    }
}

/// Loads or, without `start`, ejects the medium.
pub(crate) fn load(state: &mut UnitState, start: bool, nexus: NexusId) -> Result<(), Sense> {
    check_allowed(state)?;
    let was_ejected = std::mem::replace(&mut state.ejected, !start);
    if was_ejected && start {
        // The requesting nexus already knows.
        state
            .attentions
            .post(Attention::MediumMayHaveChanged, Some(nexus));
    }
    Ok(())
}
