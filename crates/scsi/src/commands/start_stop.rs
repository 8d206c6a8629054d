//! START STOP UNIT (SBC-3 5.25) and PREVENT ALLOW MEDIUM REMOVAL (SBC-3 5.10). No disk here spins:
//! stopping flushes, and power conditions are accepted without effect. Ejecting a removable disk flushes it, and it
//! counts as ejected until it is loaded again, unless an initiator prevents removal. A fixed disk refuses LOEJ.

use super::Command;
use crate::access::Access;
use crate::action::Action;
use crate::cdb::Cdb;
use crate::ending::Ending;
use crate::medium::MediumOp;
use crate::nexus::NexusId;
use crate::removal::{Eject, check_allowed, load};
use crate::sense::Sense;
use crate::shape::WRITE_PROTECTED;
use crate::unit::LogicalUnit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StartStop {
    what: MediumChange,
    start: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MediumChange {
    Nothing,
    /// The unit stops, and must flush first.
    Flush,
    /// LOEJ: load or eject, depending on START.
    Load,
    /// LOEJ with an eject, which must flush first.
    FlushAndEject,
}

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    let power_condition = cdb.u8(4) >> 4;
    let (no_flush, load, start) = (cdb.bit(4, 2), cdb.bit(4, 1), cdb.bit(4, 0));
    // LOEJ and START are ignored if a power condition is given.
    let what = match power_condition {
        0 if load && !start && !no_flush => MediumChange::FlushAndEject,
        0 if load => MediumChange::Load,
        0 if !start && !no_flush => MediumChange::Flush,
        _ => MediumChange::Nothing,
    };
    Ok(Command::StartStop(StartStop { what, start }))
}

impl StartStop {
    pub(super) fn access(self) -> Access {
        if self.start && self.what == MediumChange::Nothing {
            Access::Ask
        } else {
            Access::Change
        }
    }

    pub(super) fn begin(self, unit: &LogicalUnit, nexus: NexusId) -> Result<Action, Sense> {
        let shape = unit.shape();
        match self.what {
            MediumChange::Nothing => Ok(Action::End(Ending::GOOD)),
            MediumChange::Flush => {
                let extent = shape.extent_or_rest(0, 0)?;
                Ok(Action::Medium(MediumOp::Flush { extent }))
            }
            MediumChange::Load | MediumChange::FlushAndEject if !shape.removable => {
                Err(Sense::invalid_cdb_field(4, Some(1)))
            }
            // It would be taken from those at other ports.
            MediumChange::Load | MediumChange::FlushAndEject if shape.reads_only => {
                Err(WRITE_PROTECTED)
            }
            MediumChange::Load => {
                let shared = unit.shared();
                shared.change(|state| load(state, self.start, nexus))?;
                Ok(Action::End(Ending::GOOD))
            }
            MediumChange::FlushAndEject => {
                check_allowed(&unit.shared().look())?;
                let extent = shape.extent_or_rest(0, 0)?;
                let flush = MediumOp::Flush { extent };
                Ok(Action::Eject(Eject { flush, nexus }))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PreventAllow {
    prevent: bool,
}

pub(crate) fn decode_prevent(cdb: &Cdb) -> Result<Command, Sense> {
    // The upper bit was for the operator of a medium changer and is obsolete.
    cdb.must_be_zero(4, 0x02)?;
    let prevent = cdb.bit(4, 0);
    Ok(Command::PreventAllow(PreventAllow { prevent }))
}

impl PreventAllow {
    pub(super) fn access(self) -> Access {
        match self.prevent {
            true => Access::Change,
            false => Access::Always,
        }
    }

    pub(super) fn begin(self, unit: &LogicalUnit, nexus: NexusId) -> Action {
        unit.shared().change(|state| match self.prevent {
            // Nobody ejects there, so nothing has to be prevented there; at other ports, those who may change the disk
            // are not held up by those who may not.
            true if unit.shape().reads_only => {}
            true => {
                state.preventing.insert(nexus);
            }
            false => {
                state.preventing.remove(&nexus);
            }
        });
        Action::End(Ending::GOOD)
    }
}

#[cfg(test)]
mod tests;
