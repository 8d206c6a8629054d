//! The connections of a [`Foreign`] target: our protocol machine under the simplest possible driver, which answers
//! each command at once.

use std::{collections::BTreeMap, ops::Range, rc::Rc};

use engine::{
    Buf, Duration, Gather, Payload,
    net::{TcpListener, TcpStream},
    spawn, time,
};
use iscsi::{
    AsyncMessage, CommandRequest, LoginStatus, Outcome, RxData, TargetConfig, TargetConnection,
    TargetEvent, TaskId,
};
use iscsi_stream::Receiver;
use scsi::NexusId;

use super::{AtLogin, Foreign, Instead, Response};

/// The tag of a portal group of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(pub u16);

/// A connection of the target.
struct PortalConnection {
    machine: TargetConnection,
    foreign: Rc<Foreign>,
    group: Group,
    nexus: NexusId,
    writes: BTreeMap<TaskId, (CommandRequest, Vec<u8>)>,
    reads: BTreeMap<TaskId, Payload>,
    /// Raw bytes to send before the replies.
    raw: Vec<u8>,
    /// Delay before the replies are sent.
    wait: Duration,
    overtaken: Option<TaskId>,
    /// The frozen MaxCmdSN, once the command window is shut.
    shut: Option<[u8; 4]>,
    /// What would be the response to a command is a Reject.
    rejects: bool,
    is_over: bool,
}

impl Foreign {
    /// Serves the disk to all connections, for as long as the lane runs.
    pub fn serve(self: &Rc<Self>, listener: TcpListener, group: Group) {
        let foreign = self.clone();
        spawn(async move {
            while let Ok(stream) = listener.accept().await {
                foreign.connections.borrow_mut().push(stream.clone());
                let foreign = foreign.clone();
                foreign.accepted.set(foreign.accepted.get() + 1);
                let nexus = NexusId(foreign.accepted.get());
                spawn(async move {
                    foreign.connected.set(foreign.connected.get() + 1);
                    serve(&stream, foreign.clone(), (group, nexus)).await;
                    stream.shutdown();
                    if let Some(reservations) = &mut *foreign.reservations.borrow_mut() {
                        reservations.end(nexus, group);
                    }
                    foreign.connected.set(foreign.connected.get() - 1);
                });
            }
        });
    }
}

async fn serve(stream: &TcpStream, foreign: Rc<Foreign>, (group, nexus): (Group, NexusId)) {
    let mut receiver = Receiver::new(stream.clone(), 1 << 20);
    let mut config = TargetConfig::default();
    // So that it asks for a long write's data more than once.
    config.operational.max_burst_length = 256 << 10;
    let mut connection = PortalConnection {
        machine: TargetConnection::new(config),
        foreign,
        group,
        nexus,
        writes: BTreeMap::new(),
        reads: BTreeMap::new(),
        raw: Vec::new(),
        wait: Duration::ZERO,
        overtaken: None,
        shut: None,
        rejects: false,
        is_over: false,
    };
    loop {
        let limits = connection.machine.frame_limits();
        match receiver.next_whole(&limits).await {
            Ok((header, ahs, data)) => connection.receive(header, ahs, data),
            Err(iscsi_stream::ReceiveError::Protocol(error)) => panic!("no right PDU: {error}"),
            Err(_) => return,
        }
        time::sleep(std::mem::take(&mut connection.wait)).await;
        let sent = stream.send_all(connection.replies()).await.0;
        if connection.is_over || sent.is_err() {
            return;
        }
    }
}

