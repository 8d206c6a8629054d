//! Our target's connection with its driver, watched: every event and every PDU that goes out is
//! held against a small model of the session (RFC 7143 §4.2, §11), and each call of the driver
//! against what its documentation promises.

use std::collections::BTreeSet;

use iscsi::frame::FrameLimits;
use iscsi::{
    AsyncMessage, Authentication, CloseReason, CommandRequest, Error, LoginStatus, Outcome, RxData,
    SendTargets, SessionParameters, TargetConfig, TargetConnection, TargetEvent, TargetRecord,
    TaskId, Transmit, TransmitData,
};

use crate::held::held;
use crate::peer::{STAGE_TIMES, check_parameters};
use crate::stream::Side;
use crate::wire;

/// What was seen, in order: runs that must be alike are compared by it.
#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    Event(TargetEvent),
    Sent(Transmit),
}

/// A command that has not ended.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) request: CommandRequest,
    pub(crate) tag: u32,
    pub(crate) granted: Option<u32>,
    /// Write data that found its place.
    pub(crate) buffer: Vec<u8>,
    /// Unsolicited Data-Out may still come.
    pub(crate) unsolicited: bool,
    pub(crate) complete: bool,
    /// Read data given by the driver, and sent of it.
    given: u64,
    sent: u32,
    data_sn: u32,
    pub(crate) answered: bool,
    failed: bool,
    r2t_sn: u32,
    /// Where the next R2T has to begin.
    r2t_end: Option<u32>,
}

impl Open {
    pub(crate) fn is_over(&self) -> bool {
        self.answered || self.failed
    }
}

/// An R2T whose data has not all come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct R2t {
    pub(crate) tag: u32,
    pub(crate) transfer_tag: u32,
    pub(crate) offset: u32,
    pub(crate) end: u32,
    pub(crate) received: u32,
    pub(crate) data_sn: u32,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) task: TaskId,
    pub(crate) immediate: bool,
    pub(crate) answered: bool,
    pub(crate) referenced: Option<TaskId>,
}

/// How the driver answers a login.
#[derive(Clone, Debug)]
pub(crate) enum Policy {
    Continue,
    Authenticate(Authentication),
    Reject(LoginStatus),
}

pub(crate) struct TargetSide {
    pub(crate) machine: TargetConnection,
    config: TargetConfig,
    pub(crate) policy: Policy,
    /// Whether the initiator may get as far as a session.
    pub(crate) may_begin: bool,
    pub(crate) now: u64,
    pub(crate) logged_in: Option<SessionParameters>,
    pub(crate) open: Vec<Open>,
    pub(crate) functions: Vec<Function>,
    pub(crate) r2ts: Vec<R2t>,
    pub(crate) asked: bool,
    pub(crate) logout: bool,
    pub(crate) closed: Option<CloseReason>,
    pub(crate) log: Vec<Seen>,
    /// Header of the PDU at hand, and where its payload belongs.
    received: [u8; 48],
    /// It has not been followed yet.
    fresh: bool,
    placing: Option<(TaskId, u32, u32)>,
    /// Complete with the payload at hand.
    completing: Option<TaskId>,
    /// Tasks that got data for an R2T before it was sent.
    guessed: BTreeSet<u32>,
    /// The longest data segment that the initiator has ever allowed.
    max_send_len: u32,
    stat_sn: u32,
    max_cmd_sn: Option<u32>,
    /// The command window as it is now.
    window: u16,
}

impl TargetSide {
    pub(crate) fn new(config: TargetConfig) -> TargetSide {
        TargetSide {
            machine: TargetConnection::new(config.clone()),
            window: config.command_window_first,
            config,
            policy: Policy::Continue,
            may_begin: true,
            now: 0,
            logged_in: None,
            open: Vec::new(),
            functions: Vec::new(),
            r2ts: Vec::new(),
            asked: false,
            logout: false,
            closed: None,
            log: Vec::new(),
            received: [0; 48],
            fresh: false,
            guessed: BTreeSet::new(),
            max_send_len: 8192,
            placing: None,
            completing: None,
            stat_sn: 0,
            max_cmd_sn: None,
        }
    }

