//! The state of a unit's sanitize (SBC-3 4.11), which outlives its command and restarts.

use crate::ending::Ending;
use crate::saved::{MALFORMED, truth};
use crate::sense::{Asc, KeySpecific, Sense, SenseKey};

/// The state of the unit's sanitize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SanitizeState {
    /// Progress, in 65536ths.
    Running(u16),
    /// It failed; with AUSE (`may_exit`), the unit may be used again without another sanitize.
    Failed { may_exit: bool },
}

/// How a sanitize that failed is reported.
pub(crate) const FAILED: Sense = Sense::new(SenseKey::MediumError, Asc::SANITIZE_COMMAND_FAILED);

impl SanitizeState {
    /// The sense data for commands that cannot be served meanwhile.
    pub(crate) fn sense(self) -> Sense {
        match self {
            SanitizeState::Failed { .. } => FAILED,
            SanitizeState::Running(part) => {
                let sense = Sense::new(SenseKey::NotReady, Asc::SANITIZE_IN_PROGRESS);
                Sense {
                    specific: Some(KeySpecific::Progress(part)),
                    ..sense
                }
            }
        }
    }

    /// The state to persist. A sanitize that was running at a restart counts as failed.
    pub(crate) fn save(sanitize: Option<SanitizeState>) -> String {
        match sanitize {
            None => String::new(),
            Some(SanitizeState::Running(_)) => "sanitize 0\n".into(),
            Some(SanitizeState::Failed { may_exit }) => {
                format!("sanitize {}\n", u8::from(may_exit))
            }
        }
    }

    /// What was saved, given in words. The error says what is wrong with it.
    pub(crate) fn restore(values: &[&str]) -> Result<SanitizeState, &'static str> {
        match *values {
            [may_exit] => Ok(SanitizeState::Failed {
                may_exit: truth(may_exit)?,
            }),
            _ => Err(MALFORMED),
        }
    }

    /// Checks whether EXIT FAILURE MODE may leave the failed state.
    pub(crate) fn may_leave(sanitize: Option<SanitizeState>) -> Result<(), Ending> {
        match sanitize {
            Some(SanitizeState::Failed { may_exit: false }) => Err(FAILED.into()),
            Some(SanitizeState::Running(_)) => Err(Ending::BUSY),
            _ => Ok(()),
        }
    }
}
