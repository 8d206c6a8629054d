//! Mounts with `fusermount3`, for users who may not mount themselves. It opens the device, mounts, and
//! returns the descriptor through a socket that it inherits.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::{Command, Stdio},
};

use engine::programs;
use rustix::{
    io::{FdFlags, fcntl_setfd},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};

const PROGRAM: &str = "fusermount3";
/// The environment variable that tells it the number of the socket.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts on the file at `path`; returns the descriptor of the device.
pub(crate) fn mount(path: &Path, options: &str) -> Result<OwnedFd, String> {
    let failed = |error: io::Error| format!("{PROGRAM}: {error}");
    let (ours, its) = UnixStream::pair().map_err(failed)?;
    fcntl_setfd(&its, FdFlags::empty()).map_err(|error| failed(error.into()))?;
    let mut command = program()?;
    command
        .args(["-o", options, "--"])
        .arg(path)
        .env(SOCKET_VARIABLE, its.as_raw_fd().to_string());
    run(command)?;
    drop(its);
    received(&ours).map_err(failed)?.ok_or_else(|| {
        format!(
            "{PROGRAM} has mounted {} but sent no descriptor",
            path.display()
        )
    })
}

/// Unmounts `path`; with `lazily` even if it is in use.
pub(crate) fn unmount(path: &Path, lazily: bool) -> Result<(), String> {
    let mut command = program()?;
    command.arg("-u");
    if lazily {
        command.arg("-z");
    }
    command.arg("--").arg(path);
    run(command)
}

fn program() -> Result<Command, String> {
    let found = programs::find(PROGRAM).ok_or_else(|| {
        format!(
            "without {PROGRAM}, which is not installed, only root may mount; install it (Debian's \
             package fuse3)"
        )
    })?;
    Ok(programs::command(&found))
}

fn run(mut command: Command) -> Result<(), String> {
    let ran = command.stdin(Stdio::null()).output();
    let ran = ran.map_err(|error| format!("{PROGRAM}: {error}"))?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
    }
}

/// The descriptor received through `socket`, if any.
fn received(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let into = &mut [IoSliceMut::new(&mut byte)];
    recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(fds.flatten().next())
}
