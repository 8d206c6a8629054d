//! What is known of a remote disk, and what is decided about it, in one place: [`Machine::handle`] takes an event and the
//! time, and returns the actions that follow from it. It sends nothing, waits for nothing and reads no clock; the disk's
//! [`unit`](super::unit) drives it, asks the target, and tells it what came of that. After each event it checks what must
//! hold.
//!
//! ```text
//!  doubt     what has to show itself again before anything is sent: the disk behind a nexus, its capacity, mode
//!            parameters and claim
//!  service   whether it is used at all: held back for a reset, at rest, or ended by its owner
//!  mode      what it says of its write cache, FUA and write protection
//!  capacity  the size of its blocks and its length, and what a change of them means
//!  ownership whose it is: the claim or the fence on it, and what may have ended that
//!  restarts  which restarts of the target count, whoever reports them and how late; resets of ours and of others
//!  stale     writes that lost nexuses have left, and when they can no longer take effect
//!  paths     which sessions are wanted, which may be used, which is brought back; pace: how often that is tried
//!  access    when the target is asked which of its ports may be used
//! ```

mod access;
mod capacity;
mod doubt;
mod mode;
mod ownership;
mod pace;
mod paths;
mod restarts;
mod service;
mod stale;
#[cfg(test)]
mod tests;

use engine::{Duration, Instant};
use smallvec::SmallVec;

use self::{
    doubt::Doubt, mode::Modes, ownership::Ownership, paths::KnownPaths, restarts::Hearing,
    service::Service, stale::Left,
};
use crate::Error;

pub(super) use self::{
    capacity::{Geometry, GeometryTrouble},
    mode::Mode,
    ownership::OwnershipEvent,
    paths::{Offer, PathEvent, PathId, PathPlace},
    restarts::News,
    stale::QUIET,
};

/// A nexus, from its login until nobody refers to it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NexusId(u64);

/// What may be unknown of the disk as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Its length and the size of its blocks.
    Capacity,
    /// Its mode parameters: write cache, FUA, write protection.
    Mode,
    /// Whether the claim still stands.
    Claim,
}

/// What a reply other than plain success says about more than its command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// The capacity may have changed.
    pub(super) capacity: bool,
    /// The mode parameters may have.
    pub(super) mode: bool,
    /// Reservations may have ended.
    pub(super) reservations: bool,
    /// A target port's access state may have changed.
    pub(super) access: bool,
    /// The logical unit was reset.
    pub(super) reset: bool,
    /// Commands that the target had before were aborted without an answer.
    pub(super) aborts: bool,
    /// What was not flushed may be lost.
    pub(super) restart: bool,
}

