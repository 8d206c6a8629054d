//! A target with a disk that restarts and is reset, with paths that come and go, and a driver that does what the machine
//! asks, in any order and perhaps late. Beside the machine's own checks, this world knows the truth: what was promised, what
//! was lost, which writes may still land, and who is at work on which path.

mod disk;

use disk::FenceTruth;

use super::*;
use crate::kinds::iscsi::access::PathAccess;

/// The most nexuses at a time.
const NEXUSES_MAX: usize = 10;

/// Questions that the machine has asked, and the driver has not answered.
#[derive(Default)]
struct Asked {
    rounds: Vec<(NexusId, Vec<NexusId>)>,
    again: Vec<(NexusId, Vec<NexusId>)>,
    lanes: u32,
    aborts: bool,
    access: bool,
}

/// Pauses after which the machine wants to be told something.
#[derive(Default)]
struct Timers {
    come_backs: u32,
    watches: u32,
}

/// Chance: xorshift64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn coin(&mut self) -> bool {
        self.one_in(2)
    }
}

/// A driver that does anything that a driver may do.
struct World {
    driven: Driven,
    dice: Dice,
    /// Every nexus that somebody refers to, with what is true of it.
    nexuses: Vec<(NexusId, Truth)>,
    paths: [PathTruth; PORTS],
    asked: Asked,
    timers: Timers,
    is_at_rest: bool,
    is_ended: bool,
    holds: u32,
    /// A cache was found where there was none.
    has_cache: bool,
    followed: Mode,
    told: Mode,
    /// How long it has become, in bytes.
    len_bytes: u64,
    /// When it last said what it is, its blocks had another size.
    has_other_blocks: bool,
    fence: FenceTruth,
    is_claimed: bool,
}

/// What is true of a nexus, whatever the machine knows.
#[derive(Clone, Copy)]
struct Truth {
    path: PathId,
    /// It has taken its place on the path.
    has_come: bool,
    is_retired: bool,
    has_ended: bool,
    /// Its loss was dealt with.
    is_lost: bool,
    /// Writes of it may still land, as far as anybody has done anything about it.
    may_land: bool,
    doubts: u64,
}

