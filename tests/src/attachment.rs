//! A running `sanstone attach` for a measurement, shut down in an orderly way.

use crate::directory::Directory;
use crate::process::{Daemon, program};
use crate::sanstone::{binary, call};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How a volume is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// As a file.
    Fuse,
    /// As an NBD export behind a Unix socket.
    Nbd,
}

/// The volume `db` of a configuration, attached.
#[derive(Debug)]
pub struct Attachment {
    daemon: Daemon,
    front: Front,
    directory: Directory,
}

impl Attachment {
    /// Attaches it; `configuration` holds the volume's table. A stripe is created first.
    ///
    /// # Panics
    /// If it does not come up; the message holds its log.
    pub fn start(front: Front, configuration: &str) -> Attachment {
        let directory = Directory::new();
        let text = format!("state = \"state\"\n{configuration}");
        let file = directory.write("sanstone.toml", text);
        let file = file.to_str().expect("our paths are plain text");
        if configuration.contains("stripe") {
            call(&["volume", "create", "-c", file, "db"]).success();
        }
        let mut command = Command::new(binary());
        command.args(["attach", "-c", file, "db"]);
        let path = directory.join("disk");
        match front {
            Front::Fuse => command.arg("--fuse").arg(&path),
            Front::Nbd => command.arg("--nbd").arg(format!("unix:{}", path.display())),
        };
        let log = directory.join("attach.log");
        let mut daemon = Daemon::start(&command, log);
        match front {
            Front::Fuse => drop(daemon.log_with(" attached ")),
            Front::Nbd => daemon.wait_for_socket(&path),
        }
        let socket = directory.join("state/attached/db/admin.sock");
        daemon.wait_for_socket(&socket);
        Attachment {
            daemon,
            front,
            directory,
        }
    }

    /// The file, or the socket.
    pub fn path(&self) -> PathBuf {
        self.directory.join("disk")
    }

    /// Where its admin socket is.
    pub fn state(&self) -> PathBuf {
        self.directory.join("state").join("attached").join("db")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.daemon.log()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.daemon.signal("TERM");
        let _ = self.daemon.wait(Duration::from_secs(60));
        if self.front == Front::Fuse {
            unmount(&self.path());
        }
    }
}

/// A mount that its creator might leave behind; dropping this removes it.
#[derive(Debug)]
pub struct Mounted(pub PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

/// Removes what is left of a mount, if anything.
fn unmount(path: &Path) {
    let mut command = Command::new(program("umount", "mount"));
    let _ = command.arg("-l").arg(path).stderr(Stdio::null()).status();
}
