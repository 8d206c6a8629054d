//! How a command ended: status and sense.

use crate::sense::Sense;

/// SCSI status codes (SAM-5 5.3). The discriminant is the wire value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The command completed without error.
    Good = 0x00,
    /// The command failed, or a unit attention is reported; the sense data says why.
    CheckCondition = 0x02,
    /// The requested operation is satisfied (PRE-FETCH).
    ConditionMet = 0x04,
    /// The logical unit cannot take the command now; try again.
    Busy = 0x08,
    /// A reservation of another nexus forbids the command.
    ReservationConflict = 0x18,
    /// The task set has no room for another command.
    TaskSetFull = 0x28,
    /// The command was aborted by another nexus (control mode page, TAS).
    TaskAborted = 0x40,
}

/// How a command ended: its status, and sense data with CHECK CONDITION.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// The status to send.
    pub status: Status,
    /// Present exactly when `status` is CHECK CONDITION. Encode it with
    /// [`LogicalUnit::sense_format`](crate::LogicalUnit::sense_format).
    pub sense: Option<Sense>,
}

impl Ending {
    /// GOOD.
    pub const GOOD: Ending = Ending {
        status: Status::Good,
        sense: None,
    };
    /// BUSY: the initiator should retry.
    pub const BUSY: Ending = Ending {
        status: Status::Busy,
        sense: None,
    };

    /// RESERVATION CONFLICT.
    pub const CONFLICT: Ending = Ending {
        status: Status::ReservationConflict,
        sense: None,
    };

    /// CHECK CONDITION with this sense data.
    pub fn check(sense: Sense) -> Ending {
        Ending {
            status: Status::CheckCondition,
            sense: Some(sense),
        }
    }
}

impl From<Sense> for Ending {
    fn from(sense: Sense) -> Ending {
        Ending::check(sense)
    }
}
