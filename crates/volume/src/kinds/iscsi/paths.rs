//! The paths to a logical unit with their connections: logs in, has the [`machine`](super::machine) choose the path for each
//! command, and bounds how long a command waits when no path is usable.
//!
//! A lost nexus whose writes may still take effect blocks all writes, on the other paths too: a new write could be
//! acknowledged and then be overwritten by the old one. Reads go on.

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::{Rc, Weak},
};

use engine::{
    Duration, Instant, LaneHandle,
    sync::Notify,
    task::{self, Either},
    time,
};

use super::{
    config::{IscsiConfig, PathConfig, Sessions, Transport},
    ended,
    link::{Distant, SessionLink},
    login::Portal,
    machine::{Event, Machine, NexusId, PathEvent, PathId, PathPlace},
    nexus::Nexus,
    path::Path,
    patience::Patience,
    status::SessionStatus,
};
use crate::{
    Error, ErrorKind, Result,
    planted::{Bug, is_planted},
};

/// Events on the paths of a disk since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// Sessions lost.
    pub lost: u64,
    /// Sessions lost with writes in flight.
    pub lost_with_writes: u64,
    /// LOGICAL UNIT RESETs sent to end such writes.
    pub resets: u64,
    /// Sessions ended by logging in with the same initiator port over another path.
    pub reinstated_elsewhere: u64,
    /// Commands resent after a loss.
    pub resent: u64,
    /// Writing commands resent after a loss.
    pub writes_resent: u64,
    /// Commands sent over a path other than the first.
    pub beside_first: u64,
    /// Of those, commands that a lane other than the home lane sent by itself.
    pub beside_home: u64,
}

/// Maps a lane to its number; `None` is the home lane.
type Numbers = Box<dyn Fn(Option<&LaneHandle>) -> usize>;

/// All paths to a logical unit.
pub(super) struct Paths {
    config: RefCell<Rc<IscsiConfig>>,
    /// [`IscsiConfig::reconnect_timeout`], for requests that wait already.
    reconnect_timeout: Rc<Cell<Duration>>,
    /// One for each initiator port.
    pub(super) ports: Vec<Path>,
    /// The sessions that the disk should have.
    pub(super) sessions: RefCell<Sessions>,
    /// The lanes that may have sessions, the home lane first.
    pub(super) lanes: Vec<LaneHandle>,
    machine: Rc<RefCell<Machine>>,
    nexuses: RefCell<Vec<Weak<Nexus>>>,
    changed: Rc<Notify>,
    /// The externally visible status, and the numbers of lanes.
    status: OnceCell<(SessionStatus, Numbers)>,
    pub(super) counts: RefCell<PathCounts>,
}

/// The index of the lane for `session`, when sessions are dealt out round-robin over `ways` routes: lanes take turns,
/// and each lane gets every route when there are enough sessions.
fn lane_of(session: usize, ways: usize, lanes: usize) -> usize {
    if lanes < 2 {
        return 0;
    }
    let (mut divisor, mut rest) = (ways, lanes);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    let period = ways / divisor * lanes;
    (session + session / period) % lanes
}

impl Paths {
    /// The paths of `config`, dealt out over `lanes` in turn, starting with the current lane.
    pub(super) fn new(
        mut config: IscsiConfig,
        lanes: &[LaneHandle],
        machine: &Rc<RefCell<Machine>>,
    ) -> Paths {
        let sessions = config.sessions();
        let ping_timeout = &mut config.multipath.ping_timeout;
        *ping_timeout = ping_timeout.for_disk(sessions.have_another_way());
        let all = &sessions.ways;
        // The configured paths rotate through the routes, so the first repetition gives their number.
        let again = all.iter().skip(1).position(|way| *way == all[0]);
        let ways = again.map_or(all.len(), |skipped| skipped + 1);
        let numbered = config.isids().enumerate();
        let unused =
            numbered.map(|(index, isid)| Path::unused(PathId(index), isid, &all[0], machine));
        let ports: Vec<_> = unused.collect();
        let paths = Paths {
            ports,
            lanes: lanes.iter().take(all.len()).cloned().collect(),
            sessions: RefCell::new(sessions.clone()),
            reconnect_timeout: Rc::new(Cell::new(config.reconnect_timeout)),
            config: RefCell::new(Rc::new(config)),
            machine: machine.clone(),
            nexuses: RefCell::default(),
            changed: Rc::default(),
            status: OnceCell::new(),
            counts: RefCell::default(),
        };
        for (index, (path, way)) in paths.ports.iter().zip(all).enumerate() {
            let lane = match lane_of(index, ways, lanes.len()) {
                0 => None,
                lane => Some(lanes[lane].clone()),
            };
            let place = PathPlace {
                rank: index,
                is_spare: sessions.is_spare(index),
            };
            paths.begin(path, way, lane, place);
        }
        paths
    }

