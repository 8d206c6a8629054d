//! One connection on its lane: the state shared by its reader, its writer and its commands, and the steps by which it
//! ends.

use std::{
    cell::{Cell, OnceCell, RefCell},
    net::SocketAddr,
    rc::Rc,
};

use engine::{
    Duration, Instant,
    net::TcpStream,
    rate::Suppressed,
    spawn,
    sync::{Notify, Permit},
    time,
};
use front::Newcomer;
use iscsi::{OperationalConfig, TargetConfig, TargetConnection, TaskId, Transmit};
use unit::{Held, Mark, Nexus, RunningId, WINDOW_STEP};

use crate::{
    config::Limits,
    notices::IscsiNotice,
    open::{Answered, OpenCommands, task_of},
    report::SessionReport,
    request::Ends,
    service::IscsiService,
    sessions::SessionKey,
    target::Target,
    unacknowledged::Unacknowledged,
};

/// How long the final reply may take to be sent.
const LAST_WORD_TIME: Duration = Duration::from_millis(100);

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum EndReason {
    /// The initiator logged out.
    Logout,
    /// The login was refused, and the reason has been logged.
    Refused,
    /// Anything else, with the reason.
    Lost(String),
}

/// How far a connection's shutdown has progressed. A phase never goes back.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Accepts commands.
    Open,
    /// Accepts no more commands.
    Finishing,
    /// Sends what is ready, then ends.
    Closing,
    /// Nothing more is received or sent; I/O may still be running.
    Ended,
    /// All its I/O has ended too.
    Gone,
}

/// What the login has established so far.
#[derive(Default)]
struct Login {
    /// InitiatorName, once known; empty before.
    initiator: String,
    target: Option<Rc<Target>>,
    key: Option<SessionKey>,
}

pub(crate) struct Connection {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    /// The portal's address as seen by the peer.
    pub(crate) local: SocketAddr,
    pub(crate) service: Rc<IscsiService>,
    /// The limits in force when the connection arrived.
    pub(crate) limits: Rc<Limits>,
    pub(crate) stream: TcpStream,
    pub(crate) machine: RefCell<TargetConnection>,
    login: RefCell<Login>,
    /// Set at the end of the login; holds `None` for a discovery session, which has no nexus.
    session: OnceCell<Option<Rc<Nexus>>>,
    /// When the session began.
    logged_in_at: Cell<Instant>,
    pub(crate) open: OpenCommands,
    pub(crate) unacknowledged: Unacknowledged,
    /// Whether the initiator may ask for the stage times of its commands.
    pub(crate) tells_stage_times: Cell<bool>,
    /// Permits that pay for the width of the command window.
    windows: RefCell<Vec<Permit>>,
    /// How many bytes of replies wait for memory.
    pub(crate) waiting_replies_bytes: Cell<usize>,
    /// Signaled when the machine may have something to send.
    pub(crate) transmit: Notify,
    /// Signaled when something was sent.
    pub(crate) sent: Notify,
    /// Whether a send is in progress.
    pub(crate) is_sending: Cell<bool>,
    /// The commands that the send in progress answers to the end.
    pub(crate) sending: RefCell<Vec<Answered>>,
    pub(crate) last_heard: Cell<Instant>,
    /// Whether a PDU is being received: the machine has its header, but its payload is not complete.
    pub(crate) is_receiving: Cell<bool>,
    phase: Cell<Phase>,
    /// The first cause of the end, for the log.
    ending: RefCell<Option<EndReason>>,
    changed: Notify,
}

impl Connection {
    pub(crate) fn new(service: Rc<IscsiService>, newcomer: Newcomer<Ends>) -> Self {
        let Newcomer { id, ends, stream } = newcomer;
        let Ends { peer, local } = ends;
        let limits = service.limits.borrow().clone();
        let config = TargetConfig {
            operational: OperationalConfig {
                header_digest: service.digests.get(),
                data_digest: service.digests.get(),
                max_recv_data_segment_length: limits.data_segment_max_bytes,
                first_burst_length: service.units.first_burst_max_bytes(),
                stage_times: true,
                ..OperationalConfig::default()
            },
            command_window: limits.command_window,
            command_window_first: WINDOW_STEP,
            promises: true,
            text_len_max: limits.text_max_bytes,
            ..TargetConfig::default()
        };
        let phase = match service.stopping.get() {
            true => Phase::Finishing,
            false => Phase::Open,
        };
        Connection {
            id,
            peer,
            local,
            machine: RefCell::new(TargetConnection::new(config)),
            login: RefCell::default(),
            session: OnceCell::new(),
            logged_in_at: Cell::new(time::now()),
            stream: stream.on_lane(),
            open: OpenCommands::default(),
            unacknowledged: Unacknowledged::default(),
            tells_stage_times: Cell::new(false),
            windows: RefCell::default(),
            waiting_replies_bytes: Cell::default(),
            transmit: Notify::new(),
            sent: Notify::new(),
            is_sending: Cell::default(),
            sending: RefCell::default(),
            last_heard: Cell::new(time::now()),
            is_receiving: Cell::new(false),
            phase: Cell::new(phase),
            ending: RefCell::new(None),
            changed: Notify::new(),
            limits,
            service,
        }
    }

