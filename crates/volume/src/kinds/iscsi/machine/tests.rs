//! The machine under a million random events, and scripts of what the leaf once did wrong.
//!
//! The random world is a target with a disk that restarts and is reset, and a driver that does what the machine asks, in
//! any order and perhaps late. Beside the machine's own checks, the world knows the truth: what was promised, what was lost,
//! and which writes may still land.

use engine::Duration;

use super::*;
use crate::planted::{Bug, Planted};

const RESTART: Report = Report {
    capacity: true,
    mode: false,
    reservations: true,
    access: false,
    reset: true,
    aborts: true,
    restart: true,
};
const RESET: Report = Report {
    restart: false,
    ..RESTART
};

/// A disk without a volatile cache.
const THROUGH: Mode = Mode {
    is_volatile: false,
    is_protected: false,
    takes_fua: true,
};

/// A machine, and the clock that it is told.
#[derive(Default)]
struct Driven {
    machine: Machine,
    now: Instant,
}

impl Driven {
    fn open() -> Driven {
        let mut driven = Driven::default();
        driven.tell(Event::Opened(THROUGH));
        driven
    }

    fn tell(&mut self, event: Event) -> Actions {
        self.now += Duration::from_millis(1);
        self.machine.handle(event, self.now)
    }

    /// A nexus that is in use.
    fn nexus(&mut self) -> NexusId {
        let nexus = self.machine.admit();
        self.tell(Event::InUse(nexus));
        nexus
    }

    fn lose(&mut self, nexus: NexusId, left_writes: bool) {
        self.tell(Event::Ended { nexus, left_writes });
    }

    /// Whether a write may be sent, as far as lost sessions are concerned.
    fn may_write(&self, all: &[NexusId]) -> bool {
        let is_held = |nexus: &NexusId| self.machine.may_still_write(*nexus);
        !all.iter().any(is_held)
    }
}

/// What this nexus is asked because of what was reported.
fn asked(actions: &Actions) -> Option<(NexusId, Vec<NexusId>)> {
    actions.iter().find_map(|action| match action {
        Action::AskOthers { told, others } => Some((*told, others.clone())),
        _ => None,
    })
}

/// Decision 22: a write must not be sent again while the session that lost it may still carry it out.
#[test]
fn no_write_is_sent_before_the_lost_ones_have_ended() {
    let mut driven = Driven::open();
    let [lost, other] = [driven.nexus(), driven.nexus()];
    driven.lose(lost, true);
    assert!(!driven.may_write(&[lost, other]));
    // A login alone ends the session, and perhaps not its work.
    driven.tell(Event::Reinstated(lost));
    assert!(!driven.may_write(&[lost, other]));
    let (stale, live) = (vec![lost], vec![other]);
    driven.tell(Event::ResetDone { stale, live });
    assert!(driven.may_write(&[lost, other]));
}

/// Decision 22: writes that cannot be ended are no longer waited for, but not forgotten either.
#[test]
fn what_cannot_be_ended_is_known_to_be_left() {
    let mut driven = Driven::open();
    let [elsewhere, here] = [driven.nexus(), driven.nexus()];
    for nexus in [elsewhere, here] {
        driven.lose(nexus, true);
    }
    // The target refuses the reset, and has let the same port in again.
    driven.tell(Event::Reinstated(here));
    driven.tell(Event::GivenUp(here));
    assert!(!driven.machine.is_unfenced(here) && !driven.machine.has_unfenced());
    driven.tell(Event::GivenUp(elsewhere));
    assert!(driven.machine.is_unfenced(elsewhere) && driven.machine.has_unfenced());
    assert!(driven.may_write(&[elsewhere, here]));
}

/// Decision 22: the reset comes once nothing of the lost connection can arrive any more.
#[test]
fn a_reset_waits_for_what_is_on_the_way_but_not_after_a_login() {
    let mut driven = Driven::open();
    let [silent, reinstated] = [driven.nexus(), driven.nexus()];
    for nexus in [silent, reinstated] {
        driven.lose(nexus, true);
    }
    driven.tell(Event::Reinstated(reinstated));
    let at = |nexus| driven.machine.can_be_ended_at(nexus).expect("it has ended");
    assert!(at(silent) > driven.now && at(reinstated) <= driven.now);
}

