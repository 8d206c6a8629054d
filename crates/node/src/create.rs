//! The one thing that is done to disks before a daemon serves them: a stripe is created on its children.

use engine::{LaneHandle, store};
use volume::{claim::Owner, graph::NewStripe};

use crate::{Failure, Process, config::Config, daemon::close, state::State};

/// Creates the stripe in the volume of `config` called `name`, at home on `home`, in the name of
/// `process`.
///
/// # Errors
/// What keeps it from being created.
pub async fn create_stripe(
    config: &Config,
    process: &Process,
    name: &str,
    home: &LaneHandle,
    new: &NewStripe,
) -> Result<(), Failure> {
    let directory = config.state_directory();
    let is_there = store::look(&directory).is_ok_and(|look| look.kind == store::Kind::Directory);
    // As its daemon, if that is not running: what it left by a crash is ours then.
    let state = is_there.then(|| State::open(&directory, false).ok());
    let state = state.flatten();
    let uuid = state.as_ref().and_then(|state| state.owner().ok());
    let owner = match uuid {
        Some(uuid) => Owner::new(uuid, process.boot, &process.name),
        None => Owner::passing(&process.name),
    };
    let mut graph = config.graph()?;
    graph.set_owner(owner);
    graph
        .check_stripes()
        .map_err(|error| config.wrong(&error))?;
    graph.begin_trial();
    let created = graph.create_stripe(name, home, new).await;
    close(&mut graph).await;
    match created {
        Ok(()) => graph.keep_made(),
        // Children that are blank and new: the next try makes them again, and a lost child stays lost.
        Err(_) => drop(graph.remove_made()),
    }
    created.map_err(|error| config.failed(&error))
}
