//! What an initiator's connection takes from its driver and tells it.

use crate::error::CloseReason;
use crate::lun::LunField;
use crate::params::SessionParameters;
use crate::stage_times::StageTimes;
use crate::task::{Direction, TaskId};
use crate::text::TargetRecord;

/// A SCSI command to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// The logical unit.
    pub lun: LunField,
    /// 1 to 16 bytes.
    pub cdb: &'a [u8],
    /// Task attribute: 1 simple, 2 ordered, 3 head of queue.
    pub attribute: u8,
    /// Which way data flows; not bidirectional.
    pub direction: Direction,
    /// Expected Data Transfer Length in bytes; 0 without data.
    pub data_len: u32,
    /// Has the target tell where the command's time goes, if both ends have agreed that it may be asked.
    pub asks_stage_times: bool,
}

/// What happened; drained with `poll_event` after each `receive`, before the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitiatorEvent {
    /// The session is in full feature phase.
    LoggedIn {
        /// The session's TSIH.
        tsih: u16,
        /// The portal group that the connection has reached, if the target has said it
        /// (RFC 7143 §13.9).
        portal_group_tag: Option<u16>,
        /// What was agreed on.
        parameters: SessionParameters,
    },
    /// This PDU's payload belongs at `offset` of the task's read data.
    DataIn {
        /// Whose data.
        task: TaskId,
        /// From the start of the command's data, in bytes.
        offset: u32,
        /// In bytes; the whole payload.
        len: u32,
    },
    /// A task ended; its identity is free.
    Done {
        /// Which one.
        task: TaskId,
        /// How.
        result: TaskResult,
    },
    /// The answer to a task management function. Tasks it ended were reported `Done` before.
    TaskManagementDone {
        /// The function's own identity.
        task: TaskId,
        /// Response code (RFC 7143 §11.6.1); 255 also stands for a Reject.
        response: u8,
    },
    /// The answer to [`discover`](super::InitiatorConnection::discover).
    Targets(Vec<TargetRecord>),
    /// The target answered our ping.
    Pong,
    /// The target asks for a logout within so many seconds, or announces that it will drop.
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
    /// The connection is over; always the last event. Tasks that were not `Done` are lost: a
    /// write among them may or may not have happened.
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
        /// What the target says about the length.
        residual: Residual,
        /// Bytes transferred: for a read those that arrived, less what the target calls
        /// underflow; for a write the expected length less the underflow.
        transferred: u32,
        /// Where its time went at the target, if that was asked and agreed.
        stage_times: Option<StageTimes>,
    },
    /// The target failed to execute it: a response code other than 0 (RFC 7143 §11.4.3).
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

/// Difference between expected and actual length, in bytes (RFC 7143 §11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// None.
    #[default]
    None,
    /// So much of the expected length was not used.
    Underflow(u32),
    /// So much more would have been transferred.
    Overflow(u32),
}

/// Settings and bounds of one initiator connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitiatorConfig {
    /// InitiatorName, an iSCSI name.
    pub initiator_name: String,
    /// The target to log in to; `None` for a discovery session.
    pub target_name: Option<String>,
    /// Initiator part of the session identifier: the same one reinstates the session.
    pub isid: crate::login::Isid,
    /// How to prove who we are, with fresh random bytes for each connection. With it we offer
    /// only CHAP; without it only AuthMethod=None.
    pub authentication: Option<crate::login::Authentication>,
    /// What we want to negotiate.
    pub operational: crate::params::OperationalConfig,
    /// Tasks and task management functions open at once, 1 to 65535, whatever the target's
    /// window allows.
    pub tasks_max: u16,
    /// Longest data segment of a PDU handed over inline (text, sense, ping), bytes, at least
    /// 8192.
    pub inline_len_max: u32,
    /// Login Responses before we give up.
    pub login_pdus_max: u32,
    /// Bytes of text in the whole login, and in one discovery answer.
    pub text_len_max: usize,
}

impl InitiatorConfig {
    /// The defaults for a session of `initiator_name` with `target_name`.
    pub fn new(initiator_name: impl Into<String>, target_name: Option<String>) -> InitiatorConfig {
        InitiatorConfig {
            initiator_name: initiator_name.into(),
            target_name,
            isid: crate::login::Isid::random([0, 0, 0], 0),
            authentication: None,
            operational: crate::params::OperationalConfig::default(),
            tasks_max: 1024,
            inline_len_max: 16 * 1024,
            login_pdus_max: 32,
            text_len_max: 1024 * 1024,
        }
    }
}