/// Decision 22: a unit attention for our own reset, which each nexus is told once, is no restart.
#[test]
fn our_own_reset_counts_once_for_each_nexus_and_only_if_it_was_done() {
    let mut driven = Driven::open();
    let nexus = driven.nexus();
    for is_done in [true, false] {
        let before = driven.machine.restarts();
        driven.tell(Event::ResetBegins(vec![nexus]));
        if !is_done {
            driven.tell(Event::ResetFailed(vec![nexus]));
        }
        let told = driven.tell(Event::Reported(nexus, RESTART));
        assert_eq!(told.contains(&Action::OurReset), is_done);
        assert_eq!(driven.machine.restarts(), before + u64::from(!is_done));
        if !is_done {
            driven.tell(Event::LanesJudged);
        }
    }
}

/// Decision 26: a restart that idle sessions report later is the same one.
#[test]
fn a_restart_that_every_session_reports_counts_once() {
    let mut driven = Driven::open();
    let nexuses: Vec<_> = (0..4).map(|_| driven.nexus()).collect();
    let told = driven.tell(Event::Reported(nexuses[2], RESTART));
    assert!(told.contains(&Action::Lose));
    let (told, others) = asked(&told).expect("the others are asked");
    assert_eq!((told, others.len()), (nexuses[2], 3));
    for other in &others {
        assert_eq!(asked(&driven.tell(Event::Reported(*other, RESTART))), None);
    }
    let heard = Event::Heard {
        told,
        others: others.clone(),
    };
    assert_eq!(driven.tell(heard)[..], [Action::AskAgain]);
    let again = Event::HeardAgain {
        told,
        others,
        in_time: true,
    };
    assert!(
        driven.tell(again).is_empty(),
        "nothing written since is lost"
    );
    assert_eq!(driven.machine.restarts(), 1);
    assert!(driven.machine.is_judging(), "other lanes have written too");
    driven.tell(Event::LanesJudged);
    assert!(!driven.machine.is_judging());
}

/// Decision 26: unless the first session then reports another restart.
#[test]
fn a_second_restart_during_the_questions_loses_what_was_written_since() {
    for (tells_again, in_time) in [(true, true), (false, false)] {
        let mut driven = Driven::open();
        let [one, other] = [driven.nexus(), driven.nexus()];
        let told = driven.tell(Event::Reported(one, RESTART));
        let (told, others) = asked(&told).expect("the other is asked");
        driven.tell(Event::Reported(other, RESTART));
        let heard = Event::Heard {
            told,
            others: others.clone(),
        };
        assert_eq!(driven.tell(heard)[..], [Action::AskAgain]);
        if tells_again {
            driven.tell(Event::Reported(one, RESTART));
        }
        let again = Event::HeardAgain {
            told,
            others,
            in_time,
        };
        assert_eq!(driven.tell(again)[..], [Action::LoseOfRound]);
    }
}

/// Decision 28: a cache above may answer only while nothing may have ended the claim.
#[test]
fn a_claim_is_settled_only_by_an_answer_to_a_question_asked_after_the_event() {
    let mut driven = Driven::open();
    let nexus = driven.nexus();
    driven.tell(Event::Reported(nexus, RESET));
    assert!(!driven.machine.is_open(Subject::Claim), "there is none");
    driven.tell(Event::Claimed);
    driven.tell(Event::Reported(nexus, RESET));
    let asked = driven.machine.events(Subject::Claim);
    driven.tell(Event::Reported(nexus, RESET));
    driven.tell(Event::Settled(Subject::Claim, asked));
    assert!(
        driven.machine.is_open(Subject::Claim),
        "it was asked before"
    );
    let asked = driven.machine.events(Subject::Claim);
    driven.tell(Event::Settled(Subject::Claim, asked));
    assert!(!driven.machine.is_open(Subject::Claim));
}

