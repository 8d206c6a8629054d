//! A whole daemon, from its configuration to its end: it opens the disks, serves the targets, and at the
//! end finishes accepted work, flushes, and releases its claims. It uses lanes and the engine's file
//! system but knows nothing of the process: signals, descriptors and the terminal are up to the caller.

pub(crate) mod apply;
pub(crate) mod deadline;
mod noticed;
mod steps;

use std::{path::PathBuf, sync::Arc};

use engine::{Instant, LaneFuture, LaneHandle};
use unit::{DiskSpec, Keep, OpenVolume, Units, UnitsConfig};
use volume::{
    config::ConfigError,
    graph::{Graph, Tree},
};

use crate::{
    DaemonFailure, StateError,
    config::Config,
    difference::Served,
    ending::{Ending, StopError},
    fronts::{self, Fronts},
    open::{self, ReadyDisk},
    power_on::PowerOnReports,
    process::Process,
    shared_state::{SharedState, aside},
    unit_files::UnitFiles,
    view::{Onlooker, Seen, View},
};

/// A serving daemon, until [`Daemon::stop`]. The tasks on its lanes end with the lanes.
pub struct Daemon {
    served: Served,
    lanes: Vec<LaneHandle>,
    graph: Graph,
    disks: Vec<ReadyDisk>,
    units: Units,
    fronts: Fronts,
    state: SharedState,
    /// Holds the lock of the state directory until everything has been released.
    unit_files: Arc<UnitFiles>,
    told: Arc<PowerOnReports>,
}

impl Daemon {
    /// Opens what `config` serves on `lanes`, one of which must be the current one, and starts
    /// serving. `with_parents` also creates missing parents of the state directory.
    ///
    /// # Errors
    /// Whatever keeps it from serving; nothing stays claimed then.
    pub async fn start(
        config: Config,
        process: &Process,
        lanes: &[LaneHandle],
        with_parents: bool,
    ) -> Result<Daemon, DaemonFailure> {
        let served = Served::new(config)?;
        let mut graph = served.config.graph()?;
        let mut disks = Vec::new();
        match serve(
            &served,
            process,
            &mut graph,
            &mut disks,
            lanes,
            with_parents,
        )
        .await
        {
            Ok(Serving {
                units,
                fronts,
                state,
                unit_files,
                told,
            }) => Ok(Daemon {
                served,
                lanes: lanes.to_vec(),
                graph,
                disks,
                units,
                fronts,
                state,
                unit_files,
                told,
            }),
            Err(failure) => {
                // Before the disks are dropped, as in `stop`.
                close(&mut graph).await;
                drop(disks);
                Err(failure)
            }
        }
    }

    /// The addresses it listens on, including ports chosen by the system.
    pub fn places(&self) -> Vec<String> {
        self.fronts.places().collect()
    }

    /// The directory of its persistent state, which no other daemon may use.
    pub fn state_directory(&self) -> PathBuf {
        self.config().state_directory()
    }

    fn config(&self) -> &Config {
        &self.served.config
    }

    /// The disks that it serves.
    pub fn disks(&self) -> &[ReadyDisk] {
        &self.disks
    }

    /// Where the time of commands has gone since the start, as tables for people.
    pub fn report(&self) -> String {
        format!("{}{}", self.units.stage_times(), self.graph.report())
    }

    /// A snapshot of what it is doing now.
    pub async fn view(&self) -> View {
        self.onlooker().view().await
    }

