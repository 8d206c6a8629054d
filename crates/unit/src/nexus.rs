//! An I_T nexus on its lane: an initiator port's way to the units behind a target port, whatever
//! front it came through. Its numbers are never used again.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::{Rc, Weak},
    sync::Arc,
};

use engine::Instant;
use scsi::{Attention, NexusId};

use crate::{
    disk::{Luns, Unit},
    medium::Steps,
    memory::NexusMemory,
    running::{CommandId, Running, RunningId},
    stages::{Counted, Kind, Stages, Times},
};

/// A moment between two commands of a nexus; its front counts them.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mark(pub u64);

/// Which commands of a nexus on one LUN are to be aborted.
#[derive(Clone, Copy, Debug)]
pub struct Which {
    /// Its logical unit. Commands for others that are at work on it are meant as well.
    pub lun: u32,
    /// Those that came before this; `None`: all.
    pub before: Option<Mark>,
    /// But not this one.
    pub spare: Option<CommandId>,
    /// What becomes of them.
    pub how: How,
}

/// What becomes of a command that is aborted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Its initiator asked for it, and gets no answer, not even for a command that has ended and whose
    /// answer waits.
    AsAsked,
    /// It ends without an answer.
    Silently,
    /// It is answered with TASK ABORTED when its I/O has ended.
    Told,
}

/// What the front of a nexus does about the commands that it keeps for it.
pub trait Commands {
    /// Aborts commands, and gives those that had not been answered.
    fn abort(&self, which: &Which) -> Vec<CommandId>;

    /// Answers commands that were aborted with [`How::Told`]: their I/O has ended.
    fn answer_aborted(&self, commands: &[CommandId]);

    /// Whether `command` is open and came after `mark`.
    fn is_after(&self, command: CommandId, mark: Mark) -> bool;
}

/// For a front that keeps no commands, as one that does nothing but block operations.
pub fn no_commands() -> Weak<dyn Commands> {
    enum Nobody {}
    impl Commands for Nobody {
        fn abort(&self, _: &Which) -> Vec<CommandId> {
            match *self {}
        }

        fn answer_aborted(&self, _: &[CommandId]) {
            match *self {}
        }

        fn is_after(&self, _: CommandId, _: Mark) -> bool {
            match *self {}
        }
    }
    Weak::<Nobody>::new()
}

/// One nexus on its lane.
pub struct Nexus {
    /// Its number.
    pub id: NexusId,
    /// The units that it reaches. Who goes on over an await may see others then.
    luns: RefCell<Rc<Luns>>,
    /// What it may hold of the lane's memory.
    pub memory: NexusMemory,
    /// For people: who it is.
    initiator: String,
    pub(crate) steps: Steps,
    pub(crate) running: Running,
    commands: Weak<dyn Commands>,
    /// How often what it does on a LUN was aborted.
    aborts: RefCell<BTreeMap<u32, u64>>,
    /// Its front lets it go: no block operation of it begins any more.
    pub(crate) is_leaving: Cell<bool>,
    /// What it counts, by LUN.
    counted: RefCell<Vec<(u32, Arc<Counted>)>>,
}

impl Nexus {
    pub(crate) fn new(
        id: NexusId,
        initiator: &str,
        luns: Rc<Luns>,
        memory: NexusMemory,
        steps: Steps,
        commands: Weak<dyn Commands>,
    ) -> Nexus {
        Nexus {
            id,
            luns: RefCell::new(luns),
            memory,
            initiator: initiator.to_owned(),
            steps,
            running: Running::default(),
            commands,
            aborts: RefCell::default(),
            is_leaving: Cell::default(),
            counted: RefCell::default(),
        }
    }

    /// The commands that the front keeps; `None` once it has dropped the nexus.
    pub(crate) fn commands(&self) -> Option<Rc<dyn Commands>> {
        self.commands.upgrade()
    }

    /// Counts an abort of what it does on `lun`.
    pub(crate) fn note_abort(&self, lun: u32) {
        *self.aborts.borrow_mut().entry(lun).or_default() += 1;
    }

    /// How many aborts there were on `lun`.
    pub(crate) fn aborts(&self, lun: u32) -> u64 {
        self.aborts.borrow().get(&lun).copied().unwrap_or_default()
    }

    /// The units that it reaches now.
    pub fn luns(&self) -> Rc<Luns> {
        self.luns.borrow().clone()
    }

    /// The unit at `lun`.
    pub fn unit(&self, lun: u32) -> Option<Rc<Unit>> {
        self.luns.borrow().get(&lun).cloned()
    }

    /// Has it reach these units from now on.
    pub(crate) fn set_luns(&self, luns: Rc<Luns>) {
        self.luns.replace(luns);
    }

    /// It has received the unit attention of the power-on at `lun`.
    pub fn power_on_heard(&self, lun: u32) {
        if let Some(unit) = self.unit(lun) {
            unit.logical.borrow().power_on_heard(self.id);
        }
    }

    /// Takes the unit attention that waits for this nexus at `lun`, for fronts without sense data.
    pub fn take_attention(&self, lun: u32) -> Option<Attention> {
        // One that has left would be remembered for ever.
        let unit = self.unit(lun).filter(|_| !self.is_leaving.get())?;
        unit.logical.borrow().take_attention(self.id)
    }

    /// Whether a volume works for it, for commands that are open or forgotten.
    pub fn is_running(&self) -> bool {
        self.running.is_any()
    }

    /// Whether a volume works for `command` on `lun`.
    pub fn is_at_work(&self, command: CommandId, lun: u32) -> bool {
        self.running.is_running(command, lun)
    }

    /// The command and the LUN of every I/O that runs.
    pub fn at_work(&self) -> Vec<(CommandId, u32)> {
        self.running.at_work()
    }

    /// The I/Os that run now for which `chosen(lun, command)` holds.
    pub fn running(&self, chosen: impl Fn(u32, CommandId) -> bool) -> Vec<RunningId> {
        self.running.chosen(chosen)
    }

    /// Waits until none of `ios` runs any more.
    pub async fn wait_ended(&self, ios: &[RunningId]) {
        self.running.wait_ended(ios).await;
    }

    /// Waits until none runs of those that run now.
    pub async fn wait_idle(&self) {
        let all = self.running(|_, _| true);
        self.wait_ended(&all).await;
    }

    pub(crate) fn count(
        &self,
        stages: &Stages,
        lun: u32,
        (kind, bytes): (Kind, u64),
        times: &Times,
        sent: Instant,
    ) {
        let mut counted = self.counted.borrow_mut();
        let known = counted.iter().find(|(of, _)| *of == lun);
        let counted = match known {
            Some((_, counted)) => counted,
            None => {
                let Some(unit) = self.unit(lun) else { return };
                let begun = stages.begin(unit.disk.name(), &self.initiator);
                counted.push((lun, begun));
                &counted[counted.len() - 1].1
            }
        };
        counted.record(kind, bytes, times, sent);
    }

    /// What it has counted at `lun` goes to what has ended.
    pub(crate) fn end_count(&self, stages: &Stages, lun: u32) {
        let mut counted = self.counted.borrow_mut();
        counted.retain(|(of, counted)| {
            let is_kept = *of != lun;
            if !is_kept {
                stages.end(counted);
            }
            is_kept
        });
    }

    pub(crate) fn end_counts(&self, stages: &Stages) {
        for (_, counted) in self.counted.take() {
            stages.end(&counted);
        }
    }
}
