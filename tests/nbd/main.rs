//! `sanstone attach --nbd` with third-party clients: libnbd's tools, QEMU's and fio; user mistakes; and crowds of
//! clients, hostile and slow ones.

mod calls;
mod clients;
mod crowd;
mod joined;
mod mixed;
mod slow;
mod tls;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use harness::directory::Directory;
use harness::process::{Daemon, program};
use harness::run::{Ran, run};
use harness::sanstone::binary;

const MIB: u64 = 1 << 20;
/// The size of the volume.
const SIZE: u64 = 64 * MIB;
/// How long a client may take before it counts as hung.
const LIMIT: Duration = Duration::from_secs(300);

/// A volume for NBD clients, at a Unix socket in a directory of its own.
struct Attached {
    daemon: Daemon,
    directory: Directory,
}

impl Attached {
    /// A file volume, attached with these `arguments`; `settings` precede its table.
    fn file(settings: &str, arguments: &[&str]) -> Attached {
        let directory = Directory::new();
        let table = format!(
            "state = \"state\"\n{settings}\n[volume.db]\nfile = {{ path = \"db.img\", size = \"{SIZE}B\" }}\n"
        );
        directory.write("sanstone.toml", table);
        Attached::again(directory, arguments)
    }

    /// The configuration in `directory`, attached.
    fn again(directory: Directory, arguments: &[&str]) -> Attached {
        let socket = directory.join("db.sock");
        let mut command = Command::new(binary());
        command
            .args(["attach", "-c"])
            .arg(directory.join("sanstone.toml"));
        command
            .args(["db", "--nbd"])
            .arg(format!("unix:{}", socket.display()));
        command.args(arguments);
        let mut daemon = Daemon::start(&command, directory.join("sanstone.log"));
        daemon.wait_for_socket(&socket);
        Attached { daemon, directory }
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("db.sock")
    }

    /// Where it is, as clients write it.
    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket().display())
    }
}

/// A client's program with these arguments, run to its end.
#[track_caller]
fn client(name: &str, package: &str, arguments: &[&str]) -> Ran {
    run(Command::new(program(name, package)).args(arguments), LIMIT)
}

#[track_caller]
fn nbdinfo(arguments: &[&str]) -> Ran {
    client("nbdinfo", "libnbd-bin", arguments)
}

#[track_caller]
fn qemu_io(uri: &str, commands: &[&str]) -> Ran {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let arguments: Vec<&str> = ["-f", "raw"]
        .into_iter()
        .chain(commands)
        .chain([uri])
        .collect();
    client("qemu-io", "qemu-utils", &arguments)
}

/// Has fio's NBD engine write randomly at `depth`, and verify the checksum of each block it reads; `beside` are
/// additional jobs.
#[track_caller]
fn fio_verifies(uri: &str, depth: &str, beside: &[&str]) {
    let (uri, depth) = (format!("--uri={uri}"), format!("--iodepth={depth}"));
    let verify = [
        "--ioengine=nbd",
        &uri,
        "--output-format=terse",
        "--bsrange=512-1m",
        "--blockalign=512",
        &depth,
        "--name=verify",
        "--rw=randrw",
        "--size=32m",
        "--io_size=48m",
        "--verify=crc32c",
        "--verify_state_save=0",
        "--verify_fatal=1",
    ];
    let ran = client("fio", "fio", &[&verify[..], beside].concat()).success();
    assert!(!ran.text().contains("verify:"), "{ran}");
}