    /// A handle for observing it as it is served now, even while another configuration is being applied.
    pub fn onlooker(&self) -> Onlooker {
        let names = self.config().volume_names();
        let trees = names.filter_map(|name| Some((name.clone(), self.graph.view(name)?)));
        let seen = Seen {
            configuration: self.config().path().to_owned(),
            state: self.state_directory(),
            lanes: self.lanes.len(),
            trees: trees.collect(),
            disks: open::identities(&self.disks).collect(),
            attached: None,
            units: self.units.clone(),
        };
        Onlooker {
            seen,
            fronts: self.fronts.reporters(),
        }
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

    /// Checks for changes from outside: of the configuration (logged), of the lengths and the write protection of files and
    /// remote disks (the disks follow), and of the files' paths (logged). Returns whether a file or disk has changed, even
    /// in a way that could not be followed.
    pub async fn look_again(&self) -> bool {
        self.config().tell_changed().await;
        let has_found = self.follow_lengths().await;
        self.tell_lost_paths().await;
        self.units.tell_changes();
        // These announce by themselves what has changed; a remote disk may be slow to answer.
        let devices = self.graph.look_at_devices().await;
        devices.iter().for_each(|change| tracing::info!("{change}"));
        has_found || !devices.is_empty()
    }

    /// Stops accepting connections and commands, answers what was accepted, flushes the volumes and
    /// releases their claims.
    ///
    /// # Errors
    /// The first volume whose last flush failed, everything else has been done then; or the volumes that hang.
    pub async fn stop(self) -> Result<(), StopError> {
        self.tell_lost_paths().await;
        let Daemon {
            mut graph,
            disks,
            units,
            fronts,
            unit_files,
            ..
        } = self;
        let mut ending = Ending::of(&units);
        ending.clients(fronts.stop()).await;
        units.stop();
        let flushed = ending.flush(units.flush()).await;
        // Before the disks are dropped: a volume that nobody holds any more would not be closed.
        ending.close(close(&mut graph)).await;
        let ended = ending.over(flushed);
        drop((units, disks, unit_files));
        ended
    }

    /// Lets the volumes grow with their files, and logs and records any changes. Returns whether there are any, even one
    /// that could not be followed.
    async fn follow_lengths(&self) -> bool {
        let found = self.graph.look_at_lengths().await;
        let has_found = !found.is_empty();
        let has_grown = found.iter().any(Result::is_ok);
        for file in found {
            let grown = match file {
                Ok(grown) => grown,
                Err(error) => {
                    tracing::error!("{error}");
                    continue;
                }
            };
            let path = grown.path.display();
            let (from, to) = (grown.from_bytes, grown.len.bytes());
            tracing::info!(%path, from, to, "a file has grown");
            let follows = |disk: &ReadyDisk| disk.tree.shape().len.is_shared_with(&grown.len);
            if !self.disks.iter().any(follows) {
                let why = "a stripe or concat takes its new length with `sanstone apply`, a mirror with `sanstone volume grow`, while \
                           nobody uses it";
                tracing::warn!(%path, "no served volume has grown with this file: {why}");
            }
        }
        if has_grown {
            self.state.note_growth().await;
        }
        has_found
    }

    /// Logs which files are being served although their path no longer leads to them.
    async fn tell_lost_paths(&self) {
        for message in self.graph.look_at_paths().await {
            tracing::error!("{message}");
        }
    }
}

/// What a start creates besides the graph.
struct Serving {
    units: Units,
    fronts: Fronts,
    state: SharedState,
    unit_files: Arc<UnitFiles>,
    told: Arc<PowerOnReports>,
}

async fn serve(
    served: &Served,
    process: &Process,
    graph: &mut Graph,
    disks: &mut Vec<ReadyDisk>,
    lanes: &[LaneHandle],
    with_parents: bool,
) -> Result<Serving, DaemonFailure> {
    let config = &served.config;
    let volumes: Vec<String> = served.volumes().into_iter().collect();
    let directory = config.state_directory();
    let site = config.site(&directory, &volumes);
    let refused = |refusal| config.refused(refusal);
    let mut state = open::prepare(&site, with_parents).map_err(refused)?;
    let opened = open::open(&site, process, &mut state, graph, lanes).await;
    *disks = opened.map_err(refused)?;
    let (unit_files, records) = (state.unit_files.clone(), state.records().clone());
    let state = SharedState::new(state);
    let configured = fronts::configured(served, &state).await?;
    let told = PowerOnReports::new(&directory, process.boot);
    let mut units = units_config(config, &unit_files, disks)?;
    units.note = Some(told.note());
    for (spec, disk) in units.disks.iter_mut().zip(disks.iter()) {
        if let Some(record) = records.disks.get(&disk.uuid) {
            spec.told = told.resume(disk, record).await;
        }
    }
    let units = Units::open(units, lanes).await;
    let units = units.map_err(|error| config.failed(&ConfigError::new(None, error.to_string())))?;
    let told_units = units.clone();
    graph.tell_changes(Some(Arc::new(move || told_units.tell_changes())));
    let fronts = Fronts::start(configured, &units).await;
    let fronts = fronts.map_err(|error| config.not_started(&error))?;
    Ok(Serving {
        units,
        fronts,
        state,
        unit_files,
        told,
    })
}

/// Releases the claims of the volumes. A claim that cannot be released still names us as the
/// previous owner.
pub(crate) async fn close(graph: &mut Graph) {
    graph.tell_changes(None);
    for failed in graph.close().await {
        tracing::warn!("{failed}");
    }
}

/// The served disks with their stored state.
pub(crate) fn units_config(
    config: &Config,
    unit_files: &Arc<UnitFiles>,
    disks: &[ReadyDisk],
) -> Result<UnitsConfig, DaemonFailure> {
    let specs = disks.iter().map(|disk| disk_spec(disk, unit_files));
    Ok(UnitsConfig {
        disks: specs.collect::<Result<_, _>>()?,
        keep: Some(keep(unit_files.clone())),
        note: None,
        limits: config.unit_limits().map_err(|error| config.wrong(&error))?,
    })
}

/// A disk with its stored state.
fn disk_spec(disk: &ReadyDisk, unit_files: &UnitFiles) -> Result<DiskSpec, StateError> {
    let name = disk.tree.name().to_owned();
    Ok(DiskSpec {
        kept: unit_files.state_of(&disk.uuid, &name)?,
        name,
        uuid: *disk.uuid.as_bytes(),
        open: open_on_lane(&disk.tree),
        told: Vec::new(),
    })
}

fn open_on_lane(tree: &Tree) -> OpenVolume {
    let tree = tree.clone();
    Arc::new(move || {
        let tree = tree.clone();
        LaneFuture::new(async move { tree.on_lane().await })
    })
}

/// Stores the state of logical units in the state directory, off the lanes because of its fsyncs.
fn keep(units: Arc<UnitFiles>) -> Keep {
    Arc::new(move |volume, text| {
        let (units, volume) = (units.clone(), volume.to_owned());
        LaneFuture::new(async move {
            let kept = aside(move || units.keep(&volume, text.as_deref())).await;
            let kept = kept.and_then(|kept| kept);
            kept.map_err(|error| error.to_string())
        })
    })
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process, sync::mpsc};