/// What is true of a path.
#[derive(Clone, Copy, Default)]
struct PathTruth {
    is_wanted: bool,
    is_given_up: bool,
    latest: Option<NexusId>,
    access: PathAccess,
    /// Somebody brings it back.
    is_recovering: bool,
    /// Somebody logs in over it for the first time.
    is_opening: bool,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            driven: Driven::open(),
            dice: Dice(0x9e37_79b9_7f4a_7c15 ^ seed),
            nexuses: Vec::new(),
            paths: [PathTruth::default(); PORTS],
            asked: Asked::default(),
            timers: Timers::default(),
            is_at_rest: false,
            is_ended: false,
            holds: 0,
            has_cache: false,
            followed: THROUGH,
            told: THROUGH,
            len_bytes: GEOMETRY.len_bytes,
            has_other_blocks: false,
            fence: FenceTruth::None,
            is_claimed: false,
        }
    }

    fn tell(&mut self, event: Event) -> Actions {
        let round = match &event {
            Event::Heard { told, others } => Some((*told, others.clone())),
            _ => None,
        };
        let actions = self.driven.tell(event);
        for action in actions.clone() {
            match action {
                Action::Lose => {
                    self.asked.lanes += 1;
                    self.restarted();
                }
                Action::AskOthers { told, others } => self.asked.rounds.push((told, others)),
                Action::AskAgain => self.asked.again.extend(round.clone()),
                Action::AskAboutAborts(_) => {
                    assert!(!self.asked.aborts, "one question at a time");
                    self.asked.aborts = true;
                }
                Action::EndAll => (self.is_ended, self.is_at_rest) = (true, true),
                Action::RefuseWrites => {
                    assert!(!self.has_cache, "once");
                    self.has_cache = true;
                }
                Action::TakeWrites => {
                    assert!(self.has_cache && !self.told.is_volatile, "it is gone");
                    self.has_cache = false;
                }
                Action::Follow(mode) => self.followed = mode,
                Action::Grow(len_bytes) => {
                    assert!(
                        len_bytes > self.len_bytes,
                        "it becomes longer, and no shorter"
                    );
                    self.len_bytes = len_bytes;
                }
                Action::AskAccess => {
                    assert!(!self.asked.access, "one query at a time");
                    self.asked.access = true;
                }
                Action::WatchAccess(_) => {
                    assert_eq!(self.timers.watches, 0, "one watch at a time");
                    self.timers.watches += 1;
                }
                Action::ComeBackIn(_) => self.timers.come_backs += 1,
                Action::Recover(path) => {
                    assert!(self.is_missed(path) && !self.is_at_rest);
                    let path = &mut self.paths[path.0];
                    assert!(!path.is_given_up, "the target has refused it for good");
                    assert!(!path.is_recovering && !path.is_opening, "one at a time");
                    path.is_recovering = true;
                }
                Action::TellGivenUp(path) => self.paths[path.0].is_given_up = true,
                Action::LoseOfRound
                | Action::OurReset
                | Action::TellGeometry(_)
                | Action::AskAccessAgainIn(_)
                | Action::LogIn
                | Action::LogInLater(_)
                | Action::TellLoss(_)
                | Action::TellRefusal(_)
                | Action::TellAccess(_) => {}
            }
        }
        actions
    }

    fn pick(&mut self) -> Option<usize> {
        let count = self.nexuses.len();
        (count > 0).then(|| self.dice.below(count as u64) as usize)
    }

    fn some(&mut self) -> Vec<NexusId> {
        let all: Vec<_> = self.nexuses.iter().map(|(nexus, _)| *nexus).collect();
        all.into_iter().filter(|_| self.dice.coin()).collect()
    }

    /// The latest nexus of a path.
    fn latest(&self, path: PathId) -> Option<(NexusId, Truth)> {
        let latest = self.paths[path.0].latest?;
        let mut all = self.nexuses.iter();
        all.find(|(nexus, _)| *nexus == latest).copied()
    }

    fn is_live(&self, path: PathId) -> bool {
        let latest = self.latest(path);
        latest.is_some_and(|(_, truth)| !truth.has_ended)
    }

    fn may_land(&self, path: PathId) -> bool {
        self.latest(path).is_some_and(|(_, truth)| truth.may_land)
    }

    /// It should have a session, and has none.
    fn is_missed(&self, path: PathId) -> bool {
        !self.is_live(path) && (self.paths[path.0].is_wanted || self.may_land(path))
    }

    fn is_usable(&self, path: PathId) -> bool {
        let is_fit = |(nexus, truth): (NexusId, Truth)| {
            let is_in_doubt = self.driven.machine.is_in_doubt(nexus);
            !truth.has_ended && !truth.is_retired && !is_in_doubt
        };
        let is_open = self.paths[path.0].access != PathAccess::No;
        is_open && self.latest(path).is_some_and(is_fit)
    }

    fn report(&mut self) -> Report {
        Report {
            capacity: self.dice.coin(),
            mode: self.dice.coin(),
            reservations: self.dice.coin(),
            access: self.dice.coin(),
            reset: self.dice.coin(),
            aborts: self.dice.coin(),
            restart: self.dice.one_in(4),
        }
    }

    fn step(&mut self) {
        let what = self.dice.below(24);
        let path = PathId(self.dice.below(PORTS as u64) as usize);
        let Some(at) = self.pick().filter(|_| what < 17) else {
            return self.step_on(path);
        };
        let (nexus, truth) = self.nexuses[at];
        match what {
            0 if truth.has_ended && truth.has_come && !truth.is_lost => {
                self.nexuses[at].1.is_lost = true;
                self.tell(Event::Lost(nexus));
            }
            1 if self.dice.one_in(4) => {
                self.nexuses[at].1.is_retired = true;
                self.tell(Event::Retires(nexus));
                if self.dice.coin() {
                    self.tell(Event::Path(truth.path, PathEvent::LogoutRequested));
                }
            }
            2 if !truth.has_ended => self.end(nexus),
            3 => {
                self.tell(Event::Reinstated(nexus));
            }
            4 => {
                let told = self.some();
                self.tell(Event::ResetBegins(told));
            }
            5 => {
                let told = self.some();
                self.tell(Event::ResetFailed(told));
            }
            6 => self.reset_done(),
            7 => {
                self.tell(Event::ResetHeard(nexus));
            }
            8 if truth.has_ended && self.dice.one_in(8) => {
                self.nexuses[at].1.may_land = false;
                self.tell(Event::GivenUp(nexus));
            }
            9 | 10 => {
                let report = self.report();
                self.tell(Event::Reported(nexus, report));
            }
            11 => match self.dice.below(3) {
                0 => self.own(),
                1 => self.measure(),
                _ => self.settle(),
            },
            12 => {
                let doubts = truth.doubts + self.dice.below(3);
                self.nexuses[at].1.doubts = doubts;
                self.tell(Event::DoubtedNexus(nexus, doubts));
                let asked = self.dice.below(doubts + 1);
                self.tell(Event::Sure(nexus, asked));
                let is_open = self.driven.machine.is_in_doubt(nexus);
                assert!(is_open || asked == doubts || truth.doubts == doubts);
            }
            13 => self.answer(),
            14 if self.is_forgotten(nexus, truth) => {
                self.tell(Event::Forgotten(nexus));
                self.nexuses.swap_remove(at);
            }
            16 => self.serve(),
            15 if self.driven.machine.news(nexus).has_restarted => {
                self.tell(Event::NewsTaken(nexus));
                self.tell(Event::Restarted);
            }
            _ => {}
        }
    }

    /// Nobody refers to it any more.
    fn is_forgotten(&self, nexus: NexusId, truth: Truth) -> bool {
        let is_latest = self.paths[truth.path.0].latest == Some(nexus);
        truth.has_ended && !truth.may_land && !is_latest && (truth.is_lost || !truth.has_come)
    }

    fn step_on(&mut self, path: PathId) {
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

    fn end(&mut self, nexus: NexusId) {
        let (left_writes, why) = (self.dice.coin(), gone());
        let mut all = self.nexuses.iter_mut();
        let (_, truth) = all.find(|(it, _)| *it == nexus).expect("it is known");
        (truth.has_ended, truth.may_land) = (true, left_writes);
        self.tell(Event::Ended {
            nexus,
            left_writes,
            why,
        });
    }

    fn admit(&mut self, path: PathId) -> NexusId {
        let nexus = self.driven.admit(path);
        let truth = Truth {
            path,
            has_come: false,
            is_retired: false,
            has_ended: false,
            is_lost: false,
            may_land: false,
            doubts: 0,
        };
        self.nexuses.push((nexus, truth));
        nexus
    }

    /// Logs in over a path, if that may succeed. Returns why it has not.
    fn log_in(&mut self, path: PathId) -> Option<Error> {
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
        let nexus = self.admit(path);
        let (_, truth) = self.nexuses.last_mut().expect("it was admitted");
        truth.has_come = true;
        self.paths[path.0].latest = Some(nexus);
        self.paths[path.0].is_given_up = false;
        let comes = match self.dice.one_in(4) {
            true => Event::Parked(nexus),
            false => Event::InUse(nexus),
        };
        self.tell(comes);
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
    fn begin(&mut self, path: PathId) {
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
    fn open(&mut self, path: PathId) {
        if let Some(error) = self.log_in(path) {
            self.tell(Event::Path(path, PathEvent::OpenFailed(error)));
        }
        self.paths[path.0].is_opening = false;
        self.tell(Event::Path(path, PathEvent::RecoveryEnds));
        self.bring_back();
    }

    /// Whoever brings a path back goes on.
    fn recover(&mut self, path: PathId) {
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
                self.paths[path.0].is_recovering = failed.is_some();
                self.tell(Event::Path(path, PathEvent::Recovered(failed)));
            }
            _ => {
                assert!(!is_needed || self.is_at_rest, "it is still missed");
                self.paths[path.0].is_recovering = false;
            }
        }
    }

    /// Other paths are wanted, in another order.
    fn adopt(&mut self) {
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

    fn bring_back(&mut self) {
        self.is_at_rest = self.is_ended;
        self.tell(Event::BringBack);
    }

    fn tell_access(&mut self, path: PathId) {
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

    fn wait_for_timers(&mut self) {
        if self.timers.watches > 0 && self.dice.coin() {
            self.timers.watches -= 1;
            self.tell(Event::AccessDue);
        } else if self.timers.come_backs > 0 {
            self.timers.come_backs -= 1;
            self.tell(Event::ComeBack);
        }
    }

    /// A command is sent.
    fn choose(&mut self) {
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

    /// A reset ends what was left before it, and nothing that is alive.
    fn reset_done(&mut self) {
        let is_stale = |(nexus, _): &(NexusId, Truth)| {
            let is_it = self.driven.machine.may_still_write(*nexus);
            is_it.then_some(*nexus)
        };
        let stale: Vec<_> = self.nexuses.iter().filter_map(is_stale).collect();
        for (nexus, truth) in &mut self.nexuses {
            truth.may_land &= !stale.contains(nexus);
        }
        let live = self.some();
        self.tell(Event::ResetDone { stale, live });
    }

    /// The disk rests, is held back, or, seldom, ended.
    fn serve(&mut self) {
        match self.dice.below(5) {
            0 if self.dice.one_in(4) => {
                self.is_at_rest = true;
                self.tell(Event::Rests);
            }
            1 => {
                self.holds += 1;
                self.tell(Event::Held);
            }
            2 if self.holds > 0 => {
                self.holds -= 1;
                self.tell(Event::LetGo);
            }
            3 => self.change_mode(),
            _ if self.dice.one_in(1000) => {
                self.tell(Event::Ends);
            }
            _ => {}
        }
    }

    fn answer(&mut self) {
        let has_answered = self.dice.coin();
        if let Some((told, others)) = self.asked.again.pop() {
            self.tell(Event::HeardAgain {
                told,
                others,
                has_answered,
            });
        } else if let Some((told, others)) = self.asked.rounds.pop() {
            self.tell(Event::Heard { told, others });
        } else if self.asked.lanes > 0 {
            self.asked.lanes -= 1;
            self.tell(Event::LanesJudged);
        } else if self.asked.aborts {
            self.asked.aborts = false;
            self.tell(Event::AbortsHeard);
        }
    }

    /// What must be so whatever has happened.
    fn check(&self) {
        let machine = &self.driven.machine;
        assert_eq!(machine.is_ended(), self.is_ended, "an end is for good");
        assert_eq!(machine.is_at_rest(), self.is_at_rest);
        assert_eq!(machine.is_held(), self.holds > 0);
        assert_eq!(self.followed, self.told, "what changes is followed");
        self.check_disk();
        for (nexus, truth) in &self.nexuses {
            let is_held = self.driven.machine.may_still_write(*nexus);
            assert_eq!(is_held, truth.may_land, "no write may overtake a lost one");
        }
        let Asked {
            rounds,
            again,
            lanes,
            ..
        } = &self.asked;
        let is_asked = !rounds.is_empty() || !again.is_empty() || *lanes > 0;
        let is_judging = self.driven.machine.is_judging();
        assert_eq!(
            is_judging, is_asked,
            "flushes wait for answers, not for ever"
        );
        for path in (0..PORTS).map(PathId) {
            self.check_path(path);
        }
    }

    fn check_path(&self, path: PathId) {
        let machine = &self.driven.machine;
        let truth = &self.paths[path.0];
        assert_eq!(machine.is_wanted(path), truth.is_wanted);
        assert_eq!(machine.is_live(path), self.is_live(path));
        assert_eq!(machine.is_usable(path), self.is_usable(path));
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

/// Runs `events` random events; panics when something does not hold.
fn run(seed: u64, events: u32) {
    let mut world = World::new(seed);
    for _ in 0..events {
        world.step();
        world.check();
    }
}

#[test]
fn what_must_hold_holds_after_each_of_a_million_random_events() {
    for seed in 0..20 {
        run(seed, 50_000);
    }
}

#[test]
fn random_events_find_what_holds_no_more() {
    let bugs = [
        Bug::ResendAtOnce,
        Bug::RemovedPathForgotten,
        Bug::IdlePathForgotten,
    ];
    for bug in bugs {
        let _planted = Planted::new(bug);
        let found = std::panic::catch_unwind(|| run(0, 50_000));
        found.expect_err(&format!("{bug:?} is found"));
    }
}
