//! A doubt about something that was known: an event may have changed it. Only an answer to a question that was asked
//! after the last such event settles it.

use std::cell::Cell;

/// The events that may have changed something, and how many of them an answer has settled.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    events: Cell<u64>,
    settled: Cell<u64>,
}

impl Doubt {
    /// Records an event.
    pub(super) fn raise(&self) {
        self.events.set(self.events.get() + 1);
    }

    /// Records that there have been so many `events`; fewer than are known are no news.
    pub(super) fn raise_to(&self, events: u64) {
        self.events.set(self.events.get().max(events));
    }

    /// The events so far, to be looked at when the question is asked.
    pub(super) fn events(&self) -> u64 {
        self.events.get()
    }

    /// Records an answer to a question that was asked after so many `events`.
    pub(super) fn settle(&self, events: u64) {
        self.settled.set(self.settled.get().max(events));
    }

    /// Whether there is an answer to a question that was asked after so many `events`.
    pub(super) fn is_settled(&self, events: u64) -> bool {
        self.settled.get() >= events
    }

    /// Whether there is none to a question asked after the last event.
    pub(super) fn is_open(&self) -> bool {
        !self.is_settled(self.events())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_settles_what_happened_before_the_question_and_nothing_else() {
        let doubt = Doubt::default();
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
