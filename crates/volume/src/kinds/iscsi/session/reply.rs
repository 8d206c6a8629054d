//! How a command ended at the target.

use engine::Payload;
use scsi::Status;

use super::super::sense::Sense;

/// The SCSI status of a command that a reservation forbids.
pub(in crate::kinds::iscsi) const RESERVATION_CONFLICT: u8 =
    scsi::Status::ReservationConflict as u8;

/// How a command ended: its SCSI status, with the data it brought.
#[derive(Debug)]
pub(in crate::kinds::iscsi) struct Reply {
    pub(in crate::kinds::iscsi) status: u8,
    pub(in crate::kinds::iscsi) sense: Vec<u8>,
    /// Data-in, truncated to what arrived.
    pub(in crate::kinds::iscsi) data: Payload,
    /// Bytes the target reports as transferred; at most what actually moved.
    pub(in crate::kinds::iscsi) transferred: usize,
    /// A transfer of blocks of which the target would have moved more: its blocks are of another size than ours.
    pub(in crate::kinds::iscsi) is_cut: bool,
    /// How often the target had reported over the session by then that the disk may not be what it was.
    pub(in crate::kinds::iscsi) doubts: u64,
    /// It had done so without the knowledge of whoever sent the command, which may have reached another disk.
    pub(in crate::kinds::iscsi) is_in_doubt: bool,
}

impl Reply {
    /// That of a command that the target has aborted without an answer.
    pub(super) fn aborted(doubts: u64) -> Reply {
        Reply {
            status: Status::TaskAborted as u8,
            sense: Vec::new(),
            data: Payload::new(),
            transferred: 0,
            is_cut: false,
            doubts,
            is_in_doubt: false,
        }
    }

    /// The same, to a command whose sender knew of `doubts` of the session's doubts.
    pub(in crate::kinds::iscsi) fn knowing(self, doubts: u64) -> Reply {
        Reply {
            is_in_doubt: self.doubts != doubts,
            ..self
        }
    }

    /// Its sense, if its status is CHECK CONDITION.
    pub(in crate::kinds::iscsi) fn sense(&self) -> Option<Sense> {
        Sense::of(self.status, &self.sense)
    }

    /// Whether the command succeeded, and on the disk it was meant for as far as the target has reported.
    pub(in crate::kinds::iscsi) fn is_good(&self) -> bool {
        const GOOD: u8 = Status::Good as u8;
        const CONDITION_MET: u8 = Status::ConditionMet as u8;
        matches!(self.status, GOOD | CONDITION_MET) && !self.is_in_doubt && !self.is_cut
    }

    /// Where the data that was compared first differed from what is there, in bytes, on the disk it was meant for.
    pub(in crate::kinds::iscsi) fn first_difference(&self) -> Option<u64> {
        let differs = self.sense().is_some_and(Sense::is_miscompare) && !self.is_in_doubt;
        differs.then(|| scsi::sense::information(&self.sense).unwrap_or(0))
    }

    /// Whether the target has not tried the command.
    pub(in crate::kinds::iscsi) fn is_refusal(&self) -> bool {
        const BUSY: u8 = Status::Busy as u8;
        const TASK_SET_FULL: u8 = Status::TaskSetFull as u8;
        match self.status {
            BUSY | TASK_SET_FULL | RESERVATION_CONFLICT => true,
            _ => self
                .sense()
                .is_some_and(|sense| sense.is_refusal() || sense.is_miscompare()),
        }
    }
}