impl PortalConnection {
    fn receive(&mut self, bhs: &[u8; 48], ahs: &[u8], data: &[u8]) {
        self.machine.receive(0, bhs, ahs, RxData::Inline(data));
        while let Some(event) = self.machine.poll_event() {
            match event {
                TargetEvent::LoginRequest(_) => self.log_in(),
                TargetEvent::SessionRequest(who) => {
                    if let Some(reservations) = &mut *self.foreign.reservations.borrow_mut() {
                        let isid = who.isid.0.map(|byte| format!("{byte:02x}")).concat();
                        let port = format!("{},i,0x{isid}", who.initiator_name);
                        reservations.begin(self.nexus, self.group, &port);
                    }
                    self.machine.login_accept(1).expect("a login is open");
                    self.foreign.logins.set(self.foreign.logins.get() + 1);
                }
                TargetEvent::AuthenticationFailed { .. } => {
                    let status = LoginStatus::AUTHENTICATION_FAILURE;
                    let rejected = self.machine.login_reject(status, None);
                    rejected.expect("a login is open");
                }
                TargetEvent::Command(command) => {
                    let (task, write_len) = (command.task, command.write_len);
                    let mut written = data[..command.immediate_len as usize].to_vec();
                    written.resize(write_len as usize, 0);
                    self.writes.insert(task, (command, written));
                    match write_len {
                        0 => self.execute(task),
                        _ => self.machine.solicit(task, write_len).expect("it is open"),
                    }
                }
                TargetEvent::DataOut { task, offset, len } => {
                    let place = offset as usize..(offset + len) as usize;
                    let (_, written) = self.writes.get_mut(&task).expect("it is open");
                    written[place].copy_from_slice(&data[..len as usize]);
                }
                TargetEvent::DataComplete { task } => self.execute(task),
                TargetEvent::TaskManagement(request) => self.manage(request.task, request.function),
                TargetEvent::Logout { .. } => {
                    self.machine.logout_response(0).expect("it was asked for");
                }
                TargetEvent::Closed(_) => self.is_over = true,
                _ => {}
            }
        }
    }

    fn log_in(&mut self) {
        self.foreign.attempts.set(self.foreign.attempts.get() + 1);
        let mut porter = self.foreign.at_login.borrow_mut();
        let at_login = porter.as_mut().map(|porter| porter(self.group));
        let answered = match at_login.unwrap_or(AtLogin::LetIn) {
            AtLogin::LetIn => self.machine.login_continue(self.group.0),
            AtLogin::LetInAt(Group(tag)) => self.machine.login_continue(tag),
            AtLogin::Refuse(status) => self.machine.login_reject(status, None),
            AtLogin::Redirect(address) => {
                let status = LoginStatus::MOVED_TEMPORARILY;
                self.machine.login_reject(status, Some(&address))
            }
            AtLogin::Move(address) => {
                let status = LoginStatus::MOVED_PERMANENTLY;
                self.machine.login_reject(status, Some(&address))
            }
        };
        answered.expect("a login is open");
    }

    fn manage(&mut self, task: TaskId, function: u8) {
        const ABORT_TASK: u8 = 1;
        const LOGICAL_UNIT_RESET: u8 = 5;
        const NO_SUCH_TASK: u8 = 1;
        const NOT_SUPPORTED: u8 = 5;
        let foreign = &self.foreign;
        let response = match function {
            LOGICAL_UNIT_RESET => foreign.reset_response.get(),
            // It has taken up only what has its data, and that has ended.
            ABORT_TASK => NO_SUCH_TASK,
            _ => NOT_SUPPORTED,
        };
        if function == LOGICAL_UNIT_RESET {
            foreign.resets.set(foreign.resets.get() + 1);
            if foreign.ignores_resets.get() {
                return;
            }
            if response == 0 {
                foreign.late.borrow_mut().clear();
                foreign.reset_is_pending.set(true);
            }
        }
        let answered = self.machine.task_management_response(task, response);
        answered.expect("it is open");
    }