    /// From now on a session is wanted for `path`, which is free, this way and on this lane.
    pub(super) fn begin(
        &self,
        path: &Path,
        way: &Transport,
        lane: Option<LaneHandle>,
        place: PathPlace,
    ) {
        self.note_on(path, PathEvent::Begins(place));
        path.lead(way, lane);
    }

    pub(super) fn config(&self) -> Rc<IscsiConfig> {
        self.config.borrow().clone()
    }

    /// From now on this is other about the configuration, for what begins now; requests that wait obey their new limit.
    pub(super) fn reconfigure(&self, change: impl FnOnce(&mut IscsiConfig)) {
        let mut config = IscsiConfig::clone(&self.config());
        change(&mut config);
        self.reconnect_timeout.set(config.reconnect_timeout);
        self.config.replace(Rc::new(config));
        self.changed.notify();
    }

    /// All that have ever been used.
    pub(super) fn all(&self) -> &[Path] {
        &self.ports[..self.machine.borrow().paths_used()]
    }

    /// The path of this number.
    pub(super) fn path(&self, path: PathId) -> &Path {
        &self.ports[path.0]
    }

    /// Tells the machine what the sessions have come to, before it decides anything.
    pub(super) fn notice(&self) {
        self.all().iter().for_each(Path::notice);
    }

    /// Those for which a session is wanted.
    pub(super) fn wanted(&self) -> impl Iterator<Item = &Path> {
        self.all().iter().filter(|path| path.is_wanted())
    }

    /// Whether more than one session is wanted.
    pub(super) fn are_several(&self) -> bool {
        self.machine.borrow().are_several()
    }

    /// The nexuses on which commands may be sent.
    pub(super) fn usable(&self) -> impl Iterator<Item = Rc<Nexus>> {
        self.all().iter().filter_map(Path::usable)
    }

    /// The nexuses that are not lost.
    pub(super) fn live(&self) -> impl Iterator<Item = Rc<Nexus>> {
        self.all().iter().filter_map(Path::live)
    }

    /// Logs in on the path, at its portal or wherever the target redirects us.
    pub(super) async fn log_in(&self, path: &Path, deadline: Instant) -> Result<SessionLink> {
        let (portal, way) = (path.portal(), path.config());
        let config = self.config();
        let who = (&*config, &way);
        let lane = path.lane();
        let log_in = async {
            match &lane {
                None => {
                    let session = portal.log_in(who.0, who.1, deadline).await;
                    session.map(|(session, moved)| (SessionLink::Here(session), moved))
                }
                Some(lane) => SessionLink::log_in_on(lane, portal, who, deadline).await,
            }
        };
        let (link, moved) = self.unless_ended(log_in).await??;
        self.note_on(path, PathEvent::LoggedIn { moved });
        Ok(link)
    }

    /// Logs in with the initiator port of `path` over the route of `other`.
    pub(super) async fn log_in_over(
        &self,
        path: &Path,
        other: &Path,
        deadline: Instant,
    ) -> Result<SessionLink> {
        let borrowed = PathConfig {
            isid: path.isid(),
            ..other.config()
        };
        let portal = Portal {
            configured: other.address(),
            moved: None,
        };
        let config = self.config();
        let log_in = portal.log_in(&config, &borrowed, deadline);
        let (session, _) = self.unless_ended(log_in).await??;
        Ok(SessionLink::Here(session))
    }

