//! What a target's connection tells its driver, and what the driver answers with.

use crate::error::CloseReason;
use crate::login::LoginRequest;
use crate::lun::LunField;
use crate::params::SessionParameters;
use crate::task::{Direction, TaskId};

/// What happened; drained with `poll_event` after each `receive`, before the next one. Payload
/// that came with the PDU belongs where its `Command` or `DataOut` event says; without one, or
/// beyond the length it says, it is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetEvent {
    /// An initiator says who it is and what it wants, before authentication. Answer with
    /// [`login_continue`](super::TargetConnection::login_continue),
    /// [`login_authenticate`](super::TargetConnection::login_authenticate) or
    /// [`login_reject`](super::TargetConnection::login_reject).
    LoginRequest(LoginRequest),
    /// The same initiator has passed authentication and negotiation: the session may begin.
    /// End an older session with the same initiator name, ISID and target first (session
    /// reinstatement, RFC 7143 §6.3.5), then answer with
    /// [`login_accept`](super::TargetConnection::login_accept) or `login_reject`.
    SessionRequest(LoginRequest),
    /// The initiator could not prove who it is: status 0201h goes out and `Closed` follows.
    AuthenticationFailed {
        /// The name that it gave, at most 64 characters; whatever a stranger likes to send.
        user: Option<String>,
        /// What was wrong, for our own log: the initiator is not told.
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
        /// Whose data.
        task: TaskId,
        /// From the start of the command's data, in bytes.
        offset: u32,
        /// In bytes; the rest of the payload, if any, is dropped.
        len: u32,
    },
    /// All data up to what `solicit` asked for has arrived.
    DataComplete {
        /// Whose data.
        task: TaskId,
    },
    /// Write data was lost on its way. The machine itself answers with ABORTED COMMAND, PROTOCOL
    /// SERVICE CRC ERROR, once all sequences have ended: the task takes no outcome any more and
    /// ends with [`Transmit::ends`](crate::Transmit::ends); `solicit` and `respond` return
    /// `WrongState`.
    Failed {
        /// Which one.
        task: TaskId,
    },
    /// A task management function. Ends with
    /// [`task_management_response`](super::TargetConnection::task_management_response).
    TaskManagement(TaskManagementRequest),
    /// The initiator answered our ping.
    Pong,
    /// The initiator asks to log out. Answer with
    /// [`logout_response`](super::TargetConnection::logout_response) when its writes have ended.
    Logout {
        /// Reason code: 0 close the session, 1 close the connection, 2 recovery
        /// (RFC 7143 §11.14.1).
        reason: u8,
    },
    /// The connection is over; always the last event. Tasks that have not ended are gone.
    Closed(CloseReason),
}

/// Which targets a discovery request names (RFC 7143 Appendix C).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendTargets {
    /// `SendTargets=All`: all that the initiator may see; in discovery sessions only.
    All,
    /// This target.
    Named(String),
    /// `SendTargets=`: the target of this normal session.
    Session,
}

/// A command descriptor block of 16 bytes or, with an extended CDB, more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cdb {
    first: First,
    /// All of it, where there is more.
    whole: Option<Box<[u8]>>,
}

/// Aligned, so that wherever it goes it is stored in one piece: whoever loads these 16 bytes at once
/// would otherwise wait until the pieces have left the CPU for its cache, and all stores before them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(align(16))]
struct First([u8; 16]);

impl Cdb {
    /// The bytes of the header, and those of the Extended CDB AHS, if there are any (§11.2.2.3).
    pub(super) fn new(first: [u8; 16], extended: &[u8]) -> Cdb {
        let whole = match extended {
            [] => None,
            more => Some([&first, more].concat().into()),
        };
        let first = First(first);
        Cdb { first, whole }
    }
}

impl std::ops::Deref for Cdb {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.whole.as_deref().unwrap_or(&self.first.0)
    }
}

/// A SCSI command (RFC 7143 §11.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandRequest {
    /// Its identity until it ends.
    pub task: TaskId,
    /// The logical unit as the wire has it.
    pub lun: LunField,
    /// At least 16 bytes.
    pub cdb: Cdb,
    /// Task attribute: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
    pub attribute: u8,
    /// Which way the initiator expects data to flow.
    pub direction: Direction,
    /// Most bytes that the initiator takes: the Expected Data Transfer Length of a read, the
    /// bidirectional read length, else 0.
    pub read_len: u32,
    /// Most bytes that the initiator gives: the Expected Data Transfer Length of a write or
    /// bidirectional command, else 0.
    pub write_len: u32,
    /// Payload bytes of this very PDU: the start of the write data.
    pub immediate_len: u32,
    /// Write data that may come without being solicited, `immediate_len` included. Until
    /// `solicit` or an outcome is given, `DataOut` events may reach up to here.
    pub unsolicited_len: u32,
    /// Whether it was marked for immediate delivery.
    pub immediate: bool,
    /// Whether its status is to bring where its time went: see
    /// [`Transmit::tell_stage_times`](crate::Transmit::tell_stage_times).
    pub asks_stage_times: bool,
}

/// A task management function (RFC 7143 §11.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskManagementRequest {
    /// The request's own identity, for the answer.
    pub task: TaskId,
    /// Function code: 1 abort task, 2 abort task set, 3 clear ACA, 4 clear task set, 5 logical
    /// unit reset, 6 target warm reset, 7 target cold reset, 8 task reassign.
    pub function: u8,
    /// The logical unit concerned.
    pub lun: LunField,
    /// The task to abort; `None` if it does not exist (any more): answer 1, "task does not
    /// exist".
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
    /// Response code: the initiator may not do that.
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
    /// Bytes the command transfers by its CDB, as if the initiator had expected enough; residual
    /// counts are its difference from the expected length. For a bidirectional command: the
    /// write part.
    pub transfer_len: u64,
}

/// What an Async Message says (RFC 7143 §11.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncMessage {
    /// The target asks for a logout within so many seconds.
    LogoutRequest {
        /// Seconds until the target drops the connection.
        within_s: u16,
    },
    /// The target will drop all connections of the session.
    SessionDrop {
        /// Seconds before the initiator should come back.
        time2wait_s: u16,
        /// Seconds that tasks are kept.
        time2retain_s: u16,
    },
}