/// Decision 32: a reset loses nothing, and a new session may report what happened long ago.
#[test]
fn neither_a_reset_nor_the_old_news_of_a_new_session_is_a_restart() {
    let mut driven = Driven::open();
    let nexus = driven.nexus();
    assert_eq!(
        driven.tell(Event::Reported(nexus, RESET))[..],
        [Action::AskAboutAborts(nexus)]
    );
    let new = driven.machine.admit();
    assert!(driven.tell(Event::Reported(new, RESTART)).is_empty());
    assert_eq!(driven.machine.restarts(), 0);
    assert!(driven.machine.take_restart(new), "somebody looks at it");
}

#[test]
fn each_former_defect_is_found_by_its_script() {
    let scripts: [(Bug, fn()); 4] = [
        (
            Bug::ResendAtOnce,
            no_write_is_sent_before_the_lost_ones_have_ended,
        ),
        (
            Bug::RestartCountedByEach,
            a_restart_that_every_session_reports_counts_once,
        ),
        (
            Bug::SettledByOldAnswer,
            a_claim_is_settled_only_by_an_answer_to_a_question_asked_after_the_event,
        ),
        (
            Bug::ResetLoses,
            neither_a_reset_nor_the_old_news_of_a_new_session_is_a_restart,
        ),
    ];
    for (bug, script) in scripts {
        script();
        let _planted = Planted::new(bug);
        let found = std::panic::catch_unwind(script);
        found.expect_err(&format!("{bug:?} is found"));
    }
}

/// What its owner has ended is not used again, whatever else happens.
#[test]
fn an_end_is_for_good() {
    let mut driven = Driven::open();
    driven.nexus();
    assert_eq!(driven.tell(Event::Ends)[..], [Action::EndAll]);
    for is_at_rest in [true, false] {
        driven.tell(Event::Rests(is_at_rest));
        assert!(driven.machine.is_ended() && driven.machine.is_at_rest());
    }
    let late = driven.machine.admit();
    let used = std::panic::AssertUnwindSafe(|| driven.tell(Event::InUse(late)));
    std::panic::catch_unwind(used).expect_err("no nexus is used any more");
}

/// Questions that the machine has asked, and the driver has not answered.
#[derive(Default)]
struct Asked {
    rounds: Vec<(NexusId, Vec<NexusId>)>,
    again: Vec<(NexusId, Vec<NexusId>)>,
    lanes: u32,
    aborts: bool,
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
    asked: Asked,
    is_ended: bool,
    holds: u32,
    /// A cache was found where there was none.
    has_cache: bool,
    followed: Mode,
    told: Mode,
}

