//! START STOP UNIT (SBC-3 5.25) for a disk that neither spins nor ejects: stopping it flushes,
//! and everything else that makes sense is done already. Power conditions are accepted and do
//! nothing; ejecting is refused.

use super::Command;
use crate::action::{Action, Ending};
use crate::cdb::Cdb;
use crate::medium::MediumOp;
use crate::sense::Sense;
use crate::shape::Shape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StartStop {
    /// Whether the unit stops and has to flush first.
    flush: bool,
}

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    let power_condition = cdb.u8(4) >> 4;
    let (no_flush, start) = (cdb.bit(4, 2), cdb.bit(4, 0));
    // With a power condition LOEJ and START are not looked at.
    if power_condition == 0 {
        const LOEJ: u8 = 0x02;
        cdb.must_be_zero(4, LOEJ)?;
    }
    let flush = power_condition == 0 && !start && !no_flush;
    Ok(Command::StartStop(StartStop { flush }))
}

impl StartStop {
    pub(super) fn begin(self, shape: &Shape) -> Result<Action, Sense> {
        if self.flush {
            let extent = shape.extent_or_rest(0, 0)?;
            Ok(Action::Medium(MediumOp::Flush { extent }))
        } else {
            Ok(Action::End(Ending::GOOD))
        }
    }
}

#[cfg(test)]
mod tests;
