//! `sanstone check`: everything that would keep `serve` from serving a configuration on this machine, at once.

use std::{
    cell::RefCell,
    fmt::Display,
    io::ErrorKind,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::Args;
use engine::{Lane, LaneConfig};
use front::{Address, StartError};
use node::{Config, DaemonFailure as Wrong, StateDirectory};
use serde::Serialize;

use crate::{
    admin,
    failure::VerbFailure,
    kernel, log,
    output::{self, OutputFile},
    probe,
};

#[derive(Args)]
pub(crate) struct CheckCall {
    /// The configuration file.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Write JSON to FILE instead; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What programs are told.
#[derive(Serialize)]
struct CheckOutput {
    product_version: &'static str,
    configuration: String,
    valid: bool,
    errors: Vec<String>,
    notes: Vec<String>,
    logins: Vec<String>,
}

/// Checks the configuration that `call` names.
pub(crate) fn run(call: &CheckCall) -> Result<(), VerbFailure> {
    let notes = RefCell::new(Vec::new());
    let Some(file) = &call.json else {
        let config = check(&call.config, &|note| log::say(format_args!("note: {note}")))?;
        let logins = config.logins().into_iter();
        let logins: String = logins.map(|line| format!("{line}\n")).collect();
        return Ok(output::print(format!("{logins}{}\n", config.summary()))?);
    };
    let mut file = OutputFile::open_or_standard(file)?;
    let checked = check(&call.config, &|note| {
        notes.borrow_mut().push(note.to_string())
    });
    let message = checked.as_ref().err().map(ToString::to_string);
    let told = CheckOutput {
        product_version: env!("CARGO_PKG_VERSION"),
        configuration: call.config.display().to_string(),
        valid: message.is_none(),
        errors: message
            .iter()
            .flat_map(|message| message.lines().map(str::to_owned))
            .collect(),
        notes: notes.take(),
        logins: checked.as_ref().map(Config::logins).unwrap_or_default(),
    };
    file.append(&format!("{}\n", serde_json::to_string_pretty(&told)?))?;
    checked.map(drop)
}

/// Checks the configuration in `path`; `tell` hears what is to be said about it.
fn check(path: &Path, tell: &dyn Fn(&dyn Display)) -> Result<Config, VerbFailure> {
    volume::config::imagine_credentials();
    // It is read once: what comes through a pipe is gone then.
    let loaded = Config::load_to_check(
        path,
        |_, note| tell(note),
        |state, portal| try_portal(portal, admin::is_held(state), tell),
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
    for name in volume::config::imagined_credentials() {
        tell(&format_args!(
            "credential \"{name}\" was not looked at: systemd gives it to the service alone, if its unit has \
             LoadCredential={name}:/path/to/secret"
        ));
    }
    for note in config.scarce_space() {
        tell(&note);
    }
    let state = config.state_directory();
    if let Some(user) = StateDirectory::user_of_service(&state) {
        let shown = state.display();
        tell(&format_args!(
            "the state directory {shown} belongs to user {user}, so what serves this has to run as that user, and be \
             allowed to use its disks and secrets"
        ));
        for note in config.barred_to(user) {
            tell(&note);
        }
    }
    if !config.has_targets() {
        let note = "there is no target: its volumes are for `attach`; `serve` needs one, such as \
                    [target.\"iqn.2026-11.io.sanstone:t0\"]";
        tell(&format_args!("{}: {note}", path.display()));
    }
    if let Some(note) = kernel::note(&rustix::system::uname().release().to_string_lossy()) {
        tell(&note);
    }
    Ok(config)
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
