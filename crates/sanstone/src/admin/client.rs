//! The client side of the admin socket: queries and commands for a running daemon.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use anyhow::anyhow;
use clap::Args;
use node::{Config, attached_directories, attached_directory};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_to, socket_with,
    sockopt::{Timeout, set_socket_timeout, socket_peercred},
};
use serde::de::DeserializeOwned;

use super::{
    lock,
    protocol::{AdminCall, SILENCE_TIMEOUT, answer, read_line, request, write_line},
    socket::{self, Short},
};
use crate::failure::VerbFailure;

/// More than any daemon would ever send.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// Which daemon is meant.
#[derive(Args)]
#[group(skip)]
pub(crate) struct DaemonAddress {
    /// The configuration file that `serve` or `attach` was started with.
    #[arg(short, long, value_name = "FILE", default_value = "sanstone.toml")]
    config: PathBuf,
    /// The state directory of that process.
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    state: Option<PathBuf>,
    /// The volume, where several are attached.
    #[arg(long, value_name = "VOLUME")]
    attached: Option<String>,
}

impl DaemonAddress {
    /// The directory of the process that is meant.
    ///
    /// # Errors
    /// The configuration cannot be read, or there are several processes.
    pub(crate) fn state(&self) -> Result<PathBuf, VerbFailure> {
        self.state_with(None)
    }

    /// The directory of the process that has the volume called `name`, or the only one.
    ///
    /// # Errors
    /// As [`DaemonAddress::state`], if none of several is attached by that name.
    pub(crate) fn state_with(&self, name: Option<&str>) -> Result<PathBuf, VerbFailure> {
        let state = self.root()?;
        if let Some(volume) = &self.attached {
            return Ok(attached_directory(&state, volume));
        }
        let mut running = directories(&state);
        let is_meant = |it: &PathBuf| name.is_some_and(|name| name_of(it) == name);
        if running.len() > 1 && running.iter().any(is_meant) {
            running.retain(is_meant);
        }
        match &mut running[..] {
            [one] => Ok(std::mem::take(one)),
            several => {
                let names: Vec<_> = several.iter().map(|it| name_of(it)).collect();
                Err(VerbFailure::Wrong(format!(
                    "several volumes are attached with {}: {}; name one with --attached VOLUME",
                    state.display(),
                    names.join(", ")
                )))
            }
        }
    }

    /// The directories of all processes that are meant, those that were killed included. At least one.
    ///
    /// # Errors
    /// The configuration cannot be read.
    pub(crate) fn all(&self) -> Result<Vec<PathBuf>, VerbFailure> {
        let mut attached = match &self.attached {
            Some(_) => Vec::new(),
            None => attached_directories(&self.root()?),
        };
        attached.retain(|directory| socket::path(directory).exists());
        match attached.len() {
            0 | 1 => Ok(vec![self.state()?]),
            _ => Ok(attached),
        }
    }

    fn root(&self) -> Result<PathBuf, VerbFailure> {
        match &self.state {
            Some(state) => Ok(state.clone()),
            None => Ok(Config::state_directory_of(&self.config)?),
        }
    }
}

/// The directories of the processes that use the state directory `state`: those of volumes that are attached, or else the
/// state directory itself. At least one.
pub(crate) fn directories(state: &Path) -> Vec<PathBuf> {
    let mut attached = attached_directories(state);
    attached.retain(|directory| socket::path(directory).exists());
    let is_answered = |directory: &PathBuf| {
        let connected = socket::address(directory).and_then(|at| connect_in_time(&at));
        connected.is_ok()
    };
    let answered: Vec<_> = attached
        .iter()
        .filter(|it| is_answered(it))
        .cloned()
        .collect();
    match (answered.is_empty(), socket::path(state).exists()) {
        (false, _) => answered,
        // Whoever was killed has left its socket, which says so.
        (true, false) if attached.len() == 1 => attached,
        (true, _) => vec![state.to_owned()],
    }
}

