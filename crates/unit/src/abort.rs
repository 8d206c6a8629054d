//! Aborts that affect the commands of other nexuses: which commands they end, and how the initiators are
//! told, by the status TASK ABORTED or by a unit attention, as TAS in the control mode page says (SAM-5
//! 5.6). Every lane aborts its commands at once, and answers once their I/O has ended: an I/O of an
//! aborted command must not overtake a retry.

use std::{collections::BTreeMap, rc::Rc, sync::Arc};

use engine::{Share, cross::answered, share::charge, spawn, spend, task::spawn_for};
use scsi::{Attention, NexusId, QueueError};

use crate::{
    disk::{Shared, Unit},
    lane::LaneUnits,
    nexus::{How, Mark, Nexus, Which},
    running::{CommandId, RunningId},
};

/// The cost of looking at a nexus, a LUN or a command, in bytes of memory that are moved in that time.
const LOOK_BYTES: usize = 512;

/// Disks, found by what they share.
#[derive(Clone)]
pub(crate) struct Disks(Arc<BTreeMap<usize, Arc<Shared>>>);

impl Disks {
    /// The disks of `units`.
    pub(crate) fn of<'a>(units: impl IntoIterator<Item = &'a Unit>) -> Disks {
        let disks = units.into_iter().map(|unit| &unit.disk.shared);
        Disks(Arc::new(
            disks.map(|disk| (place(disk), disk.clone())).collect(),
        ))
    }

    fn has(&self, disk: &Arc<Shared>) -> bool {
        self.0.contains_key(&place(disk))
    }
}

/// Where a disk is in memory: no other is there as long as it is held.
fn place(disk: &Arc<Shared>) -> usize {
    Arc::as_ptr(disk).addr()
}

/// Describes which commands to abort.
#[derive(Clone)]
pub(crate) struct Abort {
    /// Commands for the logical units of these disks, through any port.
    pub(crate) disks: Disks,
    /// Commands of these nexuses.
    pub(crate) of: Whose,
    /// Except this command, of the nexus that causes the abort.
    pub(crate) spare: Option<CommandId>,
    /// The nexus that causes the abort. Its own commands end without a status.
    pub(crate) by: NexusId,
    /// Of that nexus' own commands, only those that came before this mark are aborted (SAM-5 7.1).
    pub(crate) before: Mark,
    /// The unit attention for other nexuses that lose commands, where TASK ABORTED does not tell them.
    pub(crate) attention: Option<Attention>,
    /// All of this target is reset. What runs at LUNs that it has lost, or is about to lose on another lane, is aborted
    /// by whatever takes them away, and only waited for: the disks are out of the causing nexus' reach.
    pub(crate) target: Option<String>,
}

/// The nexuses whose commands to abort.
#[derive(Clone, Debug)]
pub(crate) enum Whose {
    /// All nexuses.
    All,
    /// These nexuses.
    These(Vec<NexusId>),
    /// All nexuses except the one that causes the abort.
    Others,
}

/// Aborted commands of one nexus, whose I/O may still be running.
struct Taken {
    nexus: Rc<Nexus>,
    /// Commands to be answered with TASK ABORTED.
    told: Vec<CommandId>,
    running: Vec<RunningId>,
}

impl Abort {
    /// All commands for `units`, through whatever port they came, those of `by` up to `before`.
    fn all(by: &Nexus, units: &[Rc<Unit>], before: Mark) -> Abort {
        Abort {
            disks: Disks::of(units.iter().map(|unit| &**unit)),
            of: Whose::All,
            spare: None,
            by: by.id,
            before,
            attention: None,
            target: None,
        }
    }

