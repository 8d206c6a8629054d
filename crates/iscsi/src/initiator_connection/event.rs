//! The commands and settings that an initiator's connection takes from its driver, and the events it reports.

use crate::error::CloseReason;
use crate::lun::LunField;
use crate::params::SessionParameters;
use crate::stage_times::StageTimes;
use crate::task::{Direction, TaskId};
use crate::text::TargetRecord;

/// A SCSI command to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingCommand<'a> {
    /// The logical unit.
    pub lun: LunField,
    /// 1 to 16 bytes.
    pub cdb: &'a [u8],
    /// Task attribute: 1 simple, 2 ordered, 3 head of queue.
    pub attribute: u8,
    /// Which way data flows; not bidirectional.
    pub direction: Direction,
    /// Expected Data Transfer Length in bytes; 0 for no data.
    pub data_len: u32,
    /// Whether to ask the target for stage times, if both ends have agreed to support them.
    pub asks_stage_times: bool,
}

/// An event. Drain events with `poll_event` after each `receive`, before the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitiatorEvent {
    /// The session is in full feature phase.
    LoggedIn {
        /// The session's TSIH.
        tsih: u16,
        /// The portal group that the connection has reached, if the target has declared it (RFC 7143 §13.9).
        portal_group_tag: Option<u16>,
        /// The negotiated parameters.
        parameters: SessionParameters,
    },
    /// This PDU's payload belongs at `offset` of the task's read data.
    DataIn {
        /// The task.
        task: TaskId,
        /// Offset from the start of the command's data, in bytes.
        offset: u32,
        /// Length in bytes: the whole payload.
        len: u32,
    },
    /// A task ended; its ID is free again.
    Done {
        /// The task.
        task: TaskId,
        /// How it ended.
        result: TaskResult,
    },
    /// The answer to a task management function. The tasks it ended have already been reported `Done`.
    TaskManagementDone {
        /// The function's own task ID.
        task: TaskId,
        /// Response code (RFC 7143 §11.6.1); 255 also stands for a Reject.
        response: u8,
    },
    /// The answer to [`discover`](super::InitiatorConnection::discover).
    Targets(Vec<TargetRecord>),
    /// The target answered our ping.
    Pong,
    /// The target asks for a logout within a given time, or announces that it will drop the connection or session.
    AsyncMessage {
        /// Event code: 0 SCSI event, 1 logout request, 2 connection drop, 3 session drop,
        /// 4 negotiation request (RFC 7143 §11.9.1).
        event: u8,
        /// Parameter1 to 3.
        parameters: [u16; 3],
        /// Sense data of a SCSI event.
        sense: Vec<u8>,
    },
    /// The target refused a PDU that belongs to no command.
    Rejected {
        /// Reason code (RFC 7143 §11.17.1).
        reason: u8,
    },
    /// The connection has ended; always the last event. The outcome of tasks that were not `Done` is unknown: a write
    /// may or may not have happened.
    Closed(CloseReason),
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskResult {
    /// With a SCSI status.
    Completed {
        /// SCSI status byte (SAM-5 5.3.1).
        status: u8,
        /// Sense data without its length prefix; empty for none.
        sense: Vec<u8>,
        /// The residual count reported by the target.
        residual: Residual,
        /// Bytes transferred: for a read, those received minus the reported underflow; for a write, the expected
        /// length minus the underflow.
        transferred: u32,
        /// Its stage times at the target, if they were asked for and agreed on.
        stage_times: Option<StageTimes>,
    },
    /// The target failed to process the command: a response code other than 0 (RFC 7143 §11.4.3).
    TargetFailure {
        /// Response code.
        response: u8,
    },
    /// Ended by a task management function of ours.
    Aborted,
    /// The command's PDU was rejected (RFC 7143 §11.17.1).
    Rejected {
        /// Reason code.
        reason: u8,
    },
}

/// The difference between expected and actual length, in bytes (RFC 7143 §11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// None.
    #[default]
    None,
    /// This many bytes of the expected length were not used.
    Underflow(u32),
    /// This many more bytes would have been transferred.
    Overflow(u32),
}

/// Settings and limits of one initiator connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitiatorConfig {
    /// InitiatorName, an iSCSI name.
    pub initiator_name: String,
    /// The target to log in to; `None` for a discovery session.
    pub target_name: Option<String>,
    /// Initiator part of the session identifier; reusing it reinstates the session.
    pub isid: crate::login::Isid,
    /// How to authenticate, with fresh random bytes for each connection. If set, only CHAP is offered; otherwise only
    /// AuthMethod=None.
    pub authentication: Option<crate::login::Authentication>,
    /// What we want to negotiate.
    pub operational: crate::params::OperationalConfig,
    /// Maximum number of open tasks and task management functions, 1 to 65535, even if the target's window allows
    /// more.
    pub tasks_max: u16,
    /// Longest data segment of a PDU delivered inline (text, sense, ping), in bytes, at least 8192.
    pub inline_len_max: u32,
    /// Maximum number of Login Responses before the login is given up.
    pub login_pdus_max: u32,
    /// Maximum length of text in the whole login, and in one discovery answer, in bytes.
    pub text_len_max: usize,
}

impl InitiatorConfig {
    /// The defaults for a session of `initiator_name` with `target_name`.
    pub fn new(initiator_name: impl Into<String>, target_name: Option<String>) -> InitiatorConfig {
        let operational = crate::params::OperationalConfig::default();
        // A discovery's answer is text in segments as long as we allow, and a target may have thousands of portals.
        let (inline_len_max, text_len_max) = match target_name {
            Some(_) => (16 << 10, 1 << 20),
            None => (operational.max_recv_data_segment_length, 16 << 20),
        };
        InitiatorConfig {
            initiator_name: initiator_name.into(),
            target_name,
            isid: crate::login::Isid::random([0, 0, 0], 0),
            authentication: None,
            operational,
            tasks_max: 1024,
            inline_len_max,
            login_pdus_max: 32,
            text_len_max,
        }
    }
}
