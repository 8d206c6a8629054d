//! One lane's part of all disks: its views of the volumes, the nexuses of its fronts, and the
//! messages between lanes.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use engine::{
    Instant,
    cross::{OneshotReceiver, OneshotSender, Receiver, Sender, oneshot},
    sync::Permit,
};
use scsi::{NexusId, TargetPort};

use crate::{
    disk::{Disk, Luns, Shared, Unit},
    medium::Steps,
    memory::{LaneMemory, NexusMemory},
    nexus::{Commands, Nexus},
    stages::{CommandKind, StageStamps, Stages},
};

/// A request to a lane: a closure that runs there.
pub(crate) type LaneClosure = Box<dyn FnOnce(&Rc<LaneUnits>) + Send>;

/// State that all lanes share besides the disks. Accessed when nexuses come and go, never per I/O.
pub(crate) struct Everywhere {
    next_nexus: AtomicU64,
    pub(crate) stages: Stages,
    /// Set when the daemon stops, so that a running sanitize stops, too.
    pub(crate) stopping: AtomicBool,
    pub(crate) transfer_max_bytes: u32,
}

impl Everywhere {
    pub(crate) fn new(transfer_max_bytes: u32) -> Everywhere {
        Everywhere {
            next_nexus: AtomicU64::new(1),
            stages: Stages::default(),
            stopping: AtomicBool::new(false),
            transfer_max_bytes,
        }
    }
}

/// One lane's part of all disks.
pub struct LaneUnits {
    own: usize,
    lanes: Vec<Sender<LaneClosure>>,
    disks: RefCell<BTreeMap<String, Rc<Disk>>>,
    nexuses: RefCell<BTreeMap<NexusId, Rc<Nexus>>>,
    pub(crate) memory: Rc<LaneMemory>,
    pub(crate) everywhere: Arc<Everywhere>,
    /// The units of each disk. One of them tells initiators when the length changes.
    shown: RefCell<BTreeMap<String, Vec<Weak<Unit>>>>,
    /// The volumes whose last flush is in progress.
    pub(crate) flushing: RefCell<BTreeSet<String>>,
}

impl LaneUnits {
    pub(crate) fn new(
        (own, lanes): (usize, Vec<Sender<LaneClosure>>),
        disks: BTreeMap<String, Rc<Disk>>,
        memory: Rc<LaneMemory>,
        everywhere: Arc<Everywhere>,
    ) -> Rc<LaneUnits> {
        Rc::new(LaneUnits {
            own,
            lanes,
            disks: RefCell::new(disks),
            nexuses: RefCell::default(),
            memory,
            everywhere,
            shown: RefCell::default(),
            flushing: RefCell::default(),
        })
    }

    /// Processes requests to this lane until there are no senders left.
    pub(crate) async fn run(self: Rc<Self>, messages: Receiver<LaneClosure>) {
        while let Some(message) = messages.receive().await {
            message(&self);
        }
    }

    pub(crate) fn disks(&self) -> Vec<Rc<Disk>> {
        self.disks.borrow().values().cloned().collect()
    }

    pub(crate) fn add_disk(&self, disk: Rc<Disk>) {
        let mut disks = self.disks.borrow_mut();
        disks.insert(disk.name().to_owned(), disk);
    }

    pub(crate) fn take_disk(&self, name: &str) -> Option<Rc<Disk>> {
        self.shown.borrow_mut().remove(name);
        self.disks.borrow_mut().remove(name)
    }

    /// Creates a unit that shows the disk called `name` behind a port.
    ///
    /// # Errors
    /// If there is no such disk, or a SCSI disk cannot have this volume's properties.
    pub fn unit(
        &self,
        name: &str,
        port: TargetPort,
        read_only: bool,
        removable: bool,
    ) -> Result<Rc<Unit>, String> {
        let disk = self.disks.borrow().get(name).cloned();
        let disk = disk.ok_or_else(|| format!("there is no disk called {name}"))?;
        let transfer_max_bytes = self.everywhere.transfer_max_bytes;
        let unit = disk.behind(port, read_only, removable, transfer_max_bytes);
        let unit = Rc::new(unit.map_err(|error| format!("volume {name}: {error}"))?);
        let mut shown = self.shown.borrow_mut();
        let shown = shown.entry(name.to_owned()).or_default();
        shown.retain(|unit| unit.strong_count() > 0);
        shown.push(Rc::downgrade(&unit));
        Ok(unit)
    }

    /// Creates a nexus for the initiator known to people as `initiator`. Its front establishes it at
    /// the units, keeps its commands, and finally calls [`leave`](Self::leave).
    pub fn enter(
        &self,
        initiator: &str,
        luns: &Rc<Luns>,
        commands: Weak<dyn Commands>,
    ) -> Rc<Nexus> {
        let number = self.everywhere.next_nexus.fetch_add(1, Ordering::Relaxed);
        let id = NexusId(number);
        let nexus = Rc::new(Nexus::new(
            id,
            initiator,
            luns.clone(),
            NexusMemory::new(&self.memory),
            Steps::of_nexus(&self.memory),
            commands,
        ));
        let stages = &self.everywhere.stages;
        stages.follow(initiator, nexus.running.pending());
        let other = self.nexuses.borrow_mut().insert(id, nexus.clone());
        // A fence is for a nexus by this number.
        assert!(other.is_none(), "two nexuses have the number {number}");
        nexus
    }

