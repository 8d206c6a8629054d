//! What one lane serves: its views of the volumes, its logical units, its connections, and the
//! requests that other lanes send it.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
};

use engine::{
    Share,
    cross::{OneshotSender, Receiver, Sender, oneshot},
    net::DetachedStream,
    spawn,
    sync::{Budget, Notify},
    task::spawn_for,
};
use iscsi::{Chap, LoginStatus};
use scsi::{
    Change, Changed, Ending, Extent, Identity, LogicalUnit, Prepared, SharedUnit, TargetPort,
};
use smallvec::SmallVec;
use volume::SharedVolume;

use crate::{
    abort::Abort,
    config::{Allow, Keep, Limits, PortalGroup, Redirect, ServerConfig, TargetSpec},
    connection::{self, Connection},
    exclusion::{Gate, Serial, Turn, Turns},
    medium::Steps,
    memory::{CommonMemory, LaneMemory},
    prefix::Prefix,
    server::StopError,
    sessions::Sessions,
    watchdog,
};

/// What other lanes ask of this one.
pub(crate) enum Request {
    /// Serve this connection.
    Serve(Newcomer),
    /// End that connection, which has not logged in: others need its place.
    MakeRoom { connection: u64 },
    /// End that connection and say when all its I/O has ended.
    EndSession {
        connection: u64,
        done: OneshotSender<()>,
    },
    /// Abort these commands, and say when all their I/O has ended.
    Abort {
        abort: Abort,
        done: OneshotSender<()>,
    },
    /// End all sessions of a target.
    EndTarget { target: usize },
    /// Let nobody in to these blocks of a volume, and say when nobody is there any more.
    Hold {
        volume: String,
        turn: Serial,
        extent: Extent,
        done: OneshotSender<()>,
    },
    /// Let others in again to what a turn holds of a volume.
    Release { volume: String, turn: Serial },
    /// Tell the initiators of volumes that have another length.
    TellLengths,
    /// Finish what was accepted, then end all connections and flush.
    Stop {
        done: OneshotSender<Result<(), StopError>>,
    },
}

/// A connection that has been let in.
pub(crate) struct Newcomer {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    /// The portal's address as the peer knows it.
    pub(crate) local: SocketAddr,
    pub(crate) stream: DetachedStream,
}

/// One lane's part of a server.
pub(crate) struct Front {
    pub(crate) targets: Vec<Rc<Target>>,
    pub(crate) limits: Limits,
    pub(crate) sessions: Arc<Sessions>,
    /// By volume, which several targets may serve.
    gates: BTreeMap<String, Rc<Gate>>,
    /// This lane's own address, those of the others, and of all.
    pub(crate) own: Sender<Request>,
    others: Vec<Sender<Request>>,
    pub(crate) lanes: Vec<Sender<Request>>,
    pub(crate) connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    pub(crate) memory: Rc<LaneMemory>,
    /// See [`Steps`].
    pub(crate) steps: Rc<Budget>,
    pub(crate) keep: Option<Keep>,
    /// What a discovery session has to prove.
    pub(crate) discovery: Option<Arc<Chap>>,
    pub(crate) digests: bool,
    pub(crate) stopping: Cell<bool>,
    /// A connection has ended.
    pub(crate) changed: Notify,
}

/// A target as one lane sees it through one of its portal groups: a SCSI target port.
pub(crate) struct Target {
    /// The same for all groups of a target.
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) portals: PortalGroup,
    pub(crate) redirect: Option<Redirect>,
    pub(crate) allow: Allow,
    pub(crate) allow_from: Vec<Prefix>,
    pub(crate) chap: Option<Arc<Chap>>,
    pub(crate) units: BTreeMap<u32, Unit>,
    /// Names this target in answers for LUNs that do not exist.
    pub(crate) bare: Identity,
}

/// What all lanes and targets share of a volume: its logical unit's state, and whose turn it is to
/// exclude the others.
#[derive(Default)]
pub(crate) struct Home {
    pub(crate) turns: Arc<Turns>,
    pub(crate) unit: Arc<SharedUnit>,
    /// Who changes what the unit must remember over a restart, from the look at what is until the
    /// change is kept and made: no older state is written over a newer one.
    changing: Arc<Turns>,
}

/// By the volumes' names.
pub(crate) type Homes = Arc<BTreeMap<String, Arc<Home>>>;

