//! Opens one volume of a configuration for a front on this machine: with its identity, its claims and its
//! stored state, as the daemon opens the disks it serves, but without targets. The caller decides which
//! front shows it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use engine::{Instant, LaneFuture, LaneHandle};
use unit::Units;
use volume::{
    config::{ConfigError, Node, NodeForm},
    graph::{Graph, Live},
};

use crate::{
    DaemonFailure,
    changed::{ConfigChange, Refused, Warning},
    config::Config,
    daemon::{
        apply::{lengthen, may_lengthen},
        close,
        deadline::Deadline,
        units_config,
    },
    description::Attached,
    difference::Difference,
    ending::{Ending, StopError},
    open::{self, ReadyDisk},
    process::Process,
    shared_state::SharedState,
    state::StateDirectory,
    state_lock::{self, attached_directory},
    unit_files::UnitFiles,
    view::{Onlooker, Seen},
};

/// The name under which the target port number of a local front is stored.
const PORT: &str = "attach";

/// An open volume, until [`Attachment::stop`].
pub struct Attachment {
    volume: String,
    config: Config,
    state_directory: PathBuf,
    /// Below it, of the volume.
    own_directory: PathBuf,
    /// How many there are.
    lanes: usize,
    graph: Graph,
    disks: Vec<ReadyDisk>,
    units: Units,
    relative_port: u16,
    state: SharedState,
    /// Holds the lock of the state directory until everything has been released.
    unit_files: Arc<UnitFiles>,
}

impl Attachment {
    /// Opens the volume called `volume` on `lanes`, one of which must be the current one.
    ///
    /// # Errors
    /// Whatever keeps it from being opened; nothing stays claimed then.
    pub async fn open(
        config: Config,
        volume: &str,
        process: &Process,
        lanes: &[LaneHandle],
    ) -> Result<Attachment, DaemonFailure> {
        let mut graph = config.graph()?;
        let mut disks = Vec::new();
        match open(&config, volume, process, &mut graph, &mut disks, lanes).await {
            Ok(AttachedParts {
                units,
                relative_port,
                state,
                unit_files,
            }) => Ok(Attachment {
                volume: volume.to_owned(),
                own_directory: attached_directory(&config.state_directory(), volume),
                state_directory: config.state_directory(),
                config,
                lanes: lanes.len(),
                graph,
                disks,
                units,
                relative_port,
                state,
                unit_files,
            }),
            Err(failure) => {
                // Before the disks are dropped, as in `stop`.
                close(&mut graph).await;
                drop(disks);
                Err(failure)
            }
        }
    }

    /// The volume's name, which is also the name of the only disk in the units.
    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// The units for a front to serve.
    pub fn units(&self) -> &Units {
        &self.units
    }

    /// The relative port identifier for that front.
    pub fn relative_port(&self) -> u16 {
        self.relative_port
    }

    /// The directory of the volume in the state directory, which this process holds the lock of.
    pub fn own_directory(&self) -> &Path {
        &self.own_directory
    }

    /// From now on `teller` is called, from any thread, when the volume may have changed by itself, after the units.
    pub fn tell_changes(&mut self, teller: impl Fn() + Send + Sync + 'static) {
        let units = self.units.clone();
        let both = move || {
            units.tell_changes();
            teller();
        };
        self.graph.tell_changes(Some(Arc::new(both)));
    }

    /// Its length, in bytes.
    pub fn len_bytes(&self) -> u64 {
        let lens = self.disks.iter().map(|disk| disk.tree.shape().len_bytes());
        lens.sum()
    }

    /// A handle for observing the volume, whose front has it `attached`, as it is now.
    pub fn onlooker(&self, attached: Attached) -> Onlooker {
        let tree = self.graph.view(&self.volume);
        let seen = Seen {
            configuration: self.config.path().to_owned(),
            state: self.state_directory.clone(),
            lanes: self.lanes,
            trees: tree
                .map(|tree| (self.volume.clone(), tree))
                .into_iter()
                .collect(),
            disks: open::identities(&self.disks).collect(),
            attached: Some(attached),
            units: self.units.clone(),
        };
        Onlooker {
            seen,
            fronts: Vec::new(),
        }
    }