/// The volume of a directory of an attached volume.
pub(crate) fn name_of(directory: &Path) -> String {
    let name = directory.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Sends a request to the daemon whose state directory is `state`, and returns its answer.
///
/// # Errors
/// No daemon is listening, or it refuses.
pub(crate) fn ask<T: DeserializeOwned>(state: &Path, asked: AdminCall) -> Result<T, VerbFailure> {
    let stream = connect(state)?;
    let is_change = matches!(asked, AdminCall::Apply { dry_run: false, .. });
    let lost = |error: io::Error| match error.kind() {
        ErrorKind::WouldBlock => silent(state, Some(&stream), is_change),
        ErrorKind::UnexpectedEof => anyhow!(
            "the daemon of {} did not answer: it has exited, or closed the connection",
            state.display()
        ),
        _ => anyhow!("the daemon of {} did not answer: {error}", state.display()),
    };
    // A busy daemon refuses without reading the request, so the reply counts even if sending failed.
    let sent = write_line(&stream, &request(asked)?);
    let line = read_line(&stream, ANSWER_BYTES_MAX);
    let line = line.map_err(|error| lost(sent.err().unwrap_or(error)))?;
    answer(&line).map_err(|refusal| match refusal.is_wrong {
        true => VerbFailure::Wrong(refusal.message),
        false => anyhow!(refusal.message).into(),
    })
}

/// The error for a daemon that no longer accepts connections, or that stays silent on `stream`.
fn silent(state: &Path, stream: Option<&UnixStream>, is_change: bool) -> anyhow::Error {
    let peer = stream.and_then(|stream| socket_peercred(stream).ok());
    let (who, pid) = peer.map_or(("the daemon".to_owned(), "PID".to_owned()), |peer| {
        let pid = peer.pid.as_raw_nonzero().to_string();
        (format!("the daemon, process {pid},"), pid)
    });
    let late = match is_change {
        true => "; once resumed, it may still apply the configuration",
        false => "",
    };
    anyhow!(
        "{}: {who} has not responded for {SILENCE_TIMEOUT:?}: it is stopped (kill -CONT {pid} resumes \
         it), or it hangs (its log may say where){late}",
        socket::path(state).display()
    )
}

fn connect(state: &Path) -> Result<UnixStream, VerbFailure> {
    let path = socket::path(state);
    if fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
        let path = path.display();
        return Err(
            anyhow!("{path} is a symbolic link, which no daemon has made; remove it").into(),
        );
    }
    let connected = socket::address(state).and_then(|at| connect_in_time(&at));
    connected.map_err(|error| {
        let path = path.display();
        let why = match error.kind() {
            ErrorKind::NotFound => not_listening(state),
            // The next one removes what is left of the one before only once it listens itself.
            ErrorKind::ConnectionRefused if lock::holder(state).is_some() => not_listening(state),
            ErrorKind::ConnectionRefused => {
                format!(
                    "no daemon listens at {path}: the one that created it has exited; start it again"
                )
            }
            ErrorKind::WouldBlock => return silent(state, None, false).into(),
            ErrorKind::PermissionDenied => {
                format!("{path}: {error}; run this as the user who runs the daemon, or as root")
            }
            _ => format!("{path}: {error}"),
        };
        anyhow!(why).into()
    })
}

/// A connection on which no call, including the connect itself, waits longer than [`SILENCE_TIMEOUT`]. The
/// connect may block too, because the backlog of a hung daemon fills up.
fn connect_in_time(at: &Short) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, timeout, Some(SILENCE_TIMEOUT))?;
    }
    connect_to(&socket, &SocketAddrUnix::new(at.path())?)?;
    Ok(socket.into())
}

/// Explains why nobody listens in a state directory.
fn not_listening(state: &Path) -> String {
    let (shown, path) = (state.display(), socket::path(state));
    let attached = || {
        attached_directories(state)
            .into_iter()
            .find_map(|it| lock::holder(&it))
    };
    let Some(pid) = lock::holder(state).or_else(attached) else {
        return format!(
            "no `sanstone serve` or `attach` runs with the state directory {shown}: there is no {}; start one, or \
             name another with -c or --state",
            path.display()
        );
    };
    format!(
        "process {pid} holds the state directory {shown} and does not answer: it is starting, or it is stopping and \
         waiting for accepted I/O (see its log); a second SIGTERM ends it at once"
    )
}
