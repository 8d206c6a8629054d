//! One volume of a configuration, opened for a front on this machine: under its identity, with its claims
//! and what is kept of it, as a daemon opens the disks that it serves, and without targets. Which front
//! shows it is for whoever asks.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use engine::LaneHandle;
use unit::{FlushError, Units};
use volume::{
    claim::{boot_id, name_of},
    config::{ConfigError, Node, What},
    graph::Graph,
};

use crate::{
    Failure,
    config::Config,
    daemon::{Process, close, lock, units_config},
    open::{self, Disk},
    state::State,
};

/// The target port that a local front is, by the name that its number is kept under.
const PORT: &str = "attach";

impl Process {
    /// The process that runs this, as the system describes it, with `volume` of the configuration at
    /// `path` attached.
    pub fn attaching(path: &Path, volume: &str) -> Process {
        Process {
            boot: boot_id(),
            name: name_of(format_args!(
                "sanstone attach -c {} {volume}",
                path.display()
            )),
        }
    }
}

/// A volume that is open, until [`Attachment::stop`].
pub struct Attachment {
    volume: String,
    graph: Graph,
    disks: Vec<Disk>,
    units: Units,
    relative_port: u16,
    /// Locked until all is given up.
    state: Arc<Mutex<State>>,
}

impl Attachment {
    /// Opens the volume called `volume` on `lanes`, of which one is the current one.
    ///
    /// # Errors
    /// What keeps it from being opened; nothing stays claimed then.
    pub async fn open(
        config: &Config,
        volume: &str,
        process: &Process,
        lanes: &[LaneHandle],
    ) -> Result<Attachment, Failure> {
        let mut graph = config.graph()?;
        let mut disks = Vec::new();
        match open(config, volume, process, &mut graph, &mut disks, lanes).await {
            Ok((units, relative_port, state)) => Ok(Attachment {
                volume: volume.to_owned(),
                graph,
                disks,
                units,
                relative_port,
                state,
            }),
            Err(failure) => {
                // Before its disks are let go, as at the end.
                close(&mut graph).await;
                drop(disks);
                Err(failure)
            }
        }
    }

    /// The volume's name, which is that of the only disk of the units.
    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// What a front serves.
    pub fn units(&self) -> &Units {
        &self.units
    }

    /// The relative port identifier of that front.
    pub fn relative_port(&self) -> u16 {
        self.relative_port
    }

    /// Where the time has gone since the start, in tables for people.
    pub fn report(&self) -> String {
        format!("{}{}", self.units.stage_times(), self.graph.report())
    }

    /// Lets the volume follow files that became longer. Whether one did.
    pub fn look_again(&self) -> bool {
        let found = self.graph.look_at_lengths();
        for file in &found {
            match file {
                Ok(grown) => {
                    let (from, to) = (grown.from_bytes, grown.len.bytes());
                    tracing::info!(path = %grown.path.display(), from, to, "a file has grown");
                }
                Err(error) => tracing::error!("{error}"),
            }
        }
        self.units.tell_lengths();
        !found.is_empty()
    }

    /// Flushes the volume and gives up what it has claimed, when its front has ended.
    ///
    /// # Errors
    /// The last flush failed; all else has been done.
    pub async fn stop(self) -> Result<(), FlushError> {
        let Attachment {
            mut graph,
            disks,
            units,
            state,
            ..
        } = self;
        for message in graph.look_at_paths() {
            tracing::error!("{message}");
        }
        units.stop();
        let flushed = units.flush().await;
        // Before its disks are let go: what nobody has any more is not closed.
        close(&mut graph).await;
        drop((units, disks, state));
        flushed
    }
}

async fn open(
    config: &Config,
    volume: &str,
    process: &Process,
    graph: &mut Graph,
    disks: &mut Vec<Disk>,
    lanes: &[LaneHandle],
) -> Result<(Units, u16, Arc<Mutex<State>>), Failure> {
    let served = [volume.to_owned()];
    let directory = config.state_directory();
    let site = config.site(&directory, &served);
    let named = Node {
        span: 0..0,
        what: What::Named(volume.to_owned()),
    };
    if let Err(error) = site.volumes.find(volume, &named) {
        let path = config.path().display();
        return Err(Failure::Wrong(format!("{path}: {}", error.message())));
    }
    let refused = |refusal| config.refused(refusal);
    let mut state = open::prepare(&site, true).map_err(refused)?;
    let opened = open::open(&site, process, &mut state, graph, lanes).await;
    *disks = opened.map_err(refused)?;
    let state = Arc::new(Mutex::new(state));
    let relative_port = lock(&state).relative_port(PORT)?;
    // Where the volume lives on one lane, so does its front: a request to another one would wake both.
    let own: Vec<LaneHandle> = disks
        .iter()
        .filter_map(|disk| disk.tree.only_lane())
        .cloned()
        .collect();
    let lanes = if own.is_empty() { lanes } else { &own };
    let units = Units::open(units_config(config, &state, disks)?, lanes).await;
    let units = units.map_err(|error| config.failed(&ConfigError::new(None, error.to_string())))?;
    Ok((units, relative_port, state))
}
