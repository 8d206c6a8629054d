//! A target with a disk that restarts and is reset, with paths that come and go, and a driver that does what the machine
//! asks, in any order and perhaps late. Beside the machine's own checks, this world knows the truth: what was promised, what
//! was lost, which writes may still land, and who is at work on which path.

mod disk;
mod paths;

use disk::FenceTruth;
use paths::PathTruth;

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
