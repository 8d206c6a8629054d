//! A SCSI disk (SAM-5, SPC-4, SBC-3) without I/O: a CDB goes in; a medium operation or a finished reply comes out.
//! Transports and storage live elsewhere. Section numbers refer to SPC-4 revision 37 and SBC-3 revision 36.
//!
//! A transport looks up the [`LogicalUnit`] that a LUN addresses (or uses [`absent`] if there is none) and hands it
//! each command:
//!
//! ```text
//!   begin(nexus, cdb) ──► Action; action.check_offered(bytes of data-out that the transport has)
//!
//!   Action::End(ending)          send status and sense
//!   Action::Reply(data)          send data-in, then GOOD
//!   Action::ReportLuns(request)  request.reply(luns) is the Action::Reply
//!   Action::Medium(op)           do it, then complete(result) ──► Ending
//!   Action::Parameters(list)     collect list.len_bytes() of data-out, then
//!                                resume(list, data) ──► Action
//!   Action::Copy(copy)           copy its segments, then send the ending
//!   Action::Overwrite(sanitize)  overwrite the whole medium, then send its ending
//!   Action::Eject(eject)         flush, then send its ending
//!   Action::Change(change)       prepare it, keep that, commit it, abort what that says, then GOOD
//! ```
//!
//! A volume served by several threads or targets has one [`LogicalUnit`] for each. They share a [`SharedUnit`], which
//! holds reservations, mode parameters and unit attentions.
//!
//! Each command is one file in `commands/`, with its fields, its decoder and its semantics, and one row in the table
//! of `opcodes.rs`. To add a command, add these and a variant of `Command`.
#![forbid(unsafe_code)]

pub mod absent;
mod access;
mod action;
mod attention;
mod cdb;
mod change;
mod commands;
mod copy;
mod dispatch;
mod ending;
#[cfg(test)]
mod fixture;
mod identity;
mod kept;
mod key_floor;
mod lun;
mod medium;
mod mode;
mod nexus;
pub mod opcode;
mod opcodes;
mod overwrite;
mod registrations;
mod remembered;
mod removal;
mod report;
mod reservations;
mod sanitize_state;
mod saved;
pub mod sense;
mod shape;
mod shared;
mod unit;

pub use action::{Action, ParameterList, ReportLuns};
pub use attention::Attention;
pub use change::{Change, Changed, Prepared};
pub use commands::get_lba_status::lba_status;
pub use copy::{Copy, CopyError, Segment};
pub use ending::{Ending, Status};
pub use identity::{Identity, TargetPort};
pub use kept::{Kept, KeptError};
pub use key_floor::{KeyFloor, SavedFloor};
pub use lun::{Lun, LunError};
pub use medium::{Denied, Extent, MediumOp};
pub use mode::QueueError;
pub use nexus::NexusId;
pub use overwrite::Overwrite;
pub use removal::Eject;
pub use report::{RegistrationReport, ReservationReport, SanitizeReport, UnitReport};
pub use sense::{Asc, KeySpecific, Sense, SenseFormat, SenseKey};
pub use shape::{Discard, DiskShape, DiskShapeError};
pub use shared::SharedUnit;
pub use unit::LogicalUnit;
