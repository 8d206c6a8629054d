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
//!  restarts  which restarts of the target count, whoever reports them and how late; resets of ours and of others
//!  stale     writes that lost nexuses have left, and when they can no longer take effect
//! ```

mod doubt;
mod mode;
mod restarts;
mod service;
mod stale;
#[cfg(test)]
mod tests;

use engine::Instant;
use smallvec::SmallVec;

use self::{doubt::Doubt, mode::Modes, restarts::Hearing, service::Service, stale::Left};

pub(super) use self::{mode::Mode, stale::QUIET};

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The disk is open: what it is, is known, and what its mode parameters say.
    Opened(Mode),
    /// They say this now.
    Mode(Mode),
    /// There is a claim on it.
    Claimed,
    /// It is not used from now on, and lost nexuses stay lost; or it is used again.
    Rests(bool),
    /// Its owner ends it for good.
    Ends,
    /// All commands are held back, for a reset.
    Held,
    /// They no longer are, for that reset.
    LetGo,
    /// Something about the disk may have changed.
    Doubted(Subject),
    /// It is known again, from an answer to a question that was asked after so many events.
    Settled(Subject, u64),
    /// Requests may be sent over the nexus from now on.
    InUse(NexusId),
    /// Its LUN was the disk when it was asked, after so many of its doubts.
    Sure(NexusId, u64),
    /// The session of the nexus has ended, perhaps with writes in flight.
    Ended {
        /// It.
        nexus: NexusId,
        /// Writes were at the target.
        left_writes: bool,
    },
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
    /// The restart that a new nexus has reported was reported by no other, and none denies it.
    Restarted,
    /// All but `told` have reported whatever they had to report after `told` had reported a restart.
    Heard {
        /// The nexus that was told first.
        told: NexusId,
        /// The others.
        others: Vec<NexusId>,
    },
    /// So has `told`, after the others; `in_time`: it was asked, and has answered.
    HeardAgain {
        /// As above.
        told: NexusId,
        /// As above.
        others: Vec<NexusId>,
        /// Whether there is an answer.
        in_time: bool,
    },
    /// It is known what the other lanes had written before a restart.
    LanesJudged,
    /// All nexuses have reported what another initiator has aborted.
    AbortsHeard,
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
    /// Ask for the access states of all target ports.
    AskAccess,
    /// A volatile write cache has appeared that is not flushed: writes and flushes must fail.
    RefuseWrites,
    /// The mode parameters have changed.
    Follow(Mode),
    /// End every nexus, and send nothing that is queued for it.
    EndAll,
    /// The reset that was reported is ours, and means nothing.
    OurReset,
}

/// The actions that follow from one event.
pub(super) type Actions = SmallVec<[Action; 2]>;

/// What is known of one nexus.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Whether it still leads to the disk.
    disk: Doubt,
    hearing: Hearing,
    left: Left,
}

/// The state of a remote disk.
#[derive(Debug, Default)]
pub(super) struct Machine {
    /// In the order of their logins. There are few.
    nexuses: Vec<(NexusId, Known)>,
    admitted: u64,
    service: Service,
    modes: Modes,
    is_open: bool,
    is_claimed: bool,
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
}

impl Machine {
    /// A new nexus, which has just logged in.
    pub(super) fn admit(&mut self) -> NexusId {
        let nexus = NexusId(self.admitted);
        self.admitted += 1;
        self.nexuses.push((nexus, Known::default()));
        nexus
    }

    /// Nobody refers to it any more.
    pub(super) fn forget(&mut self, nexus: NexusId) {
        self.nexuses.retain(|(it, _)| *it != nexus);
    }

    /// Takes an event that happens `now`.
    pub(super) fn handle(&mut self, event: Event, now: Instant) -> Actions {
        let actions = self.apply(event, now);
        self.check();
        actions
    }

    fn apply(&mut self, event: Event, now: Instant) -> Actions {
        let mut actions = Actions::new();
        match event {
            Event::Opened(mode) => {
                self.is_open = true;
                self.modes.open(mode);
            }
            Event::Mode(mode) => self.modes.tell(mode, &mut actions),
            Event::Claimed => self.is_claimed = true,
            Event::Rests(is_at_rest) => self.service.rest(is_at_rest),
            Event::Ends => self.service.end(&mut actions),
            Event::Held => self.service.hold(),
            Event::LetGo => self.service.let_go(),
            Event::Doubted(subject) => self.doubt(subject),
            Event::Settled(subject, events) => self.subject_mut(subject).settle(events),
            Event::InUse(nexus) => {
                assert!(!self.is_ended(), "what has ended is not used again");
                self.known_mut(nexus).hearing.goes_into_use();
            }
            Event::Sure(nexus, doubts) => self.known_mut(nexus).disk.settle(doubts),
            Event::Ended { nexus, left_writes } => {
                self.known_mut(nexus).left.ended(left_writes, now);
            }
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
            Event::Restarted => self.restarted(&mut actions),
            Event::Heard { told, others } => self.heard(told, &others, &mut actions),
            Event::HeardAgain {
                told,
                others,
                in_time,
            } => self.heard_again(told, &others, in_time, &mut actions),
            Event::LanesJudged => self.judging -= 1,
            Event::AbortsHeard => self.asks_about_aborts = false,
        }
        actions
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
            self.is_claimed || self.claim.events() == 0,
            "no claim can be in doubt where there is none"
        );
        self.modes.check();
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
    }
}
