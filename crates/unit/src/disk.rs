//! A disk on one lane, and logical units: the disk as a target port shows it.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    sync::{Arc, atomic::AtomicBool},
};

use engine::{LaneFuture, range_lock::RangeLocks, spawn};
use scsi::{Extent, Identity, LogicalUnit, TargetPort};
use volume::SharedVolume;

use crate::{
    exclusion::{BlockLock, Gate},
    memory::DiskMemory,
    state::DiskState,
};

/// The units that a nexus reaches, by LUN.
pub type Luns = BTreeMap<u32, Rc<Unit>>;

/// The state of a disk that all lanes and ports share.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    /// Serialises exclusive operations on the disk's blocks.
    pub(crate) locks: Arc<RangeLocks>,
    pub(crate) state: DiskState,
    /// Whether the log says that its last flush failed.
    pub(crate) is_failure_told: AtomicBool,
}

/// A disk as one lane sees it.
pub struct Disk {
    pub(crate) shared: Arc<Shared>,
    pub(crate) volume: SharedVolume,
    pub(crate) gate: Rc<Gate>,
    /// What it holds of the lane's memory.
    pub(crate) memory: DiskMemory,
}

/// A logical unit: a disk behind a target port.
pub struct Unit {
    /// Its SCSI state, for questions of the front: what a CDB means, which nexuses are known.
    pub logical: RefCell<LogicalUnit>,
    pub(crate) disk: Rc<Disk>,
}

impl Disk {
    /// The name of its volume, for people.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// All of its blocks, including any that it gains while somebody holds this extent exclusively.
    pub(crate) fn whole(&self) -> Extent {
        Extent {
            lba: 0,
            blocks: u64::MAX,
            block_size_bytes: self.volume.shape().block_size_bytes,
        }
    }

    /// Waits until no other exclusive operation holds or awaits any of these blocks.
    pub(crate) async fn lock(&self, extent: Extent) -> BlockLock {
        BlockLock::take(&self.shared.locks, extent).await
    }

    /// Begins to find out whom the disk lets in, so that the first commands need not wait for it. A disk that hangs holds
    /// up no start, and whatever keeps it from answering meets the first command as well.
    pub(crate) fn look_ahead(self: &Rc<Self>) {
        if self.shared.state.begins_to_learn_floor() {
            let disk = self.clone();
            spawn(async move {
                let _ = disk.learn_floor().await;
            });
        }
    }

    /// Finds out whom the disk lets in, unless that is known.
    pub(crate) async fn learn_floor(&self) -> volume::Result<()> {
        let state = &self.shared.state;
        match state.knows_floor() {
            true => Ok(()),
            // Boxed, so that only the first commands pay for the memory.
            false => LaneFuture::new(state.learn_floor(&*self.volume)).await,
        }
    }

    /// Creates a logical unit of the disk behind a port, with the port's `read_only` and
    /// `removable` settings and transfers of up to `transfer_max_bytes`.
    ///
    /// # Errors
    /// If a SCSI disk cannot have this volume's properties.
    pub(crate) fn behind(
        self: &Rc<Self>,
        port: TargetPort,
        read_only: bool,
        removable: bool,
        transfer_max_bytes: u32,
    ) -> Result<Unit, scsi::DiskShapeError> {
        let mut shape = shape_of(self.volume.shape(), transfer_max_bytes);
        shape.removable = removable;
        shape.read_only = read_only;
        shape.reads_only = read_only;
        if let Some(atomic) = self.volume.atomic_writes() {
            let block = shape.block_size_bytes;
            let max = atomic.max_bytes.map_or(u32::MAX, |bytes| bytes / block);
            shape.atomic_blocks_max = max.min(shape.transfer_blocks_max);
            shape.atomic_blocks_unit = atomic.unit_bytes / block;
        }
        let identity = identity(self.shared.uuid, port);
        let shared = self.shared.state.unit.clone();
        let mut logical = LogicalUnit::sharing(identity, shape, shared)?;
        logical.protect(self.volume.shape().read_only.is_on());
        Ok(Unit {
            logical: RefCell::new(logical),
            disk: self.clone(),
        })
    }
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Unit({})", self.disk.name())
    }
}

impl Unit {
    /// The disk behind it.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The memory that its commands are charged to, beside their nexus.
    pub fn memory(&self) -> &DiskMemory {
        &self.disk.memory
    }

