//! A target with a disk that restarts and is reset, with paths that come and go, and a driver that does what the machine
//! asks, in any order and perhaps late. Beside the machine's own checks, this world knows the truth: what was promised, what
//! was lost, which writes may still land, and who is at work on which path.

mod disk;
mod nexuses;
mod paths;

use disk::FenceTruth;
use nexuses::Truth;
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
    /// Some nexus has left writes that nobody has ended.
    has_unfenced: bool,
    /// How many restarts have counted.
    restarts: u64,
    paths: [PathTruth; PORTS],
    asked: Asked,
    timers: Timers,
    is_open: bool,
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

impl World {
    fn new(seed: u64) -> World {
        World {
            driven: Driven::closed(),
            dice: Dice(0x9e37_79b9_7f4a_7c15 ^ seed),
            nexuses: Vec::new(),
            has_unfenced: false,
            restarts: 0,
            paths: [PathTruth::default(); PORTS],
            asked: Asked::default(),
            timers: Timers::default(),
            is_open: false,
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

    fn step(&mut self) {
        if !self.is_open && self.dice.one_in(100) {
            self.open_disk();
        }
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
            3 => self.reinstate(at),
            4 => self.reset(true),
            5 => self.reset(false),
            6 => self.reset_done(),
            7 => self.reset_heard(nexus),
            8 if truth.has_ended && self.dice.one_in(2) => self.give_up(at),
            9 | 10 => self.report(at),
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
            15 => self.take_news(at),
            16 => self.serve(),
            _ => {}
        }
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

    /// What must be so whatever has happened.
    fn check(&self) {
        let machine = &self.driven.machine;
        assert_eq!(machine.is_ended(), self.is_ended, "an end is for good");
        assert_eq!(machine.is_at_rest(), self.is_at_rest);
        assert_eq!(machine.is_held(), self.holds > 0);
        self.check_disk();
        for (nexus, truth) in &self.nexuses {
            self.check_nexus(*nexus, truth);
        }
        assert_eq!(machine.has_unfenced(), self.has_unfenced, "for ever");
        assert_eq!(machine.restarts(), self.restarts);
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

#[test]
pub(super) fn what_must_hold_holds_after_each_of_a_million_random_events() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        for _ in 0..50_000 {
            world.step();
            world.check();
        }
    }
}
