//! All disks on all lanes: the handle held by the fronts and the daemon.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use engine::{
    LaneFuture, LaneHandle,
    cross::{Sender, answered, channel, oneshot},
    spawn,
};
use scsi::{Kept, UnitReport};
use volume::{ErrorKind, SharedVolume};

use crate::{
    disk::{Disk, Shared},
    lane::{Everywhere, LaneClosure, LaneUnits},
    memory::{CommonMemory, DiskMemory, LaneMemory, MemoryLimits},
    stages::StageReport,
    state::{DiskState, Keep, Note},
};

/// Opens a lane's view of a volume; called once on each lane.
pub type OpenVolume =
    Arc<dyn Fn() -> LaneFuture<'static, volume::Result<SharedVolume>> + Send + Sync>;

/// The disks and their limits.
#[derive(Clone, Default)]
pub struct UnitsConfig {
    /// The disks.
    pub disks: Vec<DiskSpec>,
    /// Stores their state for a restart; `None`: nothing is stored.
    pub keep: Option<Keep>,
    /// Notes which ports have been told of the last power-on.
    pub note: Option<Note>,
    /// Memory limits for commands.
    pub limits: MemoryLimits,
}

/// One disk.
#[derive(Clone)]
pub struct DiskSpec {
    /// The name of the volume, for people.
    pub name: String,
    /// The volume's identity, from which the NAA name and the serial number derive.
    pub uuid: [u8; 16],
    /// Opens the volume on a lane.
    pub open: OpenVolume,
    /// What [`Keep`] stored for the volume before a restart.
    pub kept: Option<Kept>,
    /// The ports that [`Note`] noted for the volume before a restart that has lost no data.
    pub told: Vec<String>,
}

/// A volume that could not be opened on a lane.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(pub(crate) String);

/// A volume could not be flushed at the end: data written since the last successful flush may be
/// lost.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the last flush of volume {volume} failed; data written since the previous flush may be lost (see \
     the log)"
)]
pub struct FlushError {
    /// The name of the volume.
    pub volume: String,
}

/// All disks on all lanes.
#[derive(Clone)]
pub struct Units {
    lanes: Vec<Sender<LaneClosure>>,
    everywhere: Arc<Everywhere>,
    keep: Option<Keep>,
    note: Option<Note>,
    /// The shared state of each disk, by the names of their volumes.
    disks: Arc<Mutex<BTreeMap<String, Arc<Shared>>>>,
}

impl Units {
    /// Opens all disks on all `lanes` (one of which may be the current one).
    ///
    /// # Errors
    /// [`OpenError`] for the first volume that does not open.
    pub async fn open(config: UnitsConfig, lanes: &[LaneHandle]) -> Result<Units, OpenError> {
        let everywhere = Arc::new(Everywhere::new(config.limits.transfer_max_bytes));
        let plan = config.limits.plan(lanes.len());
        let common = CommonMemory::new(plan.common);
        let disks: Vec<_> = config
            .disks
            .iter()
            .map(|spec| {
                (
                    Arc::new(shared(spec, &config.keep, &config.note)),
                    spec.open.clone(),
                )
            })
            .collect();
        let (senders, receivers): (Vec<_>, Vec<_>) = lanes.iter().map(|_| channel()).unzip();
        for (own, (lane, messages)) in lanes.iter().zip(receivers).enumerate() {
            let (started, opened) = oneshot();
            let (disks, everywhere, common) = (disks.clone(), everywhere.clone(), common.clone());
            let links = (own, senders.clone());
            lane.spawn(move || async move {
                let memory = LaneMemory::new(&plan, common);
                let disks = match open_here(disks, &memory).await {
                    Ok(disks) => disks,
                    Err(error) => return started.send(Err(error)),
                };
                let units = LaneUnits::new(links, disks, memory, everywhere);
                started.send(Ok(()));
                units.run(messages).await;
            });
            let outcome = opened.outcome().await;
            outcome.unwrap_or_else(|unanswered| Err(OpenError(unanswered.to_string())))?;
        }
        let disks = disks.into_iter();
        let by_name = disks.map(|(shared, _)| (shared.name.clone(), shared));
        Ok(Units {
            lanes: senders,
            everywhere,
            keep: config.keep,
            note: config.note,
            disks: Arc::new(Mutex::new(by_name.collect())),
        })
    }

    /// The number of lanes.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Runs `front` on a lane, with that lane's part of the disks; false if the lane has ended.
    pub fn enter<F>(
        &self,
        lane: usize,
        front: impl FnOnce(Rc<LaneUnits>) -> F + Send + 'static,
    ) -> bool
    where
        F: Future<Output = ()> + 'static,
    {
        let message: LaneClosure = Box::new(move |units| {
            spawn(front(units.clone()));
        });
        self.lanes[lane].send(message).is_ok()
    }

    /// How long commands have spent in each stage since the start.
    pub fn stage_times(&self) -> StageReport {
        self.everywhere.stages.report()
    }

    /// A report on the SCSI state of each disk, by the names of their volumes. Does not involve the lanes.
    pub fn reports(&self) -> BTreeMap<String, UnitReport> {
        let disks = self.disks();
        let reports = disks.iter();
        reports
            .map(|(name, shared)| (name.clone(), shared.state.unit.report()))
            .collect()
    }

    /// Why disks fail every command, by the names of their volumes: it cannot be found out whom they let in. Does not involve
    /// the lanes.
    pub fn refusals(&self) -> BTreeMap<String, String> {
        let disks = self.disks();
        let refusals = disks
            .iter()
            .filter_map(|(name, shared)| Some((name.clone(), shared.state.refusal()?)));
        refusals.collect()
    }

