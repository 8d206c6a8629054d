//! The way of a command from its rights to the volume. It is the same for all fronts: the same gates hold
//! commands back, and the same fence refuses them.

use std::{cell::Cell, collections::BTreeSet, pin::pin, rc::Rc};

use engine::{Instant, LaneFuture, Payload, time};
use scsi::{Change, Changed, Copy, Eject, Ending, Extent, MediumOp, Overwrite};

use crate::{
    abort::{Abort, Whose},
    copy,
    disk::Unit,
    lane::LaneUnits,
    medium,
    nexus::{Mark, Nexus},
    running::{CommandId, RunningId},
    sanitize,
};

/// A running I/O of a command. It ends when this is dropped, and aborts wait for that.
pub struct Io {
    nexus: Rc<Nexus>,
    running: RunningId,
    /// On further units.
    others: Vec<RunningId>,
}

impl Io {
    /// The I/O of `command` on the unit at `lun` begins.
    pub fn begin(nexus: &Rc<Nexus>, command: CommandId, lun: u32) -> Io {
        Io {
            nexus: nexus.clone(),
            running: nexus.running.begin(command, lun),
            others: Vec::new(),
        }
    }

    /// The same, and on the units at `others`; `lun` is not among them.
    pub fn begin_with(
        nexus: &Rc<Nexus>,
        command: CommandId,
        lun: u32,
        others: impl Iterator<Item = u32>,
    ) -> Io {
        let mut io = Io::begin(nexus, command, lun);
        io.others = others
            .map(|other| nexus.running.begin(command, other))
            .collect();
        io
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        self.nexus.running.end(self.running);
        for id in &self.others {
            self.nexus.running.end(*id);
        }
    }
}

/// What became of an operation on the medium.
#[derive(Debug)]
pub struct Executed {
    /// Its data-in, if it has any; or how its command ends.
    pub result: Result<Payload, Ending>,
    /// When the volume began, as the lane [knew](time::last_known) the time then, and ended; if it came to
    /// that.
    pub at_work: Option<(Instant, Instant)>,
}

impl LaneUnits {
    /// Does `op` on the medium of `unit`. If its command is no longer `wanted` when it may begin, the
    /// result is empty. It takes its data-out from `data`. No other I/O runs on the blocks of one that
    /// `is_ordered`.
    pub async fn execute(
        &self,
        io: Io,
        unit: &Unit,
        (op, data): (&MediumOp, &Cell<Payload>),
        is_ordered: bool,
        wanted: impl Fn() -> bool,
    ) -> Executed {
        let nexus = &io.nexus;
        let at_work = Cell::new(None);
        // The nexus may have been fenced off while its data or turn came, or a sanitize begun.
        let recheck = || unit.logical.borrow_mut().recheck(nexus.id, op);
        let perform = pin!(async {
            if !wanted() {
                return Ok(Payload::new());
            }
            recheck()?;
            let started = time::last_known();
            let volume = &*unit.disk.volume;
            let result = medium::perform(volume, op, data, &nexus.steps).await;
            at_work.set(Some((started, time::now())));
            result.map_err(|error| unit.logical.borrow().complete(Err(error)))
        });
        // In memory of its own, which all others do without. Not behind a sanitize, which takes hours:
        // whatever waits for this command would wait for that.
        let exclusively = async |extent: Extent, perform| match recheck() {
            Ok(()) => LaneFuture::new(self.exclusively(&unit.disk, extent, perform)).await,
            Err(ending) => Err(ending),
        };
        let result = match op.span() {
            Some(extent) if is_ordered || op.is_exclusive() => exclusively(extent, perform).await,
            Some(extent) => match unit.disk.gate.enter(extent, recheck).await {
                Ok(_at_work) => perform.await,
                Err(ending) => Err(ending),
            },
            None => perform.await,
        };
        Executed {
            result,
            at_work: at_work.get(),
        }
    }

