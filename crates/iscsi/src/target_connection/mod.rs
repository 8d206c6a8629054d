//! The target's end of a connection (RFC 7143): one machine from the first Login Request to the last byte. `receive`
//! parses incoming PDUs, `queue` builds outgoing ones, `task` holds the data transfer rules of a single command, and
//! `exchange` handles text and logout, `window` what the initiator may send unasked. At ErrorRecoveryLevel 0, a peer that breaks the protocol gets a Reject and the
//! connection ends.

mod config;
mod event;
mod exchange;
mod queue;
mod receive;
mod task;
mod window;

pub use config::TargetConfig;
pub use event::{
    AsyncMessage, CommandRequest, Outcome, ReceivedCdb, SendTargets, TargetEvent,
    TaskManagementRequest,
};

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use exchange::TextExchange;
use queue::{Outgoing, Ready, StatSn};
use task::{PendingOutcome, Task};

use crate::error::{CloseReason, Error};
use crate::frame::FrameLimits;
use crate::login::{Authentication, LOGIN_TEXT_LEN_MAX, LoginReport, SessionType, TargetLogin};
use crate::params::SessionParameters;
use crate::pdu::{self, FINAL, RESERVED_TAG, opcode};
use crate::sequence::{CommandWindow, before};
use crate::status::LoginStatus;
use crate::task::{Direction, RxData, Slab, TaskId};
use crate::transmit::Transmit;

/// The target's end of one connection, from its first byte to its last.
#[derive(Debug)]
pub struct TargetConnection {
    config: TargetConfig,
    phase: TargetPhase,
    login: TargetLogin,
    parameters: SessionParameters,
    session_type: SessionType,
    window: CommandWindow,
    window_width: u16,
    stat_sn: u32,
    /// ExpStatSN from the initiator: it has received every earlier StatSN.
    exp_stat_sn: u32,
    tasks: Slab<Entry>,
    tags: HashMap<u32, TaskId, BuildHasherDefault<TagHasher>>,
    /// Number of immediate commands and task management functions in `tasks`.
    immediate_open: usize,
    text: Option<TextExchange>,
    logout: Option<LogoutExchange>,
    ping: Option<Ping>,
    pings_sent: u32,
    events: VecDeque<TargetEvent>,
    outgoing: VecDeque<Outgoing>,
    /// Commands that were aborted since `outgoing` was last rid of theirs.
    aborted: usize,
    queued_replies: usize,
    /// The bytes of their headers and data.
    queued_bytes: usize,
}

/// The phase of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetPhase {
    /// A Login Request, or the driver's answer to one, is awaited.
    Login {
        owed: Owed,
        initiator_task_tag: u32,
    },
    FullFeature,
    Closed,
}

/// The answer to a login event that the driver owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Nothing,
    Identity,
    Session,
    /// The answer to an initiator that failed authentication.
    Rejection,
}

