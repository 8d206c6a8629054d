//! The paths to a logical unit: each is a portal and an initiator port of ours, with one nexus at a
//! time. Here is which one a command takes, and until when it waits if none can be taken.
//!
//! A lost nexus whose writes may still happen keeps all writes back, also those over other paths: one
//! of them might be answered, and then be overwritten by the past. Reads go on.

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::Rc,
};

use engine::{Duration, Instant, LaneHandle, sync::Notify, task, time};
use iscsi::LunField;

use super::{
    access::Access,
    config::{IscsiConfig, PathConfig},
    link::{Distant, Link},
    login::Portal,
    nexus::{Nexus, Past},
    patience::{Pace, Patience},
    status::{PathState, PathStatus, SessionStatus},
};
use crate::{
    Error, ErrorKind, Result,
    planted::{Bug, is_planted},
};

/// A portal and an initiator port of ours.
pub(super) struct Path {
    pub(super) config: PathConfig,
    portal: RefCell<Portal>,
    /// Where its sessions are, unless that is the home lane.
    lane: Option<LaneHandle>,
    /// The disk is used without it if the target refuses it.
    pub(super) is_spare: bool,
    /// It was refused.
    pub(super) is_given_up: Cell<bool>,
    /// How the target lets it be used.
    pub(super) access: Cell<Access>,
    /// The target port group that it reaches, once the target has said it.
    pub(super) port_group: Cell<Option<u16>>,
    /// The last one, which may be lost.
    nexus: RefCell<Option<Rc<Nexus>>>,
    /// The one before, of which another lane may still tell.
    former: RefCell<Option<Rc<Nexus>>>,
    pub(super) pace: RefCell<Pace>,
    /// Why there is none, if there is none.
    error: RefCell<Option<Error>>,
    /// The log has its loss: one line, however many attempts fail.
    pub(super) loss_is_told: Cell<bool>,
    /// It led to another disk when it was looked at last.
    pub(super) leads_elsewhere: Cell<bool>,
    /// Somebody sees to it that it comes back.
    pub(super) is_recovering: Cell<bool>,
}

/// What has happened to the paths of a disk since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// Sessions that were lost.
    pub lost: u64,
    /// Of these, with writes in flight.
    pub lost_with_writes: u64,
    /// LOGICAL UNIT RESETs that were sent to end such writes.
    pub resets: u64,
    /// Sessions that were ended by a login of the same initiator port over another path.
    pub reinstated_elsewhere: u64,
    /// Commands that were sent again after a loss.
    pub resent: u64,
    /// Of these, those that write.
    pub writes_resent: u64,
    /// Commands that another path has taken than the first one.
    pub beside_first: u64,
    /// Of these, those that a lane beside the home lane has sent by itself.
    pub beside_home: u64,
}

/// All paths to a logical unit.
pub(super) struct Paths {
    config: IscsiConfig,
    lun: LunField,
    all: Vec<Path>,
    /// Where the choice begins among equals.
    turn: Cell<usize>,
    /// Who keeps all commands back for now.
    freezes: Cell<u32>,
    /// Attempts to log in that have ended.
    attempts: Cell<u64>,
    /// Nobody uses the disk any more: what is lost stays so.
    is_at_rest: Cell<bool>,
    /// Writes may still happen that the target could not be made to forget.
    has_unfenced: Cell<bool>,
    changed: Rc<Notify>,
    /// Whoever looks from outside, and the number of each path's lane.
    status: OnceCell<(SessionStatus, Vec<usize>)>,
    pub(super) counts: RefCell<PathCounts>,
}

impl Path {
    /// Puts `nexus` in the place of the one before. Two attempts at once may both have come to a session.
    fn replace(&self, nexus: &Rc<Nexus>) {
        self.error.replace(None);
        if let Some(before) = self.nexus.replace(Some(nexus.clone())) {
            let message = "another session has taken its place";
            before.end(Error::new(ErrorKind::Unreachable, message));
            self.former.replace(Some(before));
        }
    }

    /// The nexus, if it can be used.
    pub(super) fn live(&self) -> Option<Rc<Nexus>> {
        let nexus = self.nexus.borrow();
        nexus.as_ref().filter(|nexus| !nexus.is_over()).cloned()
    }

    /// The nexus, if commands may be sent on it.
    pub(super) fn usable(&self) -> Option<Rc<Nexus>> {
        self.live()
            .filter(|nexus| self.access.get() != Access::No && nexus.takes_requests())
    }

    /// The nexus that was lost with writes that may still happen.
    pub(super) fn ghost(&self) -> Option<Rc<Nexus>> {
        let nexus = self.nexus.borrow();
        nexus.as_ref().filter(|nexus| nexus.haunts()).cloned()
    }

