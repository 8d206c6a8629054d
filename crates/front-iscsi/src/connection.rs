//! One connection on its lane: what its reader, its writer and its commands know of it, and how it
//! ends.

use std::{
    cell::{Cell, OnceCell, RefCell},
    net::SocketAddr,
    rc::Rc,
};

use engine::{
    Duration, Instant,
    net::TcpStream,
    spawn,
    sync::{Notify, Permit},
    time,
};
use iscsi::{OperationalConfig, TargetConfig, TargetConnection, TaskId};
use unit::{Mark, Nexus, RunningId, WINDOW_STEP};

use crate::{
    config::Limits,
    notices::{Notice, Suppressed},
    open::{Answered, OpenCommands, task_of},
    power_on::PowerOnReports,
    report::SessionReport,
    request::Newcomer,
    service::Service,
    sessions::SessionKey,
    target::Target,
};

/// How long the last reply may take to leave.
const LAST_WORD_TIME: Duration = Duration::from_millis(100);

/// Why a connection is over.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The initiator has logged out.
    Logout,
    /// It was refused, and the log has the reason.
    Refused,
    /// Anything else: the reason.
    Lost(String),
}

/// How far a connection is on its way to its end. It never goes back.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// It takes commands.
    Open,
    /// It takes no further commands.
    Finishing,
    /// It sends what is ready, then ends.
    Closing,
    /// Nothing is received or sent any more; its I/O may go on.
    Ended,
    /// All its I/O has ended as well.
    Gone,
}

/// What a login has come to.
#[derive(Default)]
struct Login {
    /// InitiatorName, once it is known.
    initiator: String,
    target: Option<Rc<Target>>,
    key: Option<SessionKey>,
}

pub(crate) struct Connection {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    /// The portal's address as the peer knows it.
    pub(crate) local: SocketAddr,
    pub(crate) service: Rc<Service>,
    /// Those of when it came.
    pub(crate) limits: Rc<Limits>,
    pub(crate) stream: TcpStream,
    pub(crate) machine: RefCell<TargetConnection>,
    login: RefCell<Login>,
    /// Of its session, from the end of the login on; `None` inside: a discovery session has none.
    session: OnceCell<Option<Rc<Nexus>>>,
    /// When its session began.
    logged_in_at: Cell<Instant>,
    pub(crate) open: OpenCommands,
    pub(crate) power_on: PowerOnReports,
    /// What pays for the width of its command window.
    windows: RefCell<Vec<Permit>>,
    /// The machine may have something to send.
    pub(crate) transmit: Notify,
    /// Something was sent.
    pub(crate) sent: Notify,
    /// When the send in progress began.
    pub(crate) sending_since: Cell<Option<Instant>>,
    pub(crate) last_heard: Cell<Instant>,
    /// A PDU has reached the machine, and its payload is not all in its place yet.
    pub(crate) is_receiving: Cell<bool>,
    phase: Cell<Phase>,
    /// What ended it first, for the log.
    ending: RefCell<Option<Ending>>,
    changed: Notify,
}

impl Connection {
    pub(crate) fn new(service: Rc<Service>, newcomer: Newcomer) -> Self {
        let Newcomer {
            id,
            peer,
            local,
            stream,
        } = newcomer;
        let limits = service.limits.borrow().clone();
        let config = TargetConfig {
            operational: OperationalConfig {
                header_digest: service.digests.get(),
                data_digest: service.digests.get(),
                max_recv_data_segment_length: limits.data_segment_max_bytes,
                ..OperationalConfig::default()
            },
            command_window: limits.command_window,
            command_window_first: WINDOW_STEP,
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
            power_on: PowerOnReports::default(),
            windows: RefCell::default(),
            transmit: Notify::new(),
            sent: Notify::new(),
            sending_since: Cell::default(),
            last_heard: Cell::new(time::now()),
            is_receiving: Cell::new(false),
            phase: Cell::new(phase),
            ending: RefCell::new(None),
            changed: Notify::new(),
            limits,
            service,
        }
    }

    /// The target of the session, once the initiator has named it.
    pub(crate) fn target(&self) -> Option<Rc<Target>> {
        self.login.borrow().target.clone()
    }

    pub(crate) fn set_target(&self, target: Rc<Target>) {
        self.login.borrow_mut().target = Some(target);
    }

    /// The initiator's name, once it is known.
    pub(crate) fn initiator(&self) -> String {
        self.login.borrow().initiator.clone()
    }

    pub(crate) fn set_initiator(&self, name: &str) {
        name.clone_into(&mut self.login.borrow_mut().initiator);
    }

