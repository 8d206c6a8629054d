//! Our initiator's connection with its driver, watched: every event and every PDU that goes out
//! is held against a small model of the session. A target may send what it likes; the initiator
//! must stay within the command window, the R2Ts and the lengths of its own commands.

use iscsi::frame::FrameLimits;
use iscsi::{
    CloseReason, Direction, Error, InitiatorConfig, InitiatorConnection, InitiatorEvent, LunField,
    OutgoingCommand, RxData, SessionParameters, TaskId, TaskResult, Transmit, TransmitData,
};

use crate::held::held;
use crate::peer::check_parameters;
use crate::stream::Side;
use crate::wire;

/// What was seen, in order.
#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    Event(InitiatorEvent),
    Sent(Transmit),
}

/// A command that is not done.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) task: TaskId,
    pub(crate) direction: Direction,
    pub(crate) data_len: u32,
    cmd_sn: u32,
    pub(crate) sent: bool,
    /// Read data that arrived, or the data of a write.
    pub(crate) buffer: Vec<u8>,
    pub(crate) received: u32,
    /// How far unsolicited data went and may go.
    unsolicited: (u32, u32),
    unsolicited_sn: u32,
    grants: Vec<Grant>,
    /// Where the next R2T is due.
    pub(crate) r2t_end: u32,
}

/// An R2T: what may be sent for it, and what was.
#[derive(Debug)]
struct Grant {
    transfer_tag: u32,
    next: u32,
    end: u32,
    data_sn: u32,
}

pub(crate) struct InitiatorSide {
    pub(crate) machine: InitiatorConnection,
    config: InitiatorConfig,
    pub(crate) now: u64,
    pub(crate) logged_in: Option<SessionParameters>,
    pub(crate) open: Vec<Open>,
    pub(crate) functions: Vec<TaskId>,
    pub(crate) done: Vec<(Open, TaskResult)>,
    /// Text exchange, ping, logout: they have identities too.
    pub(crate) others_max: usize,
    pub(crate) closed: Option<CloseReason>,
    pub(crate) log: Vec<Seen>,
    received: [u8; 48],
    fresh: bool,
    placing: Option<(TaskId, u32, u32)>,
    next_cmd_sn: u32,
    max_cmd_sn: u32,
}

/// Whether a command asks where its time goes.
fn asks_stage_times(data_len: u32) -> bool {
    data_len % 3 != 0
}

/// The tag that our initiator gives a task.
pub(crate) fn tag(task: TaskId) -> u32 {
    task.generation() << 16 | task.slot() as u32
}

impl InitiatorSide {
    pub(crate) fn new(config: InitiatorConfig) -> InitiatorSide {
        InitiatorSide {
            machine: InitiatorConnection::new(config.clone()),
            config,
            now: 0,
            logged_in: None,
            open: Vec::new(),
            functions: Vec::new(),
            done: Vec::new(),
            others_max: 0,
            closed: None,
            log: Vec::new(),
            received: [0; 48],
            fresh: false,
            placing: None,
            next_cmd_sn: 1,
            max_cmd_sn: 0,
        }
    }

    fn find(&mut self, task: TaskId) -> Option<&mut Open> {
        self.open.iter_mut().find(|open| open.task == task)
    }