    /// Takes the affected commands of this lane, those of one nexus at one LUN at a time.
    async fn take(&self, units: &LaneUnits) -> Vec<Taken> {
        let mut taken = Vec::new();
        let nexuses = units.nexuses();
        spend(LOOK_BYTES * nexuses.len()).await;
        for nexus in nexuses.iter().filter(|nexus| self.concerns(nexus)) {
            let luns = nexus.luns();
            spend(LOOK_BYTES * (luns.len() + nexus.running.len())).await;
            let is_busy = nexus.busy_luns();
            for (&lun, unit) in luns.iter().filter(|(_, unit)| self.is_for(unit)) {
                if is_busy(lun) {
                    spend(LOOK_BYTES).await;
                }
                // The nexus may have lost the unit meanwhile, and its commands there with it.
                if nexus.unit(lun).is_some_and(|now| Rc::ptr_eq(&now, unit)) {
                    taken.extend(self.take_at(nexus, lun, unit, is_busy(lun)));
                }
            }
            taken.push(self.only_running(nexus));
        }
        taken
    }

    /// The same for one nexus, at once.
    fn take_of_one(&self, nexus: &Rc<Nexus>) -> Vec<Taken> {
        let luns = nexus.luns();
        let is_busy = nexus.busy_luns();
        let at = luns.iter().filter(|(_, unit)| self.is_for(unit));
        let at = at.filter_map(|(&lun, unit)| self.take_at(nexus, lun, unit, is_busy(lun)));
        at.chain([self.only_running(nexus)]).collect()
    }

    fn concerns(&self, nexus: &Nexus) -> bool {
        match &self.of {
            Whose::All => true,
            Whose::These(nexuses) => nexuses.contains(&nexus.id),
            Whose::Others => nexus.id != self.by,
        }
    }

    /// Commands at LUNs that the nexus has lost are aborted already, but their I/O may still run.
    fn only_running(&self, nexus: &Rc<Nexus>) -> Taken {
        let chosen = |unit: &Unit, is_lost: bool| match self.is_for(unit) {
            true => is_lost,
            false => self.is_of_target(unit),
        };
        Taken {
            running: nexus.running_on(chosen),
            told: Vec::new(),
            nexus: nexus.clone(),
        }
    }

    fn take_at(&self, nexus: &Rc<Nexus>, lun: u32, unit: &Unit, is_busy: bool) -> Option<Taken> {
        nexus.note_abort(lun);
        is_busy.then(|| {
            charge(LOOK_BYTES * nexus.running.len());
            self.take_of(nexus, nexus.id == self.by, lun, unit)
        })
    }

    fn is_for(&self, unit: &Unit) -> bool {
        self.disks.has(&unit.disk.shared)
    }

    fn is_of_target(&self, unit: &Unit) -> bool {
        self.target.as_ref().is_some_and(|target| {
            let logical = unit.logical.borrow();
            logical.identity().port.target_name == *target
        })
    }

    fn take_of(&self, nexus: &Rc<Nexus>, is_own: bool, lun: u32, unit: &Unit) -> Taken {
        let how = match (is_own, self.spare) {
            (true, None) => How::AsAsked,
            (true, Some(_)) => How::Silently,
            (false, _) => match unit.logical.borrow_mut().tells_aborted() {
                true => How::Told,
                false => How::Silently,
            },
        };
        let which = Which {
            lun,
            before: is_own.then_some(self.before),
            spare: self.spare.filter(|_| is_own),
            how,
        };
        let commands = nexus.commands();
        let aborted = commands
            .as_ref()
            .map_or(Vec::new(), |commands| commands.abort(&which));
        if how == How::Silently && !is_own && !aborted.is_empty() {
            if let Some(attention) = self.attention {
                unit.logical.borrow().tell(nexus.id, attention);
            }
        }
        let came_later = |command| match (which.before, &commands) {
            (Some(before), Some(commands)) => commands.is_after(command, before),
            _ => false,
        };
        let running = nexus.running_at(lun, |command| {
            Some(command) != which.spare && !came_later(command)
        });
        Taken {
            nexus: nexus.clone(),
            told: match how {
                How::Told => aborted,
                _ => Vec::new(),
            },
            running,
        }
    }

    /// Makes every lane abort the commands, and waits until all their I/O has ended.
    pub(crate) async fn everywhere(self, units: &LaneUnits) {
        // Whoever causes it pays for it on all lanes.
        let share = Share::current();
        let answers = units.ask_all(|| {
            let abort = self.clone();
            move |units: &Rc<LaneUnits>, done: engine::cross::OneshotSender<()>| {
                let units = units.clone();
                spawn_for(share, async move {
                    end(abort.take(&units).await).await;
                    done.send(());
                });
            }
        });
        for answer in answers {
            answered(answer, "abort commands").await;
        }
    }
}

