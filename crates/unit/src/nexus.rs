//! An I_T nexus on its lane: an initiator port's connection to the units behind a target port,
//! whatever front it came through. Nexus numbers are never reused.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::{Rc, Weak},
    sync::Arc,
};

use engine::Instant;
use scsi::{Attention, NexusId};

use crate::{
    disk::{Luns, Shared, Unit},
    medium::Steps,
    memory::{NexusMemory, Permits},
    running::{At, CommandId, NexusIos, RunningId},
    stages::{CommandKind, SessionCounters, StageStamps, Stages},
};

/// A point in a nexus' sequence of commands, counted by its front.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mark(pub u64);

/// Which commands of a nexus on one LUN to abort.
#[derive(Clone, Copy, Debug)]
pub struct Which {
    /// The logical unit. Includes commands addressed to other units that have I/O on this one.
    pub lun: u32,
    /// Only commands that came before this; `None`: all.
    pub before: Option<Mark>,
    /// Except this command.
    pub spare: Option<CommandId>,
    /// How the commands end.
    pub how: How,
}

/// How an aborted command ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// The initiator itself asked for the abort, so there is no answer, not even for a command that
    /// has ended and whose answer is waiting to be sent.
    AsAsked,
    /// The command ends without an answer.
    Silently,
    /// The command is answered with TASK ABORTED once its I/O has ended.
    Told,
}

/// What the front of a nexus provides for the commands that it keeps.
pub trait Commands {
    /// The LUNs that commands were sent to whose answer is not on its way.
    fn luns(&self) -> BTreeSet<u32>;

    /// Aborts commands; returns those that had not been answered.
    fn abort(&self, which: &Which) -> Vec<CommandId>;

    /// Answers commands that were aborted with [`How::Told`], as their I/O has ended.
    fn answer_aborted(&self, commands: &[CommandId]);

    /// Whether `command` is open and came after `mark`.
    fn is_after(&self, command: CommandId, mark: Mark) -> bool;
}

