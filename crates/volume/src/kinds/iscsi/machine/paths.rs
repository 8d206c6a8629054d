//! The paths: which sessions are wanted, which may be used, and which is brought back when. A path is an initiator port of
//! ours, which has one nexus at a time. What its session has come to is told to the machine before anything is decided.
//!
//! ```text
//!           begins                logs in               ended, lost
//!  unused ─────────► wanted ─────────────────► live ────────────────► missed: brought back
//!     ▲                 │ refused, and spare     │                       │
//!     │                 ▼                        │ no longer wanted      │ left no writes, and
//!     │             given up                     ▼                       │ no longer wanted
//!     └──────────────────────────────────── gone ◄───────────────────────┘
//! ```

use std::{cell::Cell, net::SocketAddr};

use engine::{Duration, Instant};

use super::{
    super::access::PathAccess,
    Action, Actions, Machine, NexusId,
    access::AccessWatch,
    pace::{Backoff, Pace},
};
use crate::{
    Error, ErrorKind,
    planted::{Bug, is_planted},
};

/// A path, by the index of its initiator port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct PathId(pub(in super::super) usize);

/// The place of a path among those that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct PathPlace {
    /// How many stand before it.
    pub(in super::super) rank: usize,
    /// If the target refuses it, the disk is used without it.
    pub(in super::super) is_spare: bool,
}

impl PathPlace {
    /// The rank of those that were added, and stand behind all others until they are adopted.
    pub(in super::super) const LAST: usize = usize::MAX;
}

/// What has happened to a path.
#[derive(Clone, Debug)]
pub(in super::super) enum PathEvent {
    /// A session is wanted for it from now on. It was free.
    Begins(PathPlace),
    /// Somebody brings it into use who sees to it alone.
    RecoveryBegins,
    /// That is over.
    RecoveryEnds,
    /// Whoever brings it back asks whether to log in now.
    Due,
    /// A login has come through, at this address, to which the target says that it has moved for good; or at the configured
    /// one, or one that holds for this login only.
    LoggedIn { moved: Option<SocketAddr> },
    /// The login that was due is over.
    Recovered(Option<Error>),
    /// Its first login has failed.
    OpenFailed(Error),
    /// As that, and another path is tried instead.
    LoginFailed(Error),
    /// The target asks for a logout.
    LogoutRequested,
    /// Its nexus is at this target port group, and leads to another disk or not.
    Identified {
        port_group: Option<u16>,
        is_elsewhere: bool,
    },
    /// It is at this target port group.
    PortGroup(Option<u16>),
    /// Its target port group has this access state.
    Access(PathAccess),
    /// A LOGICAL UNIT RESET over it, which began then, was done or not.
    ResetTried { began: Instant, is_done: bool },
}

/// What the driver knows of the session of a path that may be picked.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Offer {
    /// Its target is silent, and so it is probably lost.
    pub(in super::super) is_silent: bool,
    /// It is another lane's, and left to it unless there is no other.
    pub(in super::super) is_there: bool,
    /// Its cost.
    pub(in super::super) load: u64,
}

/// All paths, one for each initiator port.
#[derive(Debug)]
pub(super) struct KnownPaths {
    all: Vec<KnownPath>,
    /// How many of these have ever been used.
    used: usize,
    /// Where the search starts, to rotate among equal paths. It is all that a command changes.
    turn: Cell<usize>,
    /// Login attempts that have finished.
    attempts: u64,
    /// The losses of a lone path for which nobody waited.
    idle_losses: Backoff,
    pub(super) access: AccessWatch,
}

/// What is known of one path.
#[derive(Clone, Debug, Default)]
struct KnownPath {
    /// The disk should have a session over it. If not, it is unused, or what is left of it is being ended.
    wanted: Option<Wanted>,
    /// The latest nexus, which may be lost.
    nexus: Option<NexusId>,
    /// The asymmetric access state of its target port.
    access: PathAccess,
    /// The target port group it reaches, once the target has reported it.
    port_group: Option<u16>,
    pace: Pace,
    /// The pace of LOGICAL UNIT RESETs over it.
    resets: Backoff,
    /// Where the target has moved for good, which is tried before the configured address.
    moved: Option<SocketAddr>,
    /// Why there is no nexus, if the last login has failed.
    error: Option<Error>,
    /// The loss has been logged: one line, however many attempts fail.
    loss_is_told: bool,
    /// It led to another disk when last checked.
    leads_elsewhere: bool,
    /// Somebody is logging in over it.
    is_recovering: bool,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    place: PathPlace,
    /// The target has refused it for good.
    is_given_up: bool,
}

