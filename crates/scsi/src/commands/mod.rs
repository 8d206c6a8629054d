//! The commands, a file each: its fields, how a CDB becomes them, and what they ask for.

pub(crate) mod compare_and_write;
pub(crate) mod inquiry;
pub(crate) mod mode_sense;
pub(crate) mod pre_fetch;
pub(crate) mod read_capacity;
pub(crate) mod read_defect_data;
pub(crate) mod read_write;
pub(crate) mod report_luns;
pub(crate) mod report_opcodes;
pub(crate) mod request_sense;
pub(crate) mod start_stop;
pub(crate) mod synchronize_cache;
pub(crate) mod test_unit_ready;
pub(crate) mod unmap;
pub(crate) mod verify;
mod vpd;
pub(crate) mod write_atomic;
pub(crate) mod write_same;
pub(crate) mod write_verify;

use crate::action::{Action, Ending, ParameterList};
use crate::sense::Sense;
use crate::unit::LogicalUnit;

/// A command whose CDB made sense by itself; nothing has been held against a disk yet.
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
    ReadDefectData(read_defect_data::ReadDefectData),
    Inquiry(inquiry::Inquiry),
    ModeSense(mode_sense::ModeSense),
    StartStop(start_stop::StartStop),
    ReadCapacity(read_capacity::ReadCapacity),
    Verify(verify::Verify),
    SynchronizeCache(synchronize_cache::SynchronizeCache),
    WriteSame(write_same::WriteSame),
    Unmap(unmap::Unmap),
    ReportLuns(report_luns::ReportLuns),
    ReportOpcodes(report_opcodes::ReportOpcodes),
}

impl Command {
    /// What the command asks for on this disk, or why it is refused.
    pub(crate) fn begin(self, unit: &LogicalUnit) -> Result<Action, Sense> {
        match self {
            Command::TestUnitReady => Ok(Action::End(Ending::GOOD)),
            Command::RequestSense(command) => Ok(Action::Reply(command.reply(Sense::NONE))),
            Command::Read(command) => command.begin_read(unit.shape()),
            Command::Write(command) => command.begin_write(unit.shape()),
            Command::OrWrite(command) => command.begin_or_write(unit.shape()),
            Command::WriteAtomic(command) => write_atomic::begin(command, unit.shape()),
            Command::WriteVerify(command) => command.begin(unit.shape()),
            Command::CompareAndWrite(command) => command.begin(unit.shape()),
            Command::PreFetch(command) => command.begin(unit.shape()),
            Command::ReadDefectData(command) => Ok(command.begin()),
            Command::Inquiry(command) => command.begin(unit),
            Command::ModeSense(command) => command.begin(unit.shape()),
            Command::StartStop(command) => command.begin(unit.shape()),
            Command::ReadCapacity(command) => Ok(command.begin(unit.shape())),
            Command::Verify(command) => command.begin(unit.shape()),
            Command::SynchronizeCache(command) => command.begin(unit.shape()),
            Command::WriteSame(command) => command.begin(unit.shape()),
            Command::Unmap(command) => command.begin(unit.shape()),
            Command::ReportLuns(command) => Ok(Action::ReportLuns(command)),
            Command::ReportOpcodes(command) => command.begin(unit.shape()),
        }
    }

    /// Goes on with the parameter list that [`Command::begin`] asked for, whole. The shape is
    /// looked at again: it may have changed while the data came.
    pub(crate) fn resume(self, unit: &LogicalUnit, data: &[u8]) -> Result<Action, Sense> {
        match self {
            Command::CompareAndWrite(command) => Ok(command.resume()),
            Command::Verify(command) => command.resume(unit.shape(), data),
            Command::WriteSame(command) => command.resume(unit.shape(), data),
            Command::Unmap(command) => command.resume(unit.shape(), data),
            other => unreachable!("{other:?} asks for no parameter list"),
        }
    }

    /// Asks for `len_bytes` of parameter list.
    fn wants(self, len_bytes: u32) -> Action {
        Action::Parameters(ParameterList {
            command: self,
            len_bytes,
        })
    }
}

/// A reply cut to the CDB's allocation length, which is never an error (SPC-4, allocation length).
fn reply(mut data: Vec<u8>, allocation_len_bytes: u32) -> Action {
    data.truncate(allocation_len_bytes as usize);
    Action::Reply(data)
}
