//! `sanstone volume create`: writes the superblocks of a stripe's children.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use engine::{Lane, LaneConfig};
use node::{Config, State};
use uuid::Uuid;
use volume::{
    claim::{Owner, boot_id, name_of},
    graph::NewStripe,
};

use crate::{failure::Failure, output};

/// Makes the stripe in the volume called `name`.
pub(crate) fn run(path: &Path, name: &str, force: bool) -> Result<(), Failure> {
    let config = Config::load(path)?;
    let called = name_of(format_args!("sanstone volume create -c {}", path.display()));
    let lane = Lane::new(&LaneConfig::default())?;
    // As its daemon, if that is not running: what it left by a crash is ours then.
    let (_state, owner) = lane.block_on(async {
        let directory = config.state_directory();
        let state = directory
            .is_dir()
            .then(|| State::open(&directory, false).ok());
        let state = state.flatten();
        let uuid = state.as_ref().and_then(|state| state.owner().ok());
        let owner = match uuid {
            Some(uuid) => Owner::new(uuid, boot_id(), called),
            None => Owner::passing(called),
        };
        (state, owner)
    });
    let mut graph = config.graph()?;
    graph.set_owner(owner);
    graph
        .check_stripes()
        .map_err(|error| config.wrong(&error))?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let new = NewStripe {
        uuid: Uuid::new_v4(),
        created_unix_s: now.as_secs(),
        force,
    };
    let home = lane.handle();
    let created = lane.block_on(async {
        let created = graph.create_stripe(name, &home, &new).await;
        for failed in graph.close().await {
            tracing::warn!("{failed}");
        }
        created
    });
    created.map_err(|error| config.failed(&error))?;
    let line = format!("created the stripe \"{name}\": {}\n", new.uuid);
    Ok(output::print(line)?)
}