impl KnownPaths {
    /// So many, none of which is used.
    pub(super) fn new(count: usize) -> KnownPaths {
        KnownPaths {
            all: vec![KnownPath::default(); count],
            used: 0,
            turn: Cell::new(0),
            attempts: 0,
            idle_losses: Backoff::default(),
            access: AccessWatch::default(),
        }
    }

    pub(super) fn forget(&mut self, nexus: NexusId) {
        for path in &mut self.all {
            path.nexus = path.nexus.filter(|it| *it != nexus);
        }
    }
}

impl Machine {
    fn path(&self, path: PathId) -> &KnownPath {
        &self.paths.all[path.0]
    }

    fn path_mut(&mut self, path: PathId) -> &mut KnownPath {
        &mut self.paths.all[path.0]
    }

    /// All that have ever been used.
    pub(super) fn used_paths(&self) -> impl Iterator<Item = PathId> + use<> {
        (0..self.paths.used).map(PathId)
    }

    /// How many these are.
    pub(in super::super) fn paths_used(&self) -> usize {
        self.paths.used
    }

    /// Login attempts that have finished.
    pub(in super::super) fn attempts(&self) -> u64 {
        self.paths.attempts
    }

    pub(in super::super) fn is_wanted(&self, path: PathId) -> bool {
        self.path(path).wanted.is_some()
    }

    /// Its place among those that are wanted.
    pub(in super::super) fn rank(&self, path: PathId) -> usize {
        let wanted = self.path(path).wanted;
        wanted.map_or(PathPlace::LAST, |wanted| wanted.place.rank)
    }

    fn is_spare(&self, path: PathId) -> bool {
        let wanted = self.path(path).wanted;
        wanted.is_some_and(|wanted| wanted.place.is_spare)
    }

    fn is_given_up(&self, path: PathId) -> bool {
        let wanted = self.path(path).wanted;
        wanted.is_some_and(|wanted| wanted.is_given_up)
    }

    pub(in super::super) fn access(&self, path: PathId) -> PathAccess {
        self.path(path).access
    }

    pub(in super::super) fn port_group(&self, path: PathId) -> Option<u16> {
        self.path(path).port_group
    }

    /// Where its target has moved for good, as far as is known.
    pub(in super::super) fn moved(&self, path: PathId) -> Option<SocketAddr> {
        self.path(path).moved
    }

    /// Whether it led to another disk when last checked.
    pub(in super::super) fn leads_elsewhere(&self, path: PathId) -> bool {
        self.path(path).leads_elsewhere
    }

    /// Whether its session is alive.
    pub(in super::super) fn is_live(&self, path: PathId) -> bool {
        let nexus = self.path(path).nexus;
        nexus.is_some_and(|nexus| !self.has_ended(nexus))
    }

    /// Whether commands may be sent over it.
    pub(in super::super) fn is_usable(&self, path: PathId) -> bool {
        let KnownPath { nexus, access, .. } = self.path(path);
        let is_open = *access != PathAccess::No;
        nexus.is_some_and(|nexus| is_open && self.takes_requests(nexus))
    }

    pub(super) fn is_any_usable(&self) -> bool {
        self.used_paths().any(|path| self.is_usable(path))
    }

    pub(super) fn is_any_live(&self) -> bool {
        self.used_paths().any(|path| self.is_live(path))
    }

    /// Whether it is lost, and has left writes that may still take effect.
    pub(in super::super) fn is_stale(&self, path: PathId) -> bool {
        let nexus = self.path(path).nexus;
        nexus.is_some_and(|nexus| self.may_still_write(nexus))
    }

    /// Whether any path has.
    pub(in super::super) fn is_any_stale(&self) -> bool {
        self.used_paths().any(|path| self.is_stale(path))
    }

    /// Whether it should be brought back when it is lost. If it left writes, that ends them.
    pub(in super::super) fn is_missed(&self, path: PathId) -> bool {
        self.is_wanted(path) || self.is_stale(path)
    }

