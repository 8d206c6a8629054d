//! What is done to disks while no daemon serves them: creating a stripe on its children, and giving it their new length.

use engine::{LaneHandle, store};
use volume::graph::{NewLength, NewStripe, Source};

use crate::{
    DaemonFailure, StateError, config::Config, daemon::close, process::Process,
    state::StateDirectory,
};

/// Creates the stripe in the volume of `config` called `name`, on the home lane `home`, with
/// `process` as its owner.
///
/// # Errors
/// Whatever keeps it from being created.
pub async fn create_stripe(
    config: &Config,
    process: &Process,
    name: &str,
    home: &LaneHandle,
    new: &NewStripe,
) -> Result<(), DaemonFailure> {
    let directory = config.state_directory();
    let is_there =
        store::look(&directory).is_ok_and(|look| look.kind == store::PathKind::Directory);
    // Act as the daemon if it is not running: then we own the claims that a crash left behind.
    let keeps_register = config.graph()?.keeps_register(name);
    if keeps_register {
        store::make_directory(&directory, true).map_err(StateError::io(format!(
            "the state directory {} cannot be created",
            directory.display()
        )))?;
    }
    let state = (is_there || keeps_register).then(|| StateDirectory::open(&directory, false).ok());
    let state = state.flatten();
    if matches!(new.from, Some(Source::AllBut(_))) && state.is_none() {
        return Err(StateError::Refused(format!(
            "the state directory {} does not exist or is in use: a copy is replaced where its mirror is used; the daemon that \
             uses it replaces it by a blank disk with `sanstone apply -c FILE`",
            directory.display()
        ))
        .into());
    }
    let mut graph = config.graph()?;
    graph.set_owner(process.owner(state.as_ref())?);
    graph.set_state_directory(&directory);
    graph
        .check_creatable(name)
        .map_err(|error| config.wrong(&error))?;
    graph.begin_trial();
    let created = graph.create_stripe(name, home, new).await;
    close(&mut graph).await;
    match created {
        Ok(()) => graph.keep_made(),
        // Remove the children that are blank and new: the next attempt creates them again, and a missing child is not
        // papered over.
        Err(_) => drop(graph.remove_made().await),
    }
    created.map_err(|error| config.failed(&error))
}

/// Gives the stripe, concat or mirror in the volume of `config` called `name` the length that its children have room for now, on the
/// home lane `home`, with `process` as its owner. Nobody may use it meanwhile.
///
/// # Errors
/// Whatever keeps it from growing, such as another owner.
pub async fn grow_stripe(
    config: &Config,
    process: &Process,
    name: &str,
    home: &LaneHandle,
) -> Result<NewLength, DaemonFailure> {
    let directory = config.state_directory();
    let is_there =
        store::look(&directory).is_ok_and(|look| look.kind == store::PathKind::Directory);
    let state = match config.graph()?.keeps_register(name) {
        true if !is_there => {
            return Err(StateError::Refused(format!(
                "the state directory {} does not exist: a mirror grows where it is used, while nobody uses it",
                directory.display()
            ))
            .into());
        }
        true => Some(StateDirectory::open(&directory, false)?),
        false if is_there => StateDirectory::open(&directory, false).ok(),
        false => None,
    };
    let mut graph = config.graph()?;
    graph.set_owner(process.owner(state.as_ref())?);
    graph.set_state_directory(&directory);
    let grown = graph.grow_stripe(name, home).await;
    close(&mut graph).await;
    grown.map_err(|error| config.failed(&error))
}
