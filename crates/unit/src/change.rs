//! Adding and removing disks while others are served, on all lanes or on none.

use std::{rc::Rc, sync::Arc};

use engine::cross::{answered, oneshot};
use scsi::Attention;

use crate::{
    disk::{Disk, Luns, Shared},
    lane::LaneUnits,
    nexus::{How, Nexus, Which},
    units::{DiskSpec, OpenError, OpenVolume, Units, flush_disk},
};

impl Units {
    /// Opens further disks on all lanes.
    ///
    /// # Errors
    /// [`OpenError`] if a volume does not open; none of the disks has been added then.
    pub async fn add(&self, disks: &[DiskSpec]) -> Result<(), OpenError> {
        let specs: Vec<_> = disks
            .iter()
            .map(|spec| (Arc::new(self.shared(spec)), spec.open.clone()))
            .collect();
        let mut result = Ok(());
        for lane in 0..self.lanes() {
            let (opened, answer) = oneshot();
            let specs = specs.clone();
            self.enter(lane, move |units| async move {
                opened.send(open_more(&units, specs).await);
            });
            let here = answered(answer, "open disks").await;
            let ended = || Err(OpenError("its lane has ended".to_owned()));
            result = here.unwrap_or_else(ended);
            if result.is_err() {
                break;
            }
        }
        match result {
            Ok(()) => {
                let added = specs.into_iter();
                self.disks()
                    .extend(added.map(|(shared, _)| (shared.name.clone(), shared)));
            }
            Err(_) => {
                let names: Vec<_> = disks.iter().map(|spec| spec.name.clone()).collect();
                self.remove(&names).await;
            }
        }
        result
    }

    /// Removes disks that no front shows any more, after every lane has flushed them. Failed flushes
    /// are logged.
    pub async fn remove(&self, names: &[String]) {
        let mut answers = Vec::new();
        for lane in 0..self.lanes() {
            let (done, answer) = oneshot();
            let names = names.to_vec();
            let entered = self.enter(lane, move |units| async move {
                for name in names {
                    if let Some(disk) = units.take_disk(&name) {
                        // There is nobody to return an error to; it has been logged.
                        flush_disk(&disk).await;
                    }
                }
                done.send(());
            });
            if entered {
                answers.push(answer);
            }
        }
        for answer in answers {
            // A lane that has ended has no disks.
            answered(answer, "let go of disks").await;
        }
        for name in names {
            self.disks().remove(name);
        }
    }
}

async fn open_more(
    units: &LaneUnits,
    disks: Vec<(Arc<Shared>, OpenVolume)>,
) -> Result<(), OpenError> {
    for (shared, open) in disks {
        let disk = Disk::open(shared, &open, &units.memory).await?;
        let disk = Rc::new(disk);
        disk.look_ahead();
        units.add_disk(disk);
    }
    Ok(())
}

impl LaneUnits {
    /// Makes a nexus reach `luns` from now on. At new LUNs it is established as initiator port `port`, and
    /// `unacknowledged` is called with each of the unit attentions there that it must receive. Commands at
    /// removed LUNs are answered with TASK ABORTED once their I/O has ended; the future completes when all
    /// that is done. At the other LUNs the nexus gets a unit attention that the LUNs have changed.
    pub fn show(
        &self,
        nexus: &Rc<Nexus>,
        luns: &Rc<Luns>,
        port: &str,
        unacknowledged: &mut dyn FnMut(u32, Attention),
    ) -> impl Future<Output = ()> + use<> {
        let before = nexus.luns();
        let is_in = |luns: &Luns, lun: u32, unit: &Rc<_>| {
            luns.get(&lun).is_some_and(|other| Rc::ptr_eq(other, unit))
        };
        nexus.set_luns(luns.clone());
        let mut gone = Vec::new();
        for (&lun, unit) in &*before {
            if is_in(luns, lun, unit) {
                let changed = Attention::ReportedLunsChanged;
                unit.logical.borrow().tell(nexus.id, changed);
                continue;
            }
            let which = Which {
                lun,
                before: None,
                spare: None,
                how: How::Told,
            };
            nexus.note_abort(lun);
            let commands = nexus.commands();
            let told = commands.map_or(Vec::new(), |commands| commands.abort(&which));
            // Aborts and fences of other nexuses find its I/O there as long as it runs.
            nexus.lose(lun, unit);
            nexus.end_count(&self.everywhere.stages, lun);
            gone.push((lun, unit.clone(), told));
        }
        for (&lun, unit) in &**luns {
            if !is_in(&before, lun, unit) {
                let told = unit.logical.borrow().establish(nexus.id, port);
                told.into_iter()
                    .for_each(|attention| unacknowledged(lun, attention));
            }
        }
        let nexus = nexus.clone();
        async move {
            for (lun, unit, told) in gone {
                nexus.wait_lost(lun, &unit).await;
                if let Some(commands) = nexus.commands().filter(|_| !told.is_empty()) {
                    commands.answer_aborted(&told);
                }
                // The disk may only have moved to another LUN, or have come back meanwhile.
                if !nexus.has_to_do_with(&unit.disk.shared) {
                    unit.logical.borrow_mut().forget(nexus.id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
