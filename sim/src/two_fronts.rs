//! A machine with one disk behind two fronts at once: the iSCSI server and, on each lane, a front without SCSI such as
//! NBD or a mirror's local copy.

use std::{cell::Cell, collections::BTreeMap, net::SocketAddr, ops::Range, rc::Rc, sync::Arc};

use engine::{
    Buf, LaneFuture,
    cross::{Sender, channel, oneshot},
    sim::Host,
    spawn,
};
use front_iscsi::{Allow, IscsiServer, LunSpec, PortalGroup, ServerConfig, TargetSpec};
use scsi::{Action, Attention, Status, TargetPort};
use unit::{
    CommandId, DiskSpec, Io, IoError, LaneUnits, Luns, Mark, MemoryLimits, Nexus, Units,
    UnitsConfig, no_commands,
};

use crate::{
    content::{self, SECTOR_BYTES},
    raw,
    slow_disk::SlowDisk,
    target_machine::PORT,
};

/// Lanes of the machine, each with a block front.
pub const LANES: usize = 2;
/// The longest transfer.
pub const TRANSFER_MAX_BYTES: u32 = 64 << 10;
/// The name of the iSCSI target.
pub const IQN: &str = "iqn.2026-11.io.sanstone:two-fronts";
const LUN: u32 = 0;

/// The machine.
pub struct TwoFronts {
    /// Where it runs.
    pub host: Host,
    /// The medium behind its disk.
    pub disk: Arc<SlowDisk>,
    /// Its units.
    pub units: Units,
    /// One for each lane.
    pub block: Vec<BlockHandle>,
    _server: Option<IscsiServer>,
}

impl TwoFronts {
    /// Starts `disk`, server and block fronts on a machine with [`LANES`].
    pub async fn start(host: &Host, disk: Arc<SlowDisk>) -> TwoFronts {
        let (here, medium) = (host.clone(), disk.clone());
        let started = host.spawn(async move {
            let lanes: Vec<_> = (0..LANES).map(|n| here.lane(n)).collect();
            let units = Units::open(units_config(medium), &lanes).await;
            let units = units.expect("its disk opens");
            let server = IscsiServer::start(server_config(here.addr(PORT)), &units).await;
            (units, server.expect("it starts"))
        });
        let (units, server) = started.await;
        let block = (0..LANES)
            .map(|lane| BlockHandle::enter(&units, lane))
            .collect();
        TwoFronts {
            host: host.clone(),
            disk,
            units,
            block,
            _server: Some(server),
        }
    }
}

impl TwoFronts {
    /// The same without a server, and with a block front on the last lane only.
    pub async fn start_block_alone(host: &Host, disk: Arc<SlowDisk>) -> TwoFronts {
        let (here, medium) = (host.clone(), disk.clone());
        let started = host.spawn(async move {
            let lanes: Vec<_> = (0..LANES).map(|n| here.lane(n)).collect();
            let units = Units::open(units_config(medium), &lanes).await;
            units.expect("its disk opens")
        });
        let units = started.await;
        TwoFronts {
            host: host.clone(),
            disk,
            block: vec![BlockHandle::enter(&units, LANES - 1)],
            units,
            _server: None,
        }
    }
}

fn units_config(medium: Arc<SlowDisk>) -> UnitsConfig {
    let disk = DiskSpec {
        name: "disk".into(),
        uuid: [3; 16],
        open: Arc::new(move || {
            let medium = medium.clone();
            LaneFuture::new(async move { Ok(medium.on_lane()) })
        }),
        kept: None,
        told: Vec::new(),
    };
    UnitsConfig {
        disks: vec![disk],
        keep: None,
        note: None,
        // Low enough that reads have to wait for memory.
        limits: MemoryLimits {
            memory_bytes: 2 << 20,
            transfer_max_bytes: TRANSFER_MAX_BYTES,
        },
    }
}

fn server_config(portal: SocketAddr) -> ServerConfig {
    let lun = LunSpec {
        volume: "disk".into(),
        removable: false,
        read_only: false,
    };
    let target = TargetSpec {
        name: IQN.into(),
        portal_groups: vec![PortalGroup::only(vec![portal])],
        luns: BTreeMap::from([(LUN, lun)]),
        allow: Allow::Everyone,
        allow_from: Vec::new(),
        chap: None,
        redirect: None,
    };
    ServerConfig {
        targets: vec![target],
        discovery: None,
        digests: true,
        limits: front_iscsi::Limits::default(),
    }
}

/// What a block front is asked, on its lane.
type Job = Box<dyn FnOnce(&Rc<BlockFront>) + Send>;

/// A handle for sending jobs to a block front on its lane.
pub struct BlockHandle(Sender<Job>);

impl BlockHandle {
    fn enter(units: &Units, lane: usize) -> BlockHandle {
        let (jobs, asked) = channel::<Job>();
        let is_entered = units.enter(lane, move |units| async move {
            let front = BlockFront::new(units, lane);
            while let Some(job) = asked.receive().await {
                job(&front);
            }
        });
        assert!(is_entered, "the lane runs");
        BlockHandle(jobs)
    }