    /// Whether nothing is left of it.
    pub(in super::super) fn is_gone(&self, path: PathId) -> bool {
        !self.is_missed(path) && !self.is_live(path)
    }

    /// Whether it may be used for another way.
    pub(in super::super) fn is_free(&self, path: PathId) -> bool {
        self.is_gone(path) && !self.path(path).is_recovering
    }

    fn wanted(&self) -> impl Iterator<Item = PathId> {
        self.used_paths().filter(|path| self.is_wanted(*path))
    }

    /// Whether more than one session is wanted.
    pub(in super::super) fn are_several(&self) -> bool {
        self.wanted().nth(1).is_some()
    }

    /// Whether a path that is not optimal is wanted.
    pub(super) fn wants_better_access(&self) -> bool {
        let mut wanted = self.wanted();
        wanted.any(|path| self.access(path) != PathAccess::Optimized)
    }

    /// Why it cannot be used.
    pub(in super::super) fn path_error(&self, path: PathId) -> Option<&Error> {
        let KnownPath { nexus, error, .. } = self.path(path);
        let lost = || nexus.and_then(|nexus| self.ended_with(nexus));
        error.as_ref().or_else(lost)
    }

    /// Whether waiting for it is in vain. A target that has let us in before and refuses us now may be starting, and its
    /// portal listens before its disks are there: that is waited for, as an unreachable one is.
    fn is_refused(&self, path: PathId) -> bool {
        let path = self.path(path);
        match path.error.as_ref().map(Error::kind) {
            Some(ErrorKind::Configuration) => path.leads_elsewhere || path.nexus.is_none(),
            kind => kind == Some(ErrorKind::Preempted),
        }
    }

    /// Whether waiting for any of them is.
    pub(in super::super) fn are_all_refused(&self) -> bool {
        self.wanted().all(|path| self.is_refused(path))
    }

    /// Whether a login begins within `left` on a path that is missed.
    pub(in super::super) fn is_login_due_within(&self, left: Duration, now: Instant) -> bool {
        let is_due = |path: &PathId| self.path(*path).pace.due_in(now) <= left;
        self.used_paths()
            .any(|path| self.is_missed(path) && is_due(&path))
    }

    /// How long until a reset over `path` may be tried again. It holds up the commands of the other paths; if there are
    /// none, it may be tried at any time.
    pub(in super::super) fn reset_due_in(&self, path: PathId, now: Instant) -> Duration {
        match self.is_any_usable() {
            true => self.path(path).resets.due_in(now),
            false => Duration::ZERO,
        }
    }

    /// Why no path can be used: the first one's reason, and those of the others.
    pub(in super::super) fn why(&self) -> Error {
        let unknown = || Error::new(ErrorKind::Unreachable, "there is no session");
        let mut paths: Vec<_> = self.wanted().collect();
        paths.sort_by_key(|path| self.rank(*path));
        let count = paths.len();
        let mut errors = paths.into_iter().map(|path| self.path_error(path));
        let error = errors.next().flatten().cloned().unwrap_or_else(unknown);
        let mut others: Vec<_> = errors.flatten().map(Error::without_advice).collect();
        others.retain(|other| *other != error.without_advice());
        others.dedup();
        match (count, others.join("; ")) {
            (0 | 1, _) => error,
            (_, others) if others.is_empty() => error.context(format_args!(
                "none of the {count} paths can be used; the first"
            )),
            (_, others) => error.context(format_args!(
                "none of the {count} paths can be used ({others}); the first"
            )),
        }
    }

    /// Whether a command must wait, although there is a path.
    fn is_kept_back(&self, writes: bool) -> bool {
        self.is_held() || (writes && self.is_any_stale())
    }

    /// Whether there is a path for a command.
    pub(in super::super) fn can_pick(&self, writes: bool) -> bool {
        !self.is_kept_back(writes) && self.is_any_usable()
    }

