//! Asks a running daemon.

use std::{
    io::ErrorKind,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::anyhow;
use clap::Args;
use node::Config;
use serde::de::DeserializeOwned;

use super::{
    protocol::{Asked, answer, read_line, request, write_line},
    socket,
};
use crate::failure::Failure;

/// More than any daemon has to say.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// The daemon says itself when it takes too long, if it can say anything.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which daemon is meant.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct Place {
    /// The configuration file that the daemon serves.
    #[arg(short, long, value_name = "FILE", default_value = "sanstone.toml")]
    config: PathBuf,
    /// The daemon's state directory.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

impl Place {
    /// The state directory.
    ///
    /// # Errors
    /// The configuration cannot be read.
    pub(crate) fn state(&self) -> Result<PathBuf, Failure> {
        match &self.state {
            Some(state) => Ok(state.clone()),
            None => Ok(Config::state_directory_of(&self.config)?),
        }
    }
}

/// Asks the daemon whose state directory is `state`.
///
/// # Errors
/// There is none, or it refuses.
pub(crate) fn ask<T: DeserializeOwned>(state: &Path, asked: Asked) -> Result<T, Failure> {
    let stream = connect(state)?;
    let silence = asked.timeout() + PATIENCE;
    stream.set_read_timeout(Some(silence))?;
    stream.set_write_timeout(Some(silence))?;
    let lost = |error: std::io::Error| {
        let why = match error.kind() {
            ErrorKind::WouldBlock => format!("it has said nothing for {silence:?}"),
            ErrorKind::UnexpectedEof => "it has ended, or closed the connection".to_owned(),
            _ => error.to_string(),
        };
        anyhow!("the daemon of {} has not answered: {why}", state.display())
    };
    // A daemon that is too busy says so without waiting for the question.
    let sent = write_line(&stream, &request(asked)?);
    let line = read_line(&stream, ANSWER_BYTES_MAX);
    let line = line.map_err(|error| lost(sent.err().unwrap_or(error)))?;
    answer(&line).map_err(|refusal| match refusal.is_wrong {
        true => Failure::Wrong(refusal.message),
        false => anyhow!(refusal.message).into(),
    })
}

fn connect(state: &Path) -> Result<UnixStream, Failure> {
    let connected = socket::address(state).and_then(|at| UnixStream::connect(at.path()));
    connected.map_err(|error| {
        let path = socket::path(state);
        let path = path.display();
        let why = match error.kind() {
            ErrorKind::NotFound => {
                format!(
                    "no daemon serves with the state directory {}: there is no {path}; start one, or \
                     name another with -c or --state",
                    state.display()
                )
            }
            ErrorKind::ConnectionRefused => {
                format!("no daemon listens at {path}: the one that made it has ended; start it again")
            }
            ErrorKind::PermissionDenied => {
                format!("{path}: {error}; call this as the user who runs the daemon, or as root")
            }
            _ => format!("{path}: {error}"),
        };
        anyhow!(why).into()
    })
}