/// What has happened.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The disk is open: its geometry is known, and what its mode parameters say.
    Opened(Geometry, Mode),
    /// They say this now.
    Mode(Mode),
    /// It has this geometry now, by an answer to a question that was asked after so many events.
    Measured(Geometry, u64),
    /// It does not say.
    Unmeasured,
    /// This has happened to the claim or the fence on it.
    Ownership(OwnershipEvent),
    /// It is not used from now on, and lost nexuses stay lost.
    Rests,
    /// Its owner ends it for good.
    Ends,
    /// All commands are held back, for a reset.
    Held,
    /// They no longer are, for that reset.
    LetGo,
    /// There is a new nexus, which has just logged in over the path; it is [`Machine::next_nexus`].
    Admitted(NexusId, PathId),
    /// Nobody refers to the nexus any more.
    Forgotten(NexusId),
    /// Something about the disk may have changed.
    Doubted(Subject),
    /// It is known again, from an answer to a question that was asked after so many events.
    Settled(Subject, u64),
    /// Requests may be sent over the nexus from now on. It takes the place of the previous one of its path.
    InUse(NexusId),
    /// The nexus takes that place, but its target port may not be used now.
    Parked(NexusId),
    /// The target has reported over the nexus, so many times in all, that the disk may not be what it was.
    DoubtedNexus(NexusId, u64),
    /// Its LUN was the disk when it was asked, after so many of its doubts.
    Sure(NexusId, u64),
    /// The target has asked for a logout on the nexus, or its path is not wanted any more: it takes no more requests.
    Retires(NexusId),
    /// The session of the nexus has ended, perhaps with writes in flight.
    Ended {
        /// It.
        nexus: NexusId,
        /// Writes were at the target.
        left_writes: bool,
        /// What has ended it.
        why: Error,
    },
    /// The nexus, whose session has ended, had taken its place, and is lost.
    Lost(NexusId),
    /// Its initiator port has logged in again at the same target port.
    Reinstated(NexusId),
    /// LOGICAL UNIT RESET is about to be sent; these nexuses will report it.
    ResetBegins(Vec<NexusId>),
    /// It was not done. Whatever reset these report later counts as a restart, to be safe.
    ResetFailed(Vec<NexusId>),
    /// It has ended the writes of `stale`; `live` are told of it.
    ResetDone {
        /// The nexuses whose writes are over.
        stale: Vec<NexusId>,
        /// Those that will report the reset.
        live: Vec<NexusId>,
    },
    /// The nexus has reported all resets so far. One that it reports later is not ours.
    ResetHeard(NexusId),
    /// Nobody will end the writes of the nexus any more: the target refuses the reset, or another nexus has taken its
    /// place.
    GivenUp(NexusId),
    /// The target has reported something with a reply on the nexus.
    Reported(NexusId, Report),
    /// Somebody looks at the [`News`] of the nexus, which are none any more.
    NewsTaken(NexusId),
    /// The restart that a new nexus has reported was reported by no other, and none denies it.
    Restarted,
    /// All but `told` have reported whatever they had to report after `told` had reported a restart.
    Heard {
        /// The nexus that was told first.
        told: NexusId,
        /// The others.
        others: Vec<NexusId>,
    },
    /// So has `told`, after the others; `has_answered`: it was not lost before.
    HeardAgain {
        /// As above.
        told: NexusId,
        /// As above.
        others: Vec<NexusId>,
        /// Whether there is an answer.
        has_answered: bool,
    },
    /// It is known what the other lanes had written before a restart.
    LanesJudged,
    /// All nexuses have reported what another initiator has aborted.
    AbortsHeard,
    /// This has happened to a path.
    Path(PathId, PathEvent),
    /// These paths are wanted from now on, each at its place, and no others.
    Adopted(Vec<(PathId, PathPlace)>),
    /// It is used, or used again: lost paths are needed.
    BringBack,
    /// A lone path that was lost has rested for long enough.
    ComeBack,
    /// The target ports' access states may have changed.
    AccessDoubted,
    /// They were asked for on every path.
    AccessAsked,
    /// They were not for long.
    AccessDue,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// What no flush has covered may be lost, whoever wrote it: this lane's now, that of the others once they have
    /// stopped, and then [`Event::LanesJudged`] is due.
    Lose,
    /// What no flush had covered when the round of questions began may be lost.
    LoseOfRound,
    /// Have these report whatever they have to report, then [`Event::Heard`] is due. Flushes wait for it.
    AskOthers {
        /// The nexus that has reported the restart.
        told: NexusId,
        /// Those that may report the same restart.
        others: Vec<NexusId>,
    },
    /// Have the nexus report whatever it has to report, then [`Event::HeardAgain`] is due.
    AskAgain,
    /// Have every other nexus report which commands were aborted, then [`Event::AbortsHeard`] is due.
    AskAboutAborts(NexusId),
    /// Ask for the access states of all target ports, then [`Event::AccessAsked`] is due.
    AskAccess,
    /// Do so again, after this pause.
    AskAccessAgainIn(Duration),
    /// After so long, [`Event::AccessDue`] is due.
    WatchAccess(Duration),
    /// Bring the path back: [`PathEvent::Due`] says when.
    Recover(PathId),
    /// Log in now, then [`PathEvent::Recovered`] is due.
    LogIn,
    /// Ask again after so long.
    LogInLater(Duration),
    /// After so long, [`Event::ComeBack`] is due.
    ComeBackIn(Duration),
    /// Tell the user that the path is lost.
    TellLoss(PathId),
    /// Tell the user that it is refused.
    TellRefusal(PathId),
    /// Tell the user that the disk is used without it.
    TellGivenUp(PathId),
    /// Tell the user that its access state has changed.
    TellAccess(PathId),
    /// A volatile write cache has appeared that is not flushed: writes and flushes must fail.
    RefuseWrites,
    /// It has gone again, and the disk's owner looks at all that it keeps there: writes and flushes may be done again.
    TakeWrites,
    /// The mode parameters have changed.
    Follow(Mode),
    /// The disk has become longer: it has so many bytes now.
    Grow(u64),
    /// Tell the user that the disk is not what it was.
    TellGeometry(GeometryTrouble),
    /// End every nexus, and send nothing that is queued for it.
    EndAll,
    /// The reset that was reported is ours, and means nothing.
    OurReset,
}

