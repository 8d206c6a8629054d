//! One path to a logical unit: an initiator port of ours, with one nexus at a time. The initiator ports are there from the
//! beginning; whether a session is wanted for one, and where it leads, may change while the disk is open.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
};

use engine::LaneHandle;
use iscsi::Isid;

use super::{
    access::PathAccess,
    config::{PathConfig, Transport},
    login::Portal,
    nexus::Nexus,
    patience::{Backoff, Pace},
    silence::Silence,
    status::{PathState, PathStatus},
};
use crate::{Error, ErrorKind};

/// A portal and an initiator port of ours.
pub(super) struct Path {
    isid: Isid,
    way: RefCell<Transport>,
    pub(super) portal: RefCell<Portal>,
    /// The lane its sessions run on; `None`: the home lane.
    lane: RefCell<Option<LaneHandle>>,
    /// The disk should have a session over it. If not, it is unused, or what is left of it is being ended.
    is_wanted: Cell<bool>,
    /// Its place among those that are wanted.
    rank: Cell<usize>,
    /// If the target refuses this path, the disk is used without it.
    is_spare: Cell<bool>,
    /// The target has refused it for good.
    pub(super) is_given_up: Cell<bool>,
    /// The asymmetric access state of its target port.
    pub(super) access: Cell<PathAccess>,
    /// The target port group it reaches, once the target has reported it.
    pub(super) port_group: Cell<Option<u16>>,
    /// The latest nexus, which may be lost.
    nexus: RefCell<Option<Rc<Nexus>>>,
    /// The previous nexus, about which another lane may still report.
    former: RefCell<Option<Rc<Nexus>>>,
    pub(super) pace: RefCell<Pace>,
    /// The pace of LOGICAL UNIT RESETs over it.
    pub(super) resets: RefCell<Backoff>,
    /// Why there is no nexus, if there is none.
    pub(super) error: RefCell<Option<Error>>,
    /// The loss has been logged: one line, however many attempts fail.
    pub(super) loss_is_told: Cell<bool>,
    /// It led to another disk when last checked.
    pub(super) leads_elsewhere: Cell<bool>,
    /// Somebody is logging in over it.
    pub(super) is_recovering: Cell<bool>,
}

impl Path {
    /// One for which no session is wanted.
    pub(super) fn unused(isid: Isid, way: &Transport) -> Path {
        Path {
            isid,
            way: RefCell::new(way.clone()),
            portal: RefCell::new(Portal::new(way.address)),
            lane: RefCell::default(),
            is_wanted: Cell::new(false),
            rank: Cell::new(usize::MAX),
            is_spare: Cell::new(false),
            is_given_up: Cell::new(false),
            access: Cell::default(),
            port_group: Cell::new(None),
            nexus: RefCell::default(),
            former: RefCell::default(),
            pace: RefCell::new(Pace::begin()),
            resets: RefCell::default(),
            error: RefCell::default(),
            loss_is_told: Cell::new(false),
            leads_elsewhere: Cell::new(false),
            is_recovering: Cell::new(false),
        }
    }

    /// From now on a session is wanted for it, this way and on this lane. It must be free.
    pub(super) fn begin(&self, way: &Transport, lane: Option<LaneHandle>) {
        self.way.replace(way.clone());
        self.portal.replace(Portal::new(way.address));
        self.lane.replace(lane);
        self.is_wanted.set(true);
        if let Some(before) = self.nexus.take() {
            self.former.replace(Some(before));
        }
        self.is_given_up.set(false);
        self.access.take();
        self.port_group.take();
        self.pace.replace(Pace::begin());
        self.resets.take();
        self.error.take();
        self.loss_is_told.set(false);
        self.leads_elsewhere.set(false);
    }

    /// Gives it its place among those that are wanted.
    pub(super) fn stand_at(&self, rank: usize, is_spare: bool) {
        self.rank.set(rank);
        self.is_spare.set(is_spare);
    }

    /// From now on no session is wanted for it.
    pub(super) fn let_go(&self) {
        self.is_wanted.set(false);
        self.rank.set(usize::MAX);
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.get()
    }

    pub(super) fn is_spare(&self) -> bool {
        self.is_spare.get()
    }

    pub(super) fn rank(&self) -> usize {
        self.rank.get()
    }

    /// Whether it should be brought back when it is lost. If it left writes, that ends them.
    pub(super) fn is_missed(&self) -> bool {
        self.is_wanted() || self.ghost().is_some()
    }

    /// Whether nothing is left of it.
    pub(super) fn is_gone(&self) -> bool {
        !self.is_missed() && self.live().is_none()
    }

    /// Whether it may be used for another way.
    pub(super) fn is_free(&self) -> bool {
        self.is_gone() && !self.is_recovering.get()
    }

    pub(super) fn isid(&self) -> Isid {
        self.isid
    }

    pub(super) fn way(&self) -> Transport {
        self.way.borrow().clone()
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
        self.error.replace(None);
        if let Some(before) = self.nexus.replace(Some(nexus.clone())) {
            let message = "another session has taken its place";
            before.end(Error::new(ErrorKind::Unreachable, message));
            self.former.replace(Some(before));
        }
    }

    /// The nexus, if its session is alive.
    pub(super) fn live(&self) -> Option<Rc<Nexus>> {
        let nexus = self.nexus.borrow();
        nexus.as_ref().filter(|nexus| !nexus.is_over()).cloned()
    }

    /// The nexus, if commands may be sent on it.
    pub(super) fn usable(&self) -> Option<Rc<Nexus>> {
        self.live()
            .filter(|nexus| self.access.get() != PathAccess::No && nexus.takes_requests())
    }

    /// The lost nexus, if it left writes that may still take effect.
    pub(super) fn ghost(&self) -> Option<Rc<Nexus>> {
        self.last().filter(|_| self.may_still_write())
    }

    /// Whether there is such a nexus.
    pub(super) fn may_still_write(&self) -> bool {
        self.nexus
            .borrow()
            .as_ref()
            .is_some_and(|n| n.may_still_write())
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
        let nexus = self.nexus.borrow();
        let lost = || Some(nexus.as_ref()?.link().end_now()?.error);
        self.error.borrow().clone().or_else(lost)
    }

    /// Its state for reports, and whether its target is silent, which changes with time; `lane` is the number of its lane.
    pub(super) fn status(&self, lane: usize) -> (PathStatus, Silence) {
        let port = self.last().map(|nexus| nexus.port());
        let live = self.live();
        let silence = live.as_ref().map(|nexus| nexus.link().silence().clone());
        let state = match live {
            None => PathState::None(self.error().map(|error| error.to_string())),
            Some(_) if self.access.get() == PathAccess::No => PathState::Standby,
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

    /// Whether waiting for it is in vain. A target that has let us in before and refuses us now may be starting, and its
    /// portal listens before its disks are there: that is waited for, as an unreachable one is.
    pub(super) fn is_refused(&self) -> bool {
        let error = self.error.borrow();
        let kind = error.as_ref().map(Error::kind);
        match kind {
            Some(ErrorKind::Configuration) => self.leads_elsewhere.get() || self.last().is_none(),
            kind => kind == Some(ErrorKind::Preempted),
        }
    }
}
