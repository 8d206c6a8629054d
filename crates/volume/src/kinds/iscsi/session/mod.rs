//! One session of our initiator: a single connection, from login to end. A reader feeds received PDUs to the protocol
//! machine, with payload going straight into the task's memory; a writer sends everything the machine has ready in
//! one gathered send; a watchdog pings a silent target.

mod aborts;
mod receive;
mod reply;

use std::{
    cell::{Cell, Ref, RefCell},
    net::SocketAddr,
    rc::Rc,
    task::Poll,
};

use engine::{
    Duration, Gather, Instant, Payload,
    net::{ConnectOptions, TcpStream},
    spawn,
    sync::Notify,
    time,
};
use iscsi::{
    Direction, InitiatorConfig, InitiatorConnection, LunField, Residual, TargetRecord, TaskId,
    TaskResult,
};

use super::{
    cdb::CdbBytes,
    ended::Redirection,
    ping_timeout::PingTimeout,
    sense::Sense,
    silence::Silence,
    tasks::{SubmittedTask, TaskData, TaskRequest, Tasks},
};
use aborts::Aborts;
pub(super) use reply::{RESERVATION_CONFLICT, Reply};

use crate::{Error, ErrorKind, Result, SHOWN_WITHIN};

const SEND_BYTES: usize = 1 << 20;
/// How often the watchdog looks.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// A target is pinged after this silence at the latest, however long it may be silent: at the next look it counts as silent,
/// which others see.
const PING_AFTER_MAX: Duration = Duration::from_millis(1750);
const _: () =
    assert!(PING_AFTER_MAX.as_millis() + 2 * INTERVAL_MAX.as_millis() < SHOWN_WITHIN.as_millis());

/// What a command carries besides its CDB.
#[derive(Clone, Debug)]
pub(super) enum Data {
    None,
    /// The number of bytes expected.
    In(usize),
    Out(Payload),
}

/// Time limits of a session.
#[derive(Clone, Debug)]
pub(super) struct Timeouts {
    pub(super) connect: Duration,
    /// For commands, until another has been set for the disk.
    pub(super) request: Duration,
    pub(super) ping: PingTimeout,
}

impl Timeouts {
    /// How long the answer to a command may take.
    fn request(&self) -> Duration {
        self.ping.request(self.request)
    }

    /// How long the target may be silent.
    fn silence(&self) -> Duration {
        self.ping.limit(self.request())
    }
}

/// The outcome of a login.
pub(super) enum LoginOutcome {
    Session(Rc<Session>),
    /// The target has redirected us.
    Redirected(Redirection),
}

pub(super) struct Session {
    stream: TcpStream,
    machine: RefCell<InitiatorConnection>,
    tasks: RefCell<Tasks>,
    transmit: Notify,
    /// Something was sent.
    sent: Notify,
    /// Signals session-level events: login, logout request, task management response, SendTargets result, end.
    changed: Notify,
    logged_in: Cell<bool>,
    last_heard: Cell<Instant>,
    silence: Silence,
    ended: RefCell<Option<Error>>,
    /// The redirection that ended the session, if any.
    redirection: RefCell<Option<Redirection>>,
    port: Cell<Port>,
    /// The result of SendTargets, until the caller has taken it.
    found: RefCell<Option<Result<Vec<TargetRecord>>>>,
    /// What the target may have aborted without an answer.
    aborts: RefCell<Aborts>,
    /// The response to our task management function.
    answered: Cell<Option<(TaskId, u8)>>,
    /// The session ended while writes were outstanding at the target.
    left_writes: Cell<bool>,
    /// The target has asked for a logout.
    is_asked_to_log_out: Cell<bool>,
    /// How often the target has reported that the disk may not be what it was.
    doubts: Cell<u64>,
    /// Event codes of the asynchronous messages already logged, as a bit mask.
    messages_told: Cell<u8>,
    /// The logical unit that commands go to.
    lun: Cell<LunField>,
    timeouts: Timeouts,
    /// Commands report their stage times to the current watch.
    is_watched: bool,
}

/// A session that nobody owns yet. Ends the session, and so its tasks, when the caller that waits for it is dropped.
pub(super) struct Unused(pub(super) Option<Rc<Session>>);

