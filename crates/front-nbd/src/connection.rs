//! One connection on its lane: the state shared by its reader, its writer and its requests, and how it ends.

use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

use engine::{Instant, Payload, sync::Notify, time};
use front::{Newcomer, Progress};
use nbd::{BlockSizes, Export};
use unit::{CommandId, CommandKind, Held, Nexus, Permits, StageStamps, no_commands};

use crate::{
    notices::NbdNotice,
    service::{LUN, NbdService},
    wire::Wire,
};

/// How far a connection's shutdown has progressed. A phase never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    /// Accepts requests.
    Open,
    /// Accepts nothing more, and ends once the open requests have been answered.
    Closing,
    /// Nothing more is received or sent; I/O may still be running.
    Ended,
}

/// A reply to be sent.
#[derive(Default)]
pub(crate) struct OutgoingReply {
    pub(crate) head: nbd::ReplyBytes,
    /// The payload that follows the head.
    pub(crate) data: Payload,
    /// The memory permits for the payload.
    pub(crate) permits: Permits,
    /// What to count once it has been sent: the kind of operation, the bytes it moved, and its times.
    pub(crate) counted: Option<((CommandKind, u64), StageStamps)>,
}

pub(crate) struct Connection {
    pub(crate) peer: String,
    pub(crate) service: Rc<NbdService>,
    pub(crate) wire: Rc<Wire>,
    pub(crate) machine: RefCell<nbd::Server>,
    nexus: OnceCell<Rc<Nexus>>,
    id: u64,
    /// How far it is in its handshake.
    progress: Cell<Progress>,
    operations: Cell<u64>,
    /// Replies ready to be sent.
    pub(crate) outgoing: RefCell<VecDeque<OutgoingReply>>,
    /// Replies that are being sent.
    pub(crate) sending: RefCell<Vec<OutgoingReply>>,
    /// The number of requests not yet fully answered: replies ready to be sent, and requests still running.
    open: Cell<usize>,
    /// Signaled when there is something to send, or the connection has ended.
    pub(crate) transmit: Notify,
    /// Signaled when something was sent, or the connection has ended.
    pub(crate) sent: Notify,
    pub(crate) began: Instant,
    /// Whether a send is in progress.
    pub(crate) is_sending: Cell<bool>,
    /// While the rest of a message is awaited: the memory that its data take.
    pub(crate) receiving: Cell<Option<Held>>,
    /// When the server told it to close.
    pub(crate) stopping_since: Cell<Option<Instant>>,
    phase: Cell<Phase>,
    ending: RefCell<Option<String>>,
    changed: Notify,
}

impl Connection {
    pub(crate) fn new(service: Rc<NbdService>, newcomer: Newcomer<String>) -> Connection {
        let stream = newcomer.stream.on_lane();
        stream.keep_alive(service.limits.idle_time);
        Connection {
            peer: newcomer.ends,
            machine: RefCell::new(nbd::Server::new(export(&service), service.tls.is_some())),
            service,
            wire: Rc::new(Wire::new(stream)),
            nexus: OnceCell::new(),
            id: newcomer.id,
            progress: Cell::new(Progress::Unproven),
            operations: Cell::new(0),
            outgoing: RefCell::default(),
            sending: RefCell::default(),
            open: Cell::new(0),
            transmit: Notify::new(),
            sent: Notify::new(),
            began: time::now(),
            is_sending: Cell::default(),
            receiving: Cell::default(),
            stopping_since: Cell::default(),
            phase: Cell::new(Phase::Open),
            ending: RefCell::default(),
            changed: Notify::new(),
        }
    }

    /// Its client has sent another whole message of its handshake.
    pub(crate) fn step(&self) {
        self.service.everywhere.admission.step(self.id);
    }

    /// Whether it waits for us in its handshake.
    pub(crate) fn awaits_us(&self, awaits_us: bool) {
        let admission = &self.service.everywhere.admission;
        admission.awaits_us(self.id, awaits_us);
    }

    /// It has come so far in its handshake, or farther.
    pub(crate) fn reach(&self, progress: Progress) {
        if self.progress.get() < progress {
            self.progress.set(progress);
            self.service
                .everywhere
                .admission
                .progress(self.id, progress);
        }
    }

