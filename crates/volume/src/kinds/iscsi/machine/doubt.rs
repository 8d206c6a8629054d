//! A doubt about something that was known: an event may have changed it. Only an answer to a question that was asked
//! after the last such event settles it.

use super::{Machine, NexusId, Subject};
use crate::planted::{Bug, is_planted};

/// The events that may have changed something, and how many of them an answer has settled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubt {
    events: u64,
    settled: u64,
}

impl Doubt {
    /// Records an event.
    fn raise(&mut self) {
        self.events += 1;
    }

    /// Records that there have been so many `events`; fewer than are known are no news.
    pub(super) fn raise_to(&mut self, events: u64) {
        self.events = self.events.max(events);
    }

    /// The events so far, to be looked at when the question is asked.
    pub(super) fn events(self) -> u64 {
        self.events
    }

    /// Records an answer to a question that was asked after so many `events`.
    pub(super) fn settle(&mut self, events: u64) {
        assert!(events <= self.events, "a question is asked after events");
        let covered = match is_planted(Bug::SettledByOldAnswer) {
            true => self.events,
            false => events,
        };
        self.settled = self.settled.max(covered);
    }

    /// Whether there is an answer to a question that was asked after so many `events`.
    fn is_settled(self, events: u64) -> bool {
        self.settled >= events
    }

    /// Whether there is none to a question asked after the last event.
    pub(super) fn is_open(self) -> bool {
        !self.is_settled(self.events)
    }

    pub(super) fn check(self) {
        assert!(self.settled <= self.events, "nothing is settled in advance");
    }
}

impl Machine {
    /// Something may have changed. What is not known yet will be asked for anyway.
    pub(super) fn doubt(&mut self, subject: Subject) {
        let is_known = match subject {
            Subject::Claim => self.ownership.is_claimed(),
            Subject::Capacity | Subject::Mode => self.is_open,
        };
        if is_known {
            self.subject_mut(subject).raise();
        }
    }

    pub(super) fn subject_mut(&mut self, subject: Subject) -> &mut Doubt {
        match subject {
            Subject::Capacity => &mut self.capacity,
            Subject::Mode => &mut self.mode,
            Subject::Claim => &mut self.claim,
        }
    }

    fn subject(&self, subject: Subject) -> Doubt {
        match subject {
            Subject::Capacity => self.capacity,
            Subject::Mode => self.mode,
            Subject::Claim => self.claim,
        }
    }

    /// The events so far that may have changed it, to be looked at when it is asked for.
    pub(in super::super) fn events(&self, subject: Subject) -> u64 {
        self.subject(subject).events()
    }

    /// Whether it has to show itself again before the next command.
    pub(in super::super) fn is_open(&self, subject: Subject) -> bool {
        self.subject(subject).is_open()
    }

    /// Whether it was known after so many events.
    pub(in super::super) fn is_settled(&self, subject: Subject, events: u64) -> bool {
        self.subject(subject).is_settled(events)
    }

    /// Whether anything about the disk has to be asked before the next command.
    pub(in super::super) fn is_any_open(&self) -> bool {
        self.capacity.is_open() || self.mode.is_open() || self.claim.is_open()
    }

    /// How many times the target has reported over the nexus that the disk may not be what it was.
    pub(in super::super) fn doubts(&self, nexus: NexusId) -> u64 {
        self.known(nexus).disk.events()
    }

    /// Whether the nexus may lead to another disk.
    pub(in super::super) fn is_in_doubt(&self, nexus: NexusId) -> bool {
        self.known(nexus).disk.is_open()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_settles_what_happened_before_the_question_and_nothing_else() {
        let mut doubt = Doubt::default();
        assert!(!doubt.is_open());
        doubt.raise();
        let (early, asked) = (doubt.events(), doubt.events());
        doubt.settle(asked);
        assert!(!doubt.is_open());
        doubt.raise();
        doubt.settle(early);
        assert!(doubt.is_open(), "it happened after the question");
        assert!(doubt.is_settled(early));
        doubt.settle(doubt.events());
        doubt.settle(early);
        assert!(!doubt.is_open(), "a late answer takes nothing back");
        doubt.raise_to(1);
        assert!(!doubt.is_open(), "that is known");
        doubt.raise_to(5);
        assert!(doubt.is_open());
    }
}