/// A request that has a task ID until it is answered.
#[derive(Debug)]
enum Entry {
    Command(Task),
    Function {
        initiator_task_tag: u32,
        immediate: bool,
        answered: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct LogoutExchange {
    initiator_task_tag: u32,
    answered: bool,
}

/// A NOP-In of ours awaiting its NOP-Out.
#[derive(Clone, Copy, Debug)]
struct Ping {
    tag: u32,
    timeout_ns: u64,
    deadline: u64,
}

/// Distributes Initiator Task Tags, which initiators count up, over a hash table. A peer that provokes collisions
/// slows down only lookups among its own tasks, whose number is bounded.
#[derive(Debug, Default)]
struct TagHasher(u64);

impl Hasher for TagHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, tag: u32) {
        let mixed = (self.0 ^ u64::from(tag)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

impl TargetConnection {
    /// A connection waiting for its first Login Request.
    pub fn new(config: TargetConfig) -> TargetConnection {
        let login = TargetLogin::new(
            config.operational.clone(),
            config.login_pdus_max,
            config.text_len_max,
            config.target_alias.clone(),
        );
        let tasks_max = usize::from(config.command_window) + usize::from(config.immediate_max);
        TargetConnection {
            phase: TargetPhase::Login {
                owed: Owed::Nothing,
                initiator_task_tag: 0,
            },
            login,
            parameters: SessionParameters::default(),
            session_type: SessionType::Normal,
            window: CommandWindow::new(0, config.first_width(), config.first_promise()),
            window_width: config.first_width(),
            stat_sn: 0,
            exp_stat_sn: 0,
            tasks: Slab::new(tasks_max),
            tags: HashMap::default(),
            immediate_open: 0,
            text: None,
            logout: None,
            ping: None,
            pings_sent: 0,
            events: VecDeque::new(),
            outgoing: VecDeque::new(),
            aborted: 0,
            queued_replies: 0,
            queued_bytes: 0,
            config,
        }
    }

    /// What [`frame`](crate::frame::frame) accepts at this point. Ask again after each `receive`.
    pub fn frame_limits(&self) -> FrameLimits {
        let login_max = LOGIN_TEXT_LEN_MAX as u32;
        let inline_len_max = match self.session_type {
            SessionType::Normal => self.config.inline_len_max.max(login_max),
            // Anybody may have one, so it gets no more than before its login.
            SessionType::Discovery => login_max,
        };
        FrameLimits {
            digests: self.parameters.digests,
            data_segment_len_max: self.parameters.max_recv_data_segment_length,
            inline_len_max,
        }
    }

    /// Whether the driver may deliver the next PDU. False while too many replies are queued, while the driver owes an
    /// answer to a login event, and after the end.
    pub fn wants_read(&self) -> bool {
        let driver_owes = match self.phase {
            TargetPhase::Closed => true,
            TargetPhase::Login { owed, .. } => owed != Owed::Nothing,
            TargetPhase::FullFeature => {
                self.logout.is_some() || self.text.as_ref().is_some_and(TextExchange::is_asking)
            }
        };
        let has_room = self.queued_replies < self.config.queued_replies_max
            && self.queued_bytes < self.config.queued_bytes_max;
        !driver_owes && has_room
    }

    /// Whether replies to requests that are no commands wait to be sent, the rest of a list of targets among them.
    pub fn is_answering(&self) -> bool {
        self.queued_replies > 0 || self.text.as_ref().is_some_and(TextExchange::has_rest)
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
        match self.phase {
            TargetPhase::Login { .. } => self.receive_login(bhs, data),
            TargetPhase::FullFeature => {
                self.exp_stat_sn = pdu::exp_stat_sn(bhs);
                self.receive_request(bhs, ahs, data);
            }
            TargetPhase::Closed => {}
        }
    }

    /// Whether the initiator has acknowledged (by ExpStatSN) the status sent with this StatSN, as returned by
    /// [`Transmit::stat_sn`].
    pub fn is_acknowledged(&self, stat_sn: u32) -> bool {
        before(stat_sn, self.exp_stat_sn)
    }

    /// The next event, in order.
    pub fn poll_event(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    /// Takes the next event if it is `DataComplete`, which `solicit` may cause between two PDUs, and returns its
    /// task.
    pub fn poll_complete(&mut self) -> Option<TaskId> {
        let &TargetEvent::DataComplete { task } = self.events.front()? else {
            return None;
        };
        self.events.pop_front();
        Some(task)
    }

    /// The commands for which the initiator still owes data, including those that no longer need it.
    pub fn awaiting_data(&self) -> Vec<TaskId> {
        self.commands(|task| !task.is_quiet())
    }

    /// Those of them whose unsolicited data is not complete: the initiator may send it whenever it likes.
    pub fn awaiting_unsolicited(&self) -> Vec<TaskId> {
        self.commands(Task::expects_unsolicited)
    }

    fn commands(&self, which: impl Fn(&Task) -> bool) -> Vec<TaskId> {
        let tasks = self.tasks.iter();
        tasks
            .filter(|(_, entry)| matches!(entry, Entry::Command(task) if which(task)))
            .map(|(id, _)| id)
            .collect()
    }

    /// The next PDU to send, in order. StatSN, ExpCmdSN and MaxCmdSN are set at this moment.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.next_transmit()
    }

    /// Ends the connection because of an error that only the driver can detect, such as a framing or digest error.
    /// `Closed(Protocol(error))` follows.
    pub fn fail(&mut self, error: Error) {
        self.close(CloseReason::Protocol(error));
    }

    /// Answers `LoginRequest`: continue without authentication. `portal_group_tag` is the tag of the portal used (0
    /// to 65535, RFC 7143 §13.9).
    ///
    /// # Errors
    /// [`Error::WrongState`] if no such event is pending.
    pub fn login_continue(&mut self, portal_group_tag: u16) -> Result<(), Error> {
        self.take_owed(Owed::Identity)?;
        let step = self.login.identified(portal_group_tag);
        self.follow(step, 0);
        Ok(())
    }

    /// Answers `LoginRequest`: continue as with [`login_continue`](Self::login_continue), but only if the initiator
    /// authenticates. `SessionRequest` follows if it succeeds, `AuthenticationFailed` if it fails.
    ///
    /// # Errors
    /// [`Error::WrongState`] if no such event is pending.
    pub fn login_authenticate(
        &mut self,
        portal_group_tag: u16,
        authentication: Authentication,
    ) -> Result<(), Error> {
        self.take_owed(Owed::Identity)?;
        self.login.demand(authentication);
        let step = self.login.identified(portal_group_tag);
        self.follow(step, 0);
        Ok(())
    }

    /// Answers `SessionRequest`: the session begins under `tsih`, not 0 (RFC 7143 §11.13.3).
    /// `LoggedIn` follows.
    ///
    /// # Errors
    /// [`Error::WrongState`] if no such event is pending, [`Error::Argument`] if `tsih` is 0.
    pub fn login_accept(&mut self, tsih: u16) -> Result<(), Error> {
        if tsih == 0 {
            let expected = "1 to 65535";
            return Err(Error::Argument {
                what: "tsih",
                value: 0,
                expected,
            });
        }
        self.take_owed(Owed::Session)?;
        let step = self.login.begin();
        self.follow(step, tsih);
        Ok(())
    }

    /// Answers `LoginRequest` or `SessionRequest` with a refusal, or `AuthenticationFailed`, when the driver wants it
    /// answered. `target_address` accompanies the redirection statuses: `host[:port]`, without a portal group tag here
    /// (RFC 7143 §13.8). `Closed` follows.
    ///
    /// # Errors
    /// [`Error::WrongState`] if no such event is pending.
    pub fn login_reject(
        &mut self,
        status: LoginStatus,
        target_address: Option<&str>,
    ) -> Result<(), Error> {
        self.take_owed(Owed::Identity)
            .or_else(|_| self.take_owed(Owed::Session))
            .or_else(|_| self.take_owed(Owed::Rejection))?;
        self.refuse_login(status, target_address);
        Ok(())
    }

    /// Ends a login, whatever it is waiting for, because the driver has no room or time for it: sends a refusal, and
    /// `Closed` follows. False if there is no login to refuse: before the first Login Request, and after the login.
    pub fn login_abandon(&mut self, status: LoginStatus) -> bool {
        let begun = matches!(self.phase, TargetPhase::Login { .. }) && self.login.has_begun();
        if begun {
            self.refuse_login(status, None);
        }
        begun
    }

    /// The details of the login, even if it was refused.
    pub fn login_report(&self) -> LoginReport<'_> {
        self.login.report()
    }

    /// Answers `SendTargets` with `targets`, which [encodes](crate::text::encode_targets) them. The list is split into as many Text Responses as the initiator's
    /// MaxRecvDataSegmentLength requires.
    ///
    /// # Errors
    /// [`Error::WrongState`] if no such event is pending.
    pub fn send_targets(&mut self, targets: &[u8]) -> Result<(), Error> {
        self.answer_send_targets(targets)
    }

    /// Grants room for the task's write data up to offset `end` (in bytes, at most `write_len`; may be raised later),
    /// and sends R2Ts for the data that does not come unsolicited. `DataComplete` follows once the data up to `end`
    /// and all unsolicited data have arrived; if they already have, it is queued before this returns.
    ///
    /// # Errors
    /// [`Error::NoSuchTask`]; [`Error::WrongState`] after an outcome was given; [`Error::Argument`] if `end` is
    /// beyond `write_len` or below an earlier one.
    pub fn solicit(&mut self, task: TaskId, end: u32) -> Result<(), Error> {
        self.command(task)?.grant(end)?;
        self.advance_write(task);
        Ok(())
    }

    /// Sends the next `len` bytes of the task's read data. Offsets continue from call to call, and data beyond
    /// `read_len` is dropped. With `outcome`, also ends the task: in the last Data-In if the outcome is GOOD without
    /// sense data, else in a SCSI Response.
    ///
    /// # Errors
    /// [`Error::NoSuchTask`]; [`Error::WrongState`] after an outcome was given.
    pub fn data_in(
        &mut self,
        task: TaskId,
        len: u32,
        outcome: Option<Outcome<'_>>,
    ) -> Result<(), Error> {
        let entry = self.command(task)?;
        if entry.ending.is_some() {
            return Err(Error::WrongState("data_in() after the task's outcome"));
        }
        let end_before = entry.read_given.min(u64::from(entry.read_len)) as u32;
        entry.read_given = entry.read_given.saturating_add(u64::from(len));
        let end = entry.read_given.min(u64::from(entry.read_len)) as u32;
        let collapses = outcome.is_some_and(|outcome| {
            outcome.status == 0 && outcome.sense.is_empty() && entry.direction == Direction::Read
        }) && end > end_before;
        if end > end_before {
            if let Some(outcome) = outcome.filter(|_| collapses) {
                entry.ending = Some(PendingOutcome::new(outcome));
            }
            self.outgoing.push_back(Outgoing::DataIn {
                task,
                end,
                status: collapses,
            });
        }
        match outcome {
            Some(outcome) if !collapses => self.respond(task, outcome),
            _ => Ok(()),
        }
    }

    /// Ends the task with a SCSI Response. Write data still in transit is dropped, and the response waits until it
    /// has all arrived.
    ///
    /// # Errors
    /// [`Error::NoSuchTask`]; [`Error::WrongState`] after an outcome was given.
    pub fn respond(&mut self, task: TaskId, outcome: Outcome<'_>) -> Result<(), Error> {
        let entry = self.command(task)?;
        if entry.ending.is_some() {
            return Err(Error::WrongState("respond() after the task's outcome"));
        }
        entry.ending = Some(PendingOutcome::new(outcome));
        self.advance_write(task);
        Ok(())
    }

    /// Drops the task without a response, because task management aborted it. Data still in transit is dropped.
    ///
    /// # Errors
    /// [`Error::NoSuchTask`].
    pub fn abort(&mut self, task: TaskId) -> Result<(), Error> {
        self.command(task)?;
        self.remove(task);
        // Its queued PDUs would pile up if commands and aborts alternated. They are dropped when they may be half of all,
        // so that to abort many commands costs each of them the same.
        self.aborted += 1;
        if 2 * self.aborted >= self.outgoing.len() {
            self.aborted = 0;
            let tasks = &self.tasks;
            let is_wanted =
                |entry: &Outgoing| entry.task().is_none_or(|task| tasks.get(task).is_some());
            self.outgoing.retain(is_wanted);
        }
        Ok(())
    }

    /// Answers `TaskManagement` with a response code (RFC 7143 §11.6.1).
    ///
    /// # Errors
    /// [`Error::NoSuchTask`].
    pub fn task_management_response(&mut self, task: TaskId, response: u8) -> Result<(), Error> {
        let Some(Entry::Function {
            initiator_task_tag,
            answered,
            ..
        }) = self.tasks.get_mut(task)
        else {
            return Err(Error::NoSuchTask);
        };
        if std::mem::replace(answered, true) {
            return Err(Error::WrongState(
                "a second response to a task management function",
            ));
        }
        let header = pdu::TaskManagementResponse {
            opcode: opcode::TASK_MANAGEMENT_RESPONSE,
            flags: FINAL,
            response,
            initiator_task_tag: (*initiator_task_tag).into(),
            ..Default::default()
        };
        self.outgoing.push_back(Outgoing::Ready(Ready {
            header: header.to_bytes(),
            data: Vec::new(),
            stat_sn: StatSn::Taken,
            is_reply: false,
            digests: self.parameters.digests,
            ends: Some(task),
        }));
        Ok(())
    }

    /// Answers `Logout` (response 0: closed). `Closed(Logout)` follows once it is sent.
    ///
    /// # Errors
    /// [`Error::WrongState`] if no such event is pending.
    pub fn logout_response(&mut self, response: u8) -> Result<(), Error> {
        self.answer_logout(response)
    }

    /// Sends a NOP-In that the initiator must answer within `timeout_ns`; `Pong` or `Closed(PingTimeout)` follows.
    /// Does nothing while another one is open, before full feature phase, or in a discovery session.
    pub fn ping(&mut self, now: u64, timeout_ns: u64) {
        let is_normal = self.session_type == SessionType::Normal;
        if self.phase != TargetPhase::FullFeature || !is_normal || self.ping.is_some() {
            return;
        }
        self.pings_sent = self.pings_sent.wrapping_add(1);
        let tag = self.pings_sent & 0x7fff_ffff;
        self.ping = Some(Ping {
            tag,
            timeout_ns,
            deadline: now.saturating_add(timeout_ns),
        });
        let header = pdu::NopIn {
            opcode: opcode::NOP_IN,
            flags: FINAL,
            initiator_task_tag: RESERVED_TAG.into(),
            target_transfer_tag: tag.into(),
            ..Default::default()
        };
        self.push_ready(header.to_bytes(), Vec::new(), StatSn::Shown);
    }

    /// Sends an Async Message. Does nothing before full feature phase.
    pub fn async_message(&mut self, message: AsyncMessage) {
        if self.phase != TargetPhase::FullFeature {
            return;
        }
        let (event, parameters) = match message {
            AsyncMessage::LogoutRequest { within_s } => (1, [0, 0, within_s]),
            AsyncMessage::SessionDrop {
                time2wait_s,
                time2retain_s,
            } => (3, [0, time2wait_s, time2retain_s]),
        };
        let header = pdu::AsyncMessage {
            opcode: opcode::ASYNC_MESSAGE,
            flags: FINAL,
            tag: RESERVED_TAG.into(),
            event,
            parameter1: parameters[0].into(),
            parameter2: parameters[1].into(),
            parameter3: parameters[2].into(),
            ..Default::default()
        };
        self.push_ready(header.to_bytes(), Vec::new(), StatSn::Taken);
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

    fn command(&mut self, task: TaskId) -> Result<&mut Task, Error> {
        match self.tasks.get_mut(task) {
            Some(Entry::Command(task)) => Ok(task),
            _ => Err(Error::NoSuchTask),
        }
    }

    /// Removes an entry, which frees its place in the command window.
    fn remove(&mut self, id: TaskId) {
        let (tag, immediate) = match self.tasks.remove(id) {
            Some(Entry::Command(task)) => (task.initiator_task_tag, task.immediate),
            Some(Entry::Function {
                initiator_task_tag,
                immediate,
                ..
            }) => (initiator_task_tag, immediate),
            None => return,
        };
        self.tags.remove(&tag);
        match immediate {
            true => self.immediate_open -= 1,
            false => self.window.release(),
        }
    }

    /// Sends the R2Ts, raises the event, or sends the response that a write is ready for.
    fn advance_write(&mut self, id: TaskId) {
        let parameters = &self.parameters;
        let Some(Entry::Command(task)) = self.tasks.get_mut(id) else {
            return;
        };
        let (burst, open) = (parameters.max_burst_length, parameters.max_outstanding_r2t);
        while let Some(r2t) = task.next_r2t(id.slot(), burst, open) {
            let header = pdu::R2t {
                opcode: opcode::R2T,
                flags: FINAL,
                lun: task.lun.into(),
                initiator_task_tag: task.initiator_task_tag.into(),
                target_transfer_tag: r2t.tag.into(),
                r2t_sn: r2t.sn.into(),
                buffer_offset: r2t.offset.into(),
                desired_data_transfer_length: r2t.len.into(),
                ..Default::default()
            };
            self.outgoing.push_back(Outgoing::R2t {
                task: id,
                header: header.to_bytes(),
            });
        }
        if task.take_complete() {
            self.events
                .push_back(TargetEvent::DataComplete { task: id });
        }
        if task.ending.is_some() && task.is_quiet() {
            self.outgoing.push_back(Outgoing::Response { task: id });
        }
    }

    /// Raises the last event. PDUs that are ready are still sent; queued data, R2Ts and SCSI Responses are dropped.
    fn close(&mut self, reason: CloseReason) {
        if self.phase == TargetPhase::Closed {
            return;
        }
        self.phase = TargetPhase::Closed;
        self.ping = None;
        self.outgoing
            .retain(|entry| matches!(entry, Outgoing::Ready(_)));
        self.events.push_back(TargetEvent::Closed(reason));
    }

    /// Sends a Reject for `refused`, and ends the connection.
    fn violation(&mut self, refused: &[u8; 48], error: Error) {
        self.push_reject(pdu::reject_reason::PROTOCOL_ERROR, refused);
        self.close(CloseReason::Protocol(error));
    }
}