    fn find(&mut self, task: TaskId) -> Option<&mut Open> {
        self.open.iter_mut().find(|open| open.request.task == task)
    }

    fn take_event(&mut self, event: &TargetEvent) {
        assert_eq!(self.closed, None, "Closed is the last event, not {event:?}");
        match event {
            TargetEvent::LoginRequest(who) => {
                let names = [Some(&who.initiator_name), who.target_name.as_ref()];
                for name in names.into_iter().flatten() {
                    let forbidden = |c: char| c.is_whitespace() || c.is_control();
                    assert!(!name.contains(forbidden) && name.len() <= 223, "{name:?}");
                }
                let answered = match self.policy.clone() {
                    Policy::Continue => self.machine.login_continue(1),
                    Policy::Authenticate(how) => self.machine.login_authenticate(1, how),
                    Policy::Reject(status) => self.machine.login_reject(status, Some("host:1,1")),
                };
                assert_eq!(answered, Ok(()), "a login event is open");
            }
            TargetEvent::SessionRequest(who) => {
                assert!(self.may_begin, "{who:?} begins a session without proof");
                assert!(!who.initiator_name.is_empty());
                assert_eq!(self.machine.login_accept(7), Ok(()));
            }
            TargetEvent::AuthenticationFailed { .. } => {
                let status = LoginStatus::AUTHENTICATION_FAILURE;
                assert_eq!(self.machine.login_reject(status, None), Ok(()));
            }
            TargetEvent::LoggedIn(parameters) => {
                check_parameters(parameters, &self.config.operational);
                assert_eq!(self.logged_in.replace(parameters.clone()), None, "twice");
            }
            TargetEvent::SendTargets(which) => {
                assert!(!self.asked, "one text exchange at a time");
                assert_ne!(which, &SendTargets::Named(String::new()));
                self.asked = true;
            }
            TargetEvent::Command(request) => self.begin(request),
            TargetEvent::DataOut { task, offset, len } => self.place(*task, *offset, *len),
            TargetEvent::DataComplete { task } => {
                let (placing, end) = match self.placing {
                    Some((placing, offset, len)) if placing == *task => (true, offset + len),
                    _ => (false, 0),
                };
                let open = self.find(*task).expect("data of an open command");
                assert!(!open.is_over() && !open.complete && !open.unsolicited);
                let due = open.granted.expect("data was asked for") as usize;
                let there = open.buffer.len().max(end as usize);
                assert!(there >= due, "complete with data missing");
                // The payload at hand may still be on its way, while another command, whose data have
                // all come, is only now asked for them.
                open.complete = !placing;
                if placing {
                    self.completing = Some(*task);
                }
            }
            TargetEvent::Failed { task } => {
                let open = self.find(*task).expect("an open command fails");
                assert!(
                    !std::mem::replace(&mut open.failed, true),
                    "it failed twice"
                );
            }
            TargetEvent::TaskManagement(request) => {
                if let Some(referenced) = request.referenced {
                    assert!(
                        self.find(referenced).is_some(),
                        "an open task is referenced"
                    );
                }
                self.functions.push(Function {
                    task: request.task,
                    immediate: request.immediate,
                    answered: false,
                    referenced: request.referenced,
                });
            }
            TargetEvent::Logout { reason } => {
                assert!(*reason <= 1 && !self.logout, "one logout at a time");
                self.logout = true;
            }
            TargetEvent::Closed(reason) => {
                self.closed = Some(reason.clone());
                self.open.clear();
                self.functions.clear();
                self.r2ts.clear();
            }
            _ => {}
        }
    }

