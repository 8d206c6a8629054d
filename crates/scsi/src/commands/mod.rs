//! The commands, one file each: its fields, its decoder, and the action it asks for.

pub(crate) mod compare_and_write;
pub(crate) mod extended_copy;
pub(crate) mod get_lba_status;
pub(crate) mod inquiry;
pub(crate) mod log_sense;
pub(crate) mod mode_select;
pub(crate) mod mode_sense;
pub(crate) mod opcode_table;
pub(crate) mod pre_fetch;
pub(crate) mod read_capacity;
pub(crate) mod read_defect_data;
pub(crate) mod read_write;
pub(crate) mod report_luns;
pub(crate) mod report_opcodes;
pub(crate) mod report_port_groups;
pub(crate) mod report_task_management;
pub(crate) mod request_sense;
pub(crate) mod reserve_in;
pub(crate) mod reserve_out;
pub(crate) mod reserve_release;
pub(crate) mod sanitize;
pub(crate) mod start_stop;
pub(crate) mod synchronize_cache;
pub(crate) mod test_unit_ready;
pub(crate) mod unmap;
pub(crate) mod verify;
mod vpd;
pub(crate) mod write_atomic;
pub(crate) mod write_same;
pub(crate) mod write_verify;

use crate::access::Access;
use crate::action::{Action, ReportLuns};
use crate::ending::Ending;
use crate::nexus::NexusId;
use crate::sanitize_state::SanitizeState;
use crate::sense::Sense;
use crate::unit::LogicalUnit;
use opcode_table::OpcodeTable;

/// A command decoded from its CDB, not yet checked against any particular disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    TestUnitReady,
    RequestSense(request_sense::RequestSense),
    Read(read_write::Transfer),
    Write(read_write::Transfer),
    OrWrite(read_write::Transfer),
    WriteAtomic(read_write::Transfer),
    WriteVerify(write_verify::WriteVerify),
    CompareAndWrite(compare_and_write::CompareAndWrite),
    PreFetch(pre_fetch::PreFetch),
    GetLbaStatus(get_lba_status::GetLbaStatus),
    ExtendedCopy(extended_copy::ExtendedCopy),
    CopyResults(extended_copy::CopyResults),
    ReadDefectData(read_defect_data::ReadDefectData),
    Inquiry(inquiry::Inquiry),
    ModeSense(mode_sense::ModeSense),
    ModeSelect(mode_select::ModeSelect),
    Sanitize(sanitize::Sanitize),
    Reserve,
    Release,
    ReserveIn(reserve_in::ReserveIn),
    ReserveOut(reserve_out::ReserveOut),
    StartStop(start_stop::StartStop),
    PreventAllow(start_stop::PreventAllow),
    ReadCapacity(read_capacity::ReadCapacity),
    Verify(verify::Verify),
    SynchronizeCache(synchronize_cache::SynchronizeCache),
    WriteSame(write_same::WriteSame),
    Unmap(unmap::Unmap),
    ReportLuns(ReportLuns),
    ReportOpcodes(report_opcodes::ReportOpcodes),
    ReportPortGroups(report_port_groups::ReportPortGroups),
    ReportTaskManagement(report_task_management::ReportTaskManagement),
    LogSense(log_sense::LogSense),
}

impl Command {
    /// The action that the command asks for on this disk, or why it is refused; `table` is told to who asks for it.
    pub(crate) fn begin(
        self,
        unit: &LogicalUnit,
        nexus: NexusId,
        table: &OpcodeTable,
    ) -> Result<Action, Sense> {
        match self {
            Command::TestUnitReady => Ok(Action::End(Ending::GOOD)),
            Command::RequestSense(command) => {
                let sanitize = unit.shared().look().sanitize.map(SanitizeState::sense);
                Ok(Action::Reply(
                    command.reply(sanitize.unwrap_or(Sense::NONE)),
                ))
            }
            Command::Read(command) => command.begin_read(unit.shape()),
            Command::Write(command) => command.begin_write(unit.shape()),
            Command::OrWrite(command) => command.begin_or_write(unit.shape()),
            Command::WriteAtomic(command) => write_atomic::begin(command, unit.shape()),
            Command::WriteVerify(command) => command.begin(unit.shape()),
            Command::CompareAndWrite(command) => command.begin(unit.shape()),
            Command::PreFetch(command) => command.begin(unit.shape()),
            Command::GetLbaStatus(command) => command.begin(unit.shape()),
            Command::ExtendedCopy(command) => command.begin(),
            Command::CopyResults(command) => command.begin(unit, nexus),
            Command::ReadDefectData(command) => Ok(command.begin()),
            Command::Inquiry(command) => command.begin(unit, table),
            Command::ModeSense(command) => command.begin(unit),
            Command::ModeSelect(command) => command.begin(),
            Command::Sanitize(command) => command.begin(unit, nexus),
            Command::Reserve => Ok(reserve_release::reserve(unit, nexus)),
            Command::Release => Ok(reserve_release::release(unit, nexus)),
            Command::ReserveIn(command) => Ok(command.begin(unit)),
            Command::ReserveOut(command) => command.begin(),
            Command::StartStop(command) => command.begin(unit, nexus),
            Command::PreventAllow(command) => Ok(command.begin(unit, nexus)),
            Command::ReadCapacity(command) => Ok(command.begin(unit.shape())),
            Command::Verify(command) => command.begin(unit.shape()),
            Command::SynchronizeCache(command) => command.begin(unit.shape()),
            Command::WriteSame(command) => command.begin(unit.shape()),
            Command::Unmap(command) => command.begin(unit.shape()),
            Command::ReportLuns(command) => Ok(Action::ReportLuns(command)),
            Command::ReportOpcodes(command) => command.begin(unit.shape(), table),
            Command::ReportPortGroups(command) => Ok(command.begin(unit)),
            Command::ReportTaskManagement(command) => Ok(command.begin()),
            Command::LogSense(command) => command.begin(),
        }
    }