    /// Chooses the path for a command; `None`: it has to wait.
    pub(in super::super) fn pick(
        &self,
        writes: bool,
        offer: impl Fn(PathId) -> Offer,
    ) -> Option<PathId> {
        if self.is_kept_back(writes) {
            return None;
        }
        let (count, first) = (self.paths.used, self.paths.turn.get());
        if count == 1 {
            return self.is_usable(PathId(0)).then_some(PathId(0));
        }
        let candidates = (0..count).map(|n| PathId((first + n) % count));
        let cost = |path: &PathId| {
            let offer = offer(*path);
            let access = self.access(*path);
            (offer.is_silent, access, offer.is_there, offer.load)
        };
        let chosen = candidates
            .filter(|path| self.is_usable(*path))
            .min_by_key(cost)?;
        self.paths.turn.set((chosen.0 + 1) % count);
        Some(chosen)
    }

    pub(super) fn on_path(
        &mut self,
        path: PathId,
        event: PathEvent,
        now: Instant,
        actions: &mut Actions,
    ) {
        let known = &mut self.paths.all[path.0];
        match event {
            PathEvent::Begins(place) => self.begin(path, place, now),
            PathEvent::RecoveryBegins => {
                assert!(!known.is_recovering, "one login on a path at a time");
                known.is_recovering = true;
            }
            PathEvent::RecoveryEnds => known.is_recovering = false,
            PathEvent::LoggedIn { moved } => known.moved = moved,
            PathEvent::Due => self.due(path, now, actions),
            PathEvent::Recovered(None) => {
                (known.error, known.loss_is_told, known.is_recovering) = (None, false, false);
                self.paths.attempts += 1;
                // It may have been lost again before anyone noticed.
                if !self.is_live(path) {
                    self.bring_back(actions);
                }
            }
            PathEvent::Recovered(Some(error)) => {
                self.refused(path, &error, actions);
                self.failed(path, error);
            }
            PathEvent::OpenFailed(error) => {
                let is_refused = error.kind() == ErrorKind::Configuration;
                self.failed(path, error);
                let known = &mut self.paths.all[path.0];
                match &mut known.wanted {
                    _ if known.leads_elsewhere => {}
                    Some(wanted) if wanted.place.is_spare && is_refused => {
                        wanted.is_given_up = true;
                        actions.push(Action::TellGivenUp(path));
                    }
                    _ => self.tell_loss(path, actions),
                }
            }
            PathEvent::LoginFailed(error) => self.failed(path, error),
            PathEvent::LogoutRequested if known.wanted.is_some() => self.tell_loss(path, actions),
            PathEvent::LogoutRequested => {}
            PathEvent::Identified {
                port_group,
                is_elsewhere,
            } => (known.port_group, known.leads_elsewhere) = (port_group, is_elsewhere),
            PathEvent::PortGroup(port_group) => known.port_group = port_group,
            PathEvent::Access(access) => {
                if std::mem::replace(&mut known.access, access) != access {
                    actions.push(Action::TellAccess(path));
                }
            }
            PathEvent::ResetTried { is_done: true, .. } => known.resets.succeeded(),
            PathEvent::ResetTried { began, .. } => known.resets.failed(began, now),
        }
    }

    fn begin(&mut self, path: PathId, place: PathPlace, now: Instant) {
        assert!(self.is_free(path), "what is left of it must be ended");
        *self.path_mut(path) = KnownPath {
            wanted: Some(Wanted {
                place,
                is_given_up: false,
            }),
            pace: Pace::begin(now),
            ..KnownPath::default()
        };
        self.paths.used = self.paths.used.max(path.0 + 1);
    }

    /// From now on `places` are wanted, which were wanted before, and no others.
    pub(super) fn adopt(&mut self, places: &[(PathId, PathPlace)]) {
        for path in self.used_paths() {
            let mut places = places.iter();
            let place = places.find(|(it, _)| *it == path).map(|(_, place)| *place);
            let before = self.path(path).wanted;
            self.path_mut(path).wanted = place.map(|place| Wanted {
                place,
                ..before.expect("a path begins before it is adopted")
            });
        }
    }

    /// A login over the path of `nexus` has succeeded, and the nexus takes the place of the previous one.
    pub(super) fn logged_in(&mut self, nexus: NexusId) {
        let path = self.known(nexus).path;
        let path = self.path_mut(path);
        (path.nexus, path.error) = (Some(nexus), None);
        if let Some(wanted) = &mut path.wanted {
            wanted.is_given_up = false;
        }
    }