/// What is true of a nexus, whatever the machine knows.
#[derive(Clone, Copy, Default)]
struct Truth {
    has_ended: bool,
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
            asked: Asked::default(),
            is_ended: false,
            holds: 0,
            has_cache: false,
            followed: THROUGH,
            told: THROUGH,
        }
    }

    fn tell(&mut self, event: Event) {
        let round = match &event {
            Event::Heard { told, others } => Some((*told, others.clone())),
            _ => None,
        };
        for action in self.driven.tell(event) {
            match action {
                Action::Lose => self.asked.lanes += 1,
                Action::AskOthers { told, others } => self.asked.rounds.push((told, others)),
                Action::AskAgain => self.asked.again.extend(round.clone()),
                Action::AskAboutAborts(_) => {
                    assert!(!self.asked.aborts, "one question at a time");
                    self.asked.aborts = true;
                }
                Action::EndAll => self.is_ended = true,
                Action::RefuseWrites => {
                    assert!(!self.has_cache, "once");
                    self.has_cache = true;
                }
                Action::Follow(mode) => self.followed = mode,
                Action::LoseOfRound | Action::AskAccess | Action::OurReset => {}
            }
        }
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
        let what = self.dice.below(17);
        let Some(at) = self.pick().filter(|_| what > 0) else {
            if self.nexuses.len() < 8 {
                let nexus = self.driven.machine.admit();
                self.nexuses.push((nexus, Truth::default()));
            }
            return;
        };
        let (nexus, truth) = self.nexuses[at];
        match what {
            1 if !self.is_ended => self.tell(Event::InUse(nexus)),
            2 if !truth.has_ended => {
                let left_writes = self.dice.coin();
                let truth = &mut self.nexuses[at].1;
                (truth.has_ended, truth.may_land) = (true, left_writes);
                self.tell(Event::Ended { nexus, left_writes });
            }
            3 => self.tell(Event::Reinstated(nexus)),
            4 => {
                let told = self.some();
                self.tell(Event::ResetBegins(told));
            }
            5 => {
                let told = self.some();
                self.tell(Event::ResetFailed(told));
            }
            6 => self.reset_done(),
            7 => self.tell(Event::ResetHeard(nexus)),
            8 if truth.has_ended && self.dice.one_in(8) => {
                self.nexuses[at].1.may_land = false;
                self.tell(Event::GivenUp(nexus));
            }
            9 | 10 => {
                let report = self.report();
                self.tell(Event::Reported(nexus, report));
            }
            11 => self.settle(),
            12 => {
                let doubts = truth.doubts + self.dice.below(3);
                self.nexuses[at].1.doubts = doubts;
                self.driven.machine.doubt_nexus(nexus, doubts);
                let asked = self.dice.below(doubts + 1);
                self.tell(Event::Sure(nexus, asked));
                let is_open = self.driven.machine.is_in_doubt(nexus);
                assert!(is_open || asked == doubts || truth.doubts == doubts);
            }
            13 => self.answer(),
            14 if truth.has_ended && !truth.may_land => {
                self.driven.machine.forget(nexus);
                self.nexuses.swap_remove(at);
            }
            16 => self.serve(),
            15 if self.driven.machine.take_restart(nexus) => self.tell(Event::Restarted),
            _ => {}
        }
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
            0 => {
                let is_at_rest = self.dice.coin();
                self.tell(Event::Rests(is_at_rest));
            }
            1 => {
                self.holds += 1;
                self.tell(Event::Held);
            }
            2 if self.holds > 0 => {
                self.holds -= 1;
                self.tell(Event::LetGo);
            }
            3 => {
                self.told = Mode {
                    is_volatile: self.dice.one_in(100),
                    is_protected: self.dice.coin(),
                    takes_fua: self.dice.coin(),
                };
                self.tell(Event::Mode(self.told));
                assert!(
                    self.has_cache || !self.told.is_volatile,
                    "it is not flushed"
                );
            }
            _ if self.dice.one_in(1000) => self.tell(Event::Ends),
            _ => {}
        }
    }

    fn settle(&mut self) {
        const ALL: [Subject; 3] = [Subject::Capacity, Subject::Mode, Subject::Claim];
        let subject = ALL[self.dice.below(3) as usize];
        if self.dice.one_in(100) {
            self.tell(Event::Claimed);
        }
        let events = self.driven.machine.events(subject);
        if self.dice.coin() {
            self.tell(Event::Doubted(subject));
        }
        self.tell(Event::Settled(subject, events));
        let is_settled = self.driven.machine.is_settled(subject, events);
        assert!(is_settled, "that was answered");
        let is_newer = self.driven.machine.events(subject) > events;
        assert_eq!(self.driven.machine.is_open(subject), is_newer);
    }

    fn answer(&mut self) {
        let in_time = self.dice.coin();
        if let Some((told, others)) = self.asked.again.pop() {
            self.tell(Event::HeardAgain {
                told,
                others,
                in_time,
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
        assert!(machine.is_at_rest() || !machine.is_ended());
        assert_eq!(machine.is_held(), self.holds > 0);
        assert_eq!(self.followed, self.told, "what changes is followed");
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
fn random_events_find_a_write_that_overtakes_a_lost_one() {
    let _planted = Planted::new(Bug::ResendAtOnce);
    let found = std::panic::catch_unwind(|| run(0, 50_000));
    found.expect_err("it is found");
}