    /// A command begins.
    fn begin(&mut self, request: &CommandRequest) {
        let parameters = self.logged_in.as_ref().expect("commands come after login");
        assert!(
            self.find_id(request.task).is_none(),
            "{request:?} has an old identity"
        );
        let first_burst = parameters.first_burst_length;
        assert!(request.immediate_len <= request.unsolicited_len);
        assert!(request.unsolicited_len <= request.write_len.min(first_burst));
        assert!(parameters.immediate_data || request.immediate_len == 0);
        assert_eq!(request.cdb[..16], self.received[32..], "the CDB");
        let more = request.unsolicited_len > request.immediate_len;
        assert!(
            !more || !parameters.initial_r2t,
            "unsolicited data under InitialR2T"
        );
        if request.immediate_len > 0 {
            self.placing = Some((request.task, 0, request.immediate_len));
        }
        self.open.push(Open {
            request: request.clone(),
            tag: wire::word(&self.received, 16),
            granted: None,
            buffer: Vec::new(),
            unsolicited: more,
            complete: false,
            given: 0,
            sent: 0,
            data_sn: 0,
            answered: false,
            failed: false,
            r2t_sn: 0,
            r2t_end: None,
        });
    }

    fn find_id(&self, task: TaskId) -> Option<usize> {
        self.open.iter().position(|open| open.request.task == task)
    }

