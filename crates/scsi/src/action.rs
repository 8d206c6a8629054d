//! What a transport must do for a command: the results of [`LogicalUnit::begin`] and [`LogicalUnit::resume`].
//!
//! [`LogicalUnit::begin`]: crate::LogicalUnit::begin
//! [`LogicalUnit::resume`]: crate::LogicalUnit::resume

use crate::attention::NexusId;
use crate::change::Change;
use crate::commands::extended_copy::Copy;
use crate::commands::sanitize::Overwrite;
use crate::commands::start_stop::Eject;
use crate::commands::{Command, report_luns::ReportLuns};
use crate::medium::MediumOp;
use crate::sense::{Asc, Sense, SenseKey};

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

/// What a command asks its transport to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The command has ended and transfers no data.
    End(Ending),
    /// Send these bytes as data-in, then GOOD. They are already truncated to the CDB's allocation length; any
    /// difference from the transport's expected length is a residual.
    Reply(Vec<u8>),
    /// Report the target's LUNs, which only the transport knows. Turn it into a reply with [`ReportLuns::reply`].
    ReportLuns(ReportLuns),
    /// Perform this on the medium, then get the ending from [`LogicalUnit::complete`](crate::LogicalUnit::complete).
    Medium(MediumOp),
    /// Receive a parameter list as data-out, then continue with [`LogicalUnit::resume`](crate::LogicalUnit::resume).
    Parameters(ParameterList),
    /// Copy between units, report the result with [`Copy::ended`], then send the ending: GOOD, or
    /// [`CopyError::ending`](crate::CopyError::ending).
    Copy(Copy),
    /// A sanitize has begun: persist the unit's state, perform the sanitize, report its result with
    /// [`Overwrite::ended`], persist the state again, then send the ending.
    Overwrite(Overwrite),
    /// Perform [`Eject::flush`] on the medium, then send the ending that [`Eject::flushed`] returns.
    Eject(Eject),
    /// [Prepare](Change::prepare) a change of the unit's state, persist the result, commit it, abort the commands it
    /// names, then end the command with GOOD.
    Change(Change),
}

impl Action {
    /// Whether it reports a unit attention.
    pub fn is_attention(&self) -> bool {
        let Action::End(ending) = self else {
            return false;
        };
        let key = ending.sense.as_ref().map(|sense| sense.key);
        key == Some(SenseKey::UnitAttention)
    }

    /// Bytes sent to the initiator on success, for the transport's residual count. 0 for REPORT LUNS until it has
    /// become a reply.
    pub fn data_in_len_bytes(&self) -> u64 {
        match self {
            Action::Reply(data) => data.len() as u64,
            Action::Medium(op) => op.data_in_len_bytes(),
            Action::End(_)
            | Action::ReportLuns(_)
            | Action::Parameters(_)
            | Action::Copy(_)
            | Action::Overwrite(_)
            | Action::Eject(_)
            | Action::Change(_) => 0,
        }
    }

    /// Bytes needed from the initiator: a write's payload or a parameter list.
    pub fn data_out_len_bytes(&self) -> u64 {
        match self {
            Action::Medium(op) => op.data_out_len_bytes(),
            Action::Parameters(list) => u64::from(list.len_bytes),
            Action::End(_)
            | Action::Reply(_)
            | Action::ReportLuns(_)
            | Action::Copy(_)
            | Action::Overwrite(_)
            | Action::Eject(_)
            | Action::Change(_) => 0,
        }
    }

    /// Checks whether `offered_bytes` of data-out from the transport (iSCSI: the Expected Data Transfer Length of a
    /// command with the W bit, else 0) are enough for the command. Call it before doing anything. Surplus data is a
    /// residual, except for the single block of WRITE SAME and VERIFY and the two halves of COMPARE AND WRITE. Too
    /// little room for data-in is not an error, nor is a plain write of fewer whole blocks than the CDB says: those
    /// blocks are written, and the rest is a residual. Partial blocks are never written.
    ///
    /// # Errors
    /// The sense data to end the command with.
    pub fn check_offered(&self, offered_bytes: u64) -> Result<(), Sense> {
        match self {
            Action::Parameters(list) => list.check_offered(offered_bytes),
            Action::Medium(op @ MediumOp::CompareAndWrite { .. })
                if offered_bytes != op.data_out_len_bytes() =>
            {
                Err(WRONG_COMPARE_AND_WRITE_LEN)
            }
            _ if offered_bytes >= self.data_out_len_bytes() => Ok(()),
            Action::Medium(
                MediumOp::Write { extent, .. } | MediumOp::WriteVerify { extent, .. },
            ) if offered_bytes % u64::from(extent.block_size_bytes) == 0 => Ok(()),
            _ => Err(WRONG_DATA_OUT_LEN),
        }
    }
}

/// The transport's data-out length does not match the CDB.
const WRONG_DATA_OUT_LEN: Sense = Sense::new(
    SenseKey::IllegalRequest,
    Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT,
);

/// The same for COMPARE AND WRITE, whose NUMBER OF LOGICAL BLOCKS is in byte 13.
const WRONG_COMPARE_AND_WRITE_LEN: Sense = Sense::invalid_cdb_field(13, None);

impl From<Result<Action, Sense>> for Action {
    fn from(result: Result<Action, Sense>) -> Action {
        result.unwrap_or_else(|sense| Action::End(Ending::check(sense)))
    }
}

/// A command waiting for its parameter list (UNMAP's ranges, WRITE SAME's block). At most 64 KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterList {
    pub(crate) command: Command,
    pub(crate) nexus: NexusId,
    pub(crate) len_bytes: u32,
}

impl ParameterList {
    /// Bytes of data-out to receive before [`LogicalUnit::resume`](crate::LogicalUnit::resume).
    pub fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    /// Like [`Action::check_offered`], for this list.
    ///
    /// # Errors
    /// The sense data to end the command with.
    pub fn check_offered(&self, offered_bytes: u64) -> Result<(), Sense> {
        let wanted = u64::from(self.len_bytes);
        match self.command {
            Command::Unmap(_)
            | Command::ReserveOut(_)
            | Command::ModeSelect(_)
            | Command::ExtendedCopy(_)
                if offered_bytes >= wanted =>
            {
                Ok(())
            }
            Command::Unmap(_)
            | Command::ReserveOut(_)
            | Command::ModeSelect(_)
            | Command::ExtendedCopy(_) => Err(Sense::new(
                SenseKey::IllegalRequest,
                Asc::PARAMETER_LIST_LENGTH_ERROR,
            )),
            _ if offered_bytes == wanted => Ok(()),
            Command::CompareAndWrite(_) => Err(WRONG_COMPARE_AND_WRITE_LEN),
            _ => Err(WRONG_DATA_OUT_LEN),
        }
    }
}