    /// The last nexus, which may be lost.
    pub(super) fn last(&self) -> Option<Rc<Nexus>> {
        self.nexus.borrow().clone()
    }

    /// Why it cannot be used.
    pub(super) fn error(&self) -> Option<Error> {
        let nexus = self.nexus.borrow();
        let lost = || Some(nexus.as_ref()?.link().end_now()?.error);
        self.error.borrow().clone().or_else(lost)
    }

    /// What it does, on the lane of this number.
    fn status(&self, lane: usize) -> PathStatus {
        let port = self.last().map(|nexus| nexus.port());
        let state = match self.live() {
            None => PathState::None(self.error().map(|error| error.to_string())),
            Some(_) if self.access.get() == Access::No => PathState::Standby,
            Some(_) => PathState::LoggedIn,
        };
        PathStatus {
            portal: port.map_or(self.config.address, |port| port.address()),
            local: port.and_then(|port| port.local()),
            lane,
            state,
        }
    }

    fn is_refused(&self) -> bool {
        let error = self.error.borrow();
        let kind = error.as_ref().map(Error::kind);
        matches!(kind, Some(ErrorKind::Configuration | ErrorKind::Preempted))
    }
}

/// On which of `lanes` a session is, where sessions are dealt out over so many ways: in turn, and so that
/// each lane gets each way when there are enough.
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
    /// Those of `config`, on `lanes` in turn, the current one first.
    pub(super) fn new(config: IscsiConfig, lanes: &[LaneHandle]) -> Paths {
        let configs = config.paths();
        let way = |path: &PathConfig| (path.address, path.source.clone());
        let first = way(&configs[0]);
        // They are dealt out in turn.
        let again = configs.iter().skip(1).position(|path| way(path) == first);
        let ways = again.map_or(configs.len(), |skipped| skipped + 1);
        let wanted = configs.len() - config.multipath.spare.min(configs.len() - 1);
        let all = configs.into_iter().enumerate().map(|(index, config)| Path {
            portal: RefCell::new(Portal::new(config.address)),
            lane: match lane_of(index, ways, lanes.len()) {
                0 => None,
                lane => Some(lanes[lane].clone()),
            },
            is_spare: index >= wanted,
            is_given_up: Cell::new(false),
            access: Cell::default(),
            port_group: Cell::new(None),
            config,
            nexus: RefCell::default(),
            former: RefCell::default(),
            pace: RefCell::new(Pace::begin()),
            error: RefCell::default(),
            loss_is_told: Cell::new(false),
            leads_elsewhere: Cell::new(false),
            is_recovering: Cell::new(false),
        });
        Paths {
            lun: LunField::from(scsi::Lun::from(config.lun).encode()),
            all: all.collect(),
            config,
            turn: Cell::new(0),
            freezes: Cell::new(0),
            attempts: Cell::new(0),
            is_at_rest: Cell::new(false),
            has_unfenced: Cell::new(false),
            changed: Rc::default(),
            status: OnceCell::new(),
            counts: RefCell::default(),
        }
    }

    pub(super) fn config(&self) -> &IscsiConfig {
        &self.config
    }

    pub(super) fn lun(&self) -> LunField {
        self.lun
    }

    pub(super) fn all(&self) -> &[Path] {
        &self.all
    }

    /// The nexuses on which commands may be sent.
    pub(super) fn usable(&self) -> impl Iterator<Item = Rc<Nexus>> {
        self.all.iter().filter_map(Path::usable)
    }

    /// The nexuses that are not lost.
    pub(super) fn live(&self) -> impl Iterator<Item = Rc<Nexus>> {
        self.all.iter().filter_map(Path::live)
    }

    /// Logs in on the path, at its portal or where that sends us.
    pub(super) async fn log_in(&self, path: &Path, deadline: Instant) -> Result<Link> {
        let portal = path.portal.borrow().clone();
        let who = (&self.config, &path.config);
        let (link, portal) = match &path.lane {
            None => {
                let session = portal.log_in(who.0, who.1, deadline).await?;
                (Link::Here(session), portal)
            }
            Some(lane) => Link::log_in_on(lane, portal, who, self.lun, deadline).await?,
        };
        path.portal.replace(portal);
        Ok(link)
    }

    /// Which of the paths it is.
    pub(super) fn index_of(&self, path: &Path) -> usize {
        let is_it = |other: &Path| std::ptr::eq(other, path);
        let index = self.all.iter().position(is_it);
        index.expect("it is one of them")
    }

    /// Logs in with the initiator port of `path` where `other` goes.
    pub(super) async fn log_in_over(
        &self,
        path: &Path,
        other: &Path,
        deadline: Instant,
    ) -> Result<Link> {
        let borrowed = PathConfig {
            isid: path.config.isid,
            ..other.config.clone()
        };
        let portal = Portal::new(other.config.address);
        let session = portal.log_in(&self.config, &borrowed, deadline).await?;
        Ok(Link::Here(session))
    }

    /// Uses `nexus` from now on.
    pub(super) fn take_into_use(&self, nexus: &Rc<Nexus>) {
        let path = &self.all[nexus.path()];
        nexus.goes_into_use();
        path.replace(nexus);
        self.tell_in_use(nexus);
        self.changed.notify();
    }

    /// Says from now on in `status` what the sessions do. `number` tells the number of a lane, for `None` that
    /// of the home lane.
    pub(super) fn report_to(
        &self,
        status: &SessionStatus,
        number: impl Fn(Option<&LaneHandle>) -> usize,
    ) {
        let lanes = self.all.iter().map(|path| number(path.lane.as_ref()));
        let _ = self.status.set((status.clone(), lanes.collect()));
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

    pub(super) fn tell_paths(&self) {
        if let Some((status, lanes)) = self.status.get() {
            let paths = self.all.iter().zip(lanes);
            status.set_paths(paths.map(|(path, &lane)| path.status(lane)).collect());
        }
    }

    /// A session was lost with `error`; with the last one the disk is out of reach.
    pub(super) fn tell_lost(&self, error: &Error) {
        if let (Some((status, _)), None) = (self.status.get(), self.live().next()) {
            status.lost(error.to_string());
        }
        self.tell_paths();
    }

    /// Keeps `nexus`, at a target port that may not be used now.
    pub(super) fn park(&self, nexus: &Rc<Nexus>) {
        let path = &self.all[nexus.path()];
        path.replace(nexus);
        self.tell_paths();
        self.changed.notify();
    }

    /// An attempt to have the path again has ended.
    pub(super) fn attempted(&self, path: &Path, failed: Option<Error>) {
        path.error.replace(failed);
        self.tell_paths();
        self.attempts.set(self.attempts.get() + 1);
        self.changed.notify();
    }

    /// Something has changed that a request may wait for.
    pub(super) fn notify(&self) {
        self.changed.notify();
    }

    /// What is notified then.
    pub(super) fn changed(&self) -> Rc<Notify> {
        self.changed.clone()
    }

    /// Whether nothing keeps commands back.
    pub(super) fn is_well(&self) -> bool {
        let is_haunted = self.is_haunted() && !is_planted(Bug::DoorsOpenWhileHaunted);
        self.freezes.get() == 0 && !self.is_at_rest() && !is_haunted
    }

    /// The sessions on other lanes.
    pub(super) fn there(&self) -> Vec<Rc<Distant>> {
        let live = self.live();
        live.filter_map(|nexus| nexus.link().there().cloned())
            .collect()
    }

    /// Of these, the ones that are in use and that nothing better stands beside.
    pub(super) fn best_there(&self) -> Vec<Rc<Distant>> {
        let usable = || {
            self.all
                .iter()
                .filter_map(|path| Some((path, path.usable()?)))
        };
        let best = usable().map(|(path, _)| path.access.get()).min();
        let best =
            usable().filter(|(path, nexus)| Some(path.access.get()) == best && !nexus.is_new());
        best.filter_map(|(_, nexus)| nexus.link().there().cloned())
            .collect()
    }

    /// The nexus, perhaps a former one, whose session on another lane has this number.
    pub(super) fn find_there(&self, number: u64) -> Option<Rc<Nexus>> {
        let is_it = |nexus: &Rc<Nexus>| nexus.link().there().is_some_and(|d| d.number() == number);
        let mut known = self.all.iter().flat_map(|path| [&path.nexus, &path.former]);
        known.find_map(|nexus| nexus.borrow().clone().filter(is_it))
    }

    /// Gives up on what lost nexuses may still write.
    pub(super) fn leave_unfenced(&self, ghosts: impl Iterator<Item = Rc<Nexus>>) {
        ghosts.for_each(|lost| lost.settle_past(Past::Unfenced));
        self.has_unfenced.set(true);
        self.changed.notify();
    }

    pub(super) fn has_unfenced(&self) -> bool {
        self.has_unfenced.get()
    }

    /// Keeps all commands back while the guard lives.
    pub(super) fn freeze(&self) -> Frozen<'_> {
        self.freezes.set(self.freezes.get() + 1);
        self.changed.notify();
        Frozen(self)
    }

    /// Lets lost paths be, or not.
    pub(super) fn rest(&self, is_at_rest: bool) {
        self.is_at_rest.set(is_at_rest);
        self.changed.notify();
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.is_at_rest.get()
    }

    /// Asks the target to end the sessions that there are.
    pub(super) async fn log_out(&self) {
        self.rest(true);
        let live: Vec<_> = self.live().collect();
        let logouts = live.iter().map(|nexus| Box::pin(nexus.link().logout()));
        task::join_all(logouts).await;
    }

    /// Ends what there is.
    pub(super) fn end(&self, error: &Error) {
        self.rest(true);
        self.live().for_each(|nexus| nexus.end(error.clone()));
    }

    /// Whether a lost nexus may still write.
    fn is_haunted(&self) -> bool {
        let haunts = |path: &Path| path.nexus.borrow().as_ref().is_some_and(|n| n.haunts());
        self.all.iter().any(haunts)
    }

    /// The nexus for a command; `None`: it has to wait.
    pub(super) fn pick(&self, writes: bool) -> Option<Rc<Nexus>> {
        if self.freezes.get() > 0 {
            return None;
        }
        if let [only] = &self.all[..] {
            return only.usable();
        }
        if writes && self.is_haunted() {
            return None;
        }
        let (count, first) = (self.all.len(), self.turn.get());
        let candidates = (0..count).map(|n| &self.all[(first + n) % count]);
        let candidates = candidates.filter_map(|path| Some((path.access.get(), path.usable()?)));
        let policy = self.config.multipath.policy;
        // Those of other lanes are theirs, unless there is no other.
        let rank = |nexus: &Nexus| (nexus.link().there().is_some(), nexus.load(policy));
        let (_, chosen) = candidates.min_by_key(|(access, nexus)| (*access, rank(nexus)))?;
        self.turn.set((chosen.path() + 1) % count);
        let beside = u64::from(chosen.path() != 0);
        self.counts.borrow_mut().beside_first += beside;
        Some(chosen)
    }

    /// Waits until something has changed for a command that could not be sent: at most until
    /// `patience` is at its end, or what has begun by then has ended.
    ///
    /// # Errors
    /// Why there is no path, when its time is up or the target refuses us for good.
    pub(super) async fn wait(&self, writes: bool, patience: &mut Patience) -> Result<()> {
        let left = patience.left().ok_or_else(|| self.late(writes))?;
        let attempts = self.attempts.get();
        let is_due = |path: &Path| path.pace.borrow().due_in() <= left;
        let limit = match self.all.iter().any(is_due) {
            true => left.max(self.config.connect_timeout),
            false => left,
        };
        let has_session = || self.live().next().is_some();
        let had_session = has_session();
        let changed = self.changed.wait_for(|| {
            let is_over = self.attempts.get() != attempts || (had_session && !has_session());
            (is_over || self.can_pick(writes)).then_some(())
        });
        let changed = time::timeout(limit, changed).await;
        changed.ok_or_else(|| self.late(writes))?;
        let mut all = self.all.iter();
        let are_refused = !self.can_pick(writes) && all.all(Path::is_refused);
        match are_refused {
            true => Err(self.why()),
            false => Ok(()),
        }
    }

    fn can_pick(&self, writes: bool) -> bool {
        let is_kept_back = self.freezes.get() > 0 || (writes && self.is_haunted());
        !is_kept_back && self.usable().next().is_some()
    }

    /// Why the first path cannot be used, and whether others cannot.
    pub(super) fn why(&self) -> Error {
        let unknown = || Error::new(ErrorKind::Unreachable, "there is no session");
        let error = self.all[0].error().unwrap_or_else(unknown);
        match self.all.len() {
            1 => error,
            paths => error.context(format_args!("none of {paths} paths can be used; the first")),
        }
    }

    fn late(&self, writes: bool) -> Error {
        let waited = self.config.reconnect_timeout;
        if writes && self.usable().next().is_some() {
            let message = format!(
                "a path was lost with writes in flight, and within {waited:?} the target could not be \
                 made to forget them: nothing is written before that"
            );
            return Error::new(ErrorKind::Unreachable, message);
        }
        self.why()
            .context(format_args!("no session again within {waited:?}"))
    }

    /// For how long a request goes on.
    pub(super) fn patience(&self) -> Patience {
        Patience::new(self.config.reconnect_timeout)
    }

    /// How long a login may take that somebody waits for.
    pub(super) fn login_limit(&self) -> Duration {
        self.config.connect_timeout
    }
}

/// All commands are kept back.
pub(super) struct Frozen<'a>(&'a Paths);

impl Drop for Paths {
    fn drop(&mut self) {
        // Their tasks would keep the sessions alive, and answer pings for ever.
        self.end(&Error::new(
            ErrorKind::Unreachable,
            "the volume has been closed",
        ));
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.freezes.set(self.0.freezes.get() - 1);
        self.0.changed.notify();
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
