//! The machine under a million random events ([`world`]), and scripts of what the leaf once did wrong: here with sessions
//! and what they report, in [`paths`] with the paths that they take. Each is [`planted`], and found.

mod paths;
mod planted;
mod world;

use engine::Duration;

use super::*;
use crate::{
    ErrorKind,
    planted::{Bug, Planted},
};

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

/// What it is at first.
const GEOMETRY: Geometry = Geometry {
    block_size_bytes: 512,
    len_bytes: 1 << 20,
};

/// How many initiator ports there are.
const PORTS: usize = 4;

/// A machine, and the clock that it is told.
struct Driven {
    machine: Machine,
    now: Instant,
    /// How many paths are wanted.
    paths: usize,
}

fn gone() -> Error {
    Error::new(ErrorKind::Unreachable, "the target is gone")
}

impl Driven {
    fn open() -> Driven {
        let mut driven = Driven::closed();
        driven.tell(Event::Opened(GEOMETRY, THROUGH));
        driven
    }

    /// A disk that is not open yet.
    fn closed() -> Driven {
        Driven {
            machine: Machine::new(PORTS),
            now: Instant::default(),
            paths: 0,
        }
    }

    fn tell(&mut self, event: Event) -> Actions {
        self.now += Duration::from_millis(1);
        self.machine.handle(event, self.now)
    }

    /// One more path, for which a session is wanted.
    fn path(&mut self, is_spare: bool) -> PathId {
        let rank = self.paths;
        self.paths += 1;
        self.on(
            PathId(rank),
            PathEvent::Begins(PathPlace { rank, is_spare }),
        );
        PathId(rank)
    }

    fn on(&mut self, path: PathId, event: PathEvent) -> Actions {
        self.tell(Event::Path(path, event))
    }

    /// A new nexus of `path`.
    fn admit(&mut self, path: PathId) -> NexusId {
        let nexus = self.machine.next_nexus();
        self.tell(Event::Admitted(nexus, path));
        nexus
    }

    /// A nexus of `path` that is in use.
    fn log_in(&mut self, path: PathId) -> NexusId {
        let nexus = self.admit(path);
        self.tell(Event::InUse(nexus));
        nexus
    }

    /// A nexus that is in use, on a path of its own.
    fn nexus(&mut self) -> NexusId {
        let path = self.path(false);
        self.log_in(path)
    }

    /// Its session has ended, which is noticed.
    fn end(&mut self, nexus: NexusId, left_writes: bool) {
        let why = gone();
        self.tell(Event::Ended {
            nexus,
            left_writes,
            why,
        });
    }