    fn take_event(&mut self, event: &InitiatorEvent) {
        assert_eq!(self.closed, None, "Closed is the last event, not {event:?}");
        match event {
            InitiatorEvent::LoggedIn { parameters, .. } => {
                let wanted = &self.config.operational;
                check_parameters(parameters, wanted);
                // Who offers can insist on No; a target that is offered nothing cannot.
                assert!(!parameters.immediate_data || wanted.immediate_data);
                assert_eq!(self.logged_in.replace(parameters.clone()), None, "twice");
                self.max_cmd_sn = self.next_cmd_sn.wrapping_sub(1);
                self.take_window();
            }
            InitiatorEvent::DataIn { task, offset, len } => {
                assert_eq!(wire::length(&self.received), *len, "the whole payload");
                let open = self.find(*task).expect("data of an open command");
                assert_eq!((open.direction, open.received), (Direction::Read, *offset));
                open.received = offset.checked_add(*len).expect("within the command");
                assert!(open.received <= open.data_len, "more than was asked for");
                self.placing = Some((*task, *offset, *len));
            }
            InitiatorEvent::Done { task, result } => {
                let at = self.open.iter().position(|open| open.task == *task);
                let open = self.open.remove(at.expect("a command ends once"));
                if let TaskResult::Completed {
                    transferred,
                    stage_times,
                    ..
                } = result
                {
                    let agreed = self.logged_in.as_ref().map(|agreed| agreed.stage_times);
                    let expected = agreed == Some(true) && asks_stage_times(open.data_len);
                    assert_eq!(stage_times.is_some(), expected);
                    let longest_ns = stage_times.map_or(0, |times| times.total_ns());
                    assert!(longest_ns < 1 << 44, "{result:?}");
                    assert!(
                        *transferred <= open.data_len,
                        "{result:?} of {}",
                        open.data_len
                    );
                }
                self.done.push((open, result.clone()));
            }
            InitiatorEvent::TaskManagementDone { task, .. } => {
                let at = self.functions.iter().position(|function| function == task);
                self.functions.remove(at.expect("a function ends once"));
            }
            InitiatorEvent::Closed(reason) => self.closed = Some(reason.clone()),
            _ => {}
        }
    }

    /// What the target's last PDU says about the command window (RFC 7143 §4.2.2.1).
    fn take_window(&mut self) {
        let (expected, max) = (
            wire::word(&self.received, 28),
            wire::word(&self.received, 32),
        );
        let makes_sense = !wire::before(max, expected.wrapping_sub(1));
        if makes_sense && wire::before(self.max_cmd_sn, max) {
            self.max_cmd_sn = max;
        }
    }

    /// An R2T that the machine has taken.
    fn take_r2t(&mut self) {
        let bhs = self.received;
        let parameters = self.machine.parameters().clone();
        let (offset, len) = (wire::word(&bhs, 40), wire::word(&bhs, 44));
        let Some(open) = self
            .open
            .iter_mut()
            .find(|open| tag(open.task) == wire::word(&bhs, 16))
        else {
            return;
        };
        assert_eq!(
            (open.direction, open.r2t_end),
            (Direction::Write, offset),
            "R2T in order"
        );
        assert!(
            len > 0 && len <= parameters.max_burst_length,
            "MaxBurstLength"
        );
        let end = offset.checked_add(len).expect("within the command");
        assert!(end <= open.data_len, "the R2T asks for more than there is");
        assert!(open.grants.len() < usize::from(parameters.max_outstanding_r2t));
        open.r2t_end = end;
        let transfer_tag = wire::word(&bhs, 20);
        open.grants.push(Grant {
            transfer_tag,
            next: offset,
            end,
            data_sn: 0,
        });
    }

    fn check(&self) {
        let open = self.open.len() + self.functions.len();
        let known = open..=open + self.others_max;
        assert!(self.closed.is_some() || known.contains(&self.machine.tasks_len()));
        assert!(self.open.len() <= usize::from(self.config.tasks_max));
        assert!(self.closed.is_none() || !self.machine.wants_read());
    }

