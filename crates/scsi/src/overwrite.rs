//! A sanitize that is being performed, and what becomes of it in the unit's state.

use crate::ending::Ending;
use crate::sanitize_state::{FAILED, SanitizeState};
use crate::shared::SharedUnit;

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
    pub(crate) may_exit: bool,
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
        unit.look().sanitize = Some(SanitizeState::Running(part as u16));
    }

    /// Records that the sanitize has ended, successfully if `well`, and returns the command's ending.
    pub fn ended(&self, unit: &SharedUnit, well: bool) -> Ending {
        let may_exit = self.may_exit;
        unit.change(|state| {
            state.sanitize = (!well).then_some(SanitizeState::Failed { may_exit });
        });
        match well {
            true => Ending::GOOD,
            false => Ending::check(FAILED),
        }
    }
}
