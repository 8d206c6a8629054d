//! What is true of the paths, and what may happen to them.

use std::net::SocketAddr;

use super::*;

/// What is true of a path.
#[derive(Clone, Copy, Default)]
pub(super) struct PathTruth {
    pub(super) is_wanted: bool,
    pub(super) is_given_up: bool,
    pub(super) latest: Option<NexusId>,
    pub(super) access: PathAccess,
    /// Where the last login that came through says that the target has moved.
    moved: Option<SocketAddr>,
    /// Somebody brings it back.
    pub(super) is_recovering: bool,
    /// Somebody logs in over it for the first time.
    pub(super) is_opening: bool,
}

impl World {
    pub(super) fn step_on(&mut self, path: PathId) {
        let PathTruth {
            is_recovering,
            is_opening,
            ..
        } = self.paths[path.0];
        match self.dice.below(12) {
            0 if self.dice.one_in(6) => self.begin(path),
            1 | 2 if is_opening => self.open(path),
            3..=5 if is_recovering => self.recover(path),
            6 if self.dice.one_in(4) => self.adopt(),
            7 => self.tell_access(path),
            8 => self.wait_for_timers(),
            9 if self.dice.one_in(4) => self.bring_back(),
            // A login that is not through yet, or is of no use.
            10 if self.nexuses.len() < NEXUSES_MAX => {
                self.admit(path);
            }
            11 => {
                let (began, is_done) = (self.driven.now, self.dice.coin());
                self.driven.now += Duration::from_secs(self.dice.below(5));
                self.tell(Event::Path(path, PathEvent::ResetTried { began, is_done }));
                let machine = &self.driven.machine;
                let due_in = machine.reset_due_in(path, self.driven.now);
                let is_alone = !(0..PORTS).any(|it| self.is_usable(PathId(it)));
                assert!(due_in.is_zero() || !(is_done || is_alone), "{due_in:?}");
            }
            _ => self.choose(),
        }
    }

    /// The latest nexus of a path.
    pub(super) fn latest(&self, path: PathId) -> Option<(NexusId, Truth)> {
        let latest = self.paths[path.0].latest?;
        let mut all = self.nexuses.iter();
        all.find(|(nexus, _)| *nexus == latest).copied()
    }

    pub(super) fn is_live(&self, path: PathId) -> bool {
        let latest = self.latest(path);
        latest.is_some_and(|(_, truth)| !truth.has_ended)
    }

    pub(super) fn may_land(&self, path: PathId) -> bool {
        self.latest(path).is_some_and(|(_, truth)| truth.may_land)
    }

    /// It should have a session, and has none.
    pub(super) fn is_missed(&self, path: PathId) -> bool {
        !self.is_live(path) && (self.paths[path.0].is_wanted || self.may_land(path))
    }

    pub(super) fn is_usable(&self, path: PathId) -> bool {
        let is_fit = |(nexus, truth): (NexusId, Truth)| {
            let is_in_doubt = self.driven.machine.is_in_doubt(nexus);
            !truth.has_ended && !truth.is_retired && !is_in_doubt
        };
        let is_open = self.paths[path.0].access != PathAccess::No;
        is_open && self.latest(path).is_some_and(is_fit)
    }