    /// The next PDU to send and its payload.
    pub(crate) fn transmit(&mut self) -> Option<(Transmit, Vec<u8>)> {
        let transmit = self.machine.poll_transmit()?;
        assert_eq!(self.closed, None, "nothing is sent after the end");
        self.log.push(Seen::Sent(transmit.clone()));
        let bhs = &transmit.header;
        let parameters = self.machine.parameters().clone();
        let most = match wire::opcode(bhs) {
            0x03 => 8192,
            _ => parameters.max_send_data_segment_length,
        };
        assert!(
            wire::length(bhs) <= most,
            "the target's MaxRecvDataSegmentLength"
        );
        assert_eq!(wire::length(bhs) as usize, transmit.data_len());
        match wire::opcode(bhs) {
            0x01 => self.send_command(bhs, &parameters),
            0x05 => self.send_data_out(bhs),
            _ => {}
        }
        let data = match &transmit.data {
            TransmitData::None => Vec::new(),
            TransmitData::Inline(data) => data.clone(),
            TransmitData::Task { task, offset, len } => {
                let open = self.find(*task).expect("data of an open command");
                assert_eq!(open.direction, Direction::Write);
                open.buffer[*offset as usize..][..*len as usize].to_vec()
            }
        };
        Some((transmit, data))
    }

    fn send_command(&mut self, bhs: &[u8; 48], parameters: &SessionParameters) {
        let max_cmd_sn = self.max_cmd_sn;
        let open = self
            .open
            .iter_mut()
            .find(|open| tag(open.task) == wire::word(bhs, 16));
        let open = open.expect("a command that is open");
        assert!(!std::mem::replace(&mut open.sent, true), "it is sent once");
        assert_eq!(wire::word(bhs, 24), open.cmd_sn);
        assert!(!wire::before(max_cmd_sn, open.cmd_sn), "beyond the window");
        assert_eq!(wire::word(bhs, 20), open.data_len);
        let len = wire::length(bhs);
        assert!(len == 0 || (parameters.immediate_data && open.direction == Direction::Write));
        let more = bhs[1] & 0x80 == 0;
        let end = match more {
            true => open.data_len.min(parameters.first_burst_length),
            false => len,
        };
        assert!(!more || (!parameters.initial_r2t && end > len));
        assert!(len <= open.data_len.min(parameters.first_burst_length));
        open.unsolicited = (len, end);
    }

    fn send_data_out(&mut self, bhs: &[u8; 48]) {
        let (transfer_tag, offset, len) =
            (wire::word(bhs, 20), wire::word(bhs, 40), wire::length(bhs));
        let open = self
            .open
            .iter_mut()
            .find(|open| tag(open.task) == wire::word(bhs, 16));
        let open = open.expect("Data-Out of an open command");
        assert!(open.sent && len > 0);
        let is_final = bhs[1] & 0x80 != 0;
        let data_sn = wire::word(bhs, 36);
        if transfer_tag == u32::MAX {
            let (next, end) = open.unsolicited;
            assert!(
                offset == next && offset + len <= end,
                "unsolicited data in its bounds"
            );
            assert_eq!(
                (data_sn, is_final),
                (open.unsolicited_sn, offset + len == end)
            );
            open.unsolicited.0 += len;
            open.unsolicited_sn += 1;
            return;
        }
        let mut grants = open.grants.iter_mut();
        let fits = |grant: &Grant| grant.transfer_tag == transfer_tag && grant.next == offset;
        let at = grants
            .position(|grant| fits(grant))
            .expect("an R2T asked for it");
        let grant = &mut open.grants[at];
        assert!(offset + len <= grant.end, "beyond what the R2T asked for");
        assert_eq!(
            (data_sn, is_final),
            (grant.data_sn, offset + len == grant.end)
        );
        grant.next += len;
        grant.data_sn += 1;
        if is_final {
            open.grants.remove(at);
        }
    }

