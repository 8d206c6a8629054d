//! What a target says about a command that failed: sense data in both formats (SPC-4 4.5), and
//! what follows from it.

use crate::ErrorKind;

/// The sense key and additional sense code (with its qualifier) of a CHECK CONDITION.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Sense {
    pub(super) key: u8,
    pub(super) asc: u8,
    pub(super) ascq: u8,
    /// Of an earlier command that had ended well, while this one was not begun (SPC-4 4.5.7).
    pub(super) is_deferred: bool,
}

const UNIT_ATTENTION: u8 = 0x6;

/// What to do about a failed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Send it again at once.
    Retry,
    /// Send it again after a pause.
    RetryLater,
    /// The target has started anew, or could not write what it had cached: that is gone. Send it again
    /// at once.
    Restarted,
    /// Give up.
    Fail(ErrorKind),
}

impl Sense {
    /// Reads sense data; what is missing is zero (NO SENSE).
    pub(super) fn parse(data: &[u8]) -> Sense {
        let byte = |index: usize| data.get(index).copied().unwrap_or(0);
        let response_code = byte(0) & 0x7f;
        let is_deferred = matches!(response_code, 0x71 | 0x73);
        match response_code {
            0x70 | 0x71 => Sense {
                is_deferred,
                key: byte(2) & 0xf,
                asc: byte(12),
                ascq: byte(13),
            },
            0x72 | 0x73 => Sense {
                is_deferred,
                key: byte(1) & 0xf,
                asc: byte(2),
                ascq: byte(3),
            },
            _ => Sense::default(),
        }
    }

    /// Whether the disk's length is to be asked anew: CAPACITY DATA HAS CHANGED, or a reset or loss
    /// of the nexus, with which the target may have forgotten to tell us.
    pub(super) fn may_be_of_another_length(self) -> bool {
        matches!(
            (self.key, self.asc, self.ascq),
            (UNIT_ATTENTION, 0x2a, 0x09) | (UNIT_ATTENTION, 0x29, _)
        )
    }

    /// What it means for the command (SPC-4 table 43).
    pub(super) fn verdict(self) -> Verdict {
        const NOT_READY: u8 = 0x2;
        const MEDIUM_ERROR: u8 = 0x3;
        const DATA_PROTECT: u8 = 0x7;
        const ABORTED_COMMAND: u8 = 0xb;
        if self.is_deferred {
            return Verdict::Restarted;
        }
        match (self.key, self.asc, self.ascq) {
            // POWER ON, RESET, OR BUS DEVICE RESET, and DEVICE INTERNAL RESET, which may stand for
            // a power on (SAM-5 5.14); an I_T NEXUS LOSS (29h/07h) loses nothing.
            (UNIT_ATTENTION, 0x29, 0x00..=0x02 | 0x04) => Verdict::Restarted,
            (UNIT_ATTENTION, ..) | (ABORTED_COMMAND, ..) => Verdict::Retry,
            (NOT_READY, 0x3a, _) => Verdict::Fail(ErrorKind::Medium),
            (NOT_READY, ..) => Verdict::RetryLater,
            (DATA_PROTECT, 0x27, 0x07) => Verdict::Fail(ErrorKind::NoSpace),
            (DATA_PROTECT, ..) => Verdict::Fail(ErrorKind::ReadOnly),
            (MEDIUM_ERROR | 0x4, ..) => Verdict::Fail(ErrorKind::Medium),
            _ => Verdict::Fail(ErrorKind::Protocol),
        }
    }
}

impl std::fmt::Display for Sense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "sense key {:x}h, code {:02x}h/{:02x}h",
            self.key, self.asc, self.ascq
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_say_the_same() {
        let mut fixed = [0; 18];
        (fixed[0], fixed[2], fixed[12], fixed[13]) = (0x70, 0x06, 0x29, 0x00);
        let descriptor = [0x72, 0x06, 0x29, 0x00, 0, 0, 0, 0];
        assert_eq!(Sense::parse(&fixed), Sense::parse(&descriptor));
        assert_eq!(Sense::parse(&fixed).verdict(), Verdict::Restarted);
        assert!(Sense::parse(&fixed).may_be_of_another_length());
        // A cached write that failed later, told with whatever command came next.
        (fixed[0], fixed[2], fixed[12]) = (0x71, 0x03, 0x0c);
        let descriptor = [0x73, 0x03, 0x0c, 0x00, 0, 0, 0, 0];
        assert_eq!(Sense::parse(&fixed), Sense::parse(&descriptor));
        assert_eq!(Sense::parse(&fixed).verdict(), Verdict::Restarted);
        assert_eq!(
            Sense::parse(&[]).verdict(),
            Verdict::Fail(ErrorKind::Protocol)
        );
    }
}