    /// The client has chosen the export: makes the connection a nexus of the unit, or returns why not.
    pub(crate) fn enter(&self) -> Result<(), &'static str> {
        if !self
            .service
            .everywhere
            .admission
            .enter(self.id, "", time::now())
        {
            return Err(
                "the limit on clients is reached, or its handshake took so long that another client \
                 was given its place; disconnect a client, or try again",
            );
        }
        let (units, luns) = (&self.service.units, &self.service.luns);
        let nexus = units.enter(&format!("nbd {}", self.peer), luns, no_commands());
        let port = format!("nbd:{},{}", self.peer, self.id);
        luns[&LUN].logical.borrow().establish(nexus.id, &port);
        // Consumes the power-on unit attention, which NBD cannot report. None pending: the unit has no room.
        let is_known = nexus.take_attention(LUN).is_some();
        let is_first = self.nexus.set(nexus).is_ok();
        debug_assert!(is_first, "a handshake ends once");
        is_known
            .then_some(())
            .ok_or("the disk cannot track any more clients; disconnect one first")
    }

    /// The connection's nexus, once the handshake is over.
    pub(crate) fn nexus(&self) -> Option<&Rc<Nexus>> {
        self.nexus.get()
    }

    /// A fresh ID for an operation of the nexus, and its LUN.
    pub(crate) fn next_operation(&self) -> (CommandId, u32) {
        self.operations.set(self.operations.get() + 1);
        (CommandId(self.operations.get()), LUN)
    }

    /// Whether another request may be opened.
    pub(crate) fn has_room(&self) -> bool {
        self.open.get() < self.service.limits.requests_max
    }

    /// Whether every request has been answered and its reply sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.get() == 0
    }

    /// Counts a request that will get a reply.
    pub(crate) fn begin(&self) {
        self.open.set(self.open.get() + 1);
    }

    /// Queues the reply of a request counted by [`begin`](Connection::begin).
    pub(crate) fn answer(&self, outgoing: OutgoingReply) {
        // A client that is gone does not need it.
        if !self.is_ended() {
            self.outgoing.borrow_mut().push_back(outgoing);
            self.transmit.notify();
        }
    }

    /// Records that `replies` replies have been sent.
    pub(crate) fn note_sent(&self, replies: usize) {
        self.open.set(self.open.get() - replies);
        self.sent.notify();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.phase.get() >= Phase::Closing
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.phase.get() == Phase::Ended
    }

    /// Accepts nothing more, and ends once the open requests have been answered.
    pub(crate) fn close(&self) {
        self.phase.set(self.phase.get().max(Phase::Closing));
        self.transmit.notify();
        self.sent.notify();
    }

    /// [Closes](Self::close) because the server stops, so its client has a limited time to take its last replies.
    pub(crate) fn stop(&self) {
        self.stopping_since.set(Some(time::now()));
        self.close();
    }

    /// The memory that its replies hold until the client has taken them.
    pub(crate) fn held_by_replies(&self) -> Held {
        let (ready, sending) = (self.outgoing.borrow(), self.sending.borrow());
        let replies = ready.iter().chain(sending.iter());
        replies.map(|reply| reply.permits.held()).sum()
    }

    /// Records why the connection ends, unless a reason is recorded already.
    pub(crate) fn note_ending(&self, why: &str) {
        self.ending
            .borrow_mut()
            .get_or_insert_with(|| why.to_owned());
    }

    /// Why the connection ended.
    pub(crate) fn ending(&self) -> String {
        self.ending
            .borrow()
            .clone()
            .unwrap_or_else(|| "the server is stopping".into())
    }

    /// Ends the connection now. Running requests continue to completion, but their replies are dropped.
    pub(crate) fn end(&self, why: &str) {
        if self.is_ended() {
            return;
        }
        self.note_ending(why);
        self.phase.set(Phase::Ended);
        self.outgoing.borrow_mut().clear();
        self.wire.shutdown();
        self.changed.notify();
        self.transmit.notify();
        self.sent.notify();
    }

    /// Waits until the connection has ended; its I/O may still be running.
    pub(crate) async fn over(&self) {
        self.changed
            .wait_for(|| self.is_ended().then_some(()))
            .await;
    }

    /// Ends the connection because of something the client did or failed to do, and logs it.
    pub(crate) fn dismiss(&self, why: &str) {
        if self.is_ended() {
            return;
        }
        if let Some(suppressed) = self
            .service
            .everywhere
            .notices
            .may_say(NbdNotice::Trouble, time::now())
        {
            tracing::warn!(peer = self.peer, suppressed, "disconnected a client: {why}");
        }
        self.end(why);
    }
}

/// The export as described to a client. The client keeps this length even if the disk is resized.
fn export(service: &NbdService) -> Export {
    let unit = &service.luns[&LUN];
    let shape = unit.shape();
    let minimum = shape.block_size_bytes;
    let preferred = shape.physical_block_bytes.max(4096).next_power_of_two();
    Export {
        name: service.volume.clone(),
        len_bytes: unit.len_bytes(),
        block: BlockSizes {
            minimum,
            preferred,
            payload_max: service.units.transfer_max_bytes(),
        },
        is_read_only: shape.read_only.is_on() || service.read_only,
        can_trim: shape.discard.is_some(),
    }
}
