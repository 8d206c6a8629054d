//! What a transport must do for a command: the results of [`LogicalUnit::begin`] and [`LogicalUnit::resume`].
//!
//! [`LogicalUnit::begin`]: crate::LogicalUnit::begin
//! [`LogicalUnit::resume`]: crate::LogicalUnit::resume

use crate::cdb::Cdb;
use crate::change::Change;
use crate::copy::Copy;
use crate::ending::Ending;
use crate::lun::Lun;
use crate::medium::MediumOp;
use crate::nexus::NexusId;
use crate::overwrite::Overwrite;
use crate::removal::Eject;
use crate::sense::{Asc, Sense, SenseKey};

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
                Err(ParameterList::WRONG_COMPARE_AND_WRITE_LEN)
            }
            _ if offered_bytes >= self.data_out_len_bytes() => Ok(()),
            Action::Medium(
                MediumOp::Write { extent, .. } | MediumOp::WriteVerify { extent, .. },
            ) if offered_bytes % u64::from(extent.block_size_bytes) == 0 => Ok(()),
            _ => Err(ParameterList::WRONG_LEN),
        }
    }
}

impl From<Result<Action, Sense>> for Action {
    fn from(result: Result<Action, Sense>) -> Action {
        result.unwrap_or_else(|sense| Action::End(Ending::check(sense)))
    }
}

/// A command waiting for its parameter list (UNMAP's ranges, WRITE SAME's block). At most 64 KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterList {
    /// Whose command it is; known once the unit has begun it.
    pub(crate) nexus: NexusId,
    pub(crate) cdb: Cdb,
    len_bytes: u32,
    /// Whether more data-out is refused as well.
    is_exact: bool,
    /// How a list of another length is refused.
    wrong_len: Sense,
}

impl ParameterList {
    /// The transport's data-out length does not match the CDB.
    const WRONG_LEN: Sense = Sense::new(
        SenseKey::IllegalRequest,
        Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT,
    );

    /// The same for COMPARE AND WRITE, whose NUMBER OF LOGICAL BLOCKS is in byte 13.
    const WRONG_COMPARE_AND_WRITE_LEN: Sense = Sense::invalid_cdb_field(13, None);

    /// A list, of which surplus data-out is a residual.
    pub(crate) fn new(len_bytes: u32) -> ParameterList {
        ParameterList {
            nexus: NexusId(0),
            cdb: Cdb::new(&[]),
            len_bytes,
            is_exact: false,
            wrong_len: Sense::LIST_LENGTH_ERROR,
        }
    }

    /// A list or a block of exactly this length.
    pub(crate) fn exactly(len_bytes: u32) -> ParameterList {
        ParameterList {
            is_exact: true,
            wrong_len: ParameterList::WRONG_LEN,
            ..ParameterList::new(len_bytes)
        }
    }

    /// No data-out, for a COMPARE AND WRITE of 0 blocks.
    pub(crate) fn none_to_compare() -> ParameterList {
        ParameterList {
            wrong_len: ParameterList::WRONG_COMPARE_AND_WRITE_LEN,
            ..ParameterList::exactly(0)
        }
    }

    /// Bytes of data-out to receive before [`LogicalUnit::resume`](crate::LogicalUnit::resume).
    pub fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    /// Like [`Action::check_offered`], for this list.
    ///
    /// # Errors
    /// The sense data to end the command with.
    pub fn check_offered(&self, offered_bytes: u64) -> Result<(), Sense> {
        let wanted_bytes = u64::from(self.len_bytes);
        let fits = match self.is_exact {
            true => offered_bytes == wanted_bytes,
            false => offered_bytes >= wanted_bytes,
        };
        fits.then_some(()).ok_or(self.wrong_len)
    }
}

/// A REPORT LUNS command that waits for the transport to supply the target's LUNs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportLuns {
    /// Only well-known logical units are asked for, of which this target has none.
    pub(crate) only_well_known: bool,
    pub(crate) allocation_len_bytes: u32,
}

impl ReportLuns {
    /// Replies with `luns`, in their order, truncated to the allocation length. The LUN LIST LENGTH field still gives
    /// the full length.
    pub fn reply(&self, luns: &[Lun]) -> Action {
        let luns = if self.only_well_known { &[] } else { luns };
        let mut data = vec![0; 8];
        data[..4].copy_from_slice(&(luns.len() as u32 * 8).to_be_bytes());
        data.extend(luns.iter().flat_map(|lun| lun.encode()));
        data.truncate(self.allocation_len_bytes as usize);
        Action::Reply(data)
    }
}
