//! One connection on its lane: what it knows, its reader, and its end.
//!
//! The reader frames what arrives, hands each PDU to the protocol machine and acts on its events;
//! payload goes from the socket into the command's own memory. The [`writer`](crate::writer)
//! sends what the machine has ready. Commands run as tasks of their own.

use std::{
    cell::{Cell, RefCell},
    io::ErrorKind,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
};

use engine::{
    Duration, Instant,
    net::{FramedReader, TcpStream},
    spawn, spend,
    sync::{Notify, Permit},
    time,
};
use iscsi::{
    CloseReason, LoginStatus, OperationalConfig, RxData, TargetConfig, TargetConnection,
    TargetEvent, TaskId, frame::frame,
};
use smallvec::SmallVec;

use crate::{
    command,
    front::{Front, Newcomer, Target},
    introduction::Introductions,
    login,
    medium::Steps,
    memory::{SessionMemory, WINDOW_STEP},
    notices::{Notice, Suppressed},
    open::{Mark, OpenCommands, RunningId},
    rest::{Rest, require},
    sessions::SessionKey,
    stages::{Counted, Sent},
    task_management, watchdog, writer,
};

/// Headers and small payloads are received through a buffer of this length, in bytes.
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// Before login: a Login Request of the longest text.
const LOGIN_BUFFER_BYTES: usize = 16 << 10;
/// What it costs to act on a PDU, in bytes moved.
const PDU_COST_BYTES: usize = 8 << 10;
/// What the last word may take on its way out.
const LAST_WORD_TIME: Duration = Duration::from_millis(100);

/// Why a connection is over.
#[derive(Debug)]
enum Ending {
    /// The initiator has logged out.
    Logout,
    /// It has been sent away, and the log told.
    Refused,
    /// What else became of it.
    Lost(String),
}

pub(crate) struct Connection {
    /// Also the number of its I_T nexus: never used again.
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    /// The portal's address as the peer knows it.
    pub(crate) local: SocketAddr,
    pub(crate) front: Rc<Front>,
    pub(crate) stream: TcpStream,
    pub(crate) machine: RefCell<TargetConnection>,
    pub(crate) open: OpenCommands,
    pub(crate) introductions: Introductions,
    /// What this session counts, by LUN.
    stages: RefCell<Vec<(u32, Arc<Counted>)>>,
    pub(crate) memory: SessionMemory,
    pub(crate) steps: Steps,
    /// What pays for the width of its command window.
    windows: RefCell<Vec<Permit>>,
    /// The machine may have something to send.
    pub(crate) transmit: Notify,
    /// Something was sent.
    pub(crate) sent: Notify,
    pub(crate) key: RefCell<Option<SessionKey>>,
    /// When the send in progress began.
    pub(crate) sending_since: Cell<Option<Instant>>,
    /// InitiatorName, once it is known.
    pub(crate) initiator: RefCell<String>,
    target: RefCell<Option<Rc<Target>>>,
    logged_in: Cell<bool>,
    pub(crate) last_heard: Cell<Instant>,
    /// A PDU has reached the machine, and its payload is not all in its place yet.
    is_receiving: Cell<bool>,
    /// Send what is ready, then end.
    closing: Cell<bool>,
    /// Take no further commands.
    finishing: Cell<bool>,
    ended: Cell<bool>,
    /// What ended it first, for the log.
    ending: RefCell<Option<Ending>>,
    /// All its I/O has ended as well.
    gone: Cell<bool>,
    changed: Notify,
}

/// Serves one connection from its first byte to the end of its last I/O.
pub(crate) async fn serve(connection: Rc<Connection>) {
    let (id, peer) = (connection.id, connection.peer);
    tracing::debug!(%peer, id, "connected");
    spawn(writer::run(connection.clone()));
    spawn(watchdog::watch(connection.clone()));
    let reason = connection.read().await;
    tracing::debug!(%peer, id, reason, "reading ended");
    connection.close_when_sent();
    connection.over().await;
    connection.leave().await;
}

impl Connection {
    /// A connection that the front knows, to be [served](serve).
    pub(crate) fn begin(front: Rc<Front>, newcomer: Newcomer) -> Rc<Connection> {
        let connection = Rc::new(Connection::new(front.clone(), newcomer));
        let known = connection.clone();
        front.connections.borrow_mut().insert(known.id, known);
        connection
    }