    /// The payload at hand belongs to a command.
    fn place(&mut self, task: TaskId, offset: u32, len: u32) {
        let payload_len = wire::length(&self.received);
        let open = self.find(task).expect("data for an open command");
        assert!(!open.is_over(), "data for a command that has its outcome");
        let room = open.granted.unwrap_or(open.request.unsolicited_len);
        assert!(len > 0 && len <= payload_len);
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= room),
            "{len} bytes at {offset} with room for {room}"
        );
        assert_eq!(offset as usize, open.buffer.len(), "data in order");
        self.placing = Some((task, offset, len));
    }

    /// Follows what the Data-Out at hand means for R2Ts and unsolicited data.
    fn follow_data_out(&mut self, fails: bool) {
        let bhs = self.received;
        let (tag, transfer_tag, len) = (
            wire::word(&bhs, 16),
            wire::word(&bhs, 20),
            wire::length(&bhs),
        );
        let is_final = bhs[1] & 0x80 != 0;
        let Some(open) = self.open.iter_mut().find(|open| open.tag == tag) else {
            return;
        };
        let failed = open.failed || fails;
        if transfer_tag == u32::MAX {
            let end = wire::word(&bhs, 40).saturating_add(len);
            let reached = !failed && end >= open.request.unsolicited_len;
            open.unsolicited &= !is_final && !reached;
            return;
        }
        let found = |r2t: &R2t| r2t.tag == tag && r2t.transfer_tag == transfer_tag;
        if let Some(at) = self.r2ts.iter().position(found) {
            let r2t = &mut self.r2ts[at];
            r2t.received = r2t.received.saturating_add(len);
            let fits = failed || r2t.received <= r2t.end - r2t.offset;
            assert!(fits, "more than the R2T asked for was taken");
            r2t.data_sn = r2t.data_sn.wrapping_add(1);
            let whole = r2t.received >= r2t.end - r2t.offset;
            if (failed && is_final) || (!failed && whole) {
                self.r2ts.remove(at);
            }
        } else {
            // It guessed the tag of an R2T that is still to be sent, and has only itself to blame.
            self.guessed.insert(tag);
        }
    }

    /// The commands and functions that count against the command window.
    fn in_window(&self) -> usize {
        let commands = self.open.iter().filter(|open| !open.request.immediate);
        let functions = self.functions.iter().filter(|f| !f.immediate);
        commands.count() + functions.count()
    }

    fn check(&self) {
        if self.closed.is_some() {
            assert!(!self.machine.wants_read());
            return;
        }
        let (tasks, in_window) = (self.open.len() + self.functions.len(), self.in_window());
        assert_eq!(self.machine.tasks_len(), tasks, "tasks open");
        assert!(in_window <= usize::from(self.window), "the window");
        assert!(tasks - in_window <= usize::from(self.config.immediate_max));
    }

    /// The next PDU to send, if any.
    pub(crate) fn transmit(&mut self) -> Option<Transmit> {
        let mut transmit = self.machine.poll_transmit()?;
        if self.machine.parameters().stage_times {
            transmit.tell_stage_times(&STAGE_TIMES);
        }
        self.log.push(Seen::Sent(transmit.clone()));
        let bhs = &transmit.header;
        assert_eq!(wire::length(bhs) as usize, transmit.data_len());
        let is_login = wire::opcode(bhs) == 0x23;
        let most = if is_login { 8192 } else { self.max_send_len };
        assert!(
            wire::length(bhs) <= most,
            "the initiator's MaxRecvDataSegmentLength"
        );
        self.check_stat_sn(bhs);
        match transmit.data {
            TransmitData::Task { task, offset, len } => self.check_data_in(task, offset, len, bhs),
            _ => assert_ne!(wire::opcode(bhs), 0x25, "Data-In without data"),
        }
        if wire::opcode(bhs) == 0x31 {
            self.take_r2t(bhs);
        }
        if let Some(task) = transmit.ends {
            self.end(task);
        }
        self.check_window(bhs);
        self.follow_events();
        Some(transmit)
    }

    fn check_stat_sn(&mut self, bhs: &[u8; 48]) {
        let stat_sn = wire::word(bhs, 24);
        let carries_status = match wire::opcode(bhs) {
            0x20 => wire::word(bhs, 16) != u32::MAX,
            0x25 => bhs[1] & 1 != 0,
            0x31 => false,
            _ => true,
        };
        match (wire::opcode(bhs), carries_status) {
            (0x25, false) => assert_eq!(stat_sn, 0, "reserved without the S bit"),
            _ => assert_eq!(stat_sn, self.stat_sn, "StatSN"),
        }
        if carries_status {
            self.stat_sn = self.stat_sn.wrapping_add(1);
        }
    }

    fn check_window(&mut self, bhs: &[u8; 48]) {
        if self.logged_in.is_none() || wire::opcode(bhs) == 0x23 || self.closed.is_some() {
            return;
        }
        let (expected, max) = (wire::word(bhs, 28), wire::word(bhs, 32));
        let width = u32::from(self.window) - self.in_window() as u32;
        assert_eq!(self.machine.is_window_full(), width == 0);
        assert_eq!(
            max.wrapping_sub(expected).wrapping_add(1),
            width,
            "the window's width"
        );
        let backwards = self
            .max_cmd_sn
            .is_some_and(|before| wire::before(max, before));
        assert!(!backwards, "MaxCmdSN went back");
        self.max_cmd_sn = Some(max);
    }

    fn check_data_in(&mut self, task: TaskId, offset: u32, len: u32, bhs: &[u8; 48]) {
        let burst = self.machine.parameters().max_burst_length;
        let open = self.find(task).expect("Data-In of an open command");
        let end = open.given.min(u64::from(open.request.read_len));
        assert!(len > 0 && len <= burst && offset == open.sent);
        assert!(
            u64::from(offset) + u64::from(len) <= end,
            "more than was given"
        );
        assert_eq!(
            (wire::word(bhs, 40), wire::word(bhs, 16)),
            (offset, open.tag)
        );
        assert_eq!(wire::word(bhs, 36), open.data_sn, "DataSN");
        open.sent += len;
        open.data_sn += 1;
    }

    fn take_r2t(&mut self, bhs: &[u8; 48]) {
        if self.guessed.contains(&wire::word(bhs, 16)) {
            return;
        }
        let parameters = self.machine.parameters().clone();
        let (tag, offset, len) = (
            wire::word(bhs, 16),
            wire::word(bhs, 40),
            wire::word(bhs, 44),
        );
        let transfer_tag = wire::word(bhs, 20);
        let open_now = self.r2ts.iter().filter(|r2t| r2t.tag == tag).count();
        let open = self.open.iter_mut().find(|open| open.tag == tag);
        let open = open.expect("an R2T for an open command");
        assert_ne!(transfer_tag, u32::MAX, "the reserved tag");
        assert!(!open.unsolicited, "unsolicited data comes first");
        assert!(open_now < usize::from(parameters.max_outstanding_r2t));
        assert!(len > 0 && len <= parameters.max_burst_length);
        assert!(
            offset + len <= open.granted.expect("the driver has room"),
            "beyond its room"
        );
        assert!(open.r2t_end.is_none_or(|end| end == offset), "in order");
        assert_eq!(wire::word(bhs, 36), open.r2t_sn, "R2TSN");
        open.r2t_sn += 1;
        let end = offset + len;
        open.r2t_end = Some(end);
        self.r2ts.push(R2t {
            tag,
            transfer_tag,
            offset,
            end,
            received: 0,
            data_sn: 0,
        });
    }

    fn end(&mut self, task: TaskId) {
        if self.closed.is_some() {
            return;
        }
        if let Some(at) = self.find_id(task) {
            let open = self.open.remove(at);
            assert!(open.is_over(), "it ended without an outcome");
            let waits = self.r2ts.iter().any(|r2t| r2t.tag == open.tag) || open.unsolicited;
            assert!(!waits || self.guessed.contains(&open.tag), "data is due");
            self.forget_transfers(open.tag);
            return;
        }
        let at = self.functions.iter().position(|f| f.task == task);
        let function = self.functions.remove(at.expect("what ends was open"));
        assert!(function.answered, "a function ended without an answer");
    }

    fn forget_transfers(&mut self, tag: u32) {
        self.r2ts.retain(|r2t| r2t.tag != tag);
        self.guessed.remove(&tag);
    }

    pub(crate) fn solicit(&mut self, at: usize, end: u32) {
        let (task, over) = (self.open[at].request.task, self.open[at].is_over());
        let result = self.machine.solicit(task, end);
        let open = &mut self.open[at];
        let fits = end <= open.request.write_len && open.granted.is_none_or(|before| end >= before);
        if result.is_ok() {
            assert!(!over && fits);
            (open.granted, open.complete) = (Some(end), false);
            // What was complete with the payload at hand is not any more.
            self.completing = self.completing.filter(|completing| *completing != task);
        } else {
            assert!(over || !fits || open.granted.is_some(), "{result:?}");
        }
        self.follow_events();
    }

    pub(crate) fn data_in(&mut self, at: usize, len: u32, outcome: Option<Outcome<'_>>) {
        let open = &mut self.open[at];
        let result = self.machine.data_in(open.request.task, len, outcome);
        assert_eq!(result.is_ok(), !open.is_over(), "{result:?}");
        if result.is_ok() {
            open.given += u64::from(len);
            open.answered = outcome.is_some();
        }
        self.follow_events();
    }

    pub(crate) fn respond(&mut self, at: usize, outcome: Outcome<'_>) {
        let open = &mut self.open[at];
        let result = self.machine.respond(open.request.task, outcome);
        assert_eq!(result.is_ok(), !open.is_over(), "{result:?}");
        open.answered = true;
        self.follow_events();
    }

    pub(crate) fn abort(&mut self, at: usize) {
        let open = self.open.remove(at);
        self.forget_transfers(open.tag);
        assert_eq!(self.machine.abort(open.request.task), Ok(()));
        assert_eq!(
            self.machine.abort(open.request.task),
            Err(Error::NoSuchTask)
        );
        self.follow_events();
    }

    pub(crate) fn answer_function(&mut self, at: usize, response: u8) {
        let function = &mut self.functions[at];
        let result = self
            .machine
            .task_management_response(function.task, response);
        let again = std::mem::replace(&mut function.answered, true);
        assert_eq!(result.is_err(), again, "a function is answered once");
    }

    pub(crate) fn send_targets(&mut self, targets: &[TargetRecord]) {
        let open = std::mem::take(&mut self.asked) && self.closed.is_none();
        let targets = iscsi::text::encode_targets(targets);
        let result = self.machine.send_targets(&targets);
        assert!(result.is_ok() || !open, "{result:?}");
    }

    pub(crate) fn logout_response(&mut self) {
        let open = std::mem::take(&mut self.logout) && self.closed.is_none();
        let result = self.machine.logout_response(0);
        assert_eq!(result.is_ok(), open, "{result:?}");
    }

    pub(crate) fn wait(&mut self, ns: u64) {
        self.now = self.now.saturating_add(ns);
        self.machine.handle_timeout(self.now);
        self.follow_events();
    }

    /// The driver has room for more commands.
    pub(crate) fn widen(&mut self, by: u16) {
        let widened = self.machine.widen_window(by);
        if self.logged_in.is_some() {
            self.window += widened;
        }
        assert!(widened <= by && self.window <= self.config.command_window);
    }

    pub(crate) fn announce(&mut self, within_s: u16) {
        self.machine
            .async_message(AsyncMessage::LogoutRequest { within_s });
    }

    /// Answers all that is open and sends all that is ready: what is left waits for data that
    /// was asked for. Then the connection ends, and with it everything.
    pub(crate) fn finish(&mut self) {
        let outcome = Outcome {
            status: 0,
            sense: &[],
            transfer_len: 0,
        };
        for at in 0..self.open.len() {
            if self.open.get(at).is_some_and(|open| !open.is_over()) {
                self.respond(at, outcome);
            }
        }
        for at in 0..self.functions.len() {
            if !self.functions[at].answered {
                self.answer_function(at, 0);
            }
        }
        if self.asked {
            self.send_targets(&[]);
        }
        if self.logout {
            self.logout_response();
        }
        assert!(
            held(&self.machine) < HELD_MAX,
            "{} held",
            held(&self.machine)
        );
        while self.transmit().is_some() {}
        for open in &self.open {
            let r2t = self.r2ts.iter().any(|r2t| r2t.tag == open.tag);
            assert!(
                r2t || open.unsolicited,
                "{open:?} has its outcome and does not end"
            );
        }
        assert!(
            self.functions.is_empty(),
            "functions end when they are answered"
        );
        self.machine.fail(Error::NoSuchTask);
        self.follow_events();
        assert!(self.closed.is_some(), "fail() closes");
        while self.transmit().is_some() {}
        assert_eq!(self.machine.poll_event(), None);
    }
}