    /// Whether `disk` is behind it.
    pub(crate) fn is_on(&self, disk: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.disk.shared, disk)
    }

    /// Whether the disk of `other` is behind it.
    pub(crate) fn is_same_disk(&self, other: &Unit) -> bool {
        self.is_on(&other.disk.shared)
    }

    /// Charges the current task's share with what calls of [`Unit::logical`] have cost, and waits if that uses it up.
    pub async fn charge(&self) {
        let bytes = self.logical.borrow().take_work();
        engine::spend(bytes).await;
    }

    /// The properties of its volume.
    pub fn shape(&self) -> &volume::Shape {
        self.disk.volume.shape()
    }

    /// The length of a block, in bytes.
    pub fn block_size_bytes(&self) -> u32 {
        self.disk.volume.shape().block_size_bytes
    }

    /// Its length in bytes as its nexuses know it; if the volume has grown, the old length until they are told.
    pub fn len_bytes(&self) -> u64 {
        self.logical.borrow_mut().len_blocks() * u64::from(self.block_size_bytes())
    }

    /// Updates whether the logical unit is write-protected, on all lanes and ports, from the volume, and tells its
    /// initiators if it has changed.
    pub(crate) fn tell_protection(&self) {
        let is_protected = self.disk.volume.shape().read_only.is_on();
        if self.logical.borrow_mut().protect(is_protected) {
            let volume = self.disk.name();
            tracing::info!(
                volume,
                is_protected,
                "a disk's write protection has changed; its initiators get a unit attention"
            );
        }
    }

    /// Updates the length of the logical unit, on all lanes and ports, from the volume, and tells its
    /// initiators if it has changed. A sanitize keeps the length it began with, so this waits for it. A copy of a mirror has
    /// to be found from its new end first.
    pub(crate) async fn tell_length(&self) {
        let disk = &self.disk;
        let _lock = disk.lock(disk.whole()).await;
        let shape = disk.volume.shape();
        let block = u64::from(shape.block_size_bytes);
        let blocks = shape.len_bytes() / block;
        let volume = disk.name();
        let grown = disk.shared.state.grow(&*disk.volume, blocks * block).await;
        if let Err(error) = grown {
            tracing::error!(
                volume,
                %error,
                "a disk keeps its length, although its volume has grown: whether it is a copy of a mirror cannot be read, or not be noted at its new end; SIGHUP tries it again"
            );
            return;
        }
        match self.logical.borrow_mut().resize(blocks) {
            Ok(None) => {}
            Ok(Some(before)) => {
                let (from, to) = (before * block, blocks * block);
                tracing::info!(
                    volume,
                    from,
                    to,
                    "a disk has grown; its initiators get a unit attention"
                );
            }
            Err(error) => {
                tracing::error!(
                    volume,
                    %error,
                    "a disk cannot use the space that it has grown by"
                )
            }
        }
    }
}

/// The identity of a logical unit. The serial number and the NAA name derive from the volume's UUID.
pub fn identity(uuid: [u8; 16], port: TargetPort) -> Identity {
    Identity {
        vendor: "SANSTONE".into(),
        product: "VOLUME".into(),
        revision: concat!(
            env!("CARGO_PKG_VERSION_MAJOR"),
            ".",
            env!("CARGO_PKG_VERSION_MINOR")
        )
        .into(),
        serial: uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
        uuid,
        port,
    }
}

/// The NAA name, in hexadecimal digits, and the serial number of the disk with this UUID, through whatever target port.
pub fn names(uuid: [u8; 16]) -> (String, String) {
    let port = TargetPort {
        target_name: String::new(),
        portal_group_tag: 1,
        relative_port: 1,
        port_group: 1,
    };
    let identity = identity(uuid, port);
    let naa = identity.naa().map(|byte| format!("{byte:02x}")).concat();
    (naa, identity.serial)
}

/// A volume's properties in SCSI terms.
fn shape_of(volume: &volume::Shape, transfer_max_bytes: u32) -> scsi::DiskShape {
    let block = volume.block_size_bytes;
    let mut shape = scsi::DiskShape::new(block, volume.len_bytes() / u64::from(block));
    shape.physical_block_bytes = volume.physical_block_bytes;
    shape.write_cache = volume.volatile_cache;
    shape.transfer_blocks_max = transfer_max_bytes / block;
    // Only a volume that spreads its blocks has an optimal length beyond which a transfer gains nothing.
    let optimal = volume.optimal_io_bytes;
    if (volume.physical_block_bytes + 1..=transfer_max_bytes).contains(&optimal) {
        shape.transfer_blocks_optimal = optimal / block;
    }
    shape.transfer_blocks_granularity =
        u16::try_from(volume.physical_block_bytes / block).unwrap_or(0);
    // What is passed on is as long as the disk below takes it.
    if volume.compare_and_write_max_bytes > 0 {
        let max = u8::try_from(volume.compare_and_write_max_bytes / block).unwrap_or(u8::MAX);
        shape.compare_write_blocks_max = max.min(shape.compare_write_blocks_max);
    }
    shape.discard = volume.discard.map(|discard| scsi::Discard {
        granularity_blocks: (discard.granularity_bytes / block).max(1),
        alignment_blocks: 0,
        zeroes_after_discard: discard.reads_zeroes,
        // Longer unmaps are slow to abort, and libiscsi considers them a mistake.
        unmap_blocks_max: ((1 << 30) / block).min(1 << 20),
        unmap_ranges_max: 256,
    });
    shape
}