    use engine::{Lane, LaneConfig, spawn, time};
    use uuid::Uuid;

    use super::*;
    use crate::StateDirectory;

    #[test]
    fn reservations_are_stored_while_other_work_on_the_state_directory_takes_its_time() {
        const LIMIT: time::Duration = time::Duration::from_secs(120);
        let directory = env::temp_dir().join(format!("sanstone-daemon-{}", process::id()));
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let state = StateDirectory::open(&directory, false).expect("a state directory");
            let unit_files = state.unit_files.clone();
            let served = ("db".to_owned(), Uuid::from_u128(1));
            unit_files.served().extend([served]);
            let state = SharedState::new(state);
            let (begun, has_begun) = mpsc::channel();
            let (end, may_end) = mpsc::channel::<()>();
            let working = spawn({
                let state = state.clone();
                async move {
                    let work = move |_: &mut StateDirectory| {
                        begun.send(()).expect("the test waits");
                        may_end.recv()
                    };
                    state.run(work).await
                }
            });
            while has_begun.try_recv().is_err() {
                time::sleep(time::Duration::from_millis(1)).await;
            }
            let keeping = keep(unit_files)("db", Some("registration 1\n".to_owned()));
            let kept = time::timeout(LIMIT, keeping).await;
            kept.expect("it does not wait").expect("room");
            end.send(()).expect("it waits");
            working.await.expect("a thread").expect("it may end");
            let kept = state.run(|state| state.kept("db")).await.expect("a thread");
            let kept = kept.expect("readable");
            assert_eq!(kept.as_deref(), Some("registration 1\n"));
        });
        fs::remove_dir_all(&directory).expect("it is there");
    }
}
