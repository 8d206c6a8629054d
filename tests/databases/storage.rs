//! A storage machine: a network of its own at the end of a link, a disk of its own, and a `sanstone serve` that serves one
//! copy of a mirror from it.

use harness::directory::Directory;
use harness::links::{Links, Towards};
use harness::process::{Daemon, program};
use harness::run::run;
use harness::sanstone::{IQN, binary, call};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
const PORT: u16 = 3260;
/// What clients may use of a copy; the rest is the mirror's.
pub(crate) const DATA_BYTES: u64 = 512 << 20;
const DISK_BYTES: u64 = 1200 << 20;

/// The machine. The fields are dropped in this order.
pub(crate) struct Storage {
    daemon: Option<Daemon>,
    disk: Disk,
    link: Links,
}

/// A directory, with a file system of its own in it.
struct Disk(Directory);

impl Disk {
    fn new() -> Disk {
        let directory = Directory::new();
        let image = directory.join("disk.img");
        let file = File::create(&image).expect("a fresh directory");
        file.set_len(DISK_BYTES).expect("it is sparse");
        let disk = Disk(directory);
        std::fs::create_dir(disk.mounted()).expect("a fresh directory");
        let mut mkfs = Command::new(program("mkfs.xfs", "xfsprogs"));
        run(mkfs.args(["-q", "-m", "reflink=1"]).arg(&image), LIMIT).success();
        let mut mount = Command::new(program("mount", "mount"));
        mount.args(["-o", "loop"]).arg(image).arg(disk.mounted());
        run(&mut mount, LIMIT).success();
        disk
    }

    fn mounted(&self) -> PathBuf {
        self.0.join("disk")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.mounted().join(name)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run(Command::new("umount").arg("-l").arg(self.mounted()), LIMIT);
    }
}

impl Storage {
    /// Starts it; `None` where there are no network namespaces.
    pub(crate) fn new() -> Option<Storage> {
        let mut storage = Storage {
            daemon: None,
            disk: Disk::new(),
            link: Links::new(1)?,
        };
        storage.start();
        Some(storage)
    }

    fn portal(&self) -> String {
        format!("{}:{PORT}", self.link.far_address(0))
    }

    /// The URL of what it serves.
    pub(crate) fn url(&self) -> String {
        format!("iscsi://{}/{IQN}/0", self.portal())
    }

    /// Starts its daemon and waits until it listens.
    pub(crate) fn start(&mut self) {
        let (portal, size) = (self.portal(), DATA_BYTES + (1 << 20));
        let file = format!("path = \"disk/copy\", size = \"{size}B\", cache = \"direct-sync\"");
        let configuration = format!(
            "state = \"state\"\n[volume.copy]\nfile = {{ {file} }}\n\
             [target.\"{IQN}\"]\nportals = [\"{portal}\"]\nluns = [\"copy\"]\nallow = [\"*\"]\n"
        );
        let directory = &self.disk.0;
        let configuration = directory.write("serve.toml", configuration);
        let mut command = self.link.command();
        command
            .arg(binary())
            .args(["serve", "-c"])
            .arg(configuration);
        let mut daemon = Daemon::start(&command, directory.join("serve.log"));
        daemon.wait_until(|| TcpStream::connect(&portal).is_ok());
        self.daemon = Some(daemon);
    }

    fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("it runs")
    }

    /// Kills its daemon without warning.
    pub(crate) fn kill(&mut self) {
        self.ends_by("KILL");
    }

    /// Stops its daemon, as a machine that hangs.
    pub(crate) fn hang(&mut self) {
        self.daemon().stop();
    }

    /// Lets it go on.
    pub(crate) fn go_on(&mut self) {
        self.daemon().signal("CONT");
    }

    /// Its link swallows what goes this way.
    pub(crate) fn cut(&self, towards: Towards) {
        self.link.swallow_towards(0, towards);
    }

    /// Its link carries everything again.
    pub(crate) fn mend(&self) {
        self.link.let_through();
    }

    /// Fills its disk: a snapshot shares all of the copy's blocks, so that each write needs a new one, and nothing is left.
    pub(crate) fn fill_up(&self) {
        let mut cp = Command::new(program("cp", "coreutils"));
        cp.arg("--reflink=always").arg(self.disk.file("copy"));
        run(cp.arg(self.disk.file("snapshot")), LIMIT).success();
        let mut hog = OpenOptions::new();
        let hog = hog.append(true).create(true).open(self.disk.file("hog"));
        let mut hog = hog.expect("it can be made");
        for size in [16 << 20, 1 << 20, 64 << 10, 4 << 10] {
            let zeroes = vec![0; size];
            while hog
                .write_all(&zeroes)
                .and_then(|()| hog.sync_data())
                .is_ok()
            {}
        }
    }

    /// Gives the room back.
    pub(crate) fn make_room(&self) {
        for name in ["hog", "snapshot"] {
            std::fs::remove_file(self.disk.file(name)).expect("it was made");
        }
    }

    /// How many bytes were written to the copy since the daemon was started.
    pub(crate) fn written_bytes(&self) -> u64 {
        let state = self.disk.0.join("state");
        let state = state.to_str().expect("a test's path is text");
        let shown = call(&["show", "--state", state, "--json", "-"]).success();
        let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
        let written = shown["volumes"]["copy"]["tree"]["requests"]["write"]["bytes"].as_u64();
        written.expect("a counter of writes")
    }

    /// Ends its daemon in order; returns the data of its copy.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.ends_by("TERM");
        let mut copy = std::fs::read(self.disk.file("copy")).expect("a copy");
        copy.truncate(DATA_BYTES as usize);
        copy
    }

    fn ends_by(&mut self, signal: &str) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.signal(signal);
        daemon.wait(LIMIT).expect("it ends");
    }
}
