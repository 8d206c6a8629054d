//! Which commands are aborted beside the one that causes it, and how their initiators hear of it:
//! by the status TASK ABORTED or by a unit attention, as TAS of the control mode page says (SAM-5
//! 5.6). On every lane the commands are taken first; an answer comes when their I/O has ended, so
//! that who retries is not overtaken by the past.

use std::rc::Rc;

use engine::{cross::oneshot, spawn};
use iscsi::{Outcome, TaskId};
use scsi::{Attention, NexusId, QueueError, Status};

use crate::{
    connection::Connection,
    front::{Front, Request, Unit},
    open::{Mark, RunningId},
};

/// Commands to abort.
#[derive(Clone, Debug)]
pub(crate) struct Abort {
    /// Those for the logical units of these volumes, through whatever target,
    pub(crate) volumes: Vec<String>,
    /// of whom,
    pub(crate) of: Whose,
    /// but not this one of who causes it.
    pub(crate) spare: Option<TaskId>,
    /// Who causes it. Its own commands end without a word,
    pub(crate) by: NexusId,
    /// those that came before this: what it sends afterwards is not concerned (SAM-5 7.1).
    pub(crate) before: Mark,
    /// What other nexuses that lose commands hear where TASK ABORTED does not tell them.
    pub(crate) attention: Option<Attention>,
}

/// Whose commands to abort.
#[derive(Clone, Debug)]
pub(crate) enum Whose {
    /// Of all nexuses.
    All,
    /// Of these.
    These(Vec<NexusId>),
    /// Of all but the one that causes it.
    Others,
}

/// Commands of one connection that are aborted, while their I/O may still run.
pub(crate) struct Taken {
    connection: Rc<Connection>,
    /// To be answered with TASK ABORTED.
    told: Vec<TaskId>,
    running: Vec<RunningId>,
}

impl Front {
    /// Takes the commands on this lane that `abort` is for.
    fn take(&self, abort: &Abort) -> Vec<Taken> {
        let mut taken = Vec::new();
        for connection in self.connections.borrow().values() {
            let nexus = NexusId(connection.id);
            let is_own = nexus == abort.by;
            let is_concerned = match &abort.of {
                Whose::All => true,
                Whose::These(nexuses) => nexuses.contains(&nexus),
                Whose::Others => !is_own,
            };
            let Some(target) = connection.target().filter(|_| is_concerned) else {
                continue;
            };
            let units = target.units.iter();
            for (&lun, unit) in units.filter(|(_, u)| abort.volumes.contains(&u.volume_name)) {
                let spare = abort.spare.filter(|_| is_own);
                let before = match is_own {
                    true => abort.before,
                    false => connection.open.mark(),
                };
                if is_own && abort.spare.is_none() {
                    connection.abort_endings(Some(lun), before);
                }
                let mut tasks = connection.open.tasks(Some(lun), before);
                tasks.retain(|task| Some(*task) != spare);
                let told = match !is_own && unit.disk.borrow_mut().tells_aborted() {
                    true => {
                        // One whose data are on their way has ended already.
                        tasks.retain(|task| connection.open.remove_unanswered(*task));
                        tasks
                    }
                    false => {
                        tasks.retain(|task| connection.abort_task(*task));
                        let attention = abort.attention.filter(|_| !is_own && !tasks.is_empty());
                        if let Some(attention) = attention {
                            unit.disk.borrow().tell(nexus, attention);
                        }
                        connection.machine.borrow_mut().tell_window();
                        connection.transmit.notify();
                        Vec::new()
                    }
                };
                let running = connection.open.running(|io_lun, task| {
                    io_lun == lun && Some(task) != spare && !connection.open.is_after(task, before)
                });
                taken.push(Taken {
                    connection: connection.clone(),
                    told,
                    running,
                });
            }
        }
        taken
    }

    /// Aborts commands on this lane and waits for their I/O.
    pub(crate) async fn abort(&self, abort: &Abort) {
        let taken = self.take(abort);
        end(taken).await;
    }

    /// Has every lane abort commands, and waits until all their I/O has ended.
    pub(crate) async fn abort_everywhere(&self, abort: Abort) {
        let mut answers = Vec::new();
        for lane in &self.lanes {
            let (done, answer) = oneshot();
            let abort = abort.clone();
            if lane.send(Request::Abort { abort, done }).is_ok() {
                answers.push(answer);
            }
        }
        for answer in answers {
            answer.await;
        }
    }
}

async fn end(all: Vec<Taken>) {
    for taken in all {
        let connection = taken.connection;
        connection.open.wait_ended(&taken.running).await;
        for task in &taken.told {
            let aborted = Outcome {
                status: Status::TaskAborted as u8,
                sense: &[],
                transfer_len: 0,
            };
            let result = connection.machine.borrow_mut().respond(*task, aborted);
            if let Err(error) = result {
                tracing::debug!(%error, "an aborted command had been answered");
            }
        }
        if !taken.told.is_empty() {
            connection.transmit.notify();
        }
    }
}

/// A command of `unit` ends with CHECK CONDITION: aborts the others that QERR says (SPC-4 7.5.8).
pub(crate) fn after_error(connection: &Connection, unit: &Unit, task: TaskId) {
    let error = unit.disk.borrow_mut().queue_error();
    if error == QueueError::GoOn {
        return;
    }
    let own = NexusId(connection.id);
    let mut abort = Abort {
        volumes: vec![unit.volume_name.clone()],
        of: Whose::These(vec![own]),
        spare: Some(task),
        by: own,
        before: connection.open.mark(),
        attention: Some(Attention::CommandsCleared),
    };
    // At once: what the initiator sends after it has heard of the error is not concerned.
    spawn(end(connection.front.take(&abort)));
    if error == QueueError::AbortAll {
        abort.of = Whose::Others;
        let front = connection.front.clone();
        spawn(async move { front.abort_everywhere(abort).await });
    }
}