    /// Logs in, and gives that up when the owner of the disk ends it.
    async fn unless_ended<T>(&self, log_in: impl Future<Output = T>) -> Result<T> {
        let ended = self.changed.wait_for(|| self.check_ended().err());
        match task::either(ended, log_in).await {
            Either::One(ended) => Err(ended),
            Either::Other(logged_in) => Ok(logged_in),
        }
    }

    /// Refuses everything once the owner of the disk has ended it.
    pub(super) fn check_ended(&self) -> Result<()> {
        match self.machine.borrow().is_ended() {
            true => Err(ended::by_owner()),
            false => Ok(()),
        }
    }

    /// A new nexus over `link`, which was logged in on `path`.
    pub(super) fn nexus_over(&self, link: SessionLink, path: PathId) -> Rc<Nexus> {
        let nexus = Rc::new(Nexus::new(link, path, &self.machine));
        let mut all = self.nexuses.borrow_mut();
        all.retain(|nexus| nexus.strong_count() > 0);
        all.push(Rc::downgrade(&nexus));
        nexus
    }

    /// All that somebody refers to, in use or not.
    pub(super) fn nexuses(&self) -> Vec<Rc<Nexus>> {
        self.nexuses
            .borrow()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Ends all nexuses, and sends nothing that is queued for them.
    pub(super) fn abort(&self) {
        for nexus in self.nexuses() {
            nexus.link().abort(ended::by_owner());
        }
    }

    /// Tells the machine of something that has no consequence but to be known, and that may be waited for.
    pub(super) fn note(&self, event: Event) {
        self.machine.borrow_mut().note(event, time::now());
        self.changed.notify();
    }

    /// As that, where something is dropped.
    fn note_drop(&self, event: Event) {
        self.machine.borrow_mut().note_drop(event);
        self.changed.notify();
    }

    /// As [`Paths::note`], of something that happens to a path.
    pub(super) fn note_on(&self, path: &Path, event: PathEvent) {
        self.note(Event::Path(path.id(), event));
    }

    /// Puts `nexus` into use.
    pub(super) fn take_into_use(&self, nexus: &Rc<Nexus>) {
        self.note(Event::InUse(nexus.id()));
        self.path(nexus.path()).replace(nexus);
        self.tell_in_use(nexus);
    }

    /// Keeps `nexus`, whose target port may not be used now.
    pub(super) fn park(&self, nexus: &Rc<Nexus>) {
        self.note(Event::Parked(nexus.id()));
        self.path(nexus.path()).replace(nexus);
        self.tell_paths();
    }

    /// Publishes the sessions' state in `status` from now on. `number` maps a lane to its number; `None` is the home
    /// lane.
    pub(super) fn report_to(
        &self,
        status: &SessionStatus,
        number: impl Fn(Option<&LaneHandle>) -> usize + 'static,
    ) {
        let _ = self.status.set((status.clone(), Box::new(number)));
        match self.live().next() {
            Some(nexus) => self.tell_in_use(&nexus),
            None => self.tell_paths(),
        }
    }

    fn tell_in_use(&self, nexus: &Nexus) {
        if let Some((status, _)) = self.status.get() {
            status.logged_in(nexus.port().address());
        }
        self.tell_paths();
    }

    /// The disk is claimed, with or without a reservation that keeps others out; or it is not any more.
    pub(super) fn tell_fence(&self, lacks_fence: bool) {
        if let Some((status, _)) = self.status.get() {
            status.set_lacks_fence(lacks_fence);
        }
    }

    pub(super) fn tell_paths(&self) {
        if let Some((status, number)) = self.status.get() {
            let mut shown: Vec<_> = self.all().iter().filter(|path| !path.is_gone()).collect();
            shown.sort_by_key(|path| path.rank());
            let paths = shown.into_iter();
            let paths = paths.map(|path| path.status(number(path.lane().as_ref())));
            status.set_paths(paths.collect());
        }
    }

    /// The session of a path that is not wanted may have ended, or the order of the paths has changed.
    pub(super) fn tell_first(&self) {
        let mut wanted: Vec<_> = self.wanted().collect();
        wanted.sort_by_key(|path| path.rank());
        let first = wanted.into_iter().find_map(Path::live);
        if let (Some((status, _)), Some(first)) = (self.status.get(), first) {
            status.moved(first.port().address());
        }
        self.tell_paths();
    }

    /// A session was lost with `error`. If it was the last one, the disk is unreachable.
    pub(super) fn tell_lost(&self, error: &Error) {
        if let (Some((status, _)), None) = (self.status.get(), self.live().next()) {
            status.lost(error.to_string());
        }
        self.tell_paths();
    }

    /// Wakes whoever waits for a change of something that the machine does not hold. An event that it takes wakes them
    /// by itself.
    pub(super) fn notify(&self) {
        self.changed.notify();
    }

    /// The event that [`Paths::notify`] signals.
    pub(super) fn changed(&self) -> Rc<Notify> {
        self.changed.clone()
    }

    /// Whether nothing holds commands back.
    pub(super) fn is_well(&self) -> bool {
        let is_kept_back = self.may_lost_ones_write() && !is_planted(Bug::LanesGrantedDespiteGhost);
        let is_held = self.machine.borrow().is_held();
        !is_held && !self.is_at_rest() && !is_kept_back
    }

    /// The live sessions on other lanes.
    pub(super) fn there(&self) -> Vec<Rc<Distant>> {
        let live = self.live();
        live.filter_map(|nexus| nexus.link().there().cloned())
            .collect()
    }

    /// Those that are in use and whose access state is the best available, each with its doubts, which are settled.
    pub(super) fn best_there(&self) -> Vec<(Rc<Distant>, u64)> {
        let usable = || {
            self.all()
                .iter()
                .filter_map(|path| Some((path, path.usable()?)))
        };
        let best = usable().map(|(path, _)| path.access()).min();
        let best = usable().filter(|(path, nexus)| Some(path.access()) == best && !nexus.is_new());
        best.filter_map(|(_, nexus)| Some((nexus.link().there()?.clone(), nexus.doubts())))
            .collect()
    }

    /// The nexus, current or former, that the machine knows by this.
    pub(super) fn find(&self, nexus: NexusId) -> Option<Rc<Nexus>> {
        let is_it = |it: &Rc<Nexus>| it.id() == nexus;
        self.all().iter().flat_map(Path::known).find(is_it)
    }

    /// The nexus, current or former, whose session on another lane has this number.
    pub(super) fn find_there(&self, number: u64) -> Option<Rc<Nexus>> {
        let is_it = |nexus: &Rc<Nexus>| nexus.link().there().is_some_and(|d| d.number() == number);
        self.all().iter().flat_map(Path::known).find(is_it)
    }

    /// Whether no other nexus has taken the place of this one.
    pub(super) fn is_latest(&self, nexus: &Rc<Nexus>) -> bool {
        let latest = self.path(nexus.path()).last();
        latest.is_some_and(|latest| Rc::ptr_eq(&latest, nexus))
    }

    /// Holds all commands back while the guard lives.
    pub(super) fn freeze(&self) -> Frozen<'_> {
        self.note(Event::Held);
        Frozen(self)
    }

