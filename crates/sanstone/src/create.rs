//! `sanstone volume create`: writes the superblocks of a stripe's children.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use engine::{Lane, LaneConfig};
use uuid::Uuid;
use volume::graph::NewStripe;

use crate::{config::Config, failure::Failure, output};

/// Makes the stripe in the volume called `name`.
pub(crate) fn run(path: &Path, name: &str, force: bool) -> Result<(), Failure> {
    let config = Config::load(path)?;
    let mut graph = config.graph()?;
    graph
        .check_stripes()
        .map_err(|error| config.wrong(&error))?;
    let lane = Lane::new(&LaneConfig::default())?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let new = NewStripe {
        uuid: Uuid::new_v4(),
        created_unix_s: now.as_secs(),
        force,
    };
    let home = lane.handle();
    lane.block_on(graph.create_stripe(name, &home, &new))
        .map_err(|error| config.failed(&error))?;
    let line = format!("volume \"{name}\" is created: {}\n", new.uuid);
    Ok(output::print(line)?)
}