    /// The session of `nexus`, which had taken its place, has ended.
    pub(super) fn lost(&mut self, nexus: NexusId, now: Instant, actions: &mut Actions) {
        assert!(self.has_ended(nexus), "a loss is noticed first");
        let path = self.known(nexus).path;
        let is_wanted = self.is_wanted(path);
        if !is_wanted && is_planted(Bug::RemovedPathForgotten) {
            self.known_mut(nexus).left.over();
        }
        if self.is_at_rest() {
            return;
        }
        if is_wanted {
            self.tell_loss(path, actions);
        }
        if !self.is_any_usable() && self.is_any_live() {
            self.doubt_access(actions);
        }
        // Writes left in flight must be fenced at once. A lone path for which nobody waits is brought back at leisure: two
        // initiators that log in as the same port end each other's sessions, and must not do that all the time.
        if self.are_several() || self.may_still_write(nexus) {
            self.bring_back(actions);
        } else if !is_planted(Bug::IdlePathForgotten) {
            self.paths.idle_losses.failed(now, now);
            actions.push(Action::ComeBackIn(self.paths.idle_losses.due_in(now)));
        }
    }

    /// Starts the recovery of every lost path that is missed.
    pub(super) fn bring_back(&mut self, actions: &mut Actions) {
        if self.is_at_rest() {
            return;
        }
        for path in self.used_paths() {
            let is_lost = !self.is_live(path) && self.is_missed(path) && !self.is_given_up(path);
            if is_lost && !std::mem::replace(&mut self.path_mut(path).is_recovering, true) {
                actions.push(Action::Recover(path));
            }
        }
    }

    /// Lets whoever brings the path back log in, or wait, or end.
    fn due(&mut self, path: PathId, now: Instant, actions: &mut Actions) {
        assert!(
            self.path(path).is_recovering,
            "a path that is lost is brought back by one"
        );
        let is_needed = self.is_missed(path) && !self.is_given_up(path);
        let is_at_rest = self.is_at_rest();
        let known = self.path_mut(path);
        let pause = known.pace.due_in(now);
        if is_needed && !pause.is_zero() {
            actions.push(Action::LogInLater(pause));
        } else if is_needed && !is_at_rest {
            known.pace.next(now);
            actions.push(Action::LogIn);
        } else {
            known.is_recovering = false;
        }
    }

    /// The next login begins at the configured address, which redirects us if that still holds: where we were once redirected
    /// to may have been silent for all of the time.
    fn failed(&mut self, path: PathId, error: Error) {
        let known = self.path_mut(path);
        known.error = Some(error);
        if !is_planted(Bug::RedirectionKept) {
            known.moved = None;
        }
        self.paths.attempts += 1;
    }

    /// A login has failed with `error`: each distinct reason of a refusal is logged once. Nobody misses a path that is
    /// refused, or only adds speed, while there is another one.
    fn refused(&mut self, path: PathId, error: &Error, actions: &mut Actions) {
        let is_refused = error.kind() == ErrorKind::Configuration;
        let before = self.path_error(path);
        if is_refused && before.is_none_or(|before| before.to_string() != error.to_string()) {
            actions.push(Action::TellRefusal(path));
        }
        let only_adds_speed = self.is_spare(path) && self.path(path).nexus.is_none();
        if (is_refused || only_adds_speed) && self.is_any_usable() {
            self.path_mut(path).pace.refused();
        }
    }

    fn tell_loss(&mut self, path: PathId, actions: &mut Actions) {
        if !std::mem::replace(&mut self.path_mut(path).loss_is_told, true) {
            actions.push(Action::TellLoss(path));
        }
    }

    pub(super) fn check_paths(&self) {
        let mut ranks = Vec::new();
        for path in self.used_paths() {
            let known = self.path(path);
            let is_known = |nexus| self.find(nexus).is_some_and(|it| it.path == path);
            assert!(known.nexus.is_none_or(is_known), "a path has its own nexus");
            assert!(
                !(self.is_given_up(path) && self.is_live(path)),
                "what is let in is not given up"
            );
            ranks.extend(Some(self.rank(path)).filter(|rank| *rank != PathPlace::LAST));
        }
        ranks.sort_unstable();
        assert!(
            ranks.windows(2).all(|pair| pair[0] != pair[1]),
            "no two paths stand at one place"
        );
    }
}