    /// Logs in over a path, if that may succeed. Returns why it has not.
    pub(super) fn log_in(&mut self, path: PathId) -> Option<Error> {
        let is_of_use = self.paths[path.0].is_wanted && !self.is_at_rest;
        if !is_of_use || self.nexuses.len() > NEXUSES_MAX || self.dice.one_in(3) {
            const KINDS: [ErrorKind; 3] = [
                ErrorKind::Unreachable,
                ErrorKind::Configuration,
                ErrorKind::Preempted,
            ];
            let kind = KINDS[self.dice.below(3) as usize];
            return Some(Error::new(kind, "it is refused"));
        }
        let before = self.paths[path.0].latest;
        let moved = self.dice.coin().then(|| ([10, 0, 0, 2], 3260).into());
        self.paths[path.0].moved = moved;
        self.tell(Event::Path(path, PathEvent::LoggedIn { moved }));
        let nexus = self.admit(path);
        let (_, truth) = self.nexuses.last_mut().expect("it was admitted");
        truth.has_come = true;
        self.paths[path.0].latest = Some(nexus);
        self.paths[path.0].is_given_up = false;
        match self.dice.one_in(4) {
            true => drop(self.tell(Event::Parked(nexus))),
            false => self.goes_into_use(nexus),
        }
        let is_alive =
            |(nexus, truth): &&(NexusId, Truth)| Some(*nexus) == before && !truth.has_ended;
        if let Some((replaced, _)) = self.nexuses.iter().find(is_alive) {
            self.end(*replaced);
        }
        // It may end at once.
        if self.dice.one_in(4) {
            self.end(nexus);
        }
        None
    }

    /// A session is wanted for a path that is free.
    pub(super) fn begin(&mut self, path: PathId) {
        let truth = self.paths[path.0];
        let is_at_work = truth.is_recovering || truth.is_opening;
        let is_free =
            !truth.is_wanted && !self.is_live(path) && !self.may_land(path) && !is_at_work;
        assert_eq!(self.driven.machine.is_free(path), is_free);
        if !is_free {
            return;
        }
        let is_spare = self.dice.coin();
        let rank = PathPlace::LAST;
        let begins = PathEvent::Begins(PathPlace { rank, is_spare });
        self.tell(Event::Path(path, begins));
        self.tell(Event::Path(path, PathEvent::RecoveryBegins));
        self.paths[path.0] = PathTruth {
            is_wanted: true,
            is_opening: true,
            ..PathTruth::default()
        };
        self.tell(Event::AccessDoubted);
        self.bring_back();
    }

    /// The first login over a path is over.
    pub(super) fn open(&mut self, path: PathId) {
        if let Some(error) = self.log_in(path) {
            self.paths[path.0].moved = None;
            let failed = match self.dice.one_in(4) {
                true => PathEvent::LoginFailed(error),
                false => PathEvent::OpenFailed(error),
            };
            self.tell(Event::Path(path, failed));
        }
        self.paths[path.0].is_opening = false;
        self.tell(Event::Path(path, PathEvent::RecoveryEnds));
        self.bring_back();
    }

    /// Whoever brings a path back goes on.
    pub(super) fn recover(&mut self, path: PathId) {
        let due = self.tell(Event::Path(path, PathEvent::Due));
        let is_needed = self.paths[path.0].is_wanted || self.may_land(path);
        let is_needed = is_needed && !self.paths[path.0].is_given_up;
        match due.first() {
            Some(Action::LogInLater(pause)) => {
                assert!(is_needed);
                self.driven.now += *pause / 2 + Duration::from_millis(self.dice.below(100));
            }
            Some(Action::LogIn) => {
                assert!(is_needed && !self.is_at_rest);
                let failed = self.log_in(path);
                let truth = &mut self.paths[path.0];
                truth.is_recovering = failed.is_some();
                truth.moved = truth.moved.filter(|_| failed.is_none());
                self.tell(Event::Path(path, PathEvent::Recovered(failed)));
            }
            _ => {
                assert!(!is_needed || self.is_at_rest, "it is still missed");
                self.paths[path.0].is_recovering = false;
            }
        }
    }

    /// Other paths are wanted, in another order.
    pub(super) fn adopt(&mut self) {
        let mut places = Vec::new();
        for index in 0..PORTS {
            let truth = &mut self.paths[index];
            truth.is_wanted &= truth.is_opening || self.dice.coin();
            truth.is_given_up &= truth.is_wanted;
            if truth.is_wanted {
                let (rank, is_spare) = (PORTS - index, self.dice.coin());
                places.push((PathId(index), PathPlace { rank, is_spare }));
            }
        }
        self.tell(Event::Adopted(places));
        if !self.is_at_rest {
            self.bring_back();
        }
    }

