//! One I_T nexus with a logical unit: a session from login to end, never retried. Its creator chooses the initiator
//! port; [`paths`](super::paths) handles its loss.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use engine::{Duration, Instant, sync::Notify, task, time};

use super::{
    cdb::CdbBytes,
    config::Policy,
    ended,
    in_flight::InFlight,
    link::SessionLink,
    machine::{Event, Machine, News, NexusId, PathId},
    own::SessionEnd,
    session::{Data, Port, Reply},
};
use crate::{Error, ErrorKind, Result};

/// A single-use connection to one logical unit: once ended, it stays ended.
pub(super) struct Nexus {
    link: SessionLink,
    path: PathId,
    /// While it is being prepared: until when commands may be sent, and how long that is.
    ready_within: Cell<Option<(Instant, Duration)>>,
    /// What is known of it: it has an entry there while it lives.
    machine: Rc<RefCell<Machine>>,
    id: NexusId,
    /// The target has reported that it may lead to another disk.
    doubted: Notify,
    in_flight: InFlight,
}

impl Nexus {
    /// One that has just logged in.
    pub(super) fn new(link: SessionLink, path: PathId, machine: &Rc<RefCell<Machine>>) -> Nexus {
        let id = machine.borrow().next_nexus();
        let admitted = Event::Admitted(id, path);
        machine.borrow_mut().note(admitted, time::now());
        Nexus {
            link,
            path,
            ready_within: Cell::new(None),
            id,
            machine: machine.clone(),
            doubted: Notify::new(),
            in_flight: InFlight::default(),
        }
    }

    pub(super) fn id(&self) -> NexusId {
        self.id
    }

    /// Tells the machine of something that happens to it, and has no consequence but to be known.
    fn note(&self, event: Event) {
        self.machine.borrow_mut().note(event, time::now());
    }

    pub(super) fn link(&self) -> &SessionLink {
        &self.link
    }

    pub(super) fn path(&self) -> PathId {
        self.path
    }

    pub(super) fn port(&self) -> Port {
        self.link.port()
    }

    /// Sends a command once.
    ///
    /// # Errors
    /// When the session ends before the answer, the target did not execute the command, or the LUN may have become
    /// another disk, which this command must not reach.
    pub(super) async fn execute(&self, cdb: &CdbBytes, data: Data) -> Result<Reply> {
        self.check_may_send()?;
        if self.is_in_doubt() && !cdb.suits_any_disk() {
            let message = "the target reported that the LUN may be another disk";
            return Err(Error::new(ErrorKind::TimedOut, message));
        }
        let doubts = self.doubts();
        let running = self.in_flight.begin();
        let reply = self.link.execute(cdb, data).await?;
        running.answered();
        self.doubt(reply.doubts);
        Ok(reply.knowing(doubts))
    }

    /// From now on, and until it is ready, commands are sent only for `limit`. One that was sent by then is waited for:
    /// its answer may be a unit attention, which the target reports only once.
    pub(super) fn must_be_ready_within(&self, limit: Duration) {
        self.ready_within.set(Some((time::now() + limit, limit)));
    }

    /// It has been prepared.
    pub(super) fn is_ready(&self) {
        self.ready_within.set(None);
    }

    /// Refuses to send anything more.
    fn check_may_send(&self) -> Result<()> {
        if self.machine.borrow().is_ended() {
            return Err(ended::by_owner());
        }
        match self.ready_within.get() {
            Some((end, limit)) if time::now() > end => {
                let message = format!("the target was not ready within {:?}", time::brief(limit));
                Err(Error::new(ErrorKind::TimedOut, message))
            }
            _ => Ok(()),
        }
    }

    /// Sends LOGICAL UNIT RESET; returns the response code (RFC 7143 §11.6.1).
    pub(super) async fn reset_logical_unit(&self) -> Result<u8> {
        self.check_may_send()?;
        self.link.reset_logical_unit().await
    }

    pub(super) fn is_over(&self) -> bool {
        self.link.is_over()
    }

