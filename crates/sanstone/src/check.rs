//! `sanstone check`: everything that would keep `serve` from serving a configuration on this machine, at once.

use std::{fmt::Display, io::ErrorKind, net::SocketAddr, path::Path};

use engine::{Lane, LaneConfig};
use front::{Address, StartError};
use node::{Config, DaemonFailure as Wrong};

use crate::{admin, failure::VerbFailure, kernel, log, output, probe};

/// Checks the configuration in `path`.
pub(crate) fn run(path: &Path) -> Result<(), VerbFailure> {
    let tell = |note: &dyn Display| log::say(format_args!("note: {note}"));
    // It is read once: what comes through a pipe is gone then.
    let loaded = Config::load_to_check(
        path,
        |_, note| tell(note),
        |state, portal| try_portal(portal, admin::is_held(state), &tell),
    );
    let ring = Lane::new(&LaneConfig::default()).err();
    let ring = ring.map(|error| format!("the I/O of a lane cannot be started: {error}"));
    let (config, disks) = match (loaded, ring) {
        (Ok(loaded), None) => loaded,
        (Ok(_), Some(ring)) => return Err(anyhow::anyhow!(ring).into()),
        (Err(failure), None) => return Err(failure.into()),
        (Err(Wrong::Wrong(message)), Some(ring)) => {
            return Err(VerbFailure::Wrong(format!("{message}\n{ring}")));
        }
        (Err(failure), Some(ring)) => return Err(anyhow::anyhow!("{failure}\n{ring}").into()),
    };
    for note in disks {
        tell(&config.located(&note.text));
    }
    for note in config.scarce_space() {
        tell(&note);
    }
    if !config.has_targets() {
        let note = "there is no target; `serve` needs one, such as [target.\"iqn.2026-11.io.sanstone:t0\"]";
        log::say(format_args!("note: {}: {note}", path.display()));
    }
    if let Some(note) = kernel::note(&rustix::system::uname().release().to_string_lossy()) {
        tell(&note);
    }
    Ok(output::print(format!("{}\n", config.summary()))?)
}

/// Why no server could listen on `portal`. A port that is in use now, by the daemon of this configuration perhaps, need not
/// be at its next start: unless `is_served`, that is a note.
fn try_portal(
    portal: SocketAddr,
    is_served: bool,
    tell: &dyn Fn(&dyn Display),
) -> Option<StartError> {
    let error = probe::once(portal).err()?;
    let started = StartError::address(Address::Tcp(portal), &error);
    if error.kind() != ErrorKind::AddrInUse {
        return Some(started);
    }
    if !is_served {
        tell(&started);
    }
    None
}