    pub(super) fn bring_back(&mut self) {
        self.is_at_rest = self.is_ended;
        self.tell(Event::BringBack);
    }

    pub(super) fn tell_access(&mut self, path: PathId) {
        const ALL: [PathAccess; 3] = [
            PathAccess::Optimized,
            PathAccess::NonOptimized,
            PathAccess::No,
        ];
        let access = ALL[self.dice.below(3) as usize];
        self.paths[path.0].access = access;
        self.tell(Event::Path(path, PathEvent::Access(access)));
        let identified = PathEvent::Identified {
            port_group: None,
            is_elsewhere: self.dice.one_in(8),
        };
        self.tell(Event::Path(path, identified));
        if !self.asked.access {
            return;
        }
        let told = self.tell(Event::AccessAsked);
        let is_any =
            |is_it: fn(&World, PathId) -> bool| (0..PORTS).any(|it| is_it(self, PathId(it)));
        let asks_again = !is_any(World::is_usable) && is_any(World::is_live) && !self.is_at_rest;
        let is_asked = matches!(told.first(), Some(Action::AskAccessAgainIn(_)));
        assert_eq!(is_asked, asks_again, "while there are sessions of no use");
        let is_second_best =
            |path: &PathTruth| path.is_wanted && path.access != PathAccess::Optimized;
        let is_watched = self.paths.iter().any(is_second_best) && !self.is_at_rest;
        assert!(!is_watched || is_asked || self.timers.watches > 0);
        self.asked.access = is_asked;
    }

    pub(super) fn wait_for_timers(&mut self) {
        if self.timers.watches > 0 && self.dice.coin() {
            self.timers.watches -= 1;
            self.tell(Event::AccessDue);
        } else if self.timers.come_backs > 0 {
            self.timers.come_backs -= 1;
            self.tell(Event::ComeBack);
        }
    }

    /// A command is sent.
    pub(super) fn choose(&mut self) {
        let writes = self.dice.coin();
        let offers: [Offer; PORTS] = std::array::from_fn(|_| Offer {
            is_silent: self.dice.one_in(4),
            is_there: self.dice.coin(),
            load: self.dice.below(3),
        });
        let picked = self.driven.machine.pick(writes, |path| offers[path.0]);
        let all = || (0..PORTS).map(PathId);
        let is_kept_back = self.holds > 0 || (writes && all().any(|path| self.may_land(path)));
        let cost = |path: PathId| {
            let Offer {
                is_silent,
                is_there,
                load,
            } = offers[path.0];
            (is_silent, self.paths[path.0].access, is_there, load)
        };
        let usable = all().filter(|path| self.is_usable(*path));
        let least = usable.map(cost).min().filter(|_| !is_kept_back);
        assert_eq!(picked.map(cost), least, "the best that may be used");
        assert!(picked.is_none_or(|path| self.is_usable(path)));
    }

    pub(super) fn check_path(&self, path: PathId) {
        let machine = &self.driven.machine;
        let truth = &self.paths[path.0];
        assert_eq!(machine.is_wanted(path), truth.is_wanted);
        assert_eq!(machine.is_live(path), self.is_live(path));
        assert_eq!(machine.is_usable(path), self.is_usable(path));
        assert_eq!(
            machine.moved(path),
            truth.moved,
            "where nobody answers is not tried again"
        );
        let is_at_work = truth.is_recovering || truth.is_opening;
        if is_at_work || truth.is_given_up || self.is_at_rest || !self.is_missed(path) {
            return;
        }
        // Its loss is not known yet, or it is a lone path that comes back at leisure, for it has left nothing.
        let is_news = self.latest(path).is_some_and(|(_, it)| !it.is_lost);
        let is_at_leisure = self.timers.come_backs > 0 && !self.may_land(path);
        assert!(
            is_news || is_at_leisure,
            "a path that is missed is brought back"
        );
    }
}
