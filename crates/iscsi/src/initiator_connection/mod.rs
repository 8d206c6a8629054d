//! The initiator's end of a connection (RFC 7143). `receive` handles what the target sends, `queue` builds what is
//! sent to it, and `task` tracks what a single command expects. Nothing the target sends is trusted beyond what was
//! asked for; at ErrorRecoveryLevel 0, a protocol violation by the target ends the connection.

mod event;
mod queue;
mod receive;
mod task;

pub use event::{InitiatorConfig, InitiatorEvent, OutgoingCommand, Residual, TaskResult};

use std::collections::VecDeque;

use queue::InitiatorEntry;
use task::InitiatorTask;

use crate::error::{CloseReason, Error};
use crate::frame::FrameLimits;
use crate::login::{InitiatorLogin, LOGIN_TEXT_LEN_MAX, SessionType};
use crate::lun::LunField;
use crate::params::{Negotiation, SessionParameters};
use crate::pdu::{self, FINAL, RESERVED_TAG, opcode};
use crate::sequence::before;
use crate::task::{Direction, RxData, Slab, TaskId};
use crate::text::{self, TextBuffer};
use crate::transmit::Transmit;

/// Task IDs reserved for other requests than commands: functions, a ping, a text exchange, a logout.
const OTHERS_MAX: usize = 32;
/// Maximum number of queued replies to the target's pings.
const QUEUED_REPLIES_MAX: usize = 32;
/// Function code of ABORT TASK (RFC 7143 §11.5.1).
const ABORT_TASK: u8 = 1;

/// The initiator's end of one connection, from its first byte to its last.
#[derive(Debug)]
pub struct InitiatorConnection {
    config: InitiatorConfig,
    phase: InitiatorPhase,
    login: InitiatorLogin,
    session_type: SessionType,
    parameters: SessionParameters,
    /// CmdSN of the next command.
    cmd_sn: u32,
    max_cmd_sn: u32,
    /// The next expected StatSN; unknown until the first Login Response.
    exp_stat_sn: Option<u32>,
    tasks: Slab<TagEntry>,
    commands_open: usize,
    discovering: bool,
    logging_out: bool,
    ping: Option<Ping>,
    events: VecDeque<InitiatorEvent>,
    outgoing: VecDeque<InitiatorEntry>,
    queued_replies: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InitiatorPhase {
    Login,
    FullFeature,
    Closed,
}

/// What an Initiator Task Tag of ours refers to.
#[derive(Debug)]
enum TagEntry {
    Command(InitiatorTask),
    Function {
        function: u8,
        lun: LunField,
        referenced: Option<TaskId>,
        cmd_sn: u32,
    },
    Text {
        text: TextBuffer,
        rounds: u32,
    },
    Ping,
    Logout,
}

/// A NOP-Out of ours awaiting its NOP-In.
#[derive(Clone, Copy, Debug)]
struct Ping {
    task: TaskId,
    timeout_ns: u64,
    deadline: u64,
}

impl InitiatorConnection {
    /// A connection whose first Login Request is ready to be sent.
    pub fn new(config: InitiatorConfig) -> InitiatorConnection {
        let session_type = match config.target_name {
            Some(_) => SessionType::Normal,
            None => SessionType::Discovery,
        };
        let login = InitiatorLogin::new(
            Negotiation::new(config.operational.clone()),
            session_type,
            config.authentication.clone(),
            config.login_pdus_max,
            config.text_len_max,
        );
        let mut connection = InitiatorConnection {
            phase: InitiatorPhase::Login,
            session_type,
            parameters: SessionParameters::default(),
            cmd_sn: 1,
            max_cmd_sn: 1,
            exp_stat_sn: None,
            tasks: Slab::new(usize::from(config.tasks_max) + OTHERS_MAX),
            commands_open: 0,
            discovering: false,
            logging_out: false,
            ping: None,
            events: VecDeque::new(),
            outgoing: VecDeque::new(),
            queued_replies: 0,
            login,
            config,
        };
        let config = &connection.config;
        let (flags, text) = connection
            .login
            .start(&config.initiator_name, config.target_name.as_deref());
        connection.push_login(flags, text);
        connection
    }

    /// What [`frame`](crate::frame::frame) accepts at this point. Ask again after each `receive`.
    pub fn frame_limits(&self) -> FrameLimits {
        FrameLimits {
            digests: self.parameters.digests,
            data_segment_len_max: self.parameters.max_recv_data_segment_length,
            inline_len_max: self.config.inline_len_max.max(LOGIN_TEXT_LEN_MAX as u32),
        }
    }

