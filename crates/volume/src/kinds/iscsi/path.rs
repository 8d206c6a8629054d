//! One path to a logical unit: an initiator port of ours, with one nexus at a time. The initiator ports are there from the
//! beginning; whether a session is wanted for one, and where it leads, may change while the disk is open. What is known of
//! it and decided about it is the [`machine`](super::machine)'s; here are its connections.

use std::{cell::RefCell, net::SocketAddr, rc::Rc};

use engine::LaneHandle;
use iscsi::Isid;

use super::{
    access::PathAccess,
    config::{PathConfig, Policy, Transport},
    login::Portal,
    machine::{Machine, Offer, PathId},
    nexus::Nexus,
    silence::Silence,
    status::{PathState, PathStatus},
};
use crate::{Error, ErrorKind};

/// A portal and an initiator port of ours.
pub(super) struct Path {
    id: PathId,
    isid: Isid,
    way: RefCell<Transport>,
    /// The lane its sessions run on; `None`: the home lane.
    lane: RefCell<Option<LaneHandle>>,
    /// The latest nexus, which may be lost.
    nexus: RefCell<Option<Rc<Nexus>>>,
    /// The previous nexus, about which another lane may still report.
    former: RefCell<Option<Rc<Nexus>>>,
    machine: Rc<RefCell<Machine>>,
}

impl Path {
    /// One for which no session is wanted.
    pub(super) fn unused(
        id: PathId,
        isid: Isid,
        way: &Transport,
        machine: &Rc<RefCell<Machine>>,
    ) -> Path {
        Path {
            id,
            isid,
            way: RefCell::new(way.clone()),
            lane: RefCell::default(),
            nexus: RefCell::default(),
            former: RefCell::default(),
            machine: machine.clone(),
        }
    }

    /// From now on it goes this way, and on this lane.
    pub(super) fn lead(&self, way: &Transport, lane: Option<LaneHandle>) {
        self.way.replace(way.clone());
        self.lane.replace(lane);
        if let Some(before) = self.nexus.take() {
            self.former.replace(Some(before));
        }
    }

    pub(super) fn id(&self) -> PathId {
        self.id
    }

    /// Asks the machine, which is told first what its session has come to.
    fn ask<T>(&self, question: impl FnOnce(&Machine, PathId) -> T) -> T {
        self.notice();
        question(&self.machine.borrow(), self.id)
    }

    /// Tells the machine what its session has come to.
    pub(super) fn notice(&self) {
        if let Some(nexus) = &*self.nexus.borrow() {
            nexus.notice();
        }
    }

    /// Whether the disk should have a session over it.
    pub(super) fn is_wanted(&self) -> bool {
        self.machine.borrow().is_wanted(self.id)
    }

    /// Its place among those that are wanted.
    pub(super) fn rank(&self) -> usize {
        self.machine.borrow().rank(self.id)
    }

    /// The asymmetric access state of its target port.
    pub(super) fn access(&self) -> PathAccess {
        self.machine.borrow().access(self.id)
    }

    /// Whether nothing is left of it.
    pub(super) fn is_gone(&self) -> bool {
        self.ask(Machine::is_gone)
    }

    /// Whether it may be used for another way.
    pub(super) fn is_free(&self) -> bool {
        self.ask(Machine::is_free)
    }

    pub(super) fn isid(&self) -> Isid {
        self.isid
    }

    pub(super) fn way(&self) -> Transport {
        self.way.borrow().clone()
    }

    /// Where its next login begins.
    pub(super) fn portal(&self) -> Portal {
        Portal {
            configured: self.address(),
            moved: self.machine.borrow().moved(self.id),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.way.borrow().address
    }

    pub(super) fn lane(&self) -> Option<LaneHandle> {
        self.lane.borrow().clone()
    }

    pub(super) fn config(&self) -> PathConfig {
        let Transport { address, source } = self.way();
        PathConfig {
            address,
            source,
            isid: self.isid,
        }
    }

    /// Replaces the previous nexus. Two concurrent attempts may both have logged in.
    pub(super) fn replace(&self, nexus: &Rc<Nexus>) {
        if let Some(before) = self.nexus.replace(Some(nexus.clone())) {
            let message = "another session has taken its place";
            before.end(Error::new(ErrorKind::Unreachable, message));
            self.former.replace(Some(before));
        }
    }

    /// The nexus, if its session is alive.
    pub(super) fn live(&self) -> Option<Rc<Nexus>> {
        self.last().filter(|nexus| !nexus.is_over())
    }

    /// The nexus, if commands may be sent on it.
    pub(super) fn usable(&self) -> Option<Rc<Nexus>> {
        self.last().filter(|_| self.ask(Machine::is_usable))
    }

    /// The lost nexus, if it left writes that may still take effect.
    pub(super) fn ghost(&self) -> Option<Rc<Nexus>> {
        self.last().filter(|_| self.ask(Machine::is_stale))
    }

    /// What speaks for sending a command over it, and against it.
    pub(super) fn offer(&self, policy: Policy) -> Offer {
        let nexus = self.nexus.borrow();
        let nexus = nexus.as_ref().expect("a path that is usable has a nexus");
        let link = nexus.link();
        Offer {
            is_silent: link.silence().is_on(),
            is_there: link.there().is_some(),
            load: nexus.load(policy),
        }
    }

    /// The latest nexus, which may be lost.
    pub(super) fn last(&self) -> Option<Rc<Nexus>> {
        self.nexus.borrow().clone()
    }

    /// The latest nexus and the previous one.
    pub(super) fn known(&self) -> impl Iterator<Item = Rc<Nexus>> {
        let known = [self.last(), self.former.borrow().clone()];
        known.into_iter().flatten()
    }

    /// Why the path cannot be used.
    pub(super) fn error(&self) -> Option<Error> {
        self.ask(|machine, path| machine.path_error(path).cloned())
    }

    /// Its state for reports, and whether its target is silent, which changes with time; `lane` is the number of its lane.
    pub(super) fn status(&self, lane: usize) -> (PathStatus, Silence) {
        let port = self.last().map(|nexus| nexus.port());
        let live = self.live();
        let silence = live.as_ref().map(|nexus| nexus.link().silence().clone());
        let state = match live {
            None => PathState::None(self.error().map(|error| error.to_string())),
            Some(_) if self.access() == PathAccess::No => PathState::Standby,
            Some(_) => PathState::LoggedIn,
        };
        let status = PathStatus {
            portal: port.map_or(self.address(), |port| port.address()),
            local: port.and_then(|port| port.local()),
            lane,
            state,
        };
        (status, silence.unwrap_or_default())
    }
}
