//! `sanstone volume create` and `grow`: write the superblocks of the children of a stripe, concat or mirror.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::anyhow;
use engine::{Lane, LaneConfig};
use node::{Config, DaemonFailure, Process};
use uuid::Uuid;
use volume::{
    claim::{boot_id, name_of},
    graph::{NewLength, NewStripe, Source},
};

use crate::{admin, failure::VerbFailure, output};

/// Creates the stripe, concat or mirror in the volume called `name`, the last with the data of copy `from`.
pub(crate) fn run(
    path: &Path,
    name: &str,
    from: Option<usize>,
    force: bool,
) -> Result<(), VerbFailure> {
    let uuid = make(path, name, from.map(Source::Copy), force)?;
    let line = format!("created the volume \"{name}\": {uuid}\n");
    Ok(output::print(line)?)
}

/// Makes the disk that is listed as copy `copy` that copy of the mirror in the volume called `name`.
pub(crate) fn replace(
    path: &Path,
    name: &str,
    copy: usize,
    force: bool,
) -> Result<(), VerbFailure> {
    make(path, name, Some(Source::AllBut(copy)), force)?;
    let line = format!(
        "copy {copy} of the volume \"{name}\" is replaced, and is filled when the mirror is next served\n"
    );
    Ok(output::print(line)?)
}

fn make(path: &Path, name: &str, from: Option<Source>, force: bool) -> Result<Uuid, VerbFailure> {
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
    Ok(new.uuid)
}

/// Gives the stripe, concat or mirror in the volume called `name` the length that its children have room for now.
pub(crate) fn grow(path: &Path, name: &str) -> Result<(), VerbFailure> {
    let config = Config::load(path)?;
    let process = Process {
        boot: boot_id(),
        name: name_of(format_args!("sanstone volume grow -c {}", path.display())),
    };
    let lane = Lane::new(&LaneConfig::default())?;
    let home = lane.handle();
    let grown = lane.block_on(node::grow_stripe(&config, &process, name, &home));
    let is_used = || {
        let processes = admin::directories(&config.state_directory());
        processes.iter().any(|it| admin::is_held(it))
    };
    let NewLength {
        from_bytes,
        to_bytes,
    } = match grown {
        Err(DaemonFailure::Failed(why)) if is_used() => {
            let path = path.display();
            return Err(anyhow!(
                "{why}\na mirror takes a new length while nobody uses it: stop what does; a stripe or concat in use takes that of its \
                 disks with `sanstone apply -c {path}`"
            )
            .into());
        }
        grown => grown?,
    };
    let line = match from_bytes == to_bytes {
        true => format!("volume \"{name}\" stays as it is, with {to_bytes} bytes\n"),
        false => format!("volume \"{name}\" has grown from {from_bytes} to {to_bytes} bytes\n"),
    };
    Ok(output::print(line)?)
}