    /// Where the time has gone since the start, as tables for people.
    pub fn report(&self) -> String {
        format!("{}{}", self.units.stage_times(), self.graph.report())
    }

    /// Switches to `config`, which must have been [loaded for that](Config::load_to_attach_anew), as far as it concerns the
    /// volume, and returns the changes. Whoever has the volume notices nothing but that it is longer. A dry run changes
    /// nothing. Once `give_up` is ready, because the volume is to be released, this ends within seconds.
    ///
    /// Do not drop the future before its end: half a change would stay.
    ///
    /// # Errors
    /// Changes that are not possible while it is attached, or that failed; nothing has changed then.
    pub async fn apply(
        &mut self,
        config: Config,
        is_dry_run: bool,
        give_up: impl Future<Output = ()>,
    ) -> Result<Vec<ConfigChange>, DaemonFailure> {
        let mut deadline = Deadline::new(LaneFuture::new(give_up));
        let comparing = Difference::of_volume(&self.config, &config, &self.volume);
        let difference = deadline.unless_given_up(comparing).await??;
        let Difference {
            mut made,
            mut refused,
            live: changes,
            ..
        } = difference;
        let barred = self.graph.in_the_way_of(&changes).into_iter();
        refused.extend(barred.map(Refused::VolumeLive));
        if !refused.is_empty() {
            let path = config.path().to_owned();
            return Err(DaemonFailure::Refused { path, refused });
        }
        if is_dry_run {
            made.extend(may_lengthen(&self.graph));
            return Ok(made);
        }
        // First: a new child may be a volume with a name.
        let before = self.graph.replace_volumes(config.volumes().clone());
        let before = before.map_err(|error| config.wrong(&error))?;
        // What it creates is removed again if it fails.
        self.graph.begin_trial();
        let mut live = Live::default();
        let preparing = self.graph.prepare(&changes, &mut live);
        let prepared = deadline.unless_given_up(preparing).await;
        let prepared = prepared.and_then(|it| it.map_err(|error| config.failed(&error)));
        if let Err(failure) = prepared {
            if deadline.wait(self.graph.undo(live)).await.is_none() {
                tracing::warn!("what a failed change has prepared is still being undone");
            }
            deadline.wait(self.graph.remove_made()).await;
            let back = self.graph.replace_volumes(before);
            back.expect("they were the volumes before");
            return Err(failure);
        }
        self.graph.keep_made();
        live.take_effect().await;
        self.graph.forget_replaced(&live);
        deadline.wait(self.state.note_growth()).await;
        self.units.tell_changes();
        self.config = config;
        let warnings = deadline.wait(live.finish()).await.into_iter().flatten();
        made.extend(warnings.map(|warning| ConfigChange::Warning(Warning::VolumeLive(warning))));
        let longer = lengthen(&self.graph, &self.state);
        made.extend(deadline.wait(longer).await.into_iter().flatten());
        if deadline.is_given_up {
            made.push(ConfigChange::Warning(Warning::Stopping));
        }
        Ok(made)
    }

    /// When [`look_for_missing`](Self::look_for_missing) has something to do, at the earliest; `None`: nothing is missing.
    pub fn looks_for_missing_at(&self) -> Option<Instant> {
        self.graph.looks_for_missing_at()
    }

    /// Looks for what volumes go on without because it did not open with them, such as a copy of a mirror; it takes its place
    /// if it opens now. May be dropped only when the volumes are no longer used.
    pub async fn look_for_missing(&mut self) {
        if self.graph.look_for_missing().await {
            self.units.tell_changes();
        }
    }