    /// The session's target, once the initiator has named it.
    pub(crate) fn target(&self) -> Option<Rc<Target>> {
        self.login.borrow().target.clone()
    }

    pub(crate) fn set_target(&self, target: Rc<Target>) {
        self.login.borrow_mut().target = Some(target);
    }

    /// The initiator's name, once known; empty before.
    pub(crate) fn initiator(&self) -> String {
        self.login.borrow().initiator.clone()
    }

    pub(crate) fn set_initiator(&self, name: &str) {
        name.clone_into(&mut self.login.borrow_mut().initiator);
    }

    /// Records the key under which the session is registered.
    pub(crate) fn set_key(&self, key: SessionKey) {
        self.login.borrow_mut().key = Some(key);
    }

    /// The key under which the session is registered.
    pub(crate) fn key(&self) -> Option<SessionKey> {
        self.login.borrow().key.clone()
    }

    pub(crate) fn take_key(&self) -> Option<SessionKey> {
        self.login.borrow_mut().key.take()
    }

    /// Unregisters a session that ended before it began.
    pub(crate) fn release_key(&self) {
        if let Some(key) = self.take_key() {
            self.service.sessions.remove(&key, self.id);
        }
    }

    /// The session's nexus, once it has one.
    pub(crate) fn nexus(&self) -> Option<&Rc<Nexus>> {
        self.session.get()?.as_ref()
    }

    /// Begins the session; `nexus` is `None` for a discovery session.
    pub(crate) fn begin_session(&self, nexus: Option<Rc<Nexus>>) {
        self.logged_in_at.set(time::now());
        let mut machine = self.machine.borrow_mut();
        match &nexus {
            Some(nexus) => nexus.memory.set_burst(machine.unsolicited_max()),
            // Nothing that it sends is kept.
            None => machine.promise(u32::MAX),
        }
        drop(machine);
        let begun = self.session.set(nexus);
        assert!(begun.is_ok(), "a connection has one session");
        self.promise();
    }

    /// Lets as many commands be on their way as there is memory for what they may bring unasked.
    pub(crate) fn promise(&self) {
        let Some(nexus) = self.nexus() else { return };
        let promised = nexus.memory.promise();
        let mut machine = self.machine.borrow_mut();
        let before = machine.promised().unwrap_or(promised);
        if promised > before {
            machine.promise(promised - before);
        }
    }

    pub(crate) fn is_logged_in(&self) -> bool {
        self.session.get().is_some()
    }

    fn has_reached(&self, phase: Phase) -> bool {
        self.phase.get() as u8 >= phase as u8
    }

    /// Advances to `phase`; false if the connection has already reached it.
    fn advance(&self, phase: Phase) -> bool {
        let is_new = !self.has_reached(phase);
        if is_new {
            self.phase.set(phase);
        }
        is_new
    }

    /// Accepts no more commands from now on.
    pub(crate) fn set_finishing(&self) {
        self.advance(Phase::Finishing);
    }

    pub(crate) fn is_finishing(&self) -> bool {
        self.has_reached(Phase::Finishing)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.has_reached(Phase::Closing)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.has_reached(Phase::Ended)
    }

    /// Ends the connection now. Running commands continue to completion but are not answered.
    pub(crate) fn end(&self, why: &str) {
        if self.advance(Phase::Ended) {
            tracing::debug!(peer = %self.peer, id = self.id, why, "connection ends");
            self.note_ending(|| EndReason::Lost(why.to_owned()));
            self.stream.shutdown();
            self.changed.notify();
            self.transmit.notify();
            self.sent.notify();
        }
    }

    pub(crate) fn note_ending(&self, ending: impl FnOnce() -> EndReason) {
        self.ending.borrow_mut().get_or_insert_with(ending);
    }

    pub(crate) fn has_ending(&self) -> bool {
        self.ending.borrow().is_some()
    }

    pub(crate) fn take_ending(&self) -> Option<EndReason> {
        self.ending.take()
    }

    /// Why the connection to the peer was lost, if it was.
    pub(crate) fn lost_because(&self) -> Option<String> {
        match &*self.ending.borrow() {
            Some(EndReason::Lost(why)) => Some(why.clone()),
            _ => None,
        }
    }

    /// Ends the connection once everything ready has been sent, or after a short time if the peer does not take it.
    pub(crate) fn close_in_time(self: &Rc<Self>) {
        self.close_when_sent();
        let connection = self.clone();
        spawn(async move {
            let _ = time::timeout(LAST_WORD_TIME, connection.over()).await;
            connection.end("it did not read its last replies");
        });
    }

    /// Ends the connection once everything ready has been sent.
    pub(crate) fn close_when_sent(&self) {
        self.advance(Phase::Closing);
        self.transmit.notify();
    }

    /// Waits until the connection has ended; its I/O may still be running.
    pub(crate) async fn over(&self) {
        self.changed
            .wait_for(|| self.is_ended().then_some(()))
            .await;
    }

