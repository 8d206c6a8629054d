//! `sanstone volume create` and `grow`: write the superblocks of the children of a stripe or concat.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use engine::{Lane, LaneConfig};
use node::{Config, Process};
use uuid::Uuid;
use volume::{
    claim::{boot_id, name_of},
    graph::{NewLength, NewStripe},
};

use crate::{failure::Failure, output};

/// Creates the stripe, concat or mirror in the volume called `name`, the last with the data of copy `from`.
pub(crate) fn run(
    path: &Path,
    name: &str,
    from: Option<usize>,
    force: bool,
) -> Result<(), Failure> {
    let config = Config::load(path)?;
    let process = Process {
        boot: boot_id(),
        name: name_of(format_args!("sanstone volume create -c {}", path.display())),
    };
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let new = NewStripe {
        uuid: Uuid::new_v4(),
        created_unix_s: now.as_secs(),
        force,
        from,
    };
    let lane = Lane::new(&LaneConfig::default())?;
    let home = lane.handle();
    lane.block_on(node::create_stripe(&config, &process, name, &home, &new))?;
    let line = format!("created the volume \"{name}\": {}\n", new.uuid);
    Ok(output::print(line)?)
}

/// Gives the stripe or concat in the volume called `name` the length that its children have room for now.
pub(crate) fn grow(path: &Path, name: &str) -> Result<(), Failure> {
    let config = Config::load(path)?;
    let process = Process {
        boot: boot_id(),
        name: name_of(format_args!("sanstone volume grow -c {}", path.display())),
    };
    let lane = Lane::new(&LaneConfig::default())?;
    let home = lane.handle();
    let NewLength {
        from_bytes,
        to_bytes,
    } = lane.block_on(node::grow_stripe(&config, &process, name, &home))?;
    let line = match from_bytes == to_bytes {
        true => format!("volume \"{name}\" stays as it is, with {to_bytes} bytes\n"),
        false => format!("volume \"{name}\" has grown from {from_bytes} to {to_bytes} bytes\n"),
    };
    Ok(output::print(line)?)
}
