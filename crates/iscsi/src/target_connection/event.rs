//! The events that a target's connection reports to its driver, and the types of the driver's answers.

use crate::error::CloseReason;
use crate::login::LoginRequest;
use crate::lun::LunField;
use crate::params::SessionParameters;
use crate::task::{Direction, TaskId};

/// An event. Drain events with `poll_event` after each `receive`, before the next one. Payload that came with the PDU
/// belongs where its `Command` or `DataOut` event says; payload without such an event, or beyond its length, is
/// dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetEvent {
    /// The initiator has said who it is and what it wants, but has not been authenticated. Answer with
    /// [`login_continue`](super::TargetConnection::login_continue),
    /// [`login_authenticate`](super::TargetConnection::login_authenticate) or
    /// [`login_reject`](super::TargetConnection::login_reject).
    LoginRequest(LoginRequest),
    /// The same initiator has passed authentication and negotiation: the session may begin. First end any older
    /// session with the same initiator name, ISID and target (session reinstatement, RFC 7143 §6.3.5), then answer
    /// with [`login_accept`](super::TargetConnection::login_accept) or `login_reject`.
    SessionRequest(LoginRequest),
    /// The initiator failed authentication. Answer with `login_reject` and
    /// [`AUTHENTICATION_FAILURE`](crate::LoginStatus::AUTHENTICATION_FAILURE), at once or later.
    AuthenticationFailed {
        /// The name it gave, at most 64 characters; untrusted input.
        user: Option<String>,
        /// What was wrong, for the target's log only; the initiator is not told.
        why: &'static str,
    },
    /// The session is in full feature phase.
    LoggedIn(SessionParameters),
    /// A discovery request. Answer with
    /// [`send_targets`](super::TargetConnection::send_targets).
    SendTargets(SendTargets),
    /// A SCSI command. Ends with `data_in(.., Some(outcome))`, `respond` or `abort`.
    Command(CommandRequest),
    /// The first `len` bytes of this PDU's payload belong at `offset` of the task's write data.
    DataOut {
        /// The task.
        task: TaskId,
        /// Offset from the start of the command's data, in bytes.
        offset: u32,
        /// Length in bytes; the rest of the payload, if any, is dropped.
        len: u32,
    },
    /// All data up to the solicited offset has arrived.
    DataComplete {
        /// The task.
        task: TaskId,
    },
    /// Write data was lost in transit. The machine itself answers with ABORTED COMMAND, PROTOCOL SERVICE CRC ERROR,
    /// once all sequences have ended. The task accepts no outcome any more (`solicit` and `respond` return
    /// `WrongState`) and ends with [`Transmit::ends`](crate::Transmit::ends).
    Failed {
        /// The task.
        task: TaskId,
    },
    /// A task management function. Ends with
    /// [`task_management_response`](super::TargetConnection::task_management_response).
    TaskManagement(TaskManagementRequest),
    /// The initiator answered our ping.
    Pong,
    /// The initiator asks to log out. Once its writes have ended, answer with
    /// [`logout_response`](super::TargetConnection::logout_response).
    Logout {
        /// Reason code: 0 close the session, 1 close the connection, 2 recovery
        /// (RFC 7143 §11.14.1).
        reason: u8,
    },
    /// The connection has ended; always the last event. Any tasks still open are gone.
    Closed(CloseReason),
}

/// The targets that a discovery request asks for (RFC 7143 Appendix C).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendTargets {
    /// `SendTargets=All`: every target that the initiator may see; only in discovery sessions.
    All,
    /// This target.
    Named(String),
    /// `SendTargets=`: the target of this normal session.
    Session,
}

/// A command descriptor block of 16 bytes, or more with an extended CDB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedCdb {
    first: First,
    /// The whole CDB, if it is longer than 16 bytes.
    whole: Option<Box<[u8]>>,
}

/// Aligned, so that it is always stored in one piece: a later 16-byte load could not be forwarded from several
/// partial stores, and would stall until those had reached the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(align(16))]
struct First([u8; 16]);