impl Unused {
    pub(super) fn take(mut self) -> Rc<Session> {
        self.0.take().expect("it is taken once")
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            let message = "the session is no longer needed";
            session.end(Error::new(ErrorKind::Unreachable, message));
        }
    }
}

/// The target port that a session has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    address: SocketAddr,
    /// Our end of the connection.
    local: Option<SocketAddr>,
    /// The portal group tag, which identifies the target port (RFC 7143 §4.4.3), if the target has reported it.
    group: Option<u16>,
}

impl Port {
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Our address on the connection, if the system reports it.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Whether, as far as we know, a login at one port reinstates our session at the other.
    pub(super) fn is_same(&self, other: &Port) -> bool {
        match (self.group, other.group) {
            (Some(one), Some(other)) => one == other,
            _ => self.address == other.address,
        }
    }
}

impl Session {
    /// Connects and logs in.
    pub(super) async fn open(
        address: SocketAddr,
        way: &ConnectOptions,
        config: InitiatorConfig,
        timeouts: Timeouts,
    ) -> Result<LoginOutcome> {
        let limit = timeouts.connect;
        let late = || {
            let message = format!(
                "the login at {address} did not complete within {:?}",
                time::brief(limit)
            );
            Error::new(ErrorKind::TimedOut, message)
        };
        let began = time::now();
        let stream = time::timeout(limit, TcpStream::connect_with(address, way))
            .await
            .ok_or_else(late)?
            .map_err(|error| unreachable(address, &error))?;
        let local = stream.addresses().ok().map(|(local, _)| local);
        let session = Rc::new(Session {
            stream,
            is_watched: config.operational.stage_times,
            machine: RefCell::new(InitiatorConnection::new(config)),
            tasks: RefCell::default(),
            transmit: Notify::new(),
            sent: Notify::new(),
            changed: Notify::new(),
            logged_in: Cell::new(false),
            last_heard: Cell::new(began),
            silence: Silence::default(),
            ended: RefCell::default(),
            redirection: RefCell::default(),
            port: Cell::new(Port {
                address,
                local,
                group: None,
            }),
            found: RefCell::default(),
            aborts: RefCell::default(),
            answered: Cell::new(None),
            left_writes: Cell::new(false),
            is_asked_to_log_out: Cell::new(false),
            doubts: Cell::new(0),
            messages_told: Cell::new(0),
            lun: Cell::new(LunField(0)),
            timeouts,
        });
        let unused = Unused(Some(session.clone()));
        spawn(write(session.clone()));
        spawn(receive::read(session.clone()));
        let settled = session
            .changed
            .wait_for(|| (session.logged_in.get() || session.is_over()).then_some(()));
        let left = limit.saturating_sub(time::now() - began);
        if time::timeout(left, settled).await.is_none() {
            session.end(late());
        }
        if let Some(redirection) = session.redirection.take() {
            return Ok(LoginOutcome::Redirected(redirection));
        }
        match session.error() {
            Some(error) => Err(error.context(format_args!("login at {address}"))),
            None => {
                spawn(watch(session.clone()));
                Ok(LoginOutcome::Session(unused.take()))
            }
        }
    }

    /// From now on this is the logical unit that its owner's commands go to.
    pub(super) fn addresses(&self, lun: LunField) {
        self.lun.set(lun);
    }

    /// The logical unit that its owner's commands go to.
    pub(super) fn lun(&self) -> LunField {
        self.lun.get()
    }

    /// Why the session is over, if it is.
    pub(super) fn error(&self) -> Option<Error> {
        self.ended.borrow().clone()
    }