    /// Changes the state of a unit; `None` if its command is no longer `wanted` when the change may begin.
    /// The command's I/O ends when the change is made or given up, as that of a write. Then `ended` is
    /// called and gives that moment: commands that the nexus sends later are not aborted.
    pub async fn change(
        &self,
        io: Io,
        unit: &Unit,
        change: &Change,
        ended: impl FnOnce() -> Mark,
        wanted: impl FnOnce() -> bool,
    ) -> Option<Ending> {
        let state = &unit.disk.shared.state;
        let made = state.change(&unit.logical, change, wanted).await;
        let nexus = io.nexus.clone();
        // Before others are aborted: they may wait for this one's end in the same way.
        drop(io);
        let before = ended();
        match made? {
            Err(ending) => Some(ending),
            Ok(changed) => {
                self.abort_others(&nexus, unit, changed, before).await;
                Some(Ending::GOOD)
            }
        }
    }

    /// Ends the commands that a change ends.
    async fn abort_others(&self, nexus: &Nexus, unit: &Unit, changed: Changed, before: Mark) {
        if changed.abort.is_empty() {
            return;
        }
        // Without the one that waits here for the answer.
        let others = changed.abort.into_iter().filter(|other| *other != nexus.id);
        let abort = Abort {
            disks: vec![unit.disk.shared.clone()],
            of: Whose::These(others.collect()),
            spare: None,
            by: nexus.id,
            before,
            attention: None, // they are told of the loss of their registrations anyway
        };
        abort.everywhere(self).await;
    }

    /// Flushes a unit and ejects its medium; `None`, with the medium in place, if the command is no longer
    /// `wanted` after the flush.
    pub async fn eject(
        &self,
        io: Io,
        unit: &Unit,
        eject: &Eject,
        wanted: impl FnOnce() -> bool,
    ) -> Option<Ending> {
        let (volume, steps) = (&*unit.disk.volume, &io.nexus.steps);
        let no_data = Cell::default();
        let flushed = medium::perform(volume, &eject.flush, &no_data, steps).await;
        wanted().then(|| eject.flushed(&unit.logical.borrow(), flushed.map(drop)))
    }

    /// Overwrites or erases a whole disk. One that is to answer at once ends when it has begun, and goes
    /// on by itself.
    pub async fn sanitize(self: &Rc<Self>, unit: &Rc<Unit>, overwrite: Overwrite) -> Ending {
        let turn = match sanitize::begin(unit, &overwrite).await {
            Ok(turn) => turn,
            Err(ending) => return ending,
        };
        if !overwrite.immediate {
            return sanitize::overwrite(self, unit, turn, &overwrite).await;
        }
        let (units, unit) = (self.clone(), unit.clone());
        engine::spawn(async move {
            sanitize::overwrite(&units, &unit, turn, &overwrite).await;
        });
        Ending::GOOD
    }

    /// The units that a copy reads and writes.
    pub fn luns_of_copy(nexus: &Nexus, plan: &Copy) -> BTreeSet<u32> {
        copy::luns(&nexus.luns(), plan)
    }

    /// Does an EXTENDED COPY for a command of the unit at `lun`, whose I/O is on that and on
    /// [all its units](Self::luns_of_copy). When it is no longer `wanted` it ends after the current segment.
    pub async fn copy(&self, io: Io, lun: u32, plan: &Copy, wanted: impl Fn() -> bool) -> Ending {
        let nexus = io.nexus.clone();
        let mut done = 0;
        let mut ending = Ending::GOOD;
        for segment in &plan.segments {
            if !wanted() {
                break; // aborted meanwhile
            }
            if let Err(error) = copy::segment(self, &nexus, segment).await {
                ending = error.ending();
                break;
            }
            done += 1;
        }
        drop(io);
        if let Some(unit) = nexus.unit(lun) {
            plan.ended(&unit.logical.borrow(), nexus.id, done, &ending);
        }
        ending
    }
}