/// The actions that follow from one event.
pub(super) type Actions = SmallVec<[Action; 2]>;

/// What is known of one nexus.
#[derive(Clone, Debug)]
struct Known {
    path: PathId,
    /// Whether it still leads to the disk.
    disk: Doubt,
    hearing: Hearing,
    left: Left,
}

/// The state of a remote disk.
#[derive(Debug)]
pub(super) struct Machine {
    /// In the order of their logins. There are few.
    nexuses: Vec<(NexusId, Known)>,
    admitted: u64,
    /// When the last event happened.
    last_event: Instant,
    service: Service,
    modes: Modes,
    geometry: capacity::Known,
    ownership: Ownership,
    is_open: bool,
    capacity: Doubt,
    mode: Doubt,
    claim: Doubt,
    /// Restarts of the target so far.
    restarts: u64,
    /// Questions under way on which it depends whether writes are lost.
    judging: u32,
    asks_about_aborts: bool,
    /// Writes are left that may take effect at any time, and the target cannot be kept from it.
    has_unfenced: bool,
    paths: KnownPaths,
}

impl Machine {
    /// A disk of which nothing is known, for so many initiator ports.
    pub(super) fn new(ports: usize) -> Machine {
        Machine {
            nexuses: Vec::new(),
            admitted: 0,
            last_event: Instant::default(),
            service: Service::default(),
            modes: Modes::default(),
            geometry: capacity::Known::default(),
            ownership: Ownership::default(),
            is_open: false,
            capacity: Doubt::default(),
            mode: Doubt::default(),
            claim: Doubt::default(),
            restarts: 0,
            judging: 0,
            asks_about_aborts: false,
            has_unfenced: false,
            paths: KnownPaths::new(ports),
        }
    }

    /// What the next nexus that is admitted is called.
    pub(super) fn next_nexus(&self) -> NexusId {
        NexusId(self.admitted)
    }

    /// Takes an event that has no consequence but to be known.
    pub(super) fn note(&mut self, event: Event, now: Instant) {
        let actions = self.handle(event, now);
        assert!(actions.is_empty(), "{actions:?}");
    }

    /// As that, where something is dropped. That may be outside a lane, where there is no clock, so it counts as happening
    /// with the last event.
    pub(super) fn note_drop(&mut self, event: Event) {
        self.note(event, self.last_event);
    }

    /// Takes an event that happens `now`. Nothing else changes what is known.
    pub(super) fn handle(&mut self, event: Event, now: Instant) -> Actions {
        self.last_event = now;
        let actions = self.apply(event, now);
        self.check();
        actions
    }