    /// Whether the session is over.
    pub(super) fn is_over(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Waits until the session is over.
    pub(super) async fn over(&self) -> Error {
        self.changed.wait_for(|| self.error()).await
    }

    /// Whether the target is silent, which changes with time.
    pub(super) fn silence(&self) -> &Silence {
        &self.silence
    }

    /// How often the target has reported that the disk may not be what it was: a reply to a command counts only if its
    /// sender knew of all of these. The target reports a change with one command, and has executed others by then.
    pub(super) fn doubts(&self) -> u64 {
        self.doubts.get()
    }

    /// Whether the target has asked for a logout.
    pub(super) fn is_asked_to_log_out(&self) -> bool {
        self.is_asked_to_log_out.get()
    }

    /// From now on it takes no more requests, as if the target had asked for a logout.
    pub(super) fn retire(&self) {
        self.is_asked_to_log_out.set(true);
        self.changed.notify();
    }

    /// Waits until the target asks for a logout, or the session is over.
    pub(super) async fn asked_to_log_out(&self) {
        let is_asked = || (self.is_asked_to_log_out() || self.is_over()).then_some(());
        self.changed.wait_for(is_asked).await;
    }

    pub(super) fn digests(&self) -> iscsi::frame::Digests {
        self.machine.borrow().parameters().digests
    }

    /// Sends a command and waits for its response. While the target's command window is closed, the command queues.
    pub(super) async fn execute(
        self: &Rc<Self>,
        lun: LunField,
        cdb: &CdbBytes,
        data: Data,
    ) -> Result<Reply> {
        let (direction, len, data) = match data {
            Data::None => (Direction::None, 0, TaskData::None),
            Data::In(len) => (Direction::Read, len, TaskData::None),
            Data::Out(payload) => (Direction::Write, payload.len(), TaskData::Out(payload)),
        };
        if let Some(error) = self.error() {
            return Err(error);
        }
        let request = TaskRequest {
            lun,
            cdb: *cdb,
            direction,
            data_len: len as u32,
        };
        let mut task = SubmittedTask::new(request, data);
        if self.is_watched {
            task = task.watched();
        }
        let key = self.tasks.borrow_mut().insert(task);
        self.submit();
        TaskWait {
            session: self,
            key,
            taken: false,
        }
        .reply()
        .await
    }

    /// Hands the machine as many of the queued commands as it accepts.
    fn submit(&self) {
        let mut machine = self.machine.borrow_mut();
        let submitted = self
            .tasks
            .borrow_mut()
            .submit(&mut machine, time::turn_began());
        drop(machine);
        match submitted {
            Ok(()) => self.transmit.notify(),
            Err(error) => self.end(Error::new(ErrorKind::Protocol, error.to_string())),
        }
    }

    /// The target port that the session has reached.
    pub(super) fn port(&self) -> Port {
        self.port.get()
    }

    /// Whether the session has ended with writes outstanding at the target.
    pub(super) fn has_left_writes(&self) -> bool {
        self.left_writes.get()
    }

    /// Sends LOGICAL UNIT RESET; returns the response code (RFC 7143 §11.6.1).
    pub(super) async fn reset_logical_unit(&self) -> Result<u8> {
        const LOGICAL_UNIT_RESET: u8 = 5;
        let lun = self.lun();
        let function = self
            .machine
            .borrow_mut()
            .task_management(LOGICAL_UNIT_RESET, lun);
        let function = function.map_err(protocol)?;
        self.transmit.notify();
        let answer = self.changed.wait_for(|| match self.answered.get() {
            Some((task, response)) if task == function => Some(Ok(response)),
            _ => self.error().map(Err),
        });
        let limit = self.timeouts.request();
        time::timeout(limit, answer).await.unwrap_or_else(|| {
            let message = format!(
                "the target has not answered a reset within {:?}",
                time::brief(limit)
            );
            Err(Error::new(ErrorKind::TimedOut, message))
        })
    }

    /// Lists the targets (SendTargets).
    pub(super) async fn discover(&self) -> Result<Vec<TargetRecord>> {
        self.machine.borrow_mut().discover().map_err(protocol)?;
        self.transmit.notify();
        let take = || self.found.take().or_else(|| self.error().map(Err));
        let limit = self.timeouts.request();
        let found = time::timeout(limit, self.changed.wait_for(take)).await;
        found.unwrap_or_else(|| {
            let message = format!(
                "the target has not listed its targets within {:?}",
                time::brief(limit)
            );
            Err(Error::new(ErrorKind::TimedOut, message))
        })
    }

    /// Asks the target to end the session; commands should have completed before.
    pub(super) async fn logout(&self) {
        if self.machine.borrow_mut().logout().is_ok() {
            self.transmit.notify();
            let over = self.changed.wait_for(|| self.is_over().then_some(()));
            let _ = time::timeout(Duration::from_secs(2), over).await;
        }
        self.end(Error::new(ErrorKind::Unreachable, "logged out"));
    }

    /// Ends the session: all waiting requests fail with `error`.
    pub(super) fn end(&self, error: Error) {
        {
            let mut ended = self.ended.borrow_mut();
            if ended.is_some() {
                return;
            }
            *ended = Some(error);
        }
        let writes = self.tasks.borrow().has_writes_at_target();
        self.left_writes.set(writes);
        // If the link comes back, the kernel must not deliver writes that nobody waits for any more.
        match writes {
            true => self.stream.abort(),
            false => self.stream.shutdown(),
        }
        for task in self.tasks.borrow_mut().entries.iter_mut().flatten() {
            if let Some(waker) = task.waker.take() {
                waker.wake();
            }
        }
        for waiting in [&self.transmit, &self.sent, &self.changed] {
            waiting.notify();
        }
    }

    /// As [`Session::end`]; even of a session that has ended, nothing that was sent leaves this machine any more.
    pub(super) fn abort(&self, error: Error) {
        self.stream.abort();
        self.end(error);
    }

    fn data_out(&self, task: TaskId) -> Option<Ref<'_, Payload>> {
        Ref::filter_map(self.tasks.borrow(), |tasks| tasks.data_out(task)).ok()
    }