/// A logical unit and its volume.
pub(crate) struct Unit {
    pub(crate) disk: RefCell<LogicalUnit>,
    pub(crate) volume_name: String,
    pub(crate) gate: Rc<Gate>,
    pub(crate) home: Arc<Home>,
    pub(crate) volume: SharedVolume,
}

impl Unit {
    /// All of its blocks, those included that it may get while somebody holds them.
    pub(crate) fn whole(&self) -> Extent {
        Extent {
            lba: 0,
            blocks: u64::MAX,
            block_size_bytes: self.volume.shape().block_size_bytes,
        }
    }

    /// Gives the logical unit, on all lanes and ports, the volume's length, and has its initiators
    /// told if that is another one. A sanitize goes on to the end that it began with: it comes first.
    async fn tell_length(&self) {
        let _turn = self.home.turns.take(self.whole()).await;
        let shape = self.volume.shape();
        let block = u64::from(shape.block_size_bytes);
        let blocks = shape.len_bytes() / block;
        let volume = &self.volume_name;
        match self.disk.borrow_mut().resize(blocks) {
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
            Err(error) => tracing::error!(volume, %error, "a disk has not grown"),
        }
    }
}

impl Front {
    /// Opens this lane's views of all volumes; `own` is its place among the `lanes`.
    pub(crate) async fn open(
        config: &ServerConfig,
        homes: Homes,
        sessions: Arc<Sessions>,
        common: Arc<CommonMemory>,
        own: usize,
        lanes: Vec<Sender<Request>>,
    ) -> Result<Rc<Front>, String> {
        let mut targets = Vec::new();
        let mut gates = BTreeMap::new();
        for (index, spec) in config.targets.iter().enumerate() {
            for group in &spec.portal_groups {
                let port = TargetPort {
                    target_name: spec.name.clone(),
                    portal_group_tag: group.tag,
                    relative_port: group.relative_port,
                    port_group: 1,
                };
                let (limits, gates) = (&config.limits, &mut gates);
                let target = Target::open(index, spec, group, port, limits, &homes, gates);
                targets.push(Rc::new(target.await?));
            }
        }
        let plan = config.limits.plan(lanes.len());
        let memory = LaneMemory::new(&plan, common);
        let limits = config.limits.clone();
        let mut others = lanes.clone();
        others.remove(own);
        let (connections, stopping, changed) = Default::default();
        Ok(Rc::new(Front {
            targets,
            limits,
            sessions,
            gates,
            own: lanes[own].clone(),
            others,
            lanes,
            connections,
            memory,
            steps: Steps::of_lane(plan.in_steps),
            keep: config.keep.clone(),
            discovery: config.discovery.clone(),
            digests: config.digests,
            stopping,
            changed,
        }))
    }

    /// Serves requests until the server goes away.
    pub(crate) async fn run(self: Rc<Self>, requests: Receiver<Request>) {
        while let Some(request) = requests.receive().await {
            match request {
                Request::Serve(newcomer) => {
                    // Known from here on: the next request may be for it.
                    let connection = Connection::begin(self.clone(), newcomer);
                    let share = Share::of(connection.id);
                    spawn_for(share, connection::serve(connection));
                }
                Request::MakeRoom { connection } => {
                    let found = self.connections.borrow().get(&connection).cloned();
                    if let Some(connection) = found {
                        connection.dismiss(LoginStatus::OUT_OF_RESOURCES);
                    }
                }
                Request::EndSession { connection, done } => {
                    let found = self.connections.borrow().get(&connection).cloned();
                    let Some(connection) = found else {
                        done.send(());
                        continue;
                    };
                    spawn(async move {
                        connection.end("the initiator has logged in again");
                        connection.gone().await;
                        done.send(());
                    });
                }
                Request::Abort { abort, done } => {
                    let front = self.clone();
                    spawn(async move {
                        front.abort(&abort).await;
                        done.send(());
                    });
                }
                Request::EndTarget { target } => {
                    let connections: Vec<_> = self.connections.borrow().values().cloned().collect();
                    for connection in connections {
                        if connection.target().is_some_and(|t| t.index == target) {
                            // The answer to who asked for it may still be on its way.
                            connection.close_when_sent();
                        }
                    }
                }
                Request::Hold {
                    volume,
                    turn,
                    extent,
                    done,
                } => {
                    let Some(gate) = self.gates.get(&volume).cloned() else {
                        done.send(());
                        continue;
                    };
                    gate.hold(turn, extent);
                    spawn(async move {
                        gate.empty(turn).await;
                        done.send(());
                    });
                }
                Request::Release { volume, turn } => {
                    if let Some(gate) = self.gates.get(&volume) {
                        gate.release(turn);
                    }
                }
                Request::TellLengths => {
                    for target in &self.targets {
                        // Each in its own time: a sanitize takes hours.
                        for lun in target.units.keys() {
                            let (target, lun) = (target.clone(), *lun);
                            spawn(async move { target.units[&lun].tell_length().await });
                        }
                    }
                }
                Request::Stop { done } => {
                    let front = self.clone();
                    spawn(async move {
                        done.send(front.stop().await);
                    });
                }
            }
        }
    }