    /// As that, and it is lost.
    fn lose(&mut self, nexus: NexusId, left_writes: bool) -> Actions {
        self.end(nexus, left_writes);
        self.tell(Event::Lost(nexus))
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
    // Another lane may report the write, when its session is long gone.
    driven.tell(Event::Forgotten(elsewhere));
    assert!(driven.machine.has_unfenced());
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
        has_answered: true,
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
    for (tells_again, has_answered) in [(true, true), (false, false)] {
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
            has_answered,
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
    let is_reserved = true;
    driven.tell(Event::Ownership(OwnershipEvent::Claimed { is_reserved }));
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
    let new = driven.admit(PathId(0));
    assert!(driven.tell(Event::Reported(new, RESTART)).is_empty());
    assert_eq!(driven.machine.restarts(), 0);
    let news = News {
        has_restarted: true,
        was_reset: true,
    };
    assert_eq!(driven.machine.news(new), news, "somebody looks at it");
    driven.tell(Event::NewsTaken(new));
    assert_eq!(driven.machine.news(new), News::default(), "once");
}

/// Decision 41: under another block size each address means another place. A longer disk is followed, a shorter one told of.
#[test]
fn a_disk_whose_blocks_have_another_size_is_neither_read_nor_written() {
    let mut driven = Driven::open();
    let mut measured = |block_size_bytes, len_bytes| {
        driven.tell(Event::Doubted(Subject::Capacity));
        let asked = driven.machine.events(Subject::Capacity);
        let now = Geometry {
            block_size_bytes,
            len_bytes,
        };
        let told = driven.tell(Event::Measured(now, asked));
        let is_known = !driven.machine.is_open(Subject::Capacity);
        (told, is_known, driven.machine.check_blocks().is_ok())
    };
    let other = GeometryTrouble::OtherBlocks {
        was_bytes: 512,
        is_bytes: 4096,
    };
    let told: Actions = [Action::TellGeometry(other)].into_iter().collect();
    assert_eq!(measured(4096, 8 << 20), (told, false, false));
    let again = measured(4096, 8 << 20);
    assert_eq!(again, (Actions::new(), false, false), "it is told once");
    let grown = 2 << 20;
    let told: Actions = [Action::Grow(grown)].into_iter().collect();
    assert_eq!(measured(512, grown), (told, true, true));
    let shrunk = GeometryTrouble::Shrunk {
        from_bytes: grown,
        to_bytes: 1 << 20,
    };
    let told: Actions = [Action::TellGeometry(shrunk)].into_iter().collect();
    assert_eq!(measured(512, 1 << 20), (told, true, true));
    assert_eq!(measured(512, grown), (Actions::new(), true, true));
}

/// Decision 55: the disk behind a target that has restarted may be an older copy of itself.
#[test]
fn a_fence_is_not_the_same_after_a_restart() {
    let mut driven = Driven::open();
    let nexus = driven.nexus();
    let key = ::mirror::key::FenceKey::new(3, 1);
    let own = |event| Event::Ownership(event);
    for event in [OwnershipEvent::FenceBegins, OwnershipEvent::Fenced(key)] {
        driven.tell(own(event));
        driven.machine.check_fence().expect("it may be used");
    }
    driven.tell(Event::Reported(nexus, RESET));
    driven.machine.check_fence().expect("it has not restarted");
    driven.tell(Event::Reported(nexus, RESTART));
    let refused = driven.machine.check_fence().expect_err("it may be older");
    assert_eq!(refused.kind(), ErrorKind::Unreachable);
    assert_eq!(driven.machine.fence_key(), Some(key), "sessions may log in");
    driven.tell(own(OwnershipEvent::Looked));
    driven
        .machine
        .check_fence()
        .expect_err("it has to be fenced");
    driven.tell(own(OwnershipEvent::Fenced(key)));
    driven.machine.check_fence().expect("its owner has looked");
    driven.tell(own(OwnershipEvent::FenceSuperseded));
    driven.tell(own(OwnershipEvent::StartedAgain));
    let refused = driven
        .machine
        .check_fence()
        .expect_err("it has another owner");
    assert_eq!(refused.kind(), ErrorKind::ReservationConflict);
    // A disk that was never fenced is only watched, and looked at is enough.
    let mut driven = Driven::open();
    driven.tell(own(OwnershipEvent::StartedAgain));
    driven.machine.check_fence().expect("nobody watches it");
    driven.tell(own(OwnershipEvent::Looked));
    driven.tell(own(OwnershipEvent::StartedAgain));
    driven.machine.check_fence().expect_err("it may be older");
    driven.tell(own(OwnershipEvent::Looked));
    driven.machine.check_fence().expect("its owner has looked");
}

/// What its owner has ended is not used again, whatever else happens.
#[test]
fn an_end_is_for_good() {
    let mut driven = Driven::open();
    driven.nexus();
    assert_eq!(driven.tell(Event::Ends)[..], [Action::EndAll]);
    for again in [Event::Rests, Event::BringBack] {
        driven.tell(again);
        assert!(driven.machine.is_ended() && driven.machine.is_at_rest());
    }
    let late = driven.admit(PathId(0));
    let used = std::panic::AssertUnwindSafe(|| driven.tell(Event::InUse(late)));
    std::panic::catch_unwind(used).expect_err("no nexus is used any more");
}
