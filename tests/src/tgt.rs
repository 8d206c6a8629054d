//! A private instance of tgt, the target that Linux distributions ship: beside any other, on a
//! port of its own, with its control socket in a directory of the test's own.
//!
//! tgtd finds that socket's path in `TGT_IPC_SOCKET` and appends the control port to it, and takes
//! its portal from `--iscsi portal=`. LUN 0 is its controller, so disks begin at LUN 1. It has no
//! RAM disk: a backing file in /dev/shm through its `rdwr` store is as close as it gets.

use crate::directory::Directory;
use crate::process::{Daemon, program};
use crate::run::run;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The name of the target it serves.
pub const IQN: &str = "iqn.2026-11.io.sanstone:tgt";

/// A running tgtd with one target.
#[derive(Debug)]
pub struct Tgt {
    daemon: Daemon,
    port: u16,
    luns: u32,
    directory: Directory,
}

impl Tgt {
    /// Starts tgtd with an empty target that admits every initiator.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start() -> Tgt {
        let directory = Directory::new();
        let port = crate::free_port();
        let mut command = Command::new(program("tgtd", "tgt"));
        command.args([
            "-f",
            "-C",
            "1",
            "--iscsi",
            &format!("portal=127.0.0.1:{port}"),
        ]);
        command.env("TGT_IPC_SOCKET", directory.join("control"));
        let mut daemon = Daemon::start(&command, directory.join("tgtd.log"));
        daemon.wait_for_port(port);
        daemon.wait_for_socket(&directory.join("control.1"));
        let tgt = Tgt {
            daemon,
            port,
            luns: 0,
            directory,
        };
        tgt.admin(&["--op", "new", "--mode", "target", "--tid", "1", "-T", IQN]);
        tgt.admin(&[
            "--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL",
        ]);
        tgt
    }

    /// Adds a disk with an existing file behind it and returns its URL.
    ///
    /// # Panics
    /// If tgtd refuses it.
    pub fn add_disk(&mut self, backing_file: &Path) -> String {
        self.add_disk_of_blocks(backing_file, 512)
    }

    /// The same with logical blocks of this size in bytes.
    ///
    /// # Panics
    /// If tgtd refuses it.
    pub fn add_disk_of_blocks(&mut self, backing_file: &Path, block_size_bytes: u32) -> String {
        self.add_disk_with(
            backing_file,
            &["--blocksize", &block_size_bytes.to_string()],
        )
    }

    /// The same with these options of `tgtadm` for its logical unit.
    ///
    /// # Panics
    /// If tgtd refuses it.
    pub fn add_disk_with(&mut self, backing_file: &Path, options: &[&str]) -> String {
        self.luns += 1;
        let (lun, file) = (self.luns.to_string(), backing_file.to_string_lossy());
        let new = ["--op", "new", "--mode", "logicalunit", "--tid", "1"];
        self.admin(&[&new[..], &["--lun", &lun, "-b", &file], options].concat());
        format!("{}/{IQN}/{lun}", self.portal())
    }

    /// The disk `lun` says from now on that it has no volatile write cache (WCE = 0).
    ///
    /// # Panics
    /// If tgtd refuses it.
    pub fn disables_write_cache(&self, lun: u32) {
        // Its mode page 08h, length 12h, with bit 2 of the first byte off.
        const PAGE: &str =
            "mode_page=8:0:18:0x10:0:0xff:0xff:0:0:0xff:0xff:0xff:0xff:0x80:0x14:0:0:0:0:0:0";
        let update = ["--op", "update", "--mode", "logicalunit", "--tid", "1"];
        self.admin(&[&update[..], &["--lun", &lun.to_string(), "--params", PAGE]].concat());
    }

    /// Demands this secret of initiators; with `outgoing` the target proves itself with it to
    /// those that ask.
    ///
    /// # Panics
    /// If tgtd refuses it.
    pub fn require_chap(&self, user: &str, secret: &str, outgoing: bool) {
        let account = ["--mode", "account", "--user", user];
        self.admin(&[&["--op", "new"], &account[..], &["--password", secret]].concat());
        let direction: &[&str] = if outgoing { &["--outgoing"] } else { &[] };
        self.admin(&[&["--op", "bind", "--tid", "1"], &account[..], direction].concat());
    }

    /// Sets an operational parameter of RFC 7143 §13, for sessions that begin from now on.
    ///
    /// # Panics
    /// If tgtd refuses it.
    pub fn set(&self, key: &str, value: &str) {
        let update = ["--op", "update", "--mode", "target", "--tid", "1"];
        self.admin(&[&update[..], &["--name", key, "--value", value]].concat());
    }

    /// The portal as libiscsi and QEMU write it.
    pub fn portal(&self) -> String {
        format!("iscsi://127.0.0.1:{}", self.port)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn admin(&self, arguments: &[&str]) {
        let mut command = Command::new(program("tgtadm", "tgt"));
        command.args(["-C", "1", "--lld", "iscsi"]).args(arguments);
        command.env("TGT_IPC_SOCKET", self.directory.join("control"));
        run(&mut command, Duration::from_secs(20)).success();
    }
}