    /// Gives the first of the volumes whose last flush failed.
    async fn stop(&self) -> Result<(), StopError> {
        self.stopping.set(true);
        let connections: Vec<_> = self.connections.borrow().values().cloned().collect();
        for connection in connections {
            watchdog::finish(connection);
        }
        self.changed
            .wait_for(|| self.connections.borrow().is_empty().then_some(()))
            .await;
        let mut result = Ok(());
        for unit in self.targets.iter().flat_map(|target| target.units.values()) {
            if let Err(error) = unit.volume.flush().await {
                let volume = unit.volume_name.clone();
                tracing::error!(volume, %error, "the last flush of a volume failed");
                let cause = error.to_string();
                result = result.and(Err(StopError { volume, cause }));
            }
        }
        result
    }
}

impl Front {
    /// Keeps what a unit must remember over a restart; false if that failed.
    pub(crate) async fn keep(&self, unit: &Unit) -> bool {
        let _turn = unit.home.changing.take(unit.whole()).await;
        self.keep_text(unit, unit.home.unit.save()).await
    }

    /// Makes a change of a unit's state, after it has been kept; unless the command that wants it is
    /// not `wanted` any more when its turn comes, which gives `None`.
    ///
    /// # Errors
    /// How the command ends; then nothing has changed.
    pub(crate) async fn change(
        &self,
        unit: &Unit,
        change: &Change,
        wanted: impl FnOnce() -> bool,
    ) -> Option<Result<Changed, Ending>> {
        let _turn = unit.home.changing.take(unit.whole()).await;
        if !wanted() {
            return None;
        }
        let prepared = change.prepare(&unit.disk.borrow());
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(ending) => return Some(Err(ending)),
        };
        let to_keep = prepared.to_keep();
        let keeps = to_keep.is_some();
        if let Some(text) = to_keep {
            if !self.keep_text(unit, text).await {
                return Some(Err(Prepared::not_kept()));
            }
        }
        let made = prepared.commit(&unit.disk.borrow());
        if made.is_err() && keeps {
            self.keep_text(unit, unit.home.unit.save()).await;
        }
        Some(made)
    }

    async fn keep_text(&self, unit: &Unit, text: Option<String>) -> bool {
        let Some(keep) = &self.keep else {
            return true;
        };
        let kept = keep(&unit.volume_name, text).await;
        if let Err(error) = &kept {
            tracing::error!(
                volume = unit.volume_name,
                error,
                "a unit's state was not kept"
            );
        }
        kept.is_ok()
    }

    /// Runs `operation` while nobody else is at work in `extent` of a unit's volume, on any lane.
    pub(crate) async fn exclusively<T>(
        &self,
        unit: &Unit,
        extent: Extent,
        operation: impl Future<Output = T>,
    ) -> T {
        let turn = unit.home.turns.take(extent).await;
        self.in_turn(turn, unit, operation).await
    }

    /// The same, of who has its turn.
    pub(crate) async fn in_turn<T>(
        &self,
        turn: Turn,
        unit: &Unit,
        operation: impl Future<Output = T>,
    ) -> T {
        let (serial, extent) = (turn.serial(), turn.extent());
        let mut answers = SmallVec::<[_; 4]>::new();
        for lane in &self.others {
            let (done, answer) = oneshot();
            let request = Request::Hold {
                volume: unit.volume_name.clone(),
                turn: serial,
                extent,
                done,
            };
            if lane.send(request).is_ok() {
                answers.push(answer);
            }
        }
        unit.gate.hold(serial, extent);
        unit.gate.empty(serial).await;
        for answer in answers {
            answer.await;
        }
        let result = operation.await;
        unit.gate.release(serial);
        for lane in &self.others {
            let request = Request::Release {
                volume: unit.volume_name.clone(),
                turn: serial,
            };
            // A lane that has ended holds nothing.
            let _ = lane.send(request);
        }
        // The next in turn sends its own requests behind these.
        drop(turn);
        result
    }
}

