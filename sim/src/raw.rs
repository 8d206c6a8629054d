//! A bare iSCSI session that sends single commands and task management functions in ways no volume does. It neither
//! times out nor recovers; when it breaks, every waiter fails.

use std::{cell::RefCell, collections::BTreeMap, net::SocketAddr, rc::Rc};

use engine::{Buf, Gather, Payload, net::TcpStream, spawn, sync::Notify};
use iscsi::{
    Direction, InitiatorConfig, InitiatorConnection, InitiatorEvent, LunField, OutgoingCommand,
    RxData, TaskId, TaskResult,
};
use iscsi_stream::Receiver;

use crate::site::Site;

const LUN: LunField = LunField(0);

/// The attribute ORDERED (RFC 7143 §11.3.1).
pub const ORDERED: u8 = 2;
/// HEAD OF QUEUE.
pub const HEAD_OF_QUEUE: u8 = 3;
/// ABORT TASK SET (RFC 7143 §11.5.1).
pub const ABORT_TASK_SET: u8 = 2;
/// CLEAR TASK SET.
pub const CLEAR_TASK_SET: u8 = 4;
/// LOGICAL UNIT RESET.
pub const LOGICAL_UNIT_RESET: u8 = 5;
/// TARGET WARM RESET.
pub const TARGET_WARM_RESET: u8 = 6;

/// A session from its login on.
pub struct RawSession {
    stream: TcpStream,
    state: RefCell<State>,
    transmit: Notify,
    changed: Notify,
}

struct State {
    machine: InitiatorConnection,
    data_out: BTreeMap<TaskId, Payload>,
    data_in: BTreeMap<TaskId, Vec<u8>>,
    done: BTreeMap<TaskId, TaskResult>,
    ended: Vec<TaskId>,
    answered: BTreeMap<TaskId, u8>,
    logged_in: bool,
    over: bool,
}

/// The outcome of a command: its SCSI status, sense key, code and qualifier, and its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Status byte; `None`: aborted.
    pub status: Option<u8>,
    /// Sense key, additional sense code and qualifier; zeroes when there are none.
    pub sense: [u8; 3],
    /// Data-in.
    pub data: Vec<u8>,
}

/// The session is over: it broke, or the target ended it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Over;

impl RawSession {
    /// Connects and logs in.
    pub async fn login(addr: SocketAddr, config: InitiatorConfig) -> Result<Rc<RawSession>, Over> {
        let stream = TcpStream::connect(addr).await.map_err(|_| Over)?;
        let session = Rc::new(RawSession {
            stream,
            state: RefCell::new(State {
                machine: InitiatorConnection::new(config),
                data_out: BTreeMap::new(),
                data_in: BTreeMap::new(),
                done: BTreeMap::new(),
                ended: Vec::new(),
                answered: BTreeMap::new(),
                logged_in: false,
                over: false,
            }),
            transmit: Notify::new(),
            changed: Notify::new(),
        });
        spawn(send(session.clone()));
        let reading = session.clone();
        spawn(async move {
            let _ = receive(&reading).await;
            reading.end();
        });
        session.wait(|state| state.logged_in.then_some(())).await?;
        Ok(session)
    }

    /// Logs in to target `index` of a running site, as the initiator called `name`.
    pub async fn login_as(site: &Site, index: usize, name: &str) -> Rc<RawSession> {
        let target = &site.targets[index];
        RawSession::login_at(site.iscsi(index).address, &target.iqn, name).await
    }

    /// Logs in to a target by name, at a portal that is up.
    pub async fn login_at(portal: SocketAddr, target: &str, name: &str) -> Rc<RawSession> {
        let name = format!("iqn.2026-11.io.sanstone:{name}");
        let config = InitiatorConfig::new(name, Some(target.to_owned()));
        let session = RawSession::login(portal, config).await;
        session.expect("a healthy target lets us in")
    }

    /// Sends a SIMPLE command that writes `data_out` or reads `in_len` bytes.
    pub fn submit(&self, cdb: &[u8], data_out: &[u8], in_len: u32) -> Result<TaskId, Over> {
        self.submit_as(1, cdb, data_out, in_len)
    }

    /// Sends a command with this task attribute (RFC 7143 §11.3.1).
    pub fn submit_as(
        &self,
        attribute: u8,
        cdb: &[u8],
        data_out: &[u8],
        in_len: u32,
    ) -> Result<TaskId, Over> {
        let (direction, data_len) = match (data_out.len(), in_len) {
            (0, 0) => (Direction::None, 0),
            (0, len) => (Direction::Read, len),
            (len, _) => (Direction::Write, len as u32),
        };
        let command = OutgoingCommand {
            lun: LUN,
            cdb,
            attribute,
            direction,
            data_len,
            asks_stage_times: false,
        };
        let mut state = self.state.borrow_mut();
        let task = state.machine.submit(command).map_err(|_| Over)?;
        if !data_out.is_empty() {
            let payload = Buf::copy_of(data_out).into();
            state.data_out.insert(task, payload);
        }
        state.data_in.insert(task, vec![0; in_len as usize]);
        drop(state);
        self.transmit.notify();
        Ok(task)
    }

    /// Waits for the end of a command.
    pub async fn answer(&self, task: TaskId) -> Result<Answer, Over> {
        let result = self.wait(|state| state.done.remove(&task)).await?;
        let mut state = self.state.borrow_mut();
        state.data_out.remove(&task);
        let data = state.data_in.remove(&task).unwrap_or_default();
        let (status, sense) = match result {
            TaskResult::Completed { status, sense, .. } => (Some(status), sense),
            _ => (None, Vec::new()),
        };
        let byte = |index: usize| sense.get(index).copied().unwrap_or(0);
        Ok(Answer {
            status,
            sense: [byte(2) & 0xf, byte(12), byte(13)],
            data,
        })
    }