    fn new(front: Rc<Front>, newcomer: Newcomer) -> Self {
        let Newcomer {
            id,
            peer,
            local,
            stream,
        } = newcomer;
        let limits = &front.limits;
        let config = TargetConfig {
            operational: OperationalConfig {
                header_digest: front.digests,
                data_digest: front.digests,
                max_recv_data_segment_length: limits.data_segment_max_bytes,
                ..OperationalConfig::default()
            },
            command_window: limits.command_window,
            command_window_first: WINDOW_STEP,
            text_len_max: limits.text_max_bytes,
            ..TargetConfig::default()
        };
        Connection {
            id,
            peer,
            local,
            machine: RefCell::new(TargetConnection::new(config)),
            memory: SessionMemory::new(&front.memory),
            steps: Steps::of_session(&front.steps),
            windows: RefCell::default(),
            stream: stream.on_lane(),
            open: OpenCommands::default(),
            introductions: Introductions::default(),
            stages: RefCell::default(),
            transmit: Notify::new(),
            sent: Notify::new(),
            key: RefCell::default(),
            sending_since: Cell::default(),
            initiator: RefCell::default(),
            target: RefCell::default(),
            logged_in: Cell::new(false),
            last_heard: Cell::new(time::now()),
            is_receiving: Cell::new(false),
            closing: Cell::new(false),
            finishing: Cell::new(front.stopping.get()),
            ended: Cell::new(false),
            ending: RefCell::new(None),
            gone: Cell::new(false),
            changed: Notify::new(),
            front,
        }
    }

    /// The target of the session, once the initiator has named it.
    pub(crate) fn target(&self) -> Option<Rc<Target>> {
        self.target.borrow().clone()
    }