    /// From now on lost paths stay lost: the disk is not in use.
    pub(super) fn rest(&self) {
        self.note(Event::Rests);
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.machine.borrow().is_at_rest()
    }

    /// Logs out of all live sessions.
    pub(super) async fn log_out(&self) {
        self.rest();
        let live: Vec<_> = self.live().collect();
        let logouts = live.iter().map(|nexus| Box::pin(nexus.link().logout()));
        task::join_all(logouts).await;
    }

    /// Ends all live sessions with `error`, also where the disk is dropped.
    pub(super) fn end(&self, error: &Error) {
        self.note_drop(Event::Rests);
        self.live().for_each(|nexus| nexus.end(error.clone()));
    }

    /// Whether a lost nexus has left writes that may still take effect.
    fn may_lost_ones_write(&self) -> bool {
        self.notice();
        self.machine.borrow().is_any_stale()
    }

    /// Chooses the nexus for a command; `None`: the command has to wait.
    pub(super) fn pick(&self, writes: bool) -> Option<Rc<Nexus>> {
        self.notice();
        let policy = self.config.borrow().multipath.policy;
        let offer = |path| self.path(path).offer(policy);
        let chosen = self.machine.borrow().pick(writes, offer)?;
        let beside = u64::from(chosen.0 != 0);
        self.counts.borrow_mut().beside_first += beside;
        self.path(chosen).last()
    }