    /// Submits a command, if the machine takes one.
    pub(crate) fn submit(
        &mut self,
        cdb: &[u8],
        direction: Direction,
        data_len: u32,
        data: Vec<u8>,
    ) -> Option<TaskId> {
        let could = self.machine.can_submit();
        let command = OutgoingCommand {
            lun: LunField(0),
            cdb,
            attribute: 1,
            direction,
            data_len,
            asks_stage_times: asks_stage_times(data_len),
        };
        let result = self.machine.submit(command);
        let Ok(task) = result else {
            assert!(!could, "{result:?}");
            return None;
        };
        assert!(could && !self.open.iter().any(|open| open.task == task));
        let parameters = self.machine.parameters();
        let writes = direction == Direction::Write;
        let first = if writes {
            data_len.min(parameters.first_burst_length)
        } else {
            0
        };
        let immediate = match parameters.immediate_data {
            true => first.min(parameters.max_send_data_segment_length),
            false => 0,
        };
        let r2t_end = if parameters.initial_r2t {
            immediate
        } else {
            first
        };
        self.open.push(Open {
            task,
            direction,
            data_len,
            cmd_sn: self.next_cmd_sn,
            sent: false,
            buffer: data,
            received: 0,
            unsolicited: (0, 0),
            unsolicited_sn: 0,
            grants: Vec::new(),
            r2t_end,
        });
        self.next_cmd_sn = self.next_cmd_sn.wrapping_add(1);
        Some(task)
    }

    pub(crate) fn abort(&mut self, at: usize) {
        if let Ok(task) = self.machine.abort(self.open[at].task) {
            self.functions.push(task);
        }
    }

    pub(crate) fn task_management(&mut self, function: u8) {
        if let Ok(task) = self.machine.task_management(function, LunField(0)) {
            self.functions.push(task);
        }
    }

    pub(crate) fn discover(&mut self) {
        self.others_max += usize::from(self.machine.discover().is_ok());
    }

    pub(crate) fn logout(&mut self) {
        self.others_max += usize::from(self.machine.logout().is_ok());
    }

    pub(crate) fn ping(&mut self) {
        self.machine.ping(self.now, 1_000);
        self.others_max += 1;
    }

    pub(crate) fn wait(&mut self, ns: u64) {
        self.now = self.now.saturating_add(ns);
        self.machine.handle_timeout(self.now);
        self.follow_events();
    }

    /// Sends all that is ready and ends the connection: nothing comes after that.
    pub(crate) fn finish(&mut self) {
        assert!(
            held(&self.machine) < HELD_MAX,
            "{} held",
            held(&self.machine)
        );
        while self.transmit().is_some() {}
        self.machine.fail(Error::NoSuchTask);
        self.follow_events();
        assert!(self.closed.is_some(), "fail() closes");
        assert!(self.machine.poll_transmit().is_none() && self.machine.poll_event().is_none());
    }
}

/// The most that a machine with the limits of these targets may hold, written out.
const HELD_MAX: usize = 2 << 20;

impl Side for InitiatorSide {
    fn frame_limits(&self) -> FrameLimits {
        self.machine.frame_limits()
    }

    fn wants_read(&self) -> bool {
        self.machine.wants_read()
    }

    fn receive(&mut self, bhs: &[u8; 48], ahs: &[u8], data: RxData<'_>) {
        (self.received, self.fresh, self.placing) = (*bhs, true, None);
        self.machine.receive(self.now, bhs, ahs, data);
    }

    fn fail(&mut self, error: Error) {
        self.machine.fail(error);
    }

    fn follow_events(&mut self) {
        let was_logged_in = self.logged_in.is_some();
        let events: Vec<InitiatorEvent> =
            std::iter::from_fn(|| self.machine.poll_event()).collect();
        let closes = self.closed.is_some()
            || events
                .iter()
                .any(|event| matches!(event, InitiatorEvent::Closed(_)));
        if std::mem::take(&mut self.fresh) && was_logged_in && !closes {
            self.take_window();
            if wire::opcode(&self.received) == 0x31 {
                self.take_r2t();
            }
        }
        for event in events {
            self.take_event(&event);
            self.log.push(Seen::Event(event));
        }
        self.check();
    }

    fn take_payload(&mut self, payload: &[u8]) {
        let Some((task, offset, len)) = self.placing.take() else {
            return;
        };
        let done = self.done.iter_mut().map(|(open, _)| open);
        let mut open = self.open.iter_mut().chain(done);
        if let Some(open) = open.find(|open| open.task == task) {
            open.buffer.resize(offset as usize, 0);
            open.buffer.extend_from_slice(&payload[..len as usize]);
        }
    }
}
