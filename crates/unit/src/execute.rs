//! The path of a command from the access check to the volume. It is the same for all fronts: the same
//! gates delay commands, and the same fence refuses them.

use std::{cell::Cell, pin::pin, rc::Rc};

use engine::{Duration, Instant, LaneFuture, Payload, share, time};
use scsi::{Change, Changed, Eject, Ending, Extent, MediumOp, Overwrite};
use volume::layers::{Watch, watched};

use crate::{
    abort::{Abort, Disks, Whose},
    disk::Unit,
    error::IoError,
    lane::LaneUnits,
    medium,
    nexus::{Mark, Nexus},
    running::{CommandId, RunningId},
    sanitize,
    wanted::Wanted,
};

/// A running I/O of a command on a unit: the one that was at its LUN when it began, whatever is there later. Aborts wait
/// until it is [finished](Io::finish).
pub struct Io {
    pub(crate) nexus: Rc<Nexus>,
    pub(crate) unit: Rc<Unit>,
    running: RunningId,
    is_finished: bool,
    /// Measures how long the media work, if wanted.
    watch: Option<Watch>,
}

impl Io {
    /// Registers an I/O of `command` on `unit`, which is at `lun`.
    pub fn begin(nexus: &Rc<Nexus>, command: CommandId, lun: u32, unit: &Rc<Unit>) -> Io {
        Io {
            nexus: nexus.clone(),
            unit: unit.clone(),
            running: nexus.running.begin(command, lun, unit),
            is_finished: false,
            watch: None,
        }
    }

    /// Makes it measure how long the media work for it.
    pub fn watch(&mut self) {
        self.watch = Some(Watch::new());
    }

    /// Ends it: nothing works for it any more, and what waits for that goes on.
    pub fn finish(mut self) {
        self.is_finished = true;
        self.nexus.running.end(self.running);
    }

    /// It is dropped, and a medium may still be at work for it.
    #[cold]
    fn lose(&self) {
        // Whoever waits for it must not wait for ever.
        self.nexus.running.end(self.running);
        if !engine::lane::is_running() || std::thread::panicking() {
            return; // the lane ends, and nobody is left to be told
        }
        let (volume, initiator) = (self.unit.disk.name(), &*self.nexus.initiator);
        tracing::error!(
            volume,
            initiator,
            "a bug: an I/O was dropped before its end, and aborts did not wait for it"
        );
        if cfg!(debug_assertions) {
            eprintln!("an I/O of {initiator} on {volume} was dropped before its end");
            std::process::abort();
        }
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if !self.is_finished {
            self.lose();
        }
    }
}

/// The outcome of an operation on the medium.
#[derive(Debug)]
pub struct Executed {
    /// Its data-in, if any.
    pub result: Result<Payload, IoError>,
    /// When the volume began, by the lane's [last known](time::last_known) time, and when it ended; `None`
    /// if it never began.
    pub at_work: Option<(Instant, Instant)>,
    /// How long media worked on that, if it was [watched](Io::watch) and all of it was observed.
    pub medium: Option<Duration>,
}

impl LaneUnits {
    /// Does `op` on the medium of the unit of `io`, taking its data-out from `data`. If the command is no longer
    /// `wanted` when the operation may begin, the result is empty. If `is_ordered`, no other I/O runs
    /// on its blocks meanwhile.
    pub async fn execute(
        &self,
        io: Io,
        (op, data): (&MediumOp, &Cell<Payload>),
        is_ordered: bool,
        wanted: impl Wanted,
    ) -> Executed {
        let executed = async {
            let (nexus, unit) = (&io.nexus, &io.unit);
            if let Err(error) = unit.disk.learn_floor().await {
                return Executed {
                    result: Err(IoError::of_volume(&error, IoError::StorageFailed)),
                    at_work: None,
                    medium: None,
                };
            }
            let at_work = Cell::new(None);
            // While it waited for its data or a lock, the nexus may have been fenced off or a sanitize started.
            let recheck = || unit.logical.borrow_mut().recheck(nexus.id, op);
            let perform = pin!(async {
                if !wanted.is_wanted() {
                    return Ok(Payload::new());
                }
                recheck()?;
                let started = time::last_known();
                let volume = &*unit.disk.volume;
                let performed = || medium::perform(volume, op, data);
                let result = match &io.watch {
                    None => performed().await,
                    // Boxed, so that only watched operations pay for the memory.
                    Some(watch) => LaneFuture::new(watched(watch.clone(), performed())).await,
                };
                at_work.set(Some((started, time::now())));
                result
            });
            // Boxed, so that only exclusive operations pay for the memory. Recheck first so as not to queue behind a
            // sanitize: that takes hours, and whatever waits for this command would wait as well.
            let exclusively = async |extent: Extent, perform| match recheck() {
                Ok(()) => LaneFuture::new(self.exclusively(&unit.disk, extent, perform)).await,
                Err(denied) => Err(denied.into()),
            };
            // Before it keeps others from its blocks, and before the checks.
            let steps = nexus.steps.take_for(op, unit.memory(), &wanted).await;
            let Ok(_steps) = steps else {
                return Executed {
                    result: Ok(Payload::new()),
                    at_work: None,
                    medium: None,
                };
            };
            let result = match op.span() {
                Some(extent) if is_ordered || op.is_exclusive() => {
                    exclusively(extent, perform).await
                }
                Some(extent) => match unit.disk.gate.enter(extent, recheck).await {
                    Ok(_at_work) => perform.await,
                    Err(denied) => Err(denied.into()),
                },
                None => perform.await,
            };
            Executed {
                result,
                at_work: at_work.get(),
                medium: io.watch.as_ref().and_then(|watch| watch.layers().below()),
            }
        };
        let executed = executed.await;
        io.finish();
        executed
    }