    /// Waits until a command that could not be sent is worth another try: until `patience` runs out, or until a login
    /// that begins before then has finished.
    ///
    /// # Errors
    /// Why there is no path, when time is up or the target refuses us for good.
    pub(super) async fn wait(&self, writes: bool, patience: &mut Patience) -> Result<()> {
        // A nexus in doubt is asked a single question, which is no outage.
        let left = match self.waits_for_answer() {
            true => patience.left_to_answer(),
            false => patience.left(),
        };
        let left = left.ok_or_else(|| self.late(writes))?;
        self.notice();
        let attempts = || self.machine.borrow().attempts();
        let attempts_before = attempts();
        let is_due = self.machine.borrow().is_login_due_within(left, time::now());
        let limit = match is_due {
            true => left.max(self.config().connect_timeout),
            false => left,
        };
        let has_session = || self.live().next().is_some();
        let had_session = has_session();
        let patience_was = self.reconnect_timeout.get();
        let changed = self.changed.wait_for(|| {
            let is_over = attempts() != attempts_before
                || (had_session && !has_session())
                || self.reconnect_timeout.get() != patience_was
                || self.check_ended().is_err();
            (is_over || self.can_pick(writes)).then_some(())
        });
        let changed = time::timeout(limit, changed).await;
        changed.ok_or_else(|| self.late(writes))?;
        let are_refused = !self.can_pick(writes) && self.machine.borrow().are_all_refused();
        match are_refused {
            true => Err(self.why()),
            false => Ok(()),
        }
    }

    /// Whether no path can be used, and one of them is being asked whether it leads to the disk.
    fn waits_for_answer(&self) -> bool {
        self.usable().next().is_none() && self.live().any(|nexus| nexus.is_in_doubt())
    }

    fn can_pick(&self, writes: bool) -> bool {
        self.notice();
        self.machine.borrow().can_pick(writes)
    }

    /// Why no path can be used.
    pub(super) fn why(&self) -> Error {
        self.notice();
        self.machine.borrow().why()
    }

    fn late(&self, writes: bool) -> Error {
        let waited = self.config().reconnect_timeout;
        if self.waits_for_answer() {
            let message = "the target reported that the LUN may be another disk, and did not answer in time which \
                           one it is";
            return Error::new(ErrorKind::TimedOut, message);
        }
        if writes && self.usable().next().is_some() {
            let message = format!(
                "a path was lost with writes in flight, and the target could not be made to abort \
                 them within {waited:?}: writes are blocked until it does"
            );
            return Error::new(ErrorKind::Unreachable, message);
        }
        self.why().context(format_args!(
            "no session could be restored within {waited:?}"
        ))
    }

    /// The patience of one request.
    pub(super) fn patience(&self) -> Patience {
        Patience::new(&self.reconnect_timeout)
    }

    /// The time limit for a login that a request waits for.
    pub(super) fn login_limit(&self) -> Duration {
        self.config().connect_timeout
    }
}

/// While it lives, all commands are held back.
pub(super) struct Frozen<'a>(&'a Paths);

impl Drop for Paths {
    fn drop(&mut self) {
        // The sessions' tasks would keep them alive and answer pings forever.
        self.end(&Error::new(
            ErrorKind::Unreachable,
            "the volume has been closed",
        ));
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.note_drop(Event::LetGo);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_lane_gets_every_way_when_there_are_enough_sessions() {
        for ways in 1..5 {
            for lanes in 1..7 {
                let of = |session| (session % ways, lane_of(session, ways, lanes));
                let all: HashSet<_> = (0..ways * lanes).map(of).collect();
                assert_eq!(all.len(), ways * lanes, "{ways} {lanes}");
                let first: HashSet<_> = (0..lanes).map(|session| of(session).1).collect();
                assert_eq!(first.len(), lanes, "{ways} {lanes}");
            }
        }
        assert_eq!(lane_of(3, 2, 0), 0);
    }
}