    /// Waits until all I/O of a nexus has ended, then forgets it. Block operations that come later are
    /// refused, because no abort would wait for them.
    pub async fn leave(&self, nexus: &Nexus) {
        nexus.is_leaving.set(true);
        nexus.wait_idle().await;
        for unit in nexus.luns().values() {
            unit.logical.borrow_mut().forget(nexus.id);
            unit.charge().await;
        }
        nexus.end_counts(&self.everywhere.stages);
        self.everywhere.stages.leave(nexus.running.pending());
        self.nexuses.borrow_mut().remove(&nexus.id);
    }

    /// The volumes that have I/O running, or are being flushed at the end.
    pub(crate) fn busy(&self) -> BTreeSet<String> {
        let running = self.nexuses();
        let running = running.iter().flat_map(|nexus| nexus.running_by_volume());
        let names = running.map(|((_, volume), _)| volume);
        let names = names.filter(|volume| !volume.is_empty());
        names
            .chain(self.flushing.borrow().iter().cloned())
            .collect()
    }

    pub(crate) fn nexus(&self, id: NexusId) -> Option<Rc<Nexus>> {
        self.nexuses.borrow().get(&id).cloned()
    }

    pub(crate) fn nexuses(&self) -> Vec<Rc<Nexus>> {
        self.nexuses.borrow().values().cloned().collect()
    }

    /// A larger command window for a nexus, if one is available.
    pub fn take_window(&self) -> Option<Permit> {
        self.memory.take_window()
    }

    /// The longest read or write, in bytes.
    pub fn transfer_max_bytes(&self) -> u32 {
        self.everywhere.transfer_max_bytes
    }

    /// The most data that a command of one more nexus may bring before the lane asks for it, in bytes.
    pub fn first_burst_max_bytes(&self) -> u32 {
        self.memory.first_burst_max() as u32
    }

    /// Counts a command for the unit at `lun`: its kind, the bytes it had to move, and its stage times
    /// up to `sent`, when its answer was sent.
    pub fn count(
        &self,
        nexus: &Nexus,
        lun: u32,
        moved: (CommandKind, u64),
        times: &StageStamps,
        sent: Instant,
    ) {
        nexus.count(&self.everywhere.stages, lun, moved, times, sent);
    }

    /// Makes every lane, this one included, run what `ask` creates for it; returns one answer for each.
    pub(crate) fn ask_all<M>(&self, ask: impl Fn() -> M) -> Vec<OneshotReceiver<()>>
    where
        M: FnOnce(&Rc<LaneUnits>, OneshotSender<()>) + Send + 'static,
    {
        self.lanes
            .iter()
            .filter_map(|lane| send(lane, ask()))
            .collect()
    }

    /// As [`ask_all`](Self::ask_all), for every other lane.
    pub(crate) fn ask_others<M>(
        &self,
        ask: impl Fn() -> M,
    ) -> impl Iterator<Item = OneshotReceiver<()>>
    where
        M: FnOnce(&Rc<LaneUnits>, OneshotSender<()>) + Send + 'static,
    {
        self.others().filter_map(move |lane| send(lane, ask()))
    }

    /// Makes every other lane run what `tell` creates for it, without an answer.
    pub(crate) fn tell_others<M>(&self, tell: impl Fn() -> M)
    where
        M: FnOnce(&Rc<LaneUnits>) + Send + 'static,
    {
        for lane in self.others() {
            // A lane that has ended has nothing left to do.
            let _ = lane.send(Box::new(tell()));
        }
    }

    fn others(&self) -> impl Iterator<Item = &Sender<LaneClosure>> {
        let lanes = self.lanes.iter().enumerate();
        lanes
            .filter(|(index, _)| *index != self.own)
            .map(|(_, lane)| lane)
    }

    /// This lane's view of a disk, if it has one.
    pub(crate) fn disk(&self, shared: &Arc<Shared>) -> Option<Rc<Disk>> {
        let disks = self.disks.borrow();
        let disk = disks.get(&shared.name);
        disk.filter(|disk| Arc::ptr_eq(&disk.shared, shared))
            .cloned()
    }

    /// One unit of each disk that is shown.
    pub(crate) fn one_of_each(&self) -> Vec<Rc<Unit>> {
        self.shown
            .borrow()
            .values()
            .filter_map(|units| units.iter().find_map(Weak::upgrade))
            .collect()
    }
}

/// Sends a request to a lane; `None` if the lane has ended.
fn send<M>(lane: &Sender<LaneClosure>, ask: M) -> Option<OneshotReceiver<()>>
where
    M: FnOnce(&Rc<LaneUnits>, OneshotSender<()>) + Send + 'static,
{
    let (done, answer) = oneshot();
    let message: LaneClosure = Box::new(move |units| ask(units, done));
    lane.send(message).is_ok().then_some(answer)
}