/// For a front that keeps no commands, such as one with block operations only.
pub fn no_commands() -> Weak<dyn Commands> {
    enum Nobody {}
    impl Commands for Nobody {
        fn luns(&self) -> BTreeSet<u32> {
            match *self {}
        }

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
    /// Its number, never reused.
    pub id: NexusId,
    /// The units it reaches. May change across an await.
    luns: RefCell<Rc<Luns>>,
    /// Its part of the lane's memory.
    pub memory: NexusMemory,
    /// The initiator's name, for people.
    pub(crate) initiator: String,
    pub(crate) steps: Steps,
    pub(crate) running: NexusIos,
    /// The UUIDs of the disks that it has reached at LUNs where it no longer does.
    lost: RefCell<BTreeMap<u32, [u8; 16]>>,
    commands: Weak<dyn Commands>,
    /// How often its operations were aborted, by LUN.
    aborts: RefCell<BTreeMap<u32, u64>>,
    /// Its front is letting it go, so no block operation may begin any more.
    pub(crate) is_leaving: Cell<bool>,
    /// Its stage counters, by LUN.
    counted: RefCell<Vec<(u32, Arc<SessionCounters>)>>,
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
            running: NexusIos::default(),
            lost: RefCell::default(),
            commands,
            aborts: RefCell::default(),
            is_leaving: Cell::default(),
            counted: RefCell::default(),
        }
    }

    /// Waits for memory for `len` bytes of a command for the unit at `lun`.
    pub async fn take_memory(&self, lun: u32, len: usize) -> Permits {
        let unit = self.unit(lun);
        let disk = unit.as_ref().map(|unit| unit.memory());
        self.memory.take(disk, len).await
    }

    /// The front's commands; `None` once the front has dropped them.
    pub(crate) fn commands(&self) -> Option<Rc<dyn Commands>> {
        self.commands.upgrade()
    }

    /// Counts an abort of its operations on `lun`.
    pub(crate) fn note_abort(&self, lun: u32) {
        *self.aborts.borrow_mut().entry(lun).or_default() += 1;
    }

    /// The number of aborts on `lun`.
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

    /// `luns` without those under which this nexus has known another disk: its initiator would take the new disk for
    /// the old one, and commands that are on their way would reach it. A LUN means one disk as long as its nexus lasts.
    pub fn without_replaced(&self, luns: &Rc<Luns>) -> Rc<Luns> {
        let (here, lost) = (self.luns(), self.lost.borrow());
        let is_known = |(lun, unit): &(&u32, &Rc<Unit>)| {
            let here = here.get(lun).map(|unit| unit.disk.shared.uuid);
            let known = here.or(lost.get(lun).copied());
            known.is_none_or(|uuid| uuid == unit.disk.shared.uuid)
        };
        match luns.iter().all(|lun| is_known(&lun)) {
            true => luns.clone(),
            false => {
                let known = luns.iter().filter(is_known);
                Rc::new(known.map(|(lun, unit)| (*lun, unit.clone())).collect())
            }
        }
    }

    /// Replaces the units that it reaches.
    pub(crate) fn set_luns(&self, luns: Rc<Luns>) {
        self.luns.replace(luns);
    }

    /// Records that it has [received](scsi::LogicalUnit::acknowledged) a unit attention at `lun`.
    pub fn acknowledged(&self, lun: u32, attention: Attention) {
        if let Some(unit) = self.unit(lun) {
            let told = unit.logical.borrow().acknowledged(self.id, attention);
            if let Some(port) = told {
                unit.disk.shared.state.note(port);
            }
        }
    }

    /// Takes the unit attention pending for this nexus at `lun`, for fronts without sense data.
    pub fn take_attention(&self, lun: u32) -> Option<Attention> {
        // Asking for a nexus that has left would register it again, for good.
        let unit = self.unit(lun).filter(|_| !self.is_leaving.get())?;
        unit.logical.borrow().take_attention(self.id)
    }

    /// Whether a volume is working for it, including for aborted commands.
    pub fn is_running(&self) -> bool {
        self.running.is_any()
    }

    /// The commands for which a volume is working on what was at `lun` when that began.
    pub fn commands_on(&self, lun: u32) -> BTreeSet<CommandId> {
        self.running.commands_on(lun)
    }

    /// Whether commands or running I/Os may be found at `lun`, for each `lun`; all that are looked at are looked at once.
    pub(crate) fn busy_luns(&self) -> impl Fn(u32) -> bool + use<> {
        let commands = self.commands();
        let mut busy = commands.map_or(BTreeSet::new(), |commands| commands.luns());
        busy.extend(self.running.luns());
        // What runs on a unit that it has lost may belong to any LUN now.
        let luns = self.luns();
        let is_any = self.running.has(|io| is_lost(&luns, &io));
        move |lun| is_any || busy.contains(&lun)
    }

    /// The command of every running I/O, with the LUN that its disk has now, or had when it began.
    pub fn at_work(&self) -> Vec<(CommandId, u32)> {
        let luns = self.luns();
        let mut all = Vec::new();
        self.running.for_each(|io| {
            let is_there = |(_, unit): &(&u32, &Rc<Unit>)| unit.is_on(&io.unit.disk.shared);
            let moved = match is_lost(&luns, &io) {
                true => luns.iter().find(is_there),
                false => None,
            };
            all.push((io.command, moved.map_or(io.lun, |(lun, _)| *lun)));
        });
        all
    }

    /// How many I/Os are running on each volume, by the LUN at which they began.
    pub fn running_by_volume(&self) -> BTreeMap<(u32, String), usize> {
        let mut by_volume = BTreeMap::new();
        self.running.for_each(|io| {
            let volume = io.unit.disk.name().to_owned();
            *by_volume.entry((io.lun, volume)).or_default() += 1;
        });
        by_volume
    }

    /// The currently running I/Os for which `chosen(command)` holds, at whatever LUN.
    pub fn running(&self, chosen: impl Fn(CommandId) -> bool) -> Vec<RunningId> {
        self.running.chosen(|io| chosen(io.command))
    }

    /// The currently running I/Os on the disk at `lun` for which `chosen(command)` holds. They include those
    /// from when the nexus reached it at another LUN, and none of a disk that was at this LUN before.
    pub fn running_at(&self, lun: u32, chosen: impl Fn(CommandId) -> bool) -> Vec<RunningId> {
        let Some(unit) = self.unit(lun) else {
            return Vec::new();
        };
        let disk = &unit.disk.shared;
        self.running
            .chosen(|io| io.unit.is_on(disk) && chosen(io.command))
    }

    /// The running I/Os on units that it reached at `lun` and has lost.
    pub fn running_on_lost_at(&self, lun: u32) -> Vec<RunningId> {
        let luns = self.luns();
        self.running
            .chosen(|io| io.lun == lun && is_lost(&luns, &io))
    }

    /// The running I/Os on units for which `chosen(unit, is_lost)` holds; a unit is lost if the nexus does not reach it
    /// any more.
    pub(crate) fn running_on(&self, chosen: impl Fn(&Unit, bool) -> bool) -> Vec<RunningId> {
        let luns = self.luns();
        self.running
            .chosen(|io| chosen(io.unit, is_lost(&luns, &io)))
    }

    /// Records that `unit` is not at `lun` any more. [`wait_lost`](Self::wait_lost) waits for the I/Os that it has there.
    pub(crate) fn lose(&self, lun: u32, unit: &Unit) {
        self.lost.borrow_mut().insert(lun, unit.disk.shared.uuid);
    }

    /// Waits until all I/Os on a unit that was [lost](Self::lose) at `lun` have ended.
    pub(crate) async fn wait_lost(&self, lun: u32, unit: &Rc<Unit>) {
        let is_its = |io: At<'_>| io.lun == lun && Rc::ptr_eq(io.unit, unit);
        let ios = self.running.chosen(is_its);
        self.wait_ended(&ios).await;
    }

    /// Whether it reaches the disk at some LUN, or has I/Os on it from when it did.
    pub(crate) fn has_to_do_with(&self, disk: &Arc<Shared>) -> bool {
        self.luns().values().any(|unit| unit.is_on(disk))
            || self.running.has(|io| io.unit.is_on(disk))
    }

    /// Waits until none of `ios` is running.
    pub async fn wait_ended(&self, ios: &[RunningId]) {
        self.running.wait_ended(ios).await;
    }

    /// Waits until all I/Os that are running now have ended.
    pub async fn wait_idle(&self) {
        let all = self.running(|_| true);
        self.wait_ended(&all).await;
    }

    pub(crate) fn count(
        &self,
        stages: &Stages,
        lun: u32,
        (kind, bytes): (CommandKind, u64),
        times: &StageStamps,
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

    /// Adds what it has counted at `lun` to the totals of ended sessions.
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

/// Whether the unit of an I/O is no more where it was when that began.
fn is_lost(luns: &Luns, io: &At<'_>) -> bool {
    let now = luns.get(&io.lun);
    !now.is_some_and(|unit| Rc::ptr_eq(unit, io.unit))
}