    fn done(&self, key: usize, result: TaskResult) {
        let sense = match &result {
            TaskResult::Completed { status, sense, .. } => Sense::of(*status, sense),
            _ => None,
        };
        if sense.is_some_and(Sense::casts_doubt) {
            self.doubts.set(self.doubts.get() + 1);
        }
        if sense.is_some_and(Sense::tells_of_aborts) {
            let tasks = self.tasks.borrow();
            self.aborts.borrow_mut().want(tasks.unanswered_before(key));
            drop(tasks);
            self.ask_to_abort();
        }
        let mut tasks = self.tasks.borrow_mut();
        let Some(task) = tasks.entries[key].as_mut() else {
            return;
        };
        task.end(result);
        let (waker, unwanted) = match task.detached {
            true => (None, tasks.remove(key)),
            false => (task.waker.take(), None),
        };
        drop(tasks);
        drop(unwanted);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn ask_to_abort(&self) {
        let mut machine = self.machine.borrow_mut();
        self.aborts.borrow_mut().ask(&mut machine);
        self.transmit.notify();
    }

    /// How long the oldest unanswered command has been waiting.
    fn oldest_wait(&self, now: Instant) -> Duration {
        let tasks = self.tasks.borrow();
        let waits = tasks.entries.iter().flatten();
        let waits = waits.filter_map(|task| task.waits(now));
        waits.max().unwrap_or_default()
    }
}

fn unreachable(address: SocketAddr, error: &std::io::Error) -> Error {
    let mend = match error.kind() {
        std::io::ErrorKind::AddrNotAvailable => {
            "`from` is an address or an interface of this machine: see `ip address`"
        }
        _ => "is the target running, and listening there?",
    };
    let message = format!("{address} cannot be reached: {error}; {mend}");
    Error::new(ErrorKind::Unreachable, message)
}

/// Waits for one task; if dropped early, leaves the task to the session.
struct TaskWait<'a> {
    session: &'a Session,
    key: usize,
    taken: bool,
}

impl TaskWait<'_> {
    async fn reply(mut self) -> Result<Reply> {
        let ended = std::future::poll_fn(|cx| {
            let mut tasks = self.session.tasks.borrow_mut();
            let task = &mut tasks.entries[self.key];
            if let Some(error) = &*self.session.ended.borrow() {
                // A bad status is acted on even if the session has ended, because the target reports it only once. A
                // GOOD is not: the target may have lost the data since.
                let told = task.as_ref().is_some_and(SubmittedTask::was_told);
                return Poll::Ready((!told).then(|| error.clone()));
            }
            match task {
                Some(task) if task.result.is_none() => {
                    task.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(None),
            }
        })
        .await;
        self.taken = true;
        let task = self.session.tasks.borrow_mut().remove(self.key);
        if let Some(error) = ended {
            return Err(error);
        }
        let task = task.expect("a task stays until its reply is taken");
        match task.result.expect("it was there a moment ago") {
            TaskResult::Completed {
                status,
                sense,
                transferred,
                residual,
                ..
            } => {
                let transferred = transferred as usize;
                let is_cut = matches!(residual, Residual::Overflow(1..));
                let data = match task.data {
                    TaskData::In(mut buf) => {
                        buf.set_len(buf.len().min(transferred));
                        buf.into()
                    }
                    _ => Payload::new(),
                };
                Ok(Reply {
                    status,
                    sense,
                    data,
                    transferred,
                    is_cut: is_cut && task.request.cdb.moves_blocks(),
                    doubts: self.session.doubts(),
                    is_in_doubt: false,
                })
            }
            TaskResult::Aborted => Ok(Reply::aborted(self.session.doubts())),
            other => {
                let message = format!("the target did not execute a command: {other:?}");
                Err(Error::new(ErrorKind::Protocol, message))
            }
        }
    }
}

