//! `sanstone volume take-over`: takes over a stripe whose owner is gone for good and could not release its
//! claim. The new claim is made under the identity of the state directory, so that the daemon started next
//! can use it.

use std::path::Path;

use engine::{Duration, Lane, LaneConfig, time};
use node::{Config, Refusal, State};
use volume::claim::{DOUBT, Others, Owner, boot_id, name_of};

use crate::{failure::Failure, output};

/// Takes over the stripe in the volume called `name`; with `force`, even if its owner cannot be fenced off.
pub(crate) fn run(path: &Path, name: &str, force: bool) -> Result<(), Failure> {
    let config = Config::load(path)?;
    let lane = Lane::new(&LaneConfig::default())?;
    let refused = |error| config.refused(Refusal::State(error));
    let (_state, owner) = lane.block_on(async {
        let state = State::open(&config.state_directory(), true).map_err(refused)?;
        let owner = state.owner().map_err(refused)?;
        Ok::<_, Failure>((state, owner))
    })?;
    let called = name_of(format_args!(
        "sanstone volume take-over -c {}",
        path.display()
    ));
    let others = if force {
        Others::Overrule
    } else {
        Others::Fence
    };
    let owner = Owner::new(owner, boot_id(), called);
    let mut graph = config.graph()?;
    graph.set_owner(owner);
    let home = lane.handle();
    lane.block_on(async {
        let taken = graph.take_over(name, &home, others).await?;
        // The former owner may answer reads from its cache until its last check of the claim is this old; the
        // extra second allows for clock drift.
        time::sleep(DOUBT + Duration::from_secs(1)).await;
        Ok(taken)
    })
    .map_err(|error| config.failed(&error))?;
    let line = format!(
        "volume \"{name}\" has been taken over: `sanstone serve -c {}` can use it now\n",
        path.display()
    );
    Ok(output::print(line)?)
}