    /// Changes the state of the unit of `io`; `None` if the command is no longer `wanted` when the change may begin.
    /// As with a write, the command's I/O ends when the change has been made or abandoned. `ended` is then
    /// called and returns that moment: commands that the nexus sends later are not aborted.
    pub async fn change(
        &self,
        io: Io,
        change: &Change,
        ended: impl FnOnce() -> Mark,
        wanted: impl FnOnce() -> bool,
    ) -> Option<Ending> {
        let (nexus, unit) = (io.nexus.clone(), io.unit.clone());
        let state = &unit.disk.shared.state;
        let made = state
            .change(&*unit.disk.volume, &unit.logical, change, wanted)
            .await;
        share::charge(unit.logical.borrow().take_work());
        // Before aborting others, because they may be waiting for the end of this I/O in the same way.
        io.finish();
        let before = ended();
        match made? {
            Err(ending) => Some(ending),
            Ok(changed) => {
                self.abort_others(&nexus, &unit, changed, before).await;
                Some(Ending::GOOD)
            }
        }
    }

    /// Aborts the commands that a change ends.
    async fn abort_others(&self, nexus: &Nexus, unit: &Unit, changed: Changed, before: Mark) {
        if changed.abort.is_empty() {
            return;
        }
        // Not our own nexus, whose command is waiting here.
        let others = changed.abort.into_iter().filter(|other| *other != nexus.id);
        let abort = Abort {
            disks: Disks::of([unit]),
            of: Whose::These(others.collect()),
            spare: None,
            by: nexus.id,
            before,
            attention: None, // the loss of their registrations is reported anyway
            target: None,
        };
        abort.everywhere(self).await;
    }

    /// Flushes the unit of `io` and ejects its medium. `None`, with the medium left in place, if the command is no
    /// longer `wanted` after the flush.
    ///
    /// # Errors
    /// Those of the flush; the medium is left in place.
    pub async fn eject(
        &self,
        io: Io,
        eject: &Eject,
        wanted: impl FnOnce() -> bool,
    ) -> Option<Result<Ending, IoError>> {
        let (volume, no_data) = (&*io.unit.disk.volume, Cell::default());
        let flushed = medium::perform(volume, &eject.flush, &no_data).await;
        let ejected = wanted().then(|| flushed.map(|_| eject.flushed(&io.unit.logical.borrow())));
        io.finish();
        ejected
    }

    /// Overwrites or erases a whole disk. With `immediate` it returns once the sanitize has begun, which
    /// continues in the background.
    pub async fn sanitize(self: &Rc<Self>, unit: &Rc<Unit>, overwrite: Overwrite) -> Ending {
        let lock = match sanitize::begin(unit, &overwrite).await {
            Ok(lock) => lock,
            Err(ending) => return ending,
        };
        if !overwrite.immediate {
            return sanitize::overwrite(self, unit, lock, &overwrite).await;
        }
        let (units, unit) = (self.clone(), unit.clone());
        engine::spawn(async move {
            sanitize::overwrite(&units, &unit, lock, &overwrite).await;
        });
        Ending::GOOD
    }
}

#[cfg(test)]
mod tests;