/// The most that a machine with the limits of these targets may hold, written out.
const HELD_MAX: usize = 2 << 20;

impl Side for TargetSide {
    fn frame_limits(&self) -> FrameLimits {
        self.machine.frame_limits()
    }

    fn wants_read(&self) -> bool {
        self.machine.wants_read()
    }

    fn receive(&mut self, bhs: &[u8; 48], ahs: &[u8], data: RxData<'_>) {
        (self.received, self.fresh, self.placing) = (*bhs, true, None);
        self.completing = None;
        self.machine.receive(self.now, bhs, ahs, data);
        let now_allowed = self.machine.parameters().max_send_data_segment_length;
        self.max_send_len = self.max_send_len.max(now_allowed);
    }

    fn fail(&mut self, error: Error) {
        self.machine.fail(error);
    }

    fn follow_events(&mut self) {
        let mut events: Vec<TargetEvent> =
            std::iter::from_fn(|| self.machine.poll_event()).collect();
        // The machine has counted a Data-Out before it speaks of it, unless it refuses it.
        let any = |which: fn(&TargetEvent) -> bool| events.iter().any(which);
        let fails = any(|event| matches!(event, TargetEvent::Failed { .. }));
        let closes = any(|event| matches!(event, TargetEvent::Closed(_)));
        let is_data_out = wire::opcode(&self.received) == 0x05;
        if std::mem::take(&mut self.fresh) && is_data_out && !closes {
            self.follow_data_out(fails);
        }
        while !events.is_empty() {
            for event in events.drain(..) {
                self.take_event(&event);
                self.log.push(Seen::Event(event));
            }
            events.extend(std::iter::from_fn(|| self.machine.poll_event()));
        }
        self.check();
    }

    fn take_payload(&mut self, payload: &[u8]) {
        if let Some((task, offset, len)) = self.placing.take() {
            if let Some(open) = self.find(task) {
                open.buffer.resize(offset as usize, 0);
                open.buffer.extend_from_slice(&payload[..len as usize]);
            }
        }
        if let Some(task) = self.completing.take() {
            if let Some(open) = self.find(task) {
                open.complete = true;
            }
        }
    }
}
