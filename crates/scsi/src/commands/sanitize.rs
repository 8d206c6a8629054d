//! SANITIZE (SBC-3 5.24, 4.11): OVERWRITE, BLOCK ERASE if discarded blocks read as zeroes, and EXIT FAILURE MODE.
//! CRYPTOGRAPHIC ERASE is not supported, because there is no key to change.
//!
//! A sanitize belongs to the unit, not to its command: aborts, resets and nexus losses leave it running, and until it
//! has completed successfully the unit serves nothing else.

use super::Command;
use crate::action::{Action, ParameterList};
use crate::cdb::Cdb;
use crate::change::{self, Change};
use crate::ending::Ending;
use crate::nexus::NexusId;
use crate::overwrite::Overwrite;
use crate::sanitize_state::SanitizeState;
use crate::sense::Sense;
use crate::shape::DiskShape;
use crate::shared::UnitState;
use crate::unit::LogicalUnit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sanitize {
    what: SanitizeAction,
    immediate: bool,
    /// AUSE: whether EXIT FAILURE MODE may leave the failed state.
    unrestricted_exit: bool,
    list_len_bytes: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SanitizeAction {
    Overwrite,
    BlockErase,
    ExitFailureMode,
}

pub(crate) fn decode_overwrite(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, SanitizeAction::Overwrite)
}

pub(crate) fn decode_block_erase(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, SanitizeAction::BlockErase)
}

pub(crate) fn decode_exit(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, SanitizeAction::ExitFailureMode)
}

fn decode(cdb: &Cdb, what: SanitizeAction) -> Result<Command, Sense> {
    const RESERVED: u8 = 0x40;
    cdb.must_be_zero(1, RESERVED)?;
    for at in 2..7 {
        cdb.must_be_zero(at, 0xFF)?;
    }
    Ok(Command::Sanitize(Sanitize {
        what,
        immediate: cdb.bit(1, 7),
        unrestricted_exit: cdb.bit(1, 5),
        list_len_bytes: cdb.u16(7),
    }))
}

impl Sanitize {
    pub(super) fn begin(self, unit: &LogicalUnit, nexus: NexusId) -> Result<Action, Sense> {
        unit.shape().check_all_writable()?;
        match self.what {
            SanitizeAction::Overwrite => {
                let most = unit.shape().block_size_bytes + 4;
                if !(5..=most).contains(&self.list_len_bytes.into()) {
                    return Err(Sense::invalid_cdb_field(7, None));
                }
                let list = ParameterList::exactly(self.list_len_bytes.into());
                Ok(Action::Parameters(list))
            }
            SanitizeAction::BlockErase => {
                if !can_erase(unit.shape()) {
                    return Err(Sense::invalid_cdb_field(1, Some(4)));
                }
                if self.list_len_bytes != 0 {
                    return Err(Sense::invalid_cdb_field(7, None));
                }
                self.start(
                    unit,
                    Overwrite {
                        erase: true,
                        pattern: vec![0; unit.shape().block_size_bytes as usize],
                        passes: 1,
                        invert: false,
                        immediate: false,
                        may_exit: false,
                    },
                )
            }
            SanitizeAction::ExitFailureMode if self.list_len_bytes != 0 => {
                Err(Sense::invalid_cdb_field(7, None))
            }
            SanitizeAction::ExitFailureMode => Ok(Action::Change(Change {
                nexus,
                what: change::ChangeKind::LeaveFailure,
            })),
        }
    }

    pub(super) fn resume(self, unit: &LogicalUnit, list: &[u8]) -> Result<Action, Sense> {
        unit.shape().check_all_writable()?;
        self.start(unit, parse(unit.shape(), list)?)
    }

    fn start(self, unit: &LogicalUnit, mut overwrite: Overwrite) -> Result<Action, Sense> {
        overwrite.immediate = self.immediate;
        overwrite.may_exit = self.unrestricted_exit;
        let begun = |state: &mut UnitState| match state.sanitize {
            Some(running @ SanitizeState::Running(_)) => Err(running.sense()),
            _ if state.bars_sanitize => Ok(false),
            _ => {
                state.sanitize = Some(SanitizeState::Running(0));
                Ok(true)
            }
        };
        match unit.shared().change(begun)? {
            true => Ok(Action::Overwrite(overwrite)),
            false => Ok(Action::End(Ending::BUSY)),
        }
    }
}

/// Whether BLOCK ERASE can guarantee zeroes.
pub(crate) fn can_erase(shape: &DiskShape) -> bool {
    shape
        .discard
        .is_some_and(|discard| discard.zeroes_after_discard)
}

/// The parameter list of OVERWRITE (SBC-3 5.24.2.2).
fn parse(shape: &DiskShape, list: &[u8]) -> Result<Overwrite, Sense> {
    const INVERT: u8 = 0x80;
    const COUNT: u8 = 0x1F;
    let (head, pattern) = list
        .split_first_chunk::<4>()
        .ok_or(Sense::invalid_cdb_field(7, None))?;
    let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let passes = head[0] & COUNT;
    if passes == 0 {
        return Err(Sense::invalid_parameter(0, Some(4)));
    }
    let block = shape.block_size_bytes as usize;
    if len == 0 || len > block || len > pattern.len() {
        return Err(Sense::invalid_parameter(2, None));
    }
    let pattern = pattern[..len].iter().copied().cycle().take(block);
    Ok(Overwrite {
        erase: false,
        pattern: pattern.collect(),
        passes,
        invert: head[0] & INVERT != 0,
        immediate: false,
        may_exit: false,
    })
}

#[cfg(test)]
mod tests;