    /// Whether the driver may deliver the next PDU. False while too many replies are queued, and after the end.
    pub fn wants_read(&self) -> bool {
        self.phase != InitiatorPhase::Closed && self.queued_replies < QUEUED_REPLIES_MAX
    }

    /// Handles one PDU: its 48 header bytes, its additional headers, its data. PDUs with payload may be delivered as
    /// soon as the headers have arrived ([`RxData::Length`]).
    pub fn receive(&mut self, now: u64, bhs: &[u8; 48], ahs: &[u8], data: RxData<'_>) {
        if let Some(ping) = &mut self.ping {
            // Any PDU shows that the peer is alive.
            ping.deadline = now.saturating_add(ping.timeout_ns);
        }
        let announced = pdu::Bhs::of(bhs).data_segment_length();
        if data.len() != announced {
            return self.fail(Error::DataMismatch {
                given: data.len(),
                announced,
            });
        }
        let result = match self.phase {
            InitiatorPhase::Login => self.receive_login(bhs, data),
            InitiatorPhase::FullFeature => self.receive_response(bhs, ahs, data),
            InitiatorPhase::Closed => Ok(()),
        };
        if let Err(error) = result {
            self.fail(error);
        }
    }

    /// The next event, in order.
    pub fn poll_event(&mut self) -> Option<InitiatorEvent> {
        self.events.pop_front()
    }

    /// The next PDU to send, in order. `ends` is never set.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.next_transmit()
    }

    /// Ends the connection because of an error that only the driver can detect, such as a framing or digest error.
    /// `Closed(Protocol(error))` follows.
    pub fn fail(&mut self, error: Error) {
        self.close(CloseReason::Protocol(error));
    }

    /// Sends a command. `poll_transmit` asks for a write's payload piece by piece until `Done`.
    ///
    /// # Errors
    /// [`Error::WindowClosed`]: retry after the next `Done`; [`Error::WrongState`] outside the full feature phase of
    /// a normal session; [`Error::Argument`].
    pub fn submit(&mut self, command: OutgoingCommand<'_>) -> Result<TaskId, Error> {
        self.require_full_feature(SessionType::Normal)?;
        let argument = |what, value: usize, expected| Error::Argument {
            what,
            value: value as u64,
            expected,
        };
        if !(1..=16).contains(&command.cdb.len()) {
            return Err(argument("the CDB's length", command.cdb.len(), "1 to 16"));
        }
        let has_data = matches!(command.direction, Direction::Read | Direction::Write);
        if command.direction == Direction::Bidirectional || (!has_data && command.data_len > 0) {
            let expected = "0 without a direction, and bidirectional commands are not supported";
            return Err(argument("data_len", command.data_len as usize, expected));
        }
        if !self.can_submit() {
            return Err(Error::WindowClosed);
        }
        let task = InitiatorTask::new(&command, self.cmd_sn, &self.parameters);
        let id = self
            .tasks
            .insert(TagEntry::Command(task))
            .ok_or(Error::WindowClosed)?;
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.commands_open += 1;
        self.outgoing
            .push_back(InitiatorEntry::Command { task: id });
        Ok(id)
    }

    /// Whether [`submit`](Self::submit) would accept a command now.
    pub fn can_submit(&self) -> bool {
        self.phase == InitiatorPhase::FullFeature
            && self.session_type == SessionType::Normal
            && !self.logging_out
            && self.commands_open < usize::from(self.config.tasks_max)
            && !self.tasks.is_full()
            && !before(self.max_cmd_sn, self.cmd_sn)
    }

    /// Sends ABORT TASK for a task. `Done` for `task` comes before `TaskManagementDone` for the returned ID.
    ///
    /// # Errors
    /// [`Error::NoSuchTask`] if it has ended; [`Error::WindowClosed`] if the task table is full.
    pub fn abort(&mut self, task: TaskId) -> Result<TaskId, Error> {
        let Some(TagEntry::Command(aborted)) = self.tasks.get(task) else {
            return Err(Error::NoSuchTask);
        };
        let (lun, ref_cmd_sn) = (aborted.lun, aborted.cmd_sn);
        self.push_function(ABORT_TASK, lun, Some(task), ref_cmd_sn)
    }

    /// Sends a task management function (2 abort task set, 4 clear task set, 5 logical unit
    /// reset, 6 target warm reset, 7 target cold reset; RFC 7143 §11.5.1) for `lun`.
    ///
    /// # Errors
    /// [`Error::WindowClosed`] if the task table is full; [`Error::WrongState`] before login.
    pub fn task_management(&mut self, function: u8, lun: LunField) -> Result<TaskId, Error> {
        self.require_full_feature(SessionType::Normal)?;
        self.push_function(function, lun, None, 0)
    }

