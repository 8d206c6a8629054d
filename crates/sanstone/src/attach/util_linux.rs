//! The system's own programs for file systems and loop devices, each run to its end. `umount` also does the waiting that
//! this process must not do.

use std::{
    io,
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use engine::{
    mounts::{Mount, mounts},
    programs,
};
use front_fuse::Unmounted;

/// A command that runs this program of the system's, wherever it is.
///
/// # Errors
/// It is not installed; the Debian `package` has it.
pub(super) fn program(name: &str, package: &str) -> anyhow::Result<Command> {
    let found = programs::find(name);
    let found = found
        .with_context(|| format!("{name}, of Debian's package {package}, is not installed"))?;
    Ok(programs::command(&found))
}

/// Runs a program to its end and returns its output.
pub(super) fn ran(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| name)?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Unmounts a file system, wherever it is now, if nobody uses it. A process of its own does it: whoever unmounts waits in
/// the kernel for what is written back, and could not be ended before that. As one of this process it would keep it
/// alive, and with it the connection whose end lets the writes fail.
///
/// # Errors
/// Any error the system reports for the table of mounts.
pub(super) fn unmount_now(mount: &Mount) -> io::Result<Unmounted> {
    let mounts = mounts()?;
    let here = match mount.find(&mounts) {
        // Somebody has already unmounted it.
        None => return Ok(Unmounted::Yes),
        Some((_, Some(over))) => {
            let over = over.source.display();
            return Ok(Unmounted::No(format!("{over} is mounted over it")));
        }
        Some((here, None)) => &here.point,
    };
    let below = |it: &&Mount| it.point != *here && it.point.starts_with(here);
    if let Some(below) = mounts.iter().find(below) {
        let below = below.point.display();
        return Ok(Unmounted::No(format!("{below} is mounted in it")));
    }
    // Without looking at the directory, which may wait for the volume.
    let unmounted = program("umount", "mount").and_then(|mut umount| {
        ran(umount
            .args(["--internal-only", "--no-canonicalize"])
            .arg(here))
    });
    Ok(match unmounted {
        Ok(_) => Unmounted::Yes,
        Err(error) => Unmounted::No(error.to_string()),
    })
}
