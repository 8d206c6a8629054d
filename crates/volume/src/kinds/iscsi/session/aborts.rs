//! Commands that may have been aborted without an answer. A target tells of another initiator's reset, or of a cleared task
//! set, by a unit attention, which answers the first command that comes after the event; so what was sent before that one and
//! is not answered may never be (SAM-5 5.14; TAS = 0, SPC-4 7.5.8). But it may as well be under way: a target that takes up a
//! write only once it has its data (tgt) answers a later command first. So the target is asked to abort them (ABORT TASK, RFC
//! 7143 §11.5.1): once it has, or knows of no such command any more, nothing of them happens, and they can be sent again. Where it
//! cannot, they wait as if nothing had been told.

use std::collections::VecDeque;

use iscsi::{Error, InitiatorConnection, TaskId};

/// A target may reject more immediate requests at a time (RFC 7143 §4.2.2.1).
const OPEN_MAX: usize = 4;

/// What the target is asked, and is to be asked, to abort.
#[derive(Debug, Default)]
pub(super) struct Aborts {
    due: VecDeque<TaskId>,
    /// The requests that it has not answered.
    open: Vec<TaskId>,
}

impl Aborts {
    pub(super) fn want(&mut self, commands: impl Iterator<Item = TaskId>) {
        for command in commands {
            if !self.due.contains(&command) {
                self.due.push_back(command);
            }
        }
    }

    /// Asks for as much as may be open at a time. What was answered meanwhile needs none.
    pub(super) fn ask(&mut self, machine: &mut InitiatorConnection) {
        while self.open.len() < OPEN_MAX
            && let Some(command) = self.due.front()
        {
            match machine.abort(*command) {
                Ok(request) => self.open.push(request),
                Err(Error::NoSuchTask) => {}
                // The request timeout ends the session.
                Err(_) => return,
            }
            self.due.pop_front();
        }
    }

    /// The target has answered a task management request.
    pub(super) fn answered(&mut self, request: TaskId) {
        self.open.retain(|open| *open != request);
    }
}
