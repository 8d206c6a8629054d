//! SANITIZE (SBC-3 5.24, 4.11): OVERWRITE, BLOCK ERASE if discarded blocks read as zeroes, and EXIT FAILURE MODE.
//! CRYPTOGRAPHIC ERASE is not supported, because there is no key to change.
//!
//! A sanitize belongs to the unit, not to its command: aborts, resets and nexus losses leave it running, and until it
//! has completed successfully the unit serves nothing else.

use super::Command;
use crate::action::{Action, Ending};
use crate::attention::NexusId;
use crate::cdb::Cdb;
use crate::change::{self, Change};
use crate::kept::{MALFORMED, truth};
use crate::sense::{Asc, KeySpecific, Sense, SenseKey};
use crate::shape::DiskShape;
use crate::shared::{SharedUnit, State};
use crate::unit::LogicalUnit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sanitize {
    what: What,
    immediate: bool,
    /// AUSE: whether EXIT FAILURE MODE may leave the failed state.
    unrestricted_exit: bool,
    list_len_bytes: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Overwrite,
    BlockErase,
    ExitFailureMode,
}

pub(crate) fn decode_overwrite(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, What::Overwrite)
}

pub(crate) fn decode_block_erase(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, What::BlockErase)
}

pub(crate) fn decode_exit(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, What::ExitFailureMode)
}

fn decode(cdb: &Cdb, what: What) -> Result<Command, Sense> {
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

/// The state of the unit's sanitize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Progress, in 65536ths.
    Running(u16),
    /// It failed; with AUSE (`may_exit`), the unit may be used again without another sanitize.
    Failed { may_exit: bool },
}

/// A sanitize that has begun: write `pattern` over all blocks `passes` times, inverting it in every second pass if
/// `invert`, then flush. No other command accesses the unit meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overwrite {
    /// Deallocate all blocks instead (BLOCK ERASE), after which they must read as zeroes.
    pub erase: bool,
    /// One logical block.
    pub pattern: Vec<u8>,
    /// 1 to 31.
    pub passes: u8,
    /// Whether each pass writes the complement of the one before it.
    pub invert: bool,
    /// Whether the command is answered at the start (IMMED).
    pub immediate: bool,
    may_exit: bool,
}

impl Overwrite {
    /// The block that pass number `pass`, from 0, writes. The last pass writes the pattern as it is.
    pub fn block(&self, pass: u8) -> Vec<u8> {
        let inverted = self.invert && (self.passes - 1 - pass) % 2 == 1;
        let flip = if inverted { 0xFF } else { 0 };
        self.pattern.iter().map(|byte| byte ^ flip).collect()
    }

    /// Records the progress: `done` of `total`.
    pub fn progress(&self, unit: &SharedUnit, done: u64, total: u64) {
        let part = u128::from(done) * 0xFFFF / u128::from(total.max(1));
        unit.look().sanitize = Some(Progress::Running(part as u16));
    }

    /// Records that the sanitize has ended, successfully if `well`, and returns the command's ending.
    pub fn ended(&self, unit: &SharedUnit, well: bool) -> Ending {
        let may_exit = self.may_exit;
        unit.change(|state| {
            state.sanitize = (!well).then_some(Progress::Failed { may_exit });
        });
        match well {
            true => Ending::GOOD,
            false => Ending::check(FAILED),
        }
    }
}

const FAILED: Sense = Sense::new(SenseKey::MediumError, Asc::SANITIZE_COMMAND_FAILED);

impl Progress {
    /// The sense data for commands that cannot be served meanwhile.
    pub(crate) fn sense(self) -> Sense {
        match self {
            Progress::Failed { .. } => FAILED,
            Progress::Running(part) => {
                let sense = Sense::new(SenseKey::NotReady, Asc::SANITIZE_IN_PROGRESS);
                Sense {
                    specific: Some(KeySpecific::Progress(part)),
                    ..sense
                }
            }
        }
    }

    /// The state to persist. A sanitize that was running at a restart counts as failed.
    pub(crate) fn save(progress: Option<Progress>) -> String {
        match progress {
            None => String::new(),
            Some(Progress::Running(_)) => "sanitize 0\n".into(),
            Some(Progress::Failed { may_exit }) => format!("sanitize {}\n", u8::from(may_exit)),
        }
    }

    /// What was saved, given in words. The error says what is wrong with it.
    pub(crate) fn restore(values: &[&str]) -> Result<Progress, &'static str> {
        match *values {
            [may_exit] => Ok(Progress::Failed {
                may_exit: truth(may_exit)?,
            }),
            _ => Err(MALFORMED),
        }
    }
}

impl Sanitize {
    pub(super) fn begin(self, unit: &LogicalUnit, nexus: NexusId) -> Result<Action, Sense> {
        unit.shape().check_writable()?;
        match self.what {
            What::Overwrite => {
                let most = unit.shape().block_size_bytes + 4;
                if !(5..=most).contains(&self.list_len_bytes.into()) {
                    return Err(Sense::invalid_cdb_field(7, None));
                }
                Ok(Command::Sanitize(self).wants(self.list_len_bytes.into()))
            }
            What::BlockErase => {
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
            What::ExitFailureMode if self.list_len_bytes != 0 => {
                Err(Sense::invalid_cdb_field(7, None))
            }
            What::ExitFailureMode => Ok(Action::Change(Change {
                nexus,
                what: change::What::LeaveFailure,
            })),
        }
    }

    pub(super) fn resume(self, unit: &LogicalUnit, list: &[u8]) -> Result<Action, Sense> {
        unit.shape().check_writable()?;
        self.start(unit, parse(unit.shape(), list)?)
    }

    fn start(self, unit: &LogicalUnit, mut overwrite: Overwrite) -> Result<Action, Sense> {
        overwrite.immediate = self.immediate;
        overwrite.may_exit = self.unrestricted_exit;
        let begun = |state: &mut State| match state.sanitize {
            Some(running @ Progress::Running(_)) => Err(running.sense()),
            _ if state.bars_sanitize => Ok(false),
            _ => {
                state.sanitize = Some(Progress::Running(0));
                Ok(true)
            }
        };
        match unit.shared().change(begun)? {
            true => Ok(Action::Overwrite(overwrite)),
            false => Ok(Action::End(Ending::BUSY)),
        }
    }
}

/// Checks whether EXIT FAILURE MODE may leave the failed state.
pub(crate) fn may_leave(progress: Option<Progress>) -> Result<(), Ending> {
    match progress {
        Some(Progress::Failed { may_exit: false }) => Err(FAILED.into()),
        Some(Progress::Running(_)) => Err(Ending::BUSY),
        _ => Ok(()),
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