    /// How reservations classify the command.
    pub(crate) fn access(&self) -> Access {
        match self {
            Command::Inquiry(_)
            | Command::ReportLuns(_)
            | Command::RequestSense(_)
            | Command::Release => Access::Always,
            Command::TestUnitReady
            | Command::ReadCapacity(_)
            | Command::ReportOpcodes(_)
            | Command::ReportPortGroups(_)
            | Command::ReportTaskManagement(_)
            | Command::LogSense(_) => Access::Ask,
            Command::Reserve | Command::ReserveIn(_) | Command::ReserveOut(_) => Access::Own,
            Command::Read(_)
            | Command::Verify(_)
            | Command::PreFetch(_)
            | Command::GetLbaStatus(_)
            | Command::ReadDefectData(_) => Access::Read,
            Command::StartStop(command) => command.access(),
            Command::PreventAllow(command) => command.access(),
            Command::Write(_)
            | Command::OrWrite(_)
            | Command::WriteAtomic(_)
            | Command::WriteVerify(_)
            | Command::CompareAndWrite(_)
            | Command::ModeSense(_)
            | Command::ModeSelect(_)
            | Command::ExtendedCopy(_)
            | Command::CopyResults(_)
            | Command::Sanitize(_)
            | Command::SynchronizeCache(_)
            | Command::WriteSame(_)
            | Command::Unmap(_) => Access::Change,
        }
    }

    /// Whether it changes, beside the medium, what all ports of the disk share. A port that only reads refuses it, as LIO
    /// does: it would write-protect the disk for others, or shut them out. (RESERVE (6) there keeps out only other
    /// readers.)
    pub(crate) fn changes_others(&self) -> bool {
        match self {
            Command::ModeSelect(command) => command.has_list(),
            Command::ReserveOut(_) => true,
            _ => false,
        }
    }

    /// Whether it is served during and after a failed sanitize (SBC-3 4.11.2, 4.11.3). SANITIZE itself checks for one
    /// that is still running.
    pub(crate) fn passes_sanitize(&self) -> bool {
        matches!(
            self,
            Command::Inquiry(_)
                | Command::ReportLuns(_)
                | Command::RequestSense(_)
                | Command::ReportOpcodes(_)
                | Command::ReportPortGroups(_)
                | Command::ReportTaskManagement(_)
                | Command::LogSense(_)
                | Command::ReserveIn(_)
                | Command::Sanitize(_)
        )
    }

    /// Whether it fails while a removable medium is ejected.
    pub(crate) fn needs_medium(&self) -> bool {
        match self {
            Command::TestUnitReady
            | Command::ReadCapacity(_)
            | Command::Read(_)
            | Command::Verify(_)
            | Command::PreFetch(_)
            | Command::GetLbaStatus(_)
            | Command::ReadDefectData(_)
            | Command::Write(_)
            | Command::OrWrite(_)
            | Command::WriteAtomic(_)
            | Command::WriteVerify(_)
            | Command::CompareAndWrite(_)
            | Command::Sanitize(_)
            | Command::SynchronizeCache(_)
            | Command::WriteSame(_)
            | Command::Unmap(_) => true,
            Command::Inquiry(_)
            | Command::ReportLuns(_)
            | Command::RequestSense(_)
            | Command::ReportOpcodes(_)
            | Command::ReportPortGroups(_)
            | Command::ReportTaskManagement(_)
            | Command::LogSense(_)
            | Command::Reserve
            | Command::Release
            | Command::ReserveIn(_)
            | Command::ReserveOut(_)
            | Command::StartStop(_)
            | Command::PreventAllow(_)
            | Command::ExtendedCopy(_)
            | Command::CopyResults(_)
            | Command::ModeSense(_)
            | Command::ModeSelect(_) => false,
        }
    }

    /// Continues with the complete parameter list that [`Command::begin`] asked for. The shape is checked again,
    /// since it may have changed while the data arrived.
    pub(crate) fn resume(
        self,
        unit: &LogicalUnit,
        nexus: NexusId,
        data: &[u8],
    ) -> Result<Action, Sense> {
        match self {
            Command::ExtendedCopy(command) => command.resume(unit, data),
            Command::Sanitize(command) => command.resume(unit, data),
            Command::ModeSelect(command) => command.resume(unit, nexus, data),
            Command::ReserveOut(command) => command.resume(nexus, data),
            Command::CompareAndWrite(command) => Ok(command.resume()),
            Command::Verify(command) => command.resume(unit.shape(), data),
            Command::WriteSame(command) => command.resume(unit.shape(), data),
            Command::Unmap(command) => command.resume(unit.shape(), data),
            other => unreachable!("{other:?} asks for no parameter list"),
        }
    }
}

/// A reply cut to the CDB's allocation length, which is never an error (SPC-4, allocation length).
fn reply(mut data: Vec<u8>, allocation_len_bytes: u32) -> Action {
    data.truncate(allocation_len_bytes as usize);
    Action::Reply(data)
}