    pub(crate) fn set_target(&self, target: Rc<Target>) {
        *self.target.borrow_mut() = Some(target);
    }

    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing.get()
    }

    /// Takes no further commands from now on.
    pub(crate) fn set_finishing(&self) {
        self.finishing.set(true);
    }

    pub(crate) fn is_logged_in(&self) -> bool {
        self.logged_in.get()
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.get()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// Ends the connection now. Commands that run go on to their end; nobody hears of them.
    pub(crate) fn end(&self, why: &str) {
        if !self.ended.replace(true) {
            tracing::debug!(peer = %self.peer, id = self.id, why, "connection ends");
            self.note_ending(|| Ending::Lost(why.to_owned()));
            self.stream.shutdown();
            self.changed.notify();
            self.transmit.notify();
            self.sent.notify();
        }
    }

    /// The server stops, and this connection with it.
    pub(crate) fn note_stop(&self) {
        self.note_ending(|| Ending::Lost("the target stops".to_owned()));
    }

    fn note_ending(&self, ending: impl FnOnce() -> Ending) {
        self.ending.borrow_mut().get_or_insert_with(ending);
    }

    /// Ends a connection that has not logged in, with a word to the initiator if it has begun to.
    /// `status` is of class 3: the initiator may come again. (On class 2 Linux gives a session up
    /// for good.)
    pub(crate) fn dismiss(self: &Rc<Self>, status: LoginStatus) {
        if !self.machine.borrow_mut().login_abandon(status) {
            return self.end("it is in nobody's service");
        }
        // Who dismisses it has said why.
        self.note_ending(|| Ending::Refused);
        self.drain_closed();
        self.close_in_time();
    }

    /// Ends the connection once all that is ready has been sent, or soon when it is not taken.
    pub(crate) fn close_in_time(self: &Rc<Self>) {
        self.close_when_sent();
        let connection = self.clone();
        spawn(async move {
            let _ = time::timeout(LAST_WORD_TIME, connection.over()).await;
            connection.end("its last word was not taken");
        });
    }

    /// Waits until the connection has ended; its I/O may go on.
    pub(crate) async fn over(&self) {
        self.changed
            .wait_for(|| self.ended.get().then_some(()))
            .await;
    }

    /// Ends the connection once all that is ready has been sent.
    pub(crate) fn close_when_sent(&self) {
        self.closing.set(true);
        self.transmit.notify();
    }

    /// Waits until the connection has ended and all its I/O too.
    pub(crate) async fn gone(&self) {
        self.changed
            .wait_for(|| self.gone.get().then_some(()))
            .await;
    }

    async fn leave(self: Rc<Self>) {
        let running = self.abort_tasks(None, self.open.mark());
        self.open.wait_ended(&running).await;
        self.open.wait_idle().await;
        for unit in self
            .target()
            .iter()
            .flat_map(|target| target.units.values())
        {
            unit.disk.borrow_mut().forget(scsi::NexusId(self.id));
        }
        // The place first: who waits for this session's end is going to need one.
        self.front.sessions.admission.leave(self.id, time::now());
        for (_, counted) in self.stages.take() {
            self.front.sessions.stages.end(&counted);
        }
        if let Some(key) = self.key.take() {
            self.front.sessions.remove(&key, self.id);
            if let Some(suppressed) = self.may_say(Notice::LoggedOut) {
                let (peer, initiator, target) = (self.peer, key.initiator_name, key.target_name);
                match self.ending.take() {
                    Some(Ending::Lost(why)) => {
                        tracing::info!(%peer, initiator, target, suppressed, "connection lost: {why}");
                    }
                    _ => tracing::info!(%peer, initiator, target, suppressed, "logged out"),
                }
            }
        } else if !self.is_logged_in() {
            login::given_up(&self);
        }
        self.front.connections.borrow_mut().remove(&self.id);
        self.gone.set(true);
        self.changed.notify();
        self.front.changed.notify();
    }

    /// Whether the log takes a line of this kind now.
    pub(crate) fn may_say(&self, notice: Notice) -> Option<Suppressed> {
        self.front.sessions.notices.may_say(notice, time::now())
    }

    /// Counts commands whose answers have been sent just now.
    pub(crate) fn count(&self, sent: &mut Vec<Sent>) {
        let now = time::now();
        let mut stages = self.stages.borrow_mut();
        for command in sent.drain(..) {
            let known = stages.iter().find(|(lun, _)| *lun == command.lun);
            let counted = match known {
                Some((_, counted)) => counted,
                None => {
                    let Some(target) = self.target() else {
                        continue;
                    };
                    let Some(unit) = target.units.get(&command.lun) else {
                        continue;
                    };
                    let (volume, initiator) = (&unit.volume_name, self.initiator.borrow());
                    let counted = self.front.sessions.stages.begin(volume, &initiator);
                    stages.push((command.lun, counted));
                    &stages[stages.len() - 1].1
                }
            };
            counted.record(command.kind, &command.times, now);
        }
    }

    /// Forgets open commands (for one LUN, or all) that came before `mark` without an answer; gives
    /// the I/Os that run for such commands, also those forgotten before.
    pub(crate) fn abort_tasks(&self, lun: Option<u32>, mark: Mark) -> Vec<RunningId> {
        for task in self.open.tasks(lun, mark) {
            self.abort_task(task);
        }
        self.abort_endings(lun, mark);
        self.open.running(|io_lun, task| {
            lun.is_none_or(|lun| lun == io_lun) && !self.open.is_after(task, mark)
        })
    }

    /// Leaves out the answers that wait, to commands (for one LUN, or all) that came before `mark`.
    pub(crate) fn abort_endings(&self, lun: Option<u32>, mark: Mark) {
        for task in self.open.endings(lun, mark) {
            self.abort_task(task);
        }
    }

    /// Forgets a command without an answer; false if it has been answered already.
    pub(crate) fn abort_task(&self, task: TaskId) -> bool {
        self.open.remove(task);
        self.machine.borrow_mut().abort(task).is_ok()
    }

    /// Reads until the connection ends; says why it did.
    async fn read(self: &Rc<Self>) -> &'static str {
        let mut reader = FramedReader::new(self.stream.clone(), LOGIN_BUFFER_BYTES);
        loop {
            let wants_read = || self.machine.borrow().wants_read();
            self.sent
                .wait_for(|| (self.ended.get() || wants_read()).then_some(()))
                .await;
            if self.ended.get() {
                return "ended";
            }
            if self.logged_in.get() {
                reader.reserve(RECEIVE_BUFFER_BYTES);
            }
            let result = self.read_pdu(&mut reader).await;
            self.widen_window();
            self.transmit.notify();
            match result {
                Ok(true) => {}
                Ok(false) => return "the protocol is over",
                Err(error) => {
                    tracing::debug!(peer = %self.peer, %error, "receiving failed");
                    match error.kind() {
                        ErrorKind::UnexpectedEof => self.end("the peer has closed it"),
                        _ => self.end(&error.to_string()),
                    }
                    return "receiving failed";
                }
            }
        }
    }

    /// Gives an initiator that has used up its window a wider one, if there is one to be had.
    fn widen_window(&self) {
        let mut machine = self.machine.borrow_mut();
        let may_be_wider = self.windows.borrow().len() * usize::from(WINDOW_STEP)
            < usize::from(self.front.limits.command_window);
        if may_be_wider && machine.is_window_full() {
            if let Some(permit) = self.front.memory.take_window() {
                machine.widen_window(WINDOW_STEP);
                self.windows.borrow_mut().push(permit);
            }
        }
    }

    /// Takes one PDU; false when it was the last that matters.
    async fn read_pdu(self: &Rc<Self>, reader: &mut FramedReader) -> std::io::Result<bool> {
        require(reader, iscsi::pdu::BHS_LEN).await?;
        spend(PDU_COST_BYTES).await;
        let now = time::turn_began();
        self.last_heard.set(now);
        let limits = self.machine.borrow().frame_limits();
        let pdu = match frame(reader.bytes(), &limits) {
            Ok(Some(pdu)) => pdu,
            Ok(None) => return Ok(true),
            Err(error) => return Ok(self.fail(error)),
        };
        let at_hand = if pdu.payload {
            pdu.data_offset
        } else {
            pdu.total_len
        };
        reader.reserve(at_hand);
        require(reader, at_hand).await?;
        if let Err(error) = pdu.verify_header(reader.bytes()) {
            return Ok(self.fail(error));
        }
        let mut rest = Rest::new(&pdu);
        self.is_receiving.set(true);
        {
            let bytes = reader.bytes();
            let bhs = bytes.first_chunk().expect("48 bytes are at hand");
            let data = if pdu.payload {
                RxData::Length(pdu.data_len as u32)
            } else {
                if let Err(error) = rest.check_inline(&pdu, bytes) {
                    return Ok(self.fail(error));
                }
                RxData::Inline(&bytes[pdu.data()])
            };
            self.machine
                .borrow_mut()
                .receive(now.as_ns(), bhs, &bytes[pdu.ahs()], data);
        }
        reader.consume(at_hand);
        let mut complete = SmallVec::<[TaskId; 1]>::new();
        loop {
            let event = self.machine.borrow_mut().poll_event();
            let Some(event) = event else { break };
            match event {
                TargetEvent::Command(request) => {
                    let (task, len) = (request.task, request.immediate_len);
                    command::begin(self, request);
                    self.place(reader, &mut rest, task, 0, len).await?;
                }
                TargetEvent::DataOut { task, offset, len } => {
                    self.place(reader, &mut rest, task, offset, len).await?;
                }
                TargetEvent::DataComplete { task } => complete.push(task),
                // The machine answers for a command whose data came out of order.
                TargetEvent::Failed { task } => {
                    self.open.remove_unanswered(task);
                }
                TargetEvent::TaskManagement(request) => {
                    let before = self.open.mark();
                    spawn(task_management::run(self.clone(), request, before));
                }
                TargetEvent::LoginRequest(request) => {
                    spawn(login::begin(self.clone(), request));
                }
                TargetEvent::SessionRequest(request) => {
                    spawn(login::enter(self.clone(), request));
                }
                TargetEvent::AuthenticationFailed { user, why } => {
                    login::failed(self, user.as_deref(), why);
                }
                TargetEvent::LoggedIn(parameters) => {
                    self.logged_in.set(true);
                    tracing::debug!(peer = %self.peer, ?parameters, "full feature phase");
                }
                TargetEvent::SendTargets(which) => login::send_targets(self, &which),
                TargetEvent::Logout { .. } => {
                    // What has not begun does not begin any more, least of all after the response.
                    for task in self.open.order.waiting() {
                        self.abort_task(task);
                    }
                    let connection = self.clone();
                    spawn(async move {
                        connection.open.wait_idle().await;
                        if connection.machine.borrow_mut().logout_response(0).is_ok() {
                            connection.note_ending(|| Ending::Logout);
                            connection.drain_closed();
                        }
                    });
                }
                TargetEvent::Closed(reason) => {
                    self.log_close(&reason);
                    self.close_when_sent();
                    return Ok(false);
                }
                _ => {}
            }
        }
        if let Err(error) = rest.finish(reader).await? {
            return Ok(self.fail(error));
        }
        self.is_receiving.set(false);
        for task in complete {
            command::execute(self, task);
        }
        self.execute_complete();
        Ok(true)
    }

    /// Goes on with commands whose data were all there when they were asked for. Not while a PDU's
    /// payload is on its way to its place, which may be theirs: the reader does it then.
    pub(crate) fn execute_complete(self: &Rc<Self>) {
        while !self.is_receiving.get() {
            let complete = self.machine.borrow_mut().poll_complete();
            let Some(task) = complete else { break };
            command::execute(self, task);
        }
    }

    /// Receives the next `len` bytes of the PDU's payload into the command's memory.
    async fn place(
        &self,
        reader: &mut FramedReader,
        rest: &mut Rest,
        task: TaskId,
        offset: u32,
        len: u32,
    ) -> std::io::Result<()> {
        let mut done = 0;
        while done < len {
            let part = self.open.with(task, |command| {
                let (index, range) = command.locate(offset + done, len - done)?;
                let buf = std::mem::replace(&mut command.write[index], engine::Buf::new(0));
                Some((index, range, buf))
            });
            // The command may have been refused, or takes less than it is given.
            let Some(Some((index, range, buf))) = part else {
                break;
            };
            let (result, buf) = reader.read_into(buf, range.clone()).await;
            result?;
            if rest.is_digested() {
                spend(range.len()).await;
            }
            rest.take(&buf[range.clone()]);
            done += range.len() as u32;
            self.open.with(task, |command| command.write[index] = buf);
        }
        Ok(())
    }

    /// Ends the connection for an error that only the driver sees.
    fn fail(&self, error: iscsi::Error) -> bool {
        self.machine.borrow_mut().fail(error);
        self.drain_closed();
        false
    }

    /// Tells the initiator that its session has begun.
    pub(crate) fn accept_login(&self, tsih: u16) {
        let _ = self.machine.borrow_mut().login_accept(tsih);
        self.logged_in.set(true);
        self.sent.notify();
        self.transmit.notify();
    }

    /// Follows the events of a login that an answer of ours just now has caused.
    pub(crate) fn go_on_with_login(self: &Rc<Self>) {
        loop {
            let event = self.machine.borrow_mut().poll_event();
            match event {
                Some(TargetEvent::SessionRequest(request)) => {
                    spawn(login::enter(self.clone(), request));
                }
                Some(TargetEvent::AuthenticationFailed { user, why }) => {
                    login::failed(self, user.as_deref(), why);
                }
                Some(TargetEvent::Closed(reason)) => {
                    self.log_close(&reason);
                    self.close_when_sent();
                }
                Some(_) => {}
                None => break,
            }
        }
        self.sent.notify();
        self.transmit.notify();
    }

    /// Whether it has ended because the peer has gone.
    pub(crate) fn lost_because(&self) -> Option<String> {
        match &*self.ending.borrow() {
            Some(Ending::Lost(why)) => Some(why.clone()),
            _ => None,
        }
    }

    /// Gives back a session that ended before it began.
    pub(crate) fn release_key(&self) {
        if let Some(key) = self.key.take() {
            self.front.sessions.remove(&key, self.id);
        }
    }

    /// Takes the `Closed` event that a call just now has caused.
    pub(crate) fn drain_closed(&self) {
        loop {
            let event = self.machine.borrow_mut().poll_event();
            match event {
                Some(TargetEvent::Closed(reason)) => self.log_close(&reason),
                Some(_) => {}
                None => break,
            }
        }
        self.close_when_sent();
    }

    fn log_close(&self, reason: &CloseReason) {
        match reason {
            CloseReason::Logout => tracing::debug!(peer = %self.peer, "logout"),
            CloseReason::LoginRefused {
                status,
                target_address,
            } => {
                if self.ending.borrow().is_none() {
                    login::refused(self, *status, target_address.as_deref());
                }
                self.note_ending(|| Ending::Refused);
            }
            CloseReason::Protocol(error) => {
                self.note_ending(|| match self.is_logged_in() {
                    true => Ending::Lost("the peer broke the protocol".to_owned()),
                    false => Ending::Refused,
                });
                if let Some(suppressed) = self.may_say(Notice::Broken) {
                    tracing::warn!(peer = %self.peer, %error, suppressed, "the peer broke the protocol");
                }
            }
            other => tracing::debug!(peer = %self.peer, reason = ?other, "connection closed"),
        }
    }
}
