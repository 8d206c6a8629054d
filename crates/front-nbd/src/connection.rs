//! One connection on its lane: what its reader, its writer and its requests know of it, and how it ends.

use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

use engine::{Instant, Payload, sync::Notify, time};
use nbd::{BlockSizes, Export};
use unit::{CommandId, Kind, Nexus, Permits, Times, no_commands};

use crate::{
    notices::Notice,
    service::{LUN, Newcomer, Service},
    wire::Wire,
};

/// How far a connection is on its way to its end. It never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    /// It takes what comes.
    Open,
    /// It takes nothing more, and ends when what is open has been answered.
    Closing,
    /// Nobody is heard and nothing sent any more; its I/O may go on.
    Ended,
}

/// A reply on its way out.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(crate) head: nbd::Reply,
    /// What follows the head.
    pub(crate) data: Payload,
    /// What pays for it.
    #[expect(dead_code, reason = "it is kept to be dropped")]
    pub(crate) permits: Permits,
    /// What there is to count when it has been sent: of which kind it was, how many bytes it moved, and when.
    pub(crate) counted: Option<((Kind, u64), Times)>,
}

pub(crate) struct Connection {
    pub(crate) peer: String,
    pub(crate) service: Rc<Service>,
    pub(crate) wire: Rc<Wire>,
    pub(crate) machine: RefCell<nbd::Server>,
    nexus: OnceCell<Rc<Nexus>>,
    id: u64,
    operations: Cell<u64>,
    /// Replies that are ready.
    pub(crate) outgoing: RefCell<VecDeque<Outgoing>>,
    /// Replies that are ready, and requests that will have one.
    open: Cell<usize>,
    /// There is something to send, or it is over.
    pub(crate) transmit: Notify,
    /// Something was sent, or it is over.
    pub(crate) sent: Notify,
    pub(crate) began: Instant,
    /// When the send in progress began.
    pub(crate) sending_since: Cell<Option<Instant>>,
    /// Since when the rest of what the client has begun is awaited.
    pub(crate) receiving_since: Cell<Option<Instant>>,
    phase: Cell<Phase>,
    ending: RefCell<Option<String>>,
    changed: Notify,
}

impl Connection {
    pub(crate) fn new(service: Rc<Service>, newcomer: Newcomer) -> Connection {
        let stream = newcomer.stream.on_lane();
        stream.keep_alive(service.limits.idle_time);
        Connection {
            peer: newcomer.peer,
            machine: RefCell::new(nbd::Server::new(export(&service), service.tls.is_some())),
            service,
            wire: Rc::new(Wire::new(stream)),
            nexus: OnceCell::new(),
            id: newcomer.id,
            operations: Cell::new(0),
            outgoing: RefCell::default(),
            open: Cell::new(0),
            transmit: Notify::new(),
            sent: Notify::new(),
            began: time::now(),
            sending_since: Cell::default(),
            receiving_since: Cell::default(),
            phase: Cell::new(Phase::Open),
            ending: RefCell::default(),
            changed: Notify::new(),
        }
    }

    /// The client has chosen the export: from now on it is a nexus of the unit. Otherwise why it cannot be.
    pub(crate) fn enter(&self) -> Result<(), &'static str> {
        self.service.everywhere.places.enter(self.id)?;
        let (units, luns) = (&self.service.units, &self.service.luns);
        let nexus = units.enter(&format!("nbd {}", self.peer), luns, no_commands());
        let port = format!("nbd:{},{}", self.peer, self.id);
        luns[&LUN].logical.borrow().establish(nexus.id, &port);
        // That it is powered on. A unit that knows too many has nothing to tell.
        let is_known = nexus.take_attention(LUN).is_some();
        let is_first = self.nexus.set(nexus).is_ok();
        debug_assert!(is_first, "a handshake ends once");
        is_known
            .then_some(())
            .ok_or("the disk knows as many clients as it can; end some of them")
    }

    /// Its nexus, once the handshake is over.
    pub(crate) fn nexus(&self) -> Option<&Rc<Nexus>> {
        self.nexus.get()
    }

    /// The name of a new operation of its nexus.
    pub(crate) fn next_operation(&self) -> (CommandId, u32) {
        self.operations.set(self.operations.get() + 1);
        (CommandId(self.operations.get()), LUN)
    }

    /// Whether there is room for another request.
    pub(crate) fn has_room(&self) -> bool {
        self.open.get() < self.service.limits.requests_max
    }

    /// Whether all that was begun has been answered and sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.get() == 0
    }

    /// A request will have a reply.
    pub(crate) fn begin(&self) {
        self.open.set(self.open.get() + 1);
    }

    /// The reply of a request that has [begun](Connection::begin) is ready.
    pub(crate) fn answer(&self, outgoing: Outgoing) {
        // Who has gone does not need it.
        if !self.is_ended() {
            self.outgoing.borrow_mut().push_back(outgoing);
            self.transmit.notify();
        }
    }

    /// So many replies are on their way.
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

    /// Takes nothing more, and ends when what is open has been answered.
    pub(crate) fn close(&self) {
        self.phase.set(self.phase.get().max(Phase::Closing));
        self.transmit.notify();
        self.sent.notify();
    }

    /// Notes why it ends, unless that is known.
    pub(crate) fn note_ending(&self, why: &str) {
        self.ending
            .borrow_mut()
            .get_or_insert_with(|| why.to_owned());
    }

    /// Why it has ended.
    pub(crate) fn ending(&self) -> String {
        self.ending
            .borrow()
            .clone()
            .unwrap_or_else(|| "the server stops".into())
    }

    /// Ends it now. Requests that run go on to their end; nobody hears of them.
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

    /// Waits until it has ended; its I/O may go on.
    pub(crate) async fn over(&self) {
        self.changed
            .wait_for(|| self.is_ended().then_some(()))
            .await;
    }

    /// Ends it, and tells the log, for what the client did or left undone.
    pub(crate) fn dismiss(&self, why: &str) {
        if self.is_ended() {
            return;
        }
        if let Some(suppressed) = self
            .service
            .everywhere
            .notices
            .may_say(Notice::Trouble, time::now())
        {
            tracing::warn!(
                peer = self.peer,
                suppressed,
                "a client was sent away: {why}"
            );
        }
        self.end(why);
    }
}

/// What a client is told of the disk. The length stays for it as it is now.
fn export(service: &Service) -> Export {
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
        is_read_only: shape.read_only || service.read_only,
        can_trim: shape.discard.is_some(),
    }
}