    /// Says in the log whether the configuration file has changed, and lets the volume grow with its files. Returns whether
    /// any file has another length, even one that could not be followed.
    pub async fn look_again(&self) -> bool {
        if let Ok(Some(_)) = self.config.changed().await {
            let path = self.config.path().display();
            tracing::warn!(
                %path,
                "the configuration file has changed; `sanstone apply -c` with this path puts into effect what concerns \
                 the volume"
            );
        }
        let found = self.graph.look_at_lengths().await;
        for file in &found {
            match file {
                Ok(grown) => {
                    let (from, to) = (grown.from_bytes, grown.len.bytes());
                    tracing::info!(path = %grown.path.display(), from, to, "a file has grown");
                }
                Err(error) => tracing::error!("{error}"),
            }
        }
        if found.iter().any(Result::is_ok) {
            self.state.note_growth().await;
        }
        self.units.tell_changes();
        // These announce by themselves what has changed; a remote disk may be slow to answer.
        let devices = self.graph.look_at_devices().await;
        devices.iter().for_each(|change| tracing::info!("{change}"));
        !found.is_empty() || !devices.is_empty()
    }

    /// Flushes the volume and releases its claims, after its front has ended.
    ///
    /// # Errors
    /// The last flush failed; everything else has been done.
    pub async fn stop(self) -> Result<(), StopError> {
        let Attachment {
            mut graph,
            disks,
            units,
            unit_files,
            ..
        } = self;
        for message in graph.look_at_paths().await {
            tracing::error!("{message}");
        }
        units.stop();
        let mut ending = Ending::of(&units);
        let flushed = ending.flush(units.flush()).await;
        // Before the disks are dropped: a volume that nobody holds any more would not be closed.
        ending.close(close(&mut graph)).await;
        let ended = ending.over(flushed);
        drop((units, disks, unit_files));
        ended
    }
}

/// What an opening creates besides the graph.
struct AttachedParts {
    units: Units,
    relative_port: u16,
    state: SharedState,
    unit_files: Arc<UnitFiles>,
}

async fn open(
    config: &Config,
    volume: &str,
    process: &Process,
    graph: &mut Graph,
    disks: &mut Vec<ReadyDisk>,
    lanes: &[LaneHandle],
) -> Result<AttachedParts, DaemonFailure> {
    let served = [volume.to_owned()];
    let directory = config.state_directory();
    let site = config.site(&directory, &served);
    let named = Node {
        span: 0..0,
        what: NodeForm::Named(volume.to_owned()),
    };
    if let Err(error) = site.volumes.find(volume, &named) {
        let path = config.path().display();
        return Err(DaemonFailure::Wrong(format!("{path}: {}", error.message())));
    }
    let refused = |refusal| config.refused(refusal);
    open::look(&site, false).map_err(refused)?;
    let parts: Vec<String> = site
        .volumes
        .parts(volume)
        .into_iter()
        .map(str::to_owned)
        .collect();
    let state = StateDirectory::open_for(&directory, true, &parts);
    let mut state = state.map_err(|error| refused(error.into()))?;
    graph.show_claims(&state_lock::claims(&directory)?);
    let opened = open::open(&site, process, &mut state, graph, lanes).await;
    *disks = opened.map_err(refused)?;
    let relative_port = state.relative_ports([PORT])?[0];
    let unit_files = state.unit_files.clone();
    // If the volume lives on one lane, put its front there too: a request to another lane would wake both.
    let own: Vec<LaneHandle> = disks
        .iter()
        .filter_map(|disk| disk.tree.only_lane())
        .cloned()
        .collect();
    let lanes = if own.is_empty() { lanes } else { &own };
    let units = Units::open(units_config(config, &unit_files, disks)?, lanes).await;
    let units = units.map_err(|error| config.failed(&ConfigError::new(None, error.to_string())))?;
    let told_units = units.clone();
    graph.tell_changes(Some(Arc::new(move || told_units.tell_changes())));
    Ok(AttachedParts {
        units,
        relative_port,
        state: SharedState::new(state),
        unit_files,
    })
}