impl Target {
    /// Whether this initiator may log in from there.
    pub(crate) fn admits(&self, initiator_name: &str, peer: IpAddr) -> bool {
        self.refusal_of(initiator_name, peer).is_none()
    }

    /// Why this initiator may not log in from there: what its name or its address is not in.
    pub(crate) fn refusal_of(&self, initiator_name: &str, peer: IpAddr) -> Option<&'static str> {
        let from = &self.allow_from;
        let may_come = from.is_empty() || from.iter().any(|prefix| prefix.contains(peer));
        match (self.allow.allows(initiator_name), may_come) {
            (true, true) => None,
            (false, true) => Some("its name is not in `allow`"),
            (true, false) => Some("its address is not in `allow_from`"),
            (false, false) => Some("its name is not in `allow`, nor its address in `allow_from`"),
        }
    }

    async fn open(
        index: usize,
        spec: &TargetSpec,
        portals: &PortalGroup,
        port: TargetPort,
        limits: &Limits,
        homes: &Homes,
        gates: &mut BTreeMap<String, Rc<Gate>>,
    ) -> Result<Target, String> {
        let mut units = BTreeMap::new();
        for (&number, lun) in &spec.luns {
            let volume = (lun.open)()
                .await
                .map_err(|error| format!("volume {}: {error}", lun.volume))?;
            let home = &homes[&lun.volume];
            let mut shape = shape_of(volume.shape(), limits);
            shape.removable = lun.removable;
            shape.read_only |= lun.read_only;
            if let Some(atomic) = volume.atomic_writes() {
                let block = shape.block_size_bytes;
                let max = atomic.max_bytes.map_or(u32::MAX, |bytes| bytes / block);
                shape.atomic_blocks_max = max.min(shape.transfer_blocks_max);
                shape.atomic_blocks_unit = atomic.unit_bytes / block;
            }
            let identity = identity(lun.uuid, port.clone());
            let disk = LogicalUnit::sharing(identity, shape, home.unit.clone())
                .map_err(|error| format!("volume {}: {error}", lun.volume))?;
            units.insert(
                number,
                Unit {
                    disk: RefCell::new(disk),
                    volume_name: lun.volume.clone(),
                    gate: gates.entry(lun.volume.clone()).or_default().clone(),
                    home: home.clone(),
                    volume,
                },
            );
        }
        Ok(Target {
            index,
            name: spec.name.clone(),
            portals: portals.clone(),
            redirect: spec.redirect,
            allow: spec.allow.clone(),
            allow_from: spec.allow_from.clone(),
            chap: spec.chap.clone(),
            units,
            bare: identity([0; 16], port),
        })
    }
}

/// The names of a logical unit; serial number and NAA derive from the volume's UUID.
fn identity(uuid: [u8; 16], port: TargetPort) -> Identity {
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

/// What SCSI says about a volume.
fn shape_of(volume: &volume::Shape, limits: &Limits) -> scsi::Shape {
    let block = volume.block_size_bytes;
    let mut shape = scsi::Shape::new(block, volume.len_bytes() / u64::from(block));
    shape.physical_block_bytes = volume.physical_block_bytes;
    shape.write_cache = volume.volatile_cache;
    shape.read_only = volume.read_only;
    shape.transfer_blocks_max = limits.transfer_max_bytes / block;
    // Only a volume that spreads its blocks has a length that suits it better than a longer one.
    let optimal = volume.optimal_io_bytes;
    if (volume.physical_block_bytes + 1..=limits.transfer_max_bytes).contains(&optimal) {
        shape.transfer_blocks_optimal = optimal / block;
    }
    shape.transfer_blocks_granularity =
        u16::try_from(volume.physical_block_bytes / block).unwrap_or(0);
    shape.discard = volume.discard.map(|discard| scsi::Discard {
        granularity_blocks: (discard.granularity_bytes / block).max(1),
        alignment_blocks: 0,
        zeroes_after_discard: discard.reads_zeroes,
        // More is slow to undo by an abort, and libiscsi takes it for a mistake.
        unmap_blocks_max: ((1 << 30) / block).min(1 << 20),
        unmap_ranges_max: 256,
    });
    shape
}