    /// Asks for targets: `SendTargets=All` in a discovery session, `SendTargets=` in a normal
    /// one. `Targets` follows.
    ///
    /// # Errors
    /// [`Error::WrongState`] before login or while such a request is open.
    pub fn discover(&mut self) -> Result<(), Error> {
        self.require_full_feature(self.session_type)?;
        if self.discovering {
            return Err(Error::WrongState("a discovery is open"));
        }
        let text = TextBuffer::new(self.config.text_len_max);
        let entry = TagEntry::Text { text, rounds: 0 };
        let task = self.tasks.insert(entry).ok_or(Error::WindowClosed)?;
        self.discovering = true;
        let mut request = Vec::new();
        let which = if self.session_type == SessionType::Discovery {
            "All"
        } else {
            ""
        };
        text::push(&mut request, "SendTargets", which);
        self.push_text(task, RESERVED_TAG, request);
        Ok(())
    }

    /// Asks to close the session; `Closed(Logout)` follows.
    ///
    /// # Errors
    /// [`Error::WrongState`] before login, or if already requested.
    pub fn logout(&mut self) -> Result<(), Error> {
        self.require_full_feature(self.session_type)?;
        let task = self
            .tasks
            .insert(TagEntry::Logout)
            .ok_or(Error::WindowClosed)?;
        self.logging_out = true;
        let header = pdu::LogoutRequest {
            opcode: opcode::LOGOUT_REQUEST | opcode::IMMEDIATE,
            reason: FINAL,
            initiator_task_tag: task.tag().into(),
            cmd_sn: self.cmd_sn.into(),
            ..Default::default()
        };
        self.push_ready(header.to_bytes(), Vec::new(), false);
        Ok(())
    }

    /// Sends a NOP-Out that the target must answer within `timeout_ns`; `Pong` or `Closed(PingTimeout)` follows. Does
    /// nothing while another one is open, before login, or in a discovery session, which allows no pings (RFC 7143
    /// §4.3).
    pub fn ping(&mut self, now: u64, timeout_ns: u64) {
        let allowed = self.require_full_feature(SessionType::Normal).is_ok();
        if !allowed || self.ping.is_some() {
            return;
        }
        let Some(task) = self.tasks.insert(TagEntry::Ping) else {
            return;
        };
        self.ping = Some(Ping {
            task,
            timeout_ns,
            deadline: now.saturating_add(timeout_ns),
        });
        self.push_nop_out(task.tag(), RESERVED_TAG, 0, Vec::new(), false);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due, if ever.
    pub fn next_timeout(&self) -> Option<u64> {
        self.ping.map(|ping| ping.deadline)
    }

    /// Call at or after [`next_timeout`](Self::next_timeout).
    pub fn handle_timeout(&mut self, now: u64) {
        if self.next_timeout().is_some_and(|deadline| deadline <= now) {
            self.close(CloseReason::PingTimeout);
        }
    }

    /// The session's parameters; defaults until `LoggedIn`.
    pub fn parameters(&self) -> &crate::params::SessionParameters {
        &self.parameters
    }

    /// The number of open tasks and task management functions.
    pub fn tasks_len(&self) -> usize {
        self.tasks.len()
    }

    fn require_full_feature(&self, session_type: SessionType) -> Result<(), Error> {
        if self.phase != InitiatorPhase::FullFeature || self.logging_out {
            return Err(Error::WrongState(
                "the session is not in full feature phase",
            ));
        }
        if self.session_type != session_type {
            return Err(Error::WrongState("a discovery session takes no commands"));
        }
        Ok(())
    }

    /// Ends a command.
    fn finish(&mut self, task: TaskId, result: TaskResult) {
        if let Some(TagEntry::Command(ended)) = self.tasks.remove(task) {
            self.commands_open -= 1;
            if ended.owes_data() {
                self.drop_queued(task);
            }
            self.events.push_back(InitiatorEvent::Done { task, result });
        }
    }

    /// Raises the last event. Queued PDUs are no longer sent.
    fn close(&mut self, reason: CloseReason) {
        if self.phase == InitiatorPhase::Closed {
            return;
        }
        self.phase = InitiatorPhase::Closed;
        self.ping = None;
        self.outgoing.clear();
        self.events.push_back(InitiatorEvent::Closed(reason));
    }
}
