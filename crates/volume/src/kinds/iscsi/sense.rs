//! What a target says about a command that failed: sense data in both formats (SPC-4 4.5), and
//! what follows from it.

use super::session::Reply;
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

const ILLEGAL_REQUEST: u8 = 0x5;
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
    /// The SCSI status with which sense data comes.
    pub(super) const CHECK_CONDITION: u8 = 0x02;

    /// What a reply says beside its status.
    pub(super) fn of(reply: &Reply) -> Option<Sense> {
        (reply.status == Sense::CHECK_CONDITION).then(|| Sense::parse(&reply.sense))
    }

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

    /// Whether reservations may have gone: a reset, RESERVATIONS PREEMPTED or RELEASED, or
    /// REGISTRATIONS PREEMPTED.
    pub(super) fn may_have_ended_reservations(self) -> bool {
        matches!(
            (self.key, self.asc, self.ascq),
            (UNIT_ATTENTION, 0x29, _) | (UNIT_ATTENTION, 0x2a, 0x03..=0x05)
        )
    }

    /// Whether somebody has reset the logical unit or its target, or it comes from a power on.
    pub(super) fn is_reset(self) -> bool {
        matches!(
            (self.key, self.asc, self.ascq),
            (UNIT_ATTENTION, 0x29, 0x00..=0x03)
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

impl Sense {
    /// What it says, for people, of this logical unit.
    pub(super) fn report(self, target_name: &str, lun: u16) -> String {
        match (self.key, self.asc) {
            (ILLEGAL_REQUEST, 0x25) => format!(
                "the target {target_name} has no LUN {lun}, or none for this initiator; look at the number at \
                 the end of the url, and at the target's LUNs (it reports {self})"
            ),
            _ => format!("the target reports {self}"),
        }
    }
}

/// Sense keys by number (SPC-4 table 43).
const KEYS: [&str; 16] = [
    "NO SENSE",
    "RECOVERED ERROR",
    "NOT READY",
    "MEDIUM ERROR",
    "HARDWARE ERROR",
    "ILLEGAL REQUEST",
    "UNIT ATTENTION",
    "DATA PROTECT",
    "BLANK CHECK",
    "VENDOR SPECIFIC",
    "COPY ABORTED",
    "ABORTED COMMAND",
    "RESERVED",
    "VOLUME OVERFLOW",
    "MISCOMPARE",
    "COMPLETED",
];

/// Additional sense codes that disks send, with their qualifier if they have names by it (SPC-4, ASC and
/// ASCQ assignments).
const CODES: [(u8, Option<u8>, &str); 45] = [
    (0x04, Some(0x01), "in process of becoming ready"),
    (0x04, Some(0x02), "initializing command required"),
    (0x04, Some(0x03), "manual intervention required"),
    (0x04, Some(0x04), "format in progress"),
    (0x04, Some(0x0a), "asymmetric access state transition"),
    (0x04, Some(0x0b), "target port in standby state"),
    (0x04, Some(0x0c), "target port in unavailable state"),
    (0x04, Some(0x1b), "sanitize in progress"),
    (0x04, None, "logical unit not ready"),
    (0x08, None, "logical unit communication failure"),
    (0x0c, None, "write error"),
    (0x10, None, "protection information check failed"),
    (0x11, None, "unrecovered read error"),
    (0x1a, None, "parameter list length error"),
    (0x1d, None, "miscompare during verify operation"),
    (0x20, None, "invalid command operation code"),
    (0x21, None, "logical block address out of range"),
    (0x24, None, "invalid field in CDB"),
    (0x25, None, "logical unit not supported"),
    (0x26, None, "invalid field in parameter list"),
    (0x27, Some(0x07), "space allocation failed"),
    (0x27, None, "write protected"),
    (0x28, None, "not ready to ready change"),
    (0x29, Some(0x07), "I_T nexus loss occurred"),
    (0x29, None, "power on, reset, or bus device reset occurred"),
    (0x2a, Some(0x01), "mode parameters changed"),
    (0x2a, Some(0x03), "reservations preempted"),
    (0x2a, Some(0x04), "reservations released"),
    (0x2a, Some(0x05), "registrations preempted"),
    (0x2a, Some(0x06), "asymmetric access state changed"),
    (0x2a, Some(0x09), "capacity data has changed"),
    (0x2c, None, "command sequence error"),
    (0x2f, None, "commands cleared by another initiator"),
    (0x31, Some(0x03), "sanitize command failed"),
    (0x31, None, "medium format corrupted"),
    (0x38, Some(0x07), "thin provisioning soft threshold reached"),
    (0x3a, None, "medium not present"),
    (
        0x3e,
        None,
        "logical unit has not self-configured, failed, or timed out",
    ),
    (0x3f, Some(0x0e), "reported LUNs data has changed"),
    (0x3f, None, "target operating conditions have changed"),
    (0x44, None, "internal target failure"),
    (0x47, None, "SCSI parity or protocol error"),
    (0x4b, None, "data phase error"),
    (0x4e, None, "overlapped commands attempted"),
    (0x55, None, "insufficient resources"),
];

impl std::fmt::Display for Sense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Sense { key, asc, ascq, .. } = *self;
        let is_meant = |of: &Option<u8>| of.is_none_or(|of| of == ascq);
        f.write_str(KEYS[usize::from(key & 0xf)])?;
        if let Some((.., words)) = CODES
            .iter()
            .find(|(code, of, _)| *code == asc && is_meant(of))
        {
            write!(f, ", {words}")?;
        }
        write!(f, " (sense {key:x}h/{asc:02x}h/{ascq:02x}h)")
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
    #[test]
    fn sense_data_is_said_in_words_with_its_codes_behind_them() {
        for ((key, asc, ascq), said) in [
            (
                (3, 0x11, 0),
                "MEDIUM ERROR, unrecovered read error (sense 3h/11h/00h)",
            ),
            (
                (2, 0x04, 0x1b),
                "NOT READY, sanitize in progress (sense 2h/04h/1bh)",
            ),
            (
                (2, 0x04, 0x77),
                "NOT READY, logical unit not ready (sense 2h/04h/77h)",
            ),
            (
                (7, 0x27, 7),
                "DATA PROTECT, space allocation failed (sense 7h/27h/07h)",
            ),
            ((4, 0x80, 1), "HARDWARE ERROR (sense 4h/80h/01h)"),
            ((0xf, 0xff, 0xff), "COMPLETED (sense fh/ffh/ffh)"),
        ] {
            let is_deferred = false;
            let sense = Sense {
                key,
                asc,
                ascq,
                is_deferred,
            };
            assert_eq!(sense.to_string(), said);
            assert_eq!(
                sense.report("iqn.a:b", 3),
                format!("the target reports {said}")
            );
        }
        let missing = Sense {
            key: 5,
            asc: 0x25,
            ..Sense::default()
        };
        let said = missing.report("iqn.a:b", 3);
        assert!(
            said.starts_with(
                "the target iqn.a:b has no LUN 3, or none for this initiator; look at "
            ),
            "{said}"
        );
    }
}