    fn execute(&mut self, task: TaskId) {
        let (command, written) = self.writes.remove(&task).expect("it is open");
        let foreign = self.foreign.clone();
        if command.cdb[0] != scsi::opcode::INQUIRY {
            let attention = foreign.attentions.borrow_mut().remove(&self.group.0);
            if let Some(sense) = attention {
                return self.answer(task, Response::check_condition(sense));
            }
        }
        if let Some(answer) = foreign.access_of(self.group, &command.cdb) {
            return self.answer(task, answer);
        }
        let (nexus, group) = (self.nexus, self.group);
        let reserved = || {
            let mut reservations = foreign.reservations.borrow_mut();
            let reservations = reservations.as_mut()?;
            reservations.answer(nexus, group, &command.cdb, &written)
        };
        let execute = || reserved().unwrap_or_else(|| foreign.execute(&command.cdb, &written));
        let answer = match foreign.instead(&command.cdb) {
            None => execute(),
            Some(Instead::Sense(sense)) => Response::check_condition(sense),
            Some(Instead::SlowSense(wait, sense)) => {
                self.wait += wait;
                Response::check_condition(sense)
            }
            Some(Instead::Status(status)) => Response::status(status),
            Some(Instead::Reply {
                status,
                sense,
                data,
            }) => Response {
                status,
                sense,
                ..Response::with(&data)
            },
            Some(Instead::Changed { len, at, bytes }) => {
                let mut data = execute().data;
                data.truncate(len);
                let places = data.iter_mut().skip(at);
                places.zip(bytes).for_each(|(place, byte)| *place = byte);
                Response::with(&data)
            }
            Some(Instead::Slow(wait)) => {
                self.wait += wait;
                execute()
            }
            Some(Instead::Overtaken) if self.overtaken.is_none() => {
                self.writes.insert(task, (command, written));
                self.overtaken = Some(task);
                return;
            }
            Some(Instead::Overtaken) => execute(),
            Some(Instead::Shut) => {
                self.shut.get_or_insert([0; 4]);
                execute()
            }
            Some(Instead::After(bytes)) => {
                self.raw.extend_from_slice(&bytes);
                execute()
            }
            Some(Instead::AskForLogout) => {
                self.answer(task, execute());
                let message = AsyncMessage::LogoutRequest { within_s: 2 };
                return self.machine.async_message(message);
            }
            Some(Instead::RejectAsDamaged) => {
                (self.rejects, self.is_over) = (true, true);
                Response::status(0)
            }
            Some(Instead::Drop) => {
                self.is_over = true;
                return;
            }
            Some(Instead::Late) => {
                if !written.is_empty() {
                    let (lba, _) = super::lba_and_blocks(&command.cdb);
                    foreign.late.borrow_mut().push((lba, written));
                }
                return foreign.changed.notify();
            }
        };
        self.answer(task, answer);
        if let Some(overtaken) = self.overtaken.take() {
            let (command, written) = self.writes.remove(&overtaken).expect("it was put back");
            let answer = foreign.execute(&command.cdb, &written);
            self.answer(overtaken, answer);
        }
    }

    fn answer(&mut self, task: TaskId, answer: Response) {
        let outcome = Outcome {
            status: answer.status,
            sense: &answer.sense,
            transfer_len: answer.transfer_len,
        };
        let len = answer.data.len() as u32;
        self.reads.insert(task, Buf::copy_of(&answer.data).into());
        let answered = self.machine.data_in(task, len, Some(outcome));
        answered.expect("it is open");
    }

    /// Collects what is to be sent.
    fn replies(&mut self) -> Gather {
        const MAX_CMD_SN: Range<usize> = 32..36;
        let mut gather = Gather::new();
        gather.push_bytes(&std::mem::take(&mut self.raw));
        while let Some(mut pdu) = self.machine.poll_transmit() {
            if self.rejects {
                gather.push_bytes(&rejection(&pdu.header));
                break;
            }
            let max_cmd_sn = &mut pdu.header[MAX_CMD_SN];
            match &mut self.shut {
                Some([0, 0, 0, 0]) => {
                    let now = *max_cmd_sn.first_chunk().expect("four bytes");
                    self.shut = Some(now);
                }
                Some(shut) => max_cmd_sn.copy_from_slice(shut),
                None => {}
            }
            let data_of = |task| self.reads.get(&task);
            iscsi_stream::push(&mut gather, &pdu, data_of).expect("it is open");
        }
        gather
    }
}

/// The Reject of the command whose response would have this header, for a data digest error (RFC 7143 §11.17).
fn rejection(response: &[u8; 48]) -> [u8; 96] {
    const TAG: Range<usize> = 16..20;
    const NUMBERS: Range<usize> = 24..36;
    const DATA_DIGEST_ERROR: u8 = 2;
    let mut pdu = [0; 96];
    (pdu[0], pdu[1], pdu[2], pdu[7]) = (0x3f, 0x80, DATA_DIGEST_ERROR, 48);
    pdu[TAG].fill(0xff);
    pdu[NUMBERS].copy_from_slice(&response[NUMBERS]);
    let refused = &mut pdu[48..];
    refused[0] = 0x01;
    refused[TAG].copy_from_slice(&response[TAG]);
    pdu
}