/// Whether the nexus has been superseded at none of these units.
async fn may_reset(nexus: &Nexus, units: &[Rc<Unit>]) -> bool {
    for unit in units {
        let learned = unit.disk.learn_floor().await;
        if learned.is_ok() && !unit.logical.borrow().may_reset(nexus.id) {
            return false;
        }
    }
    true
}

async fn end(all: Vec<Taken>) {
    for taken in all {
        taken.nexus.wait_ended(&taken.running).await;
        if let Some(commands) = taken.nexus.commands().filter(|_| !taken.told.is_empty()) {
            commands.answer_aborted(&taken.told);
        }
    }
}

impl LaneUnits {
    /// CLEAR TASK SET for the unit at `lun`, requested by `nexus`. That nexus' own commands from `before` on are not
    /// affected (SAM-5 7.4). Returns when all I/O of the aborted commands has ended, on all lanes; false if nothing was
    /// done, because the nexus has been superseded there.
    pub async fn clear_task_set(&self, nexus: &Nexus, lun: u32, before: Mark) -> bool {
        let units: Vec<_> = nexus.unit(lun).into_iter().collect();
        if !may_reset(nexus, &units).await {
            return false;
        }
        let abort = Abort {
            attention: Some(Attention::CommandsCleared),
            ..Abort::all(nexus, &units, before)
        };
        abort.everywhere(self).await;
        true
    }

    /// Resets the unit at `lun`. The requesting initiator is affected as well (SAM-5 6.3.3). Returns as
    /// [`LaneUnits::clear_task_set`] does.
    pub async fn reset(&self, nexus: &Nexus, lun: u32, before: Mark) -> bool {
        let units: Vec<_> = nexus.unit(lun).into_iter().collect();
        let abort = Abort::all(nexus, &units, before);
        self.reset_all(abort, nexus, &units).await
    }

    /// Resets all units that the nexus reaches in `target`, as [`reset`](Self::reset) does, and waits also for the I/O
    /// at units that this target does not show any more.
    pub async fn reset_target(&self, nexus: &Nexus, target: &str, before: Mark) -> bool {
        let units: Vec<_> = nexus.luns().values().cloned().collect();
        let abort = Abort {
            target: Some(target.to_owned()),
            ..Abort::all(nexus, &units, before)
        };
        self.reset_all(abort, nexus, &units).await
    }

    async fn reset_all(&self, abort: Abort, nexus: &Nexus, units: &[Rc<Unit>]) -> bool {
        if !may_reset(nexus, units).await {
            return false;
        }
        abort.everywhere(self).await;
        for unit in units {
            spend(LOOK_BYTES).await;
            let logical = unit.logical.borrow();
            logical.post(Attention::BusDeviceReset, None);
            charge(logical.take_work());
        }
        true
    }

    /// Called when `command` of a nexus ends with CHECK CONDITION at `unit`. Aborts the commands that QERR
    /// selects (SPC-4 7.5.8), and of this nexus only those up to `before`.
    pub fn after_error(
        self: &Rc<Self>,
        nexus: &Nexus,
        unit: &Unit,
        command: CommandId,
        before: Mark,
    ) {
        let error = unit.logical.borrow_mut().queue_error();
        if error == QueueError::GoOn {
            return;
        }
        let mut abort = Abort {
            disks: Disks::of([unit]),
            of: Whose::These(vec![nexus.id]),
            spare: Some(command),
            by: nexus.id,
            before,
            attention: Some(Attention::CommandsCleared),
            target: None,
        };
        // Abort at once: commands that the initiator sends after it learns of the error must not be aborted.
        if let Some(nexus) = self.nexus(nexus.id) {
            spawn(end(abort.take_of_one(&nexus)));
        }
        if error == QueueError::AbortAll {
            abort.of = Whose::Others;
            let units = self.clone();
            spawn(async move { abort.everywhere(&units).await });
        }
    }
}
