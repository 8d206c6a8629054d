//! How a connection carries out a unit's aborts: the commands end without an answer, or with TASK ABORTED once their
//! I/O has ended.

use std::collections::BTreeSet;

use iscsi::Outcome;
use scsi::Status;
use unit::{CommandId, Commands, How, Mark, Which};

use crate::{
    connection::Connection,
    open::{command_id, task_of},
};

impl Commands for Connection {
    fn luns(&self) -> BTreeSet<u32> {
        self.open.luns()
    }

    fn abort(&self, which: &Which) -> Vec<CommandId> {
        let Some(nexus) = self.nexus() else {
            return Vec::new();
        };
        let (lun, now) = (Some(which.lun), self.open.mark());
        let before = which.before.unwrap_or(now);
        if which.how == How::AsAsked {
            self.abort_endings(lun, before);
        }
        let mut tasks = self.open.tasks(nexus, lun, before);
        tasks.retain(|task| Some(command_id(*task)) != which.spare);
        if which.how == How::Told {
            // A command whose data is already being sent has ended.
            tasks.retain(|task| self.open.remove_unanswered(*task));
        } else {
            tasks.retain(|task| self.abort_task(*task));
            let _ = self.machine.borrow_mut().tell_window();
            self.transmit.notify();
        }
        tasks.into_iter().map(command_id).collect()
    }

    fn answer_aborted(&self, commands: &[CommandId]) {
        for command in commands {
            let aborted = Outcome {
                status: Status::TaskAborted as u8,
                sense: &[],
                transfer_len: 0,
            };
            let task = task_of(*command);
            let result = self.machine.borrow_mut().respond(task, aborted);
            if let Err(error) = result {
                tracing::debug!(%error, "an aborted command had already been answered");
            }
        }
        self.transmit.notify();
    }

    fn is_after(&self, command: CommandId, mark: Mark) -> bool {
        self.open.is_after(task_of(command), mark)
    }
}