impl ReceivedCdb {
    /// Joins the CDB bytes of the header with those of the Extended CDB AHS, if any (§11.2.2.3).
    pub(super) fn new(first: [u8; 16], extended: &[u8]) -> ReceivedCdb {
        let whole = match extended {
            [] => None,
            more => Some([&first, more].concat().into()),
        };
        let first = First(first);
        ReceivedCdb { first, whole }
    }
}

impl std::ops::Deref for ReceivedCdb {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.whole.as_deref().unwrap_or(&self.first.0)
    }
}

/// A SCSI command (RFC 7143 §11.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandRequest {
    /// Its task ID until it ends.
    pub task: TaskId,
    /// The logical unit, as encoded on the wire.
    pub lun: LunField,
    /// At least 16 bytes.
    pub cdb: ReceivedCdb,
    /// Task attribute: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
    pub attribute: u8,
    /// The direction in which the initiator expects data to flow.
    pub direction: Direction,
    /// Maximum number of bytes the initiator accepts: the Expected Data Transfer Length of a read, the bidirectional
    /// read length, or else 0.
    pub read_len: u32,
    /// Number of bytes the initiator sends: the Expected Data Transfer Length of a write or bidirectional command, or
    /// else 0.
    pub write_len: u32,
    /// Payload bytes of this PDU: the start of the write data.
    pub immediate_len: u32,
    /// Write data that may arrive unsolicited, including `immediate_len`. Until `solicit` or an outcome is given,
    /// `DataOut` events may reach up to this offset.
    pub unsolicited_len: u32,
    /// Whether it was marked for immediate delivery.
    pub immediate: bool,
    /// Whether the initiator wants stage times with the status: see
    /// [`Transmit::tell_stage_times`](crate::Transmit::tell_stage_times).
    pub asks_stage_times: bool,
}

/// A task management function (RFC 7143 §11.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskManagementRequest {
    /// The function's own task ID, for the answer.
    pub task: TaskId,
    /// Function code: 1 abort task, 2 abort task set, 3 clear ACA, 4 clear task set, 5 logical
    /// unit reset, 6 target warm reset, 7 target cold reset, 8 task reassign.
    pub function: u8,
    /// The logical unit concerned.
    pub lun: LunField,
    /// The task to abort; `None` if it does not exist (any more): answer with 1, "task does not exist".
    pub referenced: Option<TaskId>,
    /// Whether it was marked for immediate delivery.
    pub immediate: bool,
}

impl TaskManagementRequest {
    /// Response code: the function was done.
    pub const FUNCTION_COMPLETE: u8 = 0;
    /// Response code: the referenced task does not exist.
    pub const TASK_DOES_NOT_EXIST: u8 = 1;
    /// Response code: the logical unit does not exist.
    pub const LUN_DOES_NOT_EXIST: u8 = 2;
    /// Response code: this function is not supported.
    pub const NOT_SUPPORTED: u8 = 5;
    /// Response code: the initiator is not authorized to do that.
    pub const AUTHORIZATION_FAILED: u8 = 6;
    /// Response code: the function was rejected.
    pub const REJECTED: u8 = 255;
}

/// How a command ended, as the SCSI layer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// SCSI status byte (SAM-5 5.3.1).
    pub status: u8,
    /// Sense data without its length prefix; empty for none. At most 252 bytes are sent.
    pub sense: &'a [u8],
    /// Bytes the command transfers according to its CDB, as if the initiator had expected enough. Residual counts are
    /// the difference from the expected length. For a bidirectional command, the write part.
    pub transfer_len: u64,
}

/// The content of an Async Message (RFC 7143 §11.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncMessage {
    /// The target asks for a logout within a given time.
    LogoutRequest {
        /// Seconds until the target drops the connection.
        within_s: u16,
    },
    /// The target will drop all connections of the session.
    SessionDrop {
        /// Seconds the initiator should wait before reconnecting.
        time2wait_s: u16,
        /// Seconds for which tasks are kept.
        time2retain_s: u16,
    },
}