    /// The commands that have ended since this was last asked, in the order of their answers.
    pub fn ended(&self) -> Vec<TaskId> {
        std::mem::take(&mut self.state.borrow_mut().ended)
    }

    /// Sends a command and waits for its end, repeating it past unit attentions.
    pub async fn execute(&self, cdb: &[u8], data_out: &[u8], in_len: u32) -> Result<Answer, Over> {
        const UNIT_ATTENTION: u8 = 6;
        loop {
            let task = self.submit(cdb, data_out, in_len)?;
            let answer = self.answer(task).await?;
            if answer.sense[0] != UNIT_ATTENTION {
                return Ok(answer);
            }
        }
    }

    /// Sends ABORT TASK for `task` and waits for the response code.
    pub async fn abort(&self, task: TaskId) -> Result<u8, Over> {
        let function = self.state.borrow_mut().machine.abort(task);
        let function = function.map_err(|_| Over)?;
        self.transmit.notify();
        self.wait(|state| state.answered.remove(&function)).await
    }

    /// Sends a task management function for the disk and waits for the response code.
    pub async fn task_management(&self, function: u8) -> Result<u8, Over> {
        let task = self.submit_function(function)?;
        self.response(task).await
    }

    /// Sends a task management function for the disk.
    pub fn submit_function(&self, function: u8) -> Result<TaskId, Over> {
        let machine = &mut self.state.borrow_mut().machine;
        let task = machine.task_management(function, LUN).map_err(|_| Over)?;
        self.transmit.notify();
        Ok(task)
    }

    /// Waits for the response code of a task management function.
    pub async fn response(&self, task: TaskId) -> Result<u8, Over> {
        self.wait(|state| state.answered.remove(&task)).await
    }

    /// Ends the session without a logout.
    pub fn end(&self) {
        self.state.borrow_mut().over = true;
        self.stream.shutdown();
        self.transmit.notify();
        self.changed.notify();
    }

    async fn wait<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> Result<T, Over> {
        self.changed
            .wait_for(|| {
                let mut state = self.state.borrow_mut();
                match look(&mut state) {
                    Some(found) => Some(Ok(found)),
                    None => state.over.then_some(Err(Over)),
                }
            })
            .await
    }
}

async fn send(session: Rc<RawSession>) {
    let mut gather = Gather::new();
    loop {
        let notified = session.transmit.notified();
        {
            let mut state = session.state.borrow_mut();
            if state.over {
                return;
            }
            while let Some(pdu) = state.machine.poll_transmit() {
                let data_of = |task| state.data_out.get(&task);
                iscsi_stream::push(&mut gather, &pdu, data_of).expect("a command of ours");
            }
        }
        if gather.is_empty() {
            notified.await;
            continue;
        }
        let (result, back) = session.stream.send_all(gather).await;
        gather = back;
        if result.is_err() {
            return session.end();
        }
    }
}

/// Reads until the session is over.
async fn receive(session: &RawSession) -> iscsi_stream::ReceiveResult<()> {
    let mut receiver = Receiver::new(session.stream.clone(), 128 << 10);
    loop {
        let limits = session.state.borrow().machine.frame_limits();
        let (header, ahs, data) = receiver.next_whole(&limits).await?;
        let mut state = session.state.borrow_mut();
        let now = engine::time::now().as_ns();
        state
            .machine
            .receive(now, header, ahs, RxData::Inline(data));
        while let Some(event) = state.machine.poll_event() {
            match event {
                InitiatorEvent::LoggedIn { .. } => state.logged_in = true,
                InitiatorEvent::DataIn { task, offset, len } => {
                    let range = offset as usize..(offset + len) as usize;
                    let place = state.data_in.get_mut(&task);
                    place.expect("data of a command of ours")[range].copy_from_slice(data);
                }
                InitiatorEvent::Done { task, result } => {
                    state.done.insert(task, result);
                    state.ended.push(task);
                }
                InitiatorEvent::TaskManagementDone { task, response } => {
                    state.answered.insert(task, response);
                }
                InitiatorEvent::Closed(_) => state.over = true,
                _ => {}
            }
        }
        let over = state.over;
        drop(state);
        session.changed.notify();
        session.transmit.notify();
        if over {
            return Ok(());
        }
    }
}

/// CDB and parameter list of PERSISTENT RESERVE OUT: `action` with a type, a key, and a service action
/// key, of one byte each.
pub fn reserve_out(action: u8, kind: u8, key: u8, new_key: u8) -> ([u8; 10], [u8; 24]) {
    let mut list = [0; 24];
    (list[7], list[15]) = (key, new_key);
    ([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

/// PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY with APTPL: the unit keeps `key` for this initiator through
/// a loss of power.
pub async fn register_lasting(session: &RawSession, key: u8) {
    past_attentions(session).await;
    let mut list = [0; 24];
    (list[15], list[20]) = (key, 1);
    let cdb = [0x5F, 6, 0, 0, 0, 0, 0, 0, 24, 0];
    let answer = session.execute(&cdb, &list, 0).await.expect("an answer");
    assert_eq!(answer.status, Some(0));
}

/// The registered keys that PERSISTENT RESERVE IN reports, one byte each.
pub async fn registered_keys(session: &RawSession) -> Vec<u8> {
    past_attentions(session).await;
    let cdb = [0x5E, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    let reply = session.execute(&cdb, &[], 256).await.expect("a reply");
    let len = usize::from(reply.data[7]);
    reply.data[8..8 + len].chunks(8).map(|key| key[7]).collect()
}

/// Consumes the first unit attentions, such as the power-on.
async fn past_attentions(session: &RawSession) {
    session.execute(&[0; 6], &[], 0).await.expect("an answer");
}
