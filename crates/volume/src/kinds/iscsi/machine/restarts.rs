//! Which restarts of the target count. Every nexus reports a restart once, by a unit attention, an idle or a new one
//! perhaps long after the others: the same restart must not count again, or what was written since would be held to be
//! lost with it. So when a nexus in use reports a restart, all others are asked at once, and what they report until they
//! have answered is the same restart, unless the first one then has another to report.

use super::{Action, Actions, Known, Machine, NexusId, Report, Subject};
use crate::planted::{Bug, is_planted};

/// What a nexus has reported, and may still report.
#[derive(Clone, Debug, Default)]
pub(super) struct Hearing {
    /// Requests have been sent over it. Before that it may report what happened long ago.
    is_in_use: bool,
    /// How many restarts that another nexus reported it may report as well.
    rounds: u32,
    /// In such a round, or before its use, it reported that the target restarted at some earlier time.
    told_of_restart: bool,
    /// Before its use it reported a reset of the disk: that of a target that was started again and has lost nothing, or another
    /// initiator's.
    told_of_reset: bool,
    /// A unit attention for our own reset is pending.
    expects_reset: bool,
}

/// What a new nexus has reported of the time before its use, and nobody has looked at yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct News {
    /// The target has restarted.
    pub(in super::super) has_restarted: bool,
    /// The disk was reset.
    pub(in super::super) was_reset: bool,
}

impl Hearing {
    pub(super) fn goes_into_use(&mut self) {
        self.is_in_use = true;
        self.told_of_reset = false;
        if self.rounds == 0 {
            self.told_of_restart = false;
        }
    }

    /// Whether a restart that it reports may already be known.
    fn may_repeat_known_restart(&self) -> bool {
        !self.is_in_use || self.rounds > 0
    }

    fn news(&self) -> News {
        News {
            has_restarted: self.told_of_restart,
            was_reset: self.told_of_reset,
        }
    }

    pub(super) fn take_news(&mut self) {
        (self.told_of_restart, self.told_of_reset) = (false, false);
    }

    fn begin_round(&mut self) {
        self.rounds += 1;
    }

    /// It has reported everything that was pending when the round began.
    fn end_round(&mut self) {
        self.rounds -= 1;
        if self.rounds == 0 {
            self.told_of_restart = false;
        }
    }

    pub(super) fn rounds(&self) -> u32 {
        self.rounds
    }

    pub(super) fn check(&self) {
        assert!(
            !self.told_of_restart || self.may_repeat_known_restart(),
            "a restart that is reported in use has counted at once"
        );
    }
}

impl Machine {
    /// Restarts of the target that have counted: the GOOD of a write counts only if there was none while it was in flight.
    pub(in super::super) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Whether it is still unknown what a restart has lost.
    pub(in super::super) fn is_judging(&self) -> bool {
        self.judging > 0
    }

    /// Whether only the commands that prepare the nexus have been sent over it.
    pub(in super::super) fn is_new(&self, nexus: NexusId) -> bool {
        !self.known(nexus).hearing.is_in_use
    }

    /// What the nexus, while it was new, has reported that nobody has looked at yet.
    pub(in super::super) fn news(&self, nexus: NexusId) -> News {
        self.known(nexus).hearing.news()
    }

    pub(super) fn expect_reset(&mut self, told: &[NexusId], is_expected: bool) {
        for nexus in told {
            if let Some(known) = self.find_mut(*nexus) {
                known.hearing.expects_reset = is_expected;
            }
        }
    }

    pub(super) fn reported(&mut self, nexus: NexusId, mut report: Report, actions: &mut Actions) {
        report.restart |= report.reset && is_planted(Bug::ResetLoses);
        let of = [
            (report.capacity, Subject::Capacity),
            (report.mode, Subject::Mode),
            (report.reservations, Subject::Claim),
        ];
        for (_, subject) in of.into_iter().filter(|(is_reported, _)| *is_reported) {
            self.doubt(subject);
        }
        if report.access {
            self.doubt_access(actions);
        }
        let hearing = &mut self.known_mut(nexus).hearing;
        // Each nexus is told once of our reset, which is no restart: that would have ended this session.
        let is_ours = report.reset && std::mem::take(&mut hearing.expects_reset);
        if is_ours && !is_planted(Bug::OwnResetCounts) {
            actions.push(Action::OurReset);
            return;
        }
        hearing.told_of_reset |= report.reset && !hearing.is_in_use;
        let is_old = hearing.may_repeat_known_restart() && !is_planted(Bug::RestartCountedByEach);
        if report.aborts
            && !report.restart
            && !is_old
            && !std::mem::replace(&mut self.asks_about_aborts, true)
        {
            actions.push(Action::AskAboutAborts(nexus));
        }
        match (report.restart, is_old) {
            (true, true) => self.known_mut(nexus).hearing.told_of_restart = true,
            (true, false) => {
                self.restarted(actions);
                self.begin_round(nexus, actions);
            }
            (false, _) => {}
        }
    }

    pub(super) fn restarted(&mut self, actions: &mut Actions) {
        self.restarts += 1;
        self.ownership.restarted();
        self.judging += 1;
        actions.push(Action::Lose);
    }

    fn begin_round(&mut self, told: NexusId, actions: &mut Actions) {
        let may_report = |(nexus, known): &(NexusId, Known)| {
            let is_asked = *nexus != told && known.hearing.is_in_use && !known.left.has_ended();
            is_asked.then_some(*nexus)
        };
        let others: Vec<_> = self.nexuses.iter().filter_map(may_report).collect();
        if others.is_empty() {
            return;
        }
        // What `told` reports while it vouches for the others must not begin another round.
        for nexus in others.iter().chain([&told]) {
            self.known_mut(*nexus).hearing.begin_round();
        }
        self.judging += 1;
        actions.push(Action::AskOthers { told, others });
    }

    /// Whether the nexus has reported a restart that may be the known one. One that is gone reports nothing.
    fn has_heard(&self, nexus: NexusId) -> bool {
        let known = self.find(nexus);
        known.is_some_and(|known| known.hearing.told_of_restart)
    }

    pub(super) fn heard(&mut self, told: NexusId, others: &[NexusId], actions: &mut Actions) {
        let has_heard = |nexus: &NexusId| self.has_heard(*nexus);
        match others.iter().any(has_heard) {
            true => actions.push(Action::AskAgain),
            false => self.end_round(told, others, true, actions),
        }
    }

    pub(super) fn heard_again(
        &mut self,
        told: NexusId,
        others: &[NexusId],
        has_answered: bool,
        actions: &mut Actions,
    ) {
        self.end_round(told, others, has_answered, actions);
    }

    fn end_round(
        &mut self,
        told: NexusId,
        others: &[NexusId],
        is_known: bool,
        actions: &mut Actions,
    ) {
        let has_restarted_again = self.has_heard(told) && !is_planted(Bug::SecondRestartForgotten);
        if !is_known || has_restarted_again {
            actions.push(Action::LoseOfRound);
        }
        for nexus in others.iter().chain([&told]) {
            if let Some(known) = self.find_mut(*nexus) {
                known.hearing.end_round();
            }
        }
        self.judging -= 1;
    }
}
