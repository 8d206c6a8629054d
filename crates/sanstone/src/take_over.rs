//! `sanstone volume take-over`: takes over a stripe, concat or mirror whose owner is gone for good and could not release its
//! claim. The new claim is made under the identity of the state directory, so that the daemon started next
//! can use it.

use std::path::Path;

use engine::{Duration, Lane, LaneConfig, time};
use node::{Config, Process};
use volume::claim::{DOUBT, Others, boot_id, name_of};

use crate::{failure::VerbFailure, log, output};

/// Takes over the stripe in the volume called `name`; with `force`, even if its owner cannot be fenced off.
pub(crate) fn run(path: &Path, name: &str, force: bool) -> Result<(), VerbFailure> {
    let (config, _) = Config::load_to_serve(path, false, |level, note| {
        if level == node::Level::Warn {
            log::say(format_args!("note: {note}"));
        }
    })?;
    let process = Process {
        boot: boot_id(),
        name: name_of(format_args!(
            "sanstone volume take-over -c {}",
            path.display()
        )),
    };
    let others = if force {
        Others::Overrule
    } else {
        Others::Fence
    };
    let lane = Lane::new(&LaneConfig::default())?;
    let home = lane.handle();
    let _taken = lane.block_on(async {
        let taken = node::take_over(&config, &process, name, &home, others).await?;
        // The former owner may answer reads from its cache until its last check of the claim is this old; the
        // extra second allows for clock drift.
        time::sleep(DOUBT + Duration::from_secs(1)).await;
        Ok::<_, VerbFailure>(taken)
    })?;
    let line = format!(
        "volume \"{name}\" has been taken over: `sanstone serve` or `attach` with -c {} can use it now\n",
        path.display()
    );
    Ok(output::print(line)?)
}