    /// The shared state of a new disk.
    pub(crate) fn shared(&self, spec: &DiskSpec) -> Shared {
        shared(spec, &self.keep, &self.note)
    }

    pub(crate) fn disks(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Shared>>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the lengths of the volumes, and whether they are read-only. If one differs from its disk's, every nexus is
    /// told once by a unit attention (CAPACITY DATA HAS CHANGED, MODE PARAMETERS CHANGED). Returns without waiting for that.
    pub fn tell_changes(&self) {
        // The length is part of the state that all lanes share, so the first lane announces it and the
        // others find that done. All lanes are asked because any one may have no view of the disk.
        for lane in 0..self.lanes.len() {
            self.enter(lane, |units| async move {
                for unit in units.one_of_each() {
                    unit.tell_protection();
                    // In a task each, as one may have to wait for a sanitize, which takes hours.
                    spawn(async move { unit.tell_length().await });
                }
            });
        }
    }

    /// Stops what runs without a front, that is, a sanitize. Call it after the fronts have stopped and
    /// before the flush.
    pub fn stop(&self) {
        self.everywhere.stopping.store(true, Ordering::Relaxed);
    }

    /// The volumes that have I/O running, or are being flushed, on any lane.
    pub async fn busy(&self) -> BTreeSet<String> {
        let mut answers = Vec::new();
        for lane in 0..self.lanes.len() {
            let (done, answer) = oneshot();
            if self.enter(lane, |units| async move { done.send(units.busy()) }) {
                answers.push(answer);
            }
        }
        let mut busy = BTreeSet::new();
        for answer in answers {
            let said = answered(answer, "say which volumes are busy").await;
            busy.extend(said.unwrap_or_default());
        }
        busy
    }

    /// Flushes all volumes.
    ///
    /// # Errors
    /// [`FlushError`] for the first volume whose flush failed; all others have been flushed. A volume
    /// that another owner has taken over is not flushed, which is no error.
    pub async fn flush(&self) -> Result<(), FlushError> {
        let mut answers = Vec::new();
        for lane in 0..self.lanes.len() {
            let (done, answer) = oneshot();
            if self.enter(
                lane,
                |units| async move { done.send(flush_here(&units).await) },
            ) {
                answers.push(answer);
            }
        }
        let mut failed = BTreeSet::new();
        for answer in answers {
            // A lane that has ended has nothing left to flush.
            let here = answered(answer, "flush all volumes").await;
            failed.extend(here.unwrap_or_default());
        }
        match failed.pop_first() {
            None => Ok(()),
            Some(volume) => Err(FlushError { volume }),
        }
    }
}

async fn open_here(
    disks: Vec<(Arc<Shared>, OpenVolume)>,
    memory: &Rc<LaneMemory>,
) -> Result<BTreeMap<String, Rc<Disk>>, OpenError> {
    let mut opened = BTreeMap::new();
    for (shared, open) in disks {
        let name = shared.name.clone();
        let disk = Disk::open(shared, &open, memory).await?;
        let disk = Rc::new(disk);
        disk.look_ahead();
        opened.insert(name, disk);
    }
    Ok(opened)
}

/// Flushes all disks side by side: one that hangs keeps no other's data in a cache. Returns the volumes whose flush failed.
async fn flush_here(units: &Rc<LaneUnits>) -> BTreeSet<String> {
    let mut flushing = Vec::new();
    for disk in units.disks() {
        let units = units.clone();
        flushing.push(spawn(async move {
            let name = disk.name().to_owned();
            units.flushing.borrow_mut().insert(name.clone());
            let is_flushed = flush_disk(&disk).await;
            units.flushing.borrow_mut().remove(&name);
            (!is_flushed).then_some(name)
        }));
    }
    let mut failed = BTreeSet::new();
    for flushed in flushing {
        failed.extend(flushed.await);
    }
    failed
}

/// Flushes one disk before it is removed; false if that failed, which is logged once, whichever lanes find it.
pub(crate) async fn flush_disk(disk: &Disk) -> bool {
    let Err(error) = disk.volume.flush().await else {
        return true;
    };
    let volume = disk.name();
    // The written data is on the disks of the new owner, whose flushes cover it.
    if error.kind() == ErrorKind::Preempted {
        tracing::warn!(
            volume,
            %error,
            "a volume that another owner has taken over is closed without a last flush"
        );
        return true;
    }
    if !disk.shared.is_failure_told.swap(true, Ordering::Relaxed) {
        tracing::error!(volume, %error, "the last flush of a volume failed");
    }
    false
}

fn shared(spec: &DiskSpec, keep: &Option<Keep>, note: &Option<Note>) -> Shared {
    Shared {
        name: spec.name.clone(),
        uuid: spec.uuid,
        locks: Arc::default(),
        state: DiskState::new(
            &spec.name,
            (keep.clone(), note.clone()),
            spec.kept.clone(),
            &spec.told,
        ),
        is_failure_told: AtomicBool::new(false),
    }
}

impl Disk {
    /// The current lane's view of a disk, which is charged to `memory`.
    ///
    /// # Errors
    /// If its volume does not open.
    pub(crate) async fn open(
        shared: Arc<Shared>,
        open: &OpenVolume,
        memory: &Rc<LaneMemory>,
    ) -> Result<Disk, OpenError> {
        let opened = open().await;
        let volume =
            opened.map_err(|error| OpenError(format!("volume {}: {error}", shared.name)))?;
        Ok(Disk {
            shared,
            volume,
            gate: Rc::default(),
            memory: DiskMemory::new(memory),
        })
    }
}