    /// Starts `job` on the front, concurrently with all others; returns its result.
    pub fn start<T, F, J>(&self, job: J) -> impl Future<Output = T> + use<T, F, J>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
        J: FnOnce(Rc<BlockFront>) -> F + Send + 'static,
    {
        let (done, answer) = oneshot();
        let job: Job = Box::new(move |front| {
            let job = job(front.clone());
            spawn(async move { done.send(job.await) });
        });
        assert!(self.0.send(job).is_ok(), "the front runs");
        async move { answer.outcome().await.expect("the front runs") }
    }
}

/// A front that performs block operations on its lane.
pub struct BlockFront {
    units: Rc<LaneUnits>,
    nexus: Rc<Nexus>,
    operations: Cell<u64>,
}

impl BlockFront {
    fn new(units: Rc<LaneUnits>, lane: usize) -> Rc<BlockFront> {
        let port = TargetPort {
            target_name: format!("{IQN}-block"),
            portal_group_tag: 1,
            relative_port: 2,
            port_group: 1,
        };
        let unit = units.unit("disk", port, false, false);
        let unit = unit.expect("it can be shown");
        let luns: Rc<Luns> = Rc::new(BTreeMap::from([(LUN, unit)]));
        let nexus = units.enter("block", &luns, no_commands());
        let port = format!("iqn.2026-11.io.sanstone:block-{lane},i,0x000000000000");
        luns[&LUN].logical.borrow().establish(nexus.id, &port);
        // The power-on attention; from now on the nexus receives unit attentions.
        let first = nexus.take_attention(LUN);
        assert_eq!(first, Some(Attention::PowerOnOrReset));
        Rc::new(BlockFront {
            units,
            nexus,
            operations: Cell::new(0),
        })
    }

    fn operation(&self) -> (CommandId, u32) {
        self.operations.set(self.operations.get() + 1);
        (CommandId(self.operations.get()), LUN)
    }

    /// Reserves memory, then writes `version` to `sectors`.
    pub async fn write(&self, version: u64, sectors: Range<u64>) -> Result<(), IoError> {
        let (at, data) = (sectors.start, content::bytes(version, sectors));
        let _paid = self.nexus.take_memory(LUN, data.len()).await;
        let at = at * SECTOR_BYTES as u64;
        let data = Buf::copy_of(&data).into();
        let write = self
            .units
            .write(&self.nexus, self.operation(), at, data, false);
        write.await
    }

    /// Reads `sectors`; returns their versions.
    pub async fn read(&self, sectors: Range<u64>) -> Result<Vec<u64>, IoError> {
        let read = self
            .units
            .read(&self.nexus, self.operation(), bytes(&sectors));
        let (data, _paid) = read.await?;
        Ok(content::versions(sectors.start, &data.to_vec()))
    }

    /// Makes `sectors` read as zeroes.
    pub async fn zero(&self, sectors: Range<u64>) -> Result<(), IoError> {
        let (at, len) = bytes(&sectors);
        let zero = self
            .units
            .write_zeroes(&self.nexus, self.operation(), (at, len.into()), true);
        zero.await
    }

    /// Flushes.
    pub async fn flush(&self) -> Result<(), IoError> {
        self.units.flush(&self.nexus, self.operation()).await
    }

    /// PERSISTENT RESERVE OUT: `action` with a type, a key, and a service action key, of one byte each.
    pub async fn reserve_out(&self, action: u8, kind: u8, key: u8, new_key: u8) -> Status {
        let (cdb, list) = raw::reserve_out(action, kind, key, new_key);
        let unit = self.nexus.unit(LUN).expect("it has one");
        let parameters = loop {
            let begun = unit.logical.borrow_mut().begin(self.nexus.id, &cdb);
            match begun {
                Action::Parameters(parameters) => break parameters,
                action if action.is_attention() => {}
                other => panic!("it takes a parameter list: {other:?}"),
            }
        };
        let resumed = unit.logical.borrow_mut().resume(parameters, &list);
        let change = match resumed {
            Action::Change(change) => change,
            Action::End(ending) => return ending.status,
            other => panic!("it changes the unit: {other:?}"),
        };
        let (command, lun) = self.operation();
        let io = Io::begin(&self.nexus, command, lun, &unit);
        let changed = self.units.change(io, &change, Mark::default, || true);
        changed.await.expect("it is wanted").status
    }

    /// The next unit attention, if any.
    pub fn take_attention(&self) -> Option<Attention> {
        self.nexus.take_attention(LUN)
    }

    /// The length of the disk, in sectors.
    pub fn sectors(&self) -> u64 {
        let unit = self.nexus.unit(LUN).expect("it has one");
        unit.len_bytes() / SECTOR_BYTES as u64
    }

    /// Leaves the unit, as a front does when it ends.
    pub async fn leave(&self) {
        self.units.leave(&self.nexus).await;
    }
}

fn bytes(sectors: &Range<u64>) -> (u64, u32) {
    let len = (sectors.end - sectors.start) * SECTOR_BYTES as u64;
    (sectors.start * SECTOR_BYTES as u64, len as u32)
}