    /// Waits until the connection and all its I/O have ended.
    pub(crate) async fn gone(&self) {
        let is_gone = || self.has_reached(Phase::Gone);
        self.changed.wait_for(|| is_gone().then_some(())).await;
    }

    /// Records that all its I/O has ended.
    pub(crate) fn has_gone(&self) {
        assert!(self.is_ended(), "its I/O ends after it");
        self.advance(Phase::Gone);
        self.changed.notify();
    }

    /// Whether the rate limit lets a log line of this kind through now.
    pub(crate) fn may_say(&self, notice: IscsiNotice) -> Option<Suppressed> {
        self.service.sessions.notices.may_say(notice, time::now())
    }

    /// The same for a log line that says `what` about its peer, which may make us say it for ever.
    pub(crate) fn may_repeat(&self, notice: IscsiNotice, what: &str) -> Option<Suppressed> {
        let what = format!("{} {what}", self.peer.ip());
        let notices = &self.service.sessions.notices;
        notices.may_repeat(notice, &what, time::now())
    }

    /// The memory that replies hold until the initiator has taken them.
    pub(crate) fn held_by_replies(&self) -> Held {
        let sending = self.sending.borrow();
        let sending = sending.iter().map(|answered| answered.permits.held());
        [self.open.held_by_data_in()]
            .into_iter()
            .chain(sending)
            .sum()
    }

    /// Counts the commands whose responses have just been sent.
    pub(crate) fn count(&self, sent: &[Answered]) {
        let Some(nexus) = self.nexus() else { return };
        let now = time::now();
        for command in sent {
            if let Some(kind) = command.kind {
                let moved = (kind, command.transfer_len);
                let units = &self.service.units;
                units.count(nexus, command.lun, moved, &command.times, now);
            }
        }
    }

    /// Adds the stage times of the command that `pdu` ends, if the initiator asked for them.
    pub(crate) fn tell_stage_times(&self, pdu: &mut Transmit) {
        if !self.tells_stage_times.get() {
            return;
        }
        let Some(task) = pdu.ends else { return };
        let times = self.open.with(task, |command| {
            let asks = command.asks_stage_times;
            asks.then(|| command.stage_times(time::now()))
        });
        // A command that was refused before it was opened has no stage times.
        if let Some(Some(times)) = times {
            pdu.tell_stage_times(&times);
        }
    }

    /// Drops, without an answer, the open commands for `lun` (`None`: all LUNs) that arrived before `mark`. Returns
    /// the I/Os still running for such commands, including commands dropped earlier.
    pub(crate) fn abort_tasks(
        &self,
        nexus: &Nexus,
        lun: Option<u32>,
        mark: Mark,
    ) -> Vec<RunningId> {
        for task in self.open.tasks(nexus, lun, mark) {
            self.abort_task(task);
        }
        self.abort_endings(lun, mark);
        let is_before = |command| !self.open.is_after(task_of(command), mark);
        match lun {
            Some(lun) => nexus.running_at(lun, is_before),
            None => nexus.running(is_before),
        }
    }

    /// Suppresses pending responses to commands for `lun` (`None`: all LUNs) that arrived before `mark`.
    pub(crate) fn abort_endings(&self, lun: Option<u32>, mark: Mark) {
        for task in self.open.endings(lun, mark) {
            self.abort_task(task);
        }
    }

    /// Drops a command without an answer; false if it has already been answered.
    pub(crate) fn abort_task(&self, task: TaskId) -> bool {
        self.open.remove(task);
        self.machine.borrow_mut().abort(task).is_ok()
    }

    /// Widens the command window of an initiator that has used it up, if the budget allows.
    pub(crate) fn widen_window(&self) {
        let mut machine = self.machine.borrow_mut();
        let may_be_wider = self.windows.borrow().len() * usize::from(WINDOW_STEP)
            < usize::from(self.limits.command_window);
        if may_be_wider && machine.is_window_full() {
            if let Some(permit) = self.service.units.take_window() {
                machine.widen_window(WINDOW_STEP);
                self.windows.borrow_mut().push(permit);
            }
        }
    }

    /// Describes the session for administrators; `None` before it has begun.
    pub(crate) fn report(&self, lane: usize) -> Option<SessionReport> {
        self.session.get()?;
        let machine = self.machine.borrow();
        let digests = machine.parameters().digests;
        let target = self.target();
        Some(SessionReport {
            initiator: self.initiator(),
            peer: self.peer,
            portal: self.local,
            target: target.as_ref().map(|target| target.name().to_owned()),
            portal_group_tag: target.as_ref().map_or(0, |target| target.portals.tag),
            lane,
            header_digest: digests.header,
            data_digest: digests.data,
            age: time::now() - self.logged_in_at.get(),
            outstanding: machine.tasks_len(),
            account: machine.login_report().account.cloned(),
            chap: match target {
                Some(target) => target.spec.chap.clone(),
                None => self.service.discovery.borrow().clone(),
            },
        })
    }

    /// Tells the initiator that its session has begun.
    pub(crate) fn accept_login(&self, tsih: u16) {
        let _ = self.machine.borrow_mut().login_accept(tsih);
        self.sent.notify();
        self.transmit.notify();
    }
}