    fn apply(&mut self, event: Event, now: Instant) -> Actions {
        let mut actions = Actions::new();
        match event {
            Event::Opened(geometry, mode) => {
                self.is_open = true;
                self.geometry.open(geometry);
                self.modes.open(mode);
            }
            Event::Mode(mode) => self.modes.tell(mode, &mut actions),
            Event::Measured(geometry, events) => self.measured(geometry, events, &mut actions),
            Event::Unmeasured => self.geometry.untold(&mut actions),
            Event::Ownership(event) => {
                let is_anew = matches!(event, OwnershipEvent::Looked);
                self.ownership.tell(event);
                if is_anew {
                    self.modes.begin_anew(&mut actions);
                }
            }
            Event::Rests => self.service.rest(true),
            Event::Ends => self.service.end(&mut actions),
            Event::Held => self.service.hold(),
            Event::LetGo => self.service.let_go(),
            Event::Admitted(nexus, path) => self.admit(nexus, path),
            Event::Forgotten(nexus) => self.forget(nexus),
            Event::Doubted(subject) => self.doubt(subject),
            Event::Settled(subject, events) => self.subject_mut(subject).settle(events),
            Event::InUse(nexus) => {
                assert!(!self.is_ended(), "what has ended is not used again");
                self.known_mut(nexus).hearing.goes_into_use();
                self.logged_in(nexus);
            }
            Event::Parked(nexus) => self.logged_in(nexus),
            Event::DoubtedNexus(nexus, doubts) => self.known_mut(nexus).disk.raise_to(doubts),
            Event::Sure(nexus, doubts) => self.known_mut(nexus).disk.settle(doubts),
            Event::Retires(nexus) => self.known_mut(nexus).left.retires(),
            Event::Ended {
                nexus,
                left_writes,
                why,
            } => self.known_mut(nexus).left.ended(left_writes, why, now),
            Event::Lost(nexus) => self.lost(nexus, now, &mut actions),
            Event::Reinstated(nexus) => self.known_mut(nexus).left.reinstated(),
            Event::GivenUp(nexus) => {
                self.has_unfenced |= self.known_mut(nexus).left.given_up();
            }
            Event::ResetBegins(told) => self.expect_reset(&told, true),
            Event::ResetFailed(told) => self.expect_reset(&told, false),
            Event::ResetDone { stale, live } => {
                for nexus in stale {
                    self.known_mut(nexus).left.over();
                }
                self.expect_reset(&live, true);
            }
            Event::ResetHeard(nexus) => self.expect_reset(&[nexus], false),
            Event::Reported(nexus, report) => self.reported(nexus, report, &mut actions),
            Event::NewsTaken(nexus) => self.known_mut(nexus).hearing.take_news(),
            Event::Restarted => self.restarted(&mut actions),
            Event::Heard { told, others } => self.heard(told, &others, &mut actions),
            Event::HeardAgain {
                told,
                others,
                has_answered,
            } => self.heard_again(told, &others, has_answered, &mut actions),
            Event::LanesJudged => self.judging -= 1,
            Event::AbortsHeard => self.asks_about_aborts = false,
            Event::Path(path, event) => self.on_path(path, event, now, &mut actions),
            Event::Adopted(places) => self.adopt(&places),
            Event::BringBack => {
                self.service.rest(false);
                self.bring_back(&mut actions);
            }
            Event::ComeBack => self.bring_back(&mut actions),
            Event::AccessDoubted => self.doubt_access(&mut actions),
            Event::AccessAsked => self.access_asked(&mut actions),
            Event::AccessDue => self.access_due(&mut actions),
        }
        actions
    }

    fn admit(&mut self, nexus: NexusId, path: PathId) {
        assert_eq!(nexus, self.next_nexus(), "each has an id of its own");
        self.admitted += 1;
        let known = Known {
            path,
            disk: Doubt::default(),
            hearing: Hearing::default(),
            left: Left::default(),
        };
        self.nexuses.push((nexus, known));
    }

    fn forget(&mut self, nexus: NexusId) {
        self.nexuses.retain(|(it, _)| *it != nexus);
        self.paths.forget(nexus);
    }

    fn find(&self, nexus: NexusId) -> Option<&Known> {
        let mut all = self.nexuses.iter();
        all.find(|(it, _)| *it == nexus).map(|(_, known)| known)
    }

    fn find_mut(&mut self, nexus: NexusId) -> Option<&mut Known> {
        let mut all = self.nexuses.iter_mut();
        all.find(|(it, _)| *it == nexus).map(|(_, known)| known)
    }

    fn known(&self, nexus: NexusId) -> &Known {
        let known = self.find(nexus);
        known.expect("a nexus is known while somebody refers to it")
    }

    fn known_mut(&mut self, nexus: NexusId) -> &mut Known {
        let known = self.find_mut(nexus);
        known.expect("a nexus is known while somebody refers to it")
    }

    /// What must hold after each event, whatever it was.
    fn check(&self) {
        for doubt in [&self.capacity, &self.mode, &self.claim] {
            doubt.check();
        }
        assert!(
            self.ownership.is_claimed() || self.claim.events() == 0,
            "no claim can be in doubt where there is none"
        );
        self.modes.check();
        self.geometry.check();
        self.ownership.check();
        let mut rounds = 0;
        for (_, known) in &self.nexuses {
            known.disk.check();
            known.hearing.check();
            known.left.check();
            rounds += known.hearing.rounds();
            assert!(
                self.has_unfenced || !known.left.is_unfenced(),
                "what one nexus has left is left of the disk"
            );
        }
        assert!(
            rounds == 0 || self.judging > 0,
            "flushes wait while nexuses are asked about a restart"
        );
        self.check_paths();
    }
}