    /// Whether requests may be sent on it: it is not over, it leads to the disk as far as we know, and the target has
    /// not asked for a logout.
    pub(super) fn takes_requests(&self) -> bool {
        self.notice();
        self.machine.borrow().takes_requests(self.id)
    }

    /// The target has reported over its session, `doubts` times in all, that the disk may not be what it was.
    pub(super) fn doubt(&self, doubts: u64) {
        if doubts > self.doubts() {
            self.note(Event::DoubtedNexus(self.id, doubts));
            self.doubted.notify();
        }
    }

    /// How many times the target has reported that, as far as is known here.
    pub(super) fn doubts(&self) -> u64 {
        self.machine.borrow().doubts(self.id)
    }

    /// Its LUN was the disk when it was asked, after `doubts` such reports.
    pub(super) fn is_sure(&self, doubts: u64) {
        self.note(Event::Sure(self.id, doubts));
    }

    /// Whether it may lead to another disk.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.machine.borrow().is_in_doubt(self.id)
    }

    /// Waits until it is in doubt. Returns whether it can still be asked: its session has not ended.
    pub(super) async fn in_doubt(&self) -> bool {
        let doubted = self.doubted.wait_for(|| self.is_in_doubt().then_some(()));
        task::either(self.link.over(), doubted).await;
        !self.is_over()
    }

    /// Whether it is lost and writes that were in flight may still take effect.
    pub(super) fn may_still_write(&self) -> bool {
        self.notice() && self.machine.borrow().may_still_write(self.id)
    }

    /// Tells the machine what its session has come to. Returns whether it has ended.
    pub(super) fn notice(&self) -> bool {
        let is_over = self.is_over();
        if is_over && !self.machine.borrow().has_ended(self.id) {
            let end = self.link.end_now().expect("it is over");
            let SessionEnd { error, left_writes } = end;
            self.note(Event::Ended {
                nexus: self.id,
                left_writes,
                why: error,
            });
        } else if self.link.is_asked_to_log_out() && !self.machine.borrow().is_retired(self.id) {
            self.note(Event::Retires(self.id));
        }
        is_over
    }

    /// Whether it left writes that could not be fenced.
    pub(super) fn is_unfenced(&self) -> bool {
        self.notice() && self.machine.borrow().is_unfenced(self.id)
    }

    /// Whether a login of its initiator port has ended it at the target, though perhaps not its work.
    pub(super) fn is_reinstated(&self) -> bool {
        self.machine.borrow().is_reinstated(self.id)
    }

    /// From when on a reset ends the writes that it has left, if it has ended.
    pub(super) fn can_be_ended_at(&self) -> Option<Instant> {
        self.machine.borrow().can_be_ended_at(self.id)
    }

    pub(super) fn end(&self, error: Error) {
        self.link.end(error);
    }

    /// Ends it if commands are in flight on it.
    pub(super) async fn end_if_busy(&self, error: Error) {
        match self.link.there() {
            None if self.outstanding() > 0 => self.end(error),
            None => {}
            Some(distant) => distant.end_if_busy(error).await,
        }
    }

    pub(super) fn is_new(&self) -> bool {
        self.machine.borrow().is_new(self.id)
    }

    /// What it reported while it was new, and has not been taken since.
    pub(super) fn take_news(&self) -> News {
        let news = self.machine.borrow().news(self.id);
        if news != News::default() {
            self.note(Event::NewsTaken(self.id));
        }
        news
    }

    /// Commands not yet answered.
    pub(super) fn outstanding(&self) -> u32 {
        self.in_flight.count()
    }

    /// Waits until no command is outstanding.
    pub(super) async fn idle(&self) {
        self.in_flight.idle().await;
        if let Some(distant) = self.link.there() {
            distant.idle().await;
        }
    }

    /// Its cost under `policy`: the nexus with the lowest is chosen.
    pub(super) fn load(&self, policy: Policy) -> u64 {
        self.in_flight.load(policy)
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        let forgotten = Event::Forgotten(self.id);
        self.machine.borrow_mut().note_drop(forgotten);
    }
}