impl Drop for TaskWait<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut tasks = self.session.tasks.borrow_mut();
        let Some(task) = &mut tasks.entries[self.key] else {
            return;
        };
        task.detached = true;
        task.waker = None;
        let is_with_target = task.id.is_some() && task.result.is_none();
        let unwanted = if !is_with_target {
            tasks.remove(self.key)
        } else {
            None
        };
        drop(tasks);
        drop(unwanted);
    }
}

fn protocol(error: iscsi::Error) -> Error {
    Error::new(ErrorKind::Protocol, error.to_string())
}

/// The connection cannot be used any more.
fn broken(error: iscsi_stream::ReceiveError) -> Error {
    match error {
        iscsi_stream::ReceiveError::Protocol(error) => protocol(*error),
        iscsi_stream::ReceiveError::Ended => {
            Error::new(ErrorKind::Unreachable, "the target closed the connection")
        }
        lost => Error::new(ErrorKind::Unreachable, lost.to_string()),
    }
}

async fn write(session: Rc<Session>) {
    let mut gather = Gather::new();
    while !session.is_over() {
        let notified = session.transmit.notified();
        while iscsi_stream::has_room(&gather, SEND_BYTES) {
            let pdu = session.machine.borrow_mut().poll_transmit();
            let Some(pdu) = pdu else { break };
            let data_of = |task| session.data_out(task);
            if let Err(error) = iscsi_stream::push(&mut gather, &pdu, data_of) {
                return session.end(Error::new(ErrorKind::Protocol, error.to_string()));
            }
        }
        if gather.is_empty() {
            notified.await;
            continue;
        }
        let (result, back) = session.stream.send_all(gather).await;
        gather = back;
        session.sent.notify();
        if let Err(error) = result {
            session.end(broken(error.into()));
        }
    }
}

/// Ends a session whose target does not answer.
async fn watch(session: Rc<Session>) {
    let mut pinged = time::now();
    loop {
        let limit = session.timeouts.request();
        let silence_max = session.timeouts.silence();
        let interval = (limit.min(silence_max) / 8).clamp(INTERVAL_MIN, INTERVAL_MAX);
        let over = session.changed.wait_for(|| session.is_over().then_some(()));
        if time::timeout(interval, over).await.is_some() {
            return;
        }
        let now = time::now();
        if session.oldest_wait(now) > limit {
            let message = format!(
                "the target has not answered a command within {:?}",
                time::brief(limit)
            );
            return session.end(Error::new(ErrorKind::TimedOut, message));
        }
        if session.tasks.borrow().line_waits(now) > limit {
            let message = format!(
                "the target has not taken a command for {:?}",
                time::brief(limit)
            );
            return session.end(Error::new(ErrorKind::TimedOut, message));
        }
        let mut machine = session.machine.borrow_mut();
        let silence = now - session.last_heard.get();
        // A ping that is on its way has been since an earlier look.
        let is_pinged = machine.next_timeout().is_some();
        if !is_pinged {
            pinged = now;
        }
        if silence > (silence_max / 2).min(PING_AFTER_MAX) {
            if is_pinged {
                session.silence.begin();
            }
            // The limit is looked at here: it may change meanwhile.
            machine.ping(now.as_ns(), u64::MAX);
        }
        drop(machine);
        // After a standstill of ours there is some time for the answer. A ping may wait behind other PDUs, each of which shows
        // that the target is there.
        let is_due = is_pinged && now - pinged >= silence_max / 4;
        if is_due && silence >= silence_max {
            let message = format!(
                "the target has been silent for {:?}",
                time::brief(silence_max)
            );
            return session.end(Error::new(ErrorKind::TimedOut, message));
        }
        session.transmit.notify();
    }
}