    /// Notes the session that it is entered as.
    pub(crate) fn set_key(&self, key: SessionKey) {
        self.login.borrow_mut().key = Some(key);
    }

    /// The session that it is entered as.
    pub(crate) fn key(&self) -> Option<SessionKey> {
        self.login.borrow().key.clone()
    }

    pub(crate) fn take_key(&self) -> Option<SessionKey> {
        self.login.borrow_mut().key.take()
    }

    /// Gives back a session that ended before it began.
    pub(crate) fn release_key(&self) {
        if let Some(key) = self.take_key() {
            self.service.sessions.remove(&key, self.id);
        }
    }

    /// The nexus of its session, once it has one.
    pub(crate) fn nexus(&self) -> Option<&Rc<Nexus>> {
        self.session.get()?.as_ref()
    }

    /// Its session begins; one for discovery has no `nexus`.
    pub(crate) fn begin_session(&self, nexus: Option<Rc<Nexus>>) {
        self.logged_in_at.set(time::now());
        let begun = self.session.set(nexus);
        debug_assert!(begun.is_ok(), "a connection has one session");
    }

    pub(crate) fn is_logged_in(&self) -> bool {
        self.session.get().is_some()
    }

    fn has_reached(&self, phase: Phase) -> bool {
        self.phase.get() as u8 >= phase as u8
    }

    /// Goes on to `phase`, if it is not further already.
    fn advance(&self, phase: Phase) -> bool {
        let is_new = !self.has_reached(phase);
        if is_new {
            self.phase.set(phase);
        }
        is_new
    }

    /// Takes no further commands from now on.
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

    /// Ends the connection now. Commands that run go on to their end and are not answered.
    pub(crate) fn end(&self, why: &str) {
        if self.advance(Phase::Ended) {
            tracing::debug!(peer = %self.peer, id = self.id, why, "connection ends");
            self.note_ending(|| Ending::Lost(why.to_owned()));
            self.stream.shutdown();
            self.changed.notify();
            self.transmit.notify();
            self.sent.notify();
        }
    }

    pub(crate) fn note_ending(&self, ending: impl FnOnce() -> Ending) {
        self.ending.borrow_mut().get_or_insert_with(ending);
    }

    pub(crate) fn has_ending(&self) -> bool {
        self.ending.borrow().is_some()
    }

    pub(crate) fn take_ending(&self) -> Option<Ending> {
        self.ending.take()
    }

    /// Why the peer has gone, if it has ended for that.
    pub(crate) fn lost_because(&self) -> Option<String> {
        match &*self.ending.borrow() {
            Some(Ending::Lost(why)) => Some(why.clone()),
            _ => None,
        }
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

    /// Ends the connection once all that is ready has been sent.
    pub(crate) fn close_when_sent(&self) {
        self.advance(Phase::Closing);
        self.transmit.notify();
    }

    /// Waits until the connection has ended; its I/O may go on.
    pub(crate) async fn over(&self) {
        self.changed
            .wait_for(|| self.is_ended().then_some(()))
            .await;
    }

    /// Waits until the connection has ended and all its I/O too.
    pub(crate) async fn gone(&self) {
        let is_gone = || self.has_reached(Phase::Gone);
        self.changed.wait_for(|| is_gone().then_some(())).await;
    }

    /// All its I/O has ended.
    pub(crate) fn has_gone(&self) {
        debug_assert!(self.is_ended(), "its I/O ends after it");
        self.advance(Phase::Gone);
        self.changed.notify();
    }

    /// Whether the log takes a line of this kind now.
    pub(crate) fn may_say(&self, notice: Notice) -> Option<Suppressed> {
        self.service.sessions.notices.may_say(notice, time::now())
    }

    /// Counts commands whose answers have been sent just now.
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

    /// Forgets open commands (for one LUN, or all) that came before `mark` without an answer; gives
    /// the I/Os that run for such commands, also those forgotten before.
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
        nexus.running(|io_lun, command| {
            lun.is_none_or(|lun| lun == io_lun) && !self.open.is_after(task_of(command), mark)
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

    /// Gives an initiator that has used up its window a wider one, if there is one to be had.
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

    /// Its session, for people; `None` while there is none.
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
            portal_group_tag: target.map_or(0, |target| target.portals.tag),
            lane,
            header_digest: digests.header,
            data_digest: digests.data,
            age: time::now() - self.logged_in_at.get(),
            outstanding: machine.tasks_len(),
        })
    }

    /// Tells the initiator that its session has begun.
    pub(crate) fn accept_login(&self, tsih: u16) {
        let _ = self.machine.borrow_mut().login_accept(tsih);
        self.sent.notify();
        self.transmit.notify();
    }
}
