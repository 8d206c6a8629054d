//! Whether the disk is used at all: it may be held back for a reset, be at rest, or be ended by its owner, for good.
//!
//! Whoever ends it is about to fence it off and to go on from initiator ports of its own. From then on nothing is sent: no
//! nexus goes into use any more, and those that there are end without a farewell, which would be sent like everything
//! else that was queued.

use super::{Action, Actions, Machine};

/// The use of the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Service {
    state: State,
    /// Resets that hold all commands back.
    holds: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    InUse,
    /// Nexuses that are lost stay lost.
    AtRest,
    /// Its owner has ended it.
    Ended,
}

impl Service {
    /// It is at rest from now on, or in use again; what has ended stays so.
    pub(super) fn rest(&mut self, is_at_rest: bool) {
        self.state = match (self.state, is_at_rest) {
            (State::Ended, _) => State::Ended,
            (_, true) => State::AtRest,
            (_, false) => State::InUse,
        };
    }

    pub(super) fn end(&mut self, actions: &mut Actions) {
        self.state = State::Ended;
        actions.push(Action::EndAll);
    }

    pub(super) fn hold(&mut self) {
        self.holds += 1;
    }

    pub(super) fn let_go(&mut self) {
        self.holds -= 1;
    }

    pub(super) fn is_ended(self) -> bool {
        self.state == State::Ended
    }
}

impl Machine {
    /// Whether lost nexuses stay lost.
    pub(in super::super) fn is_at_rest(&self) -> bool {
        self.service.state != State::InUse
    }

    /// Whether its owner has ended it: nothing is sent any more.
    pub(in super::super) fn is_ended(&self) -> bool {
        self.service.is_ended()
    }

    /// Whether commands are held back.
    pub(in super::super) fn is_held(&self) -> bool {
        self.service.holds > 0
    }
}
