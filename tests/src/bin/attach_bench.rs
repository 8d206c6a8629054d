//! The cost of a volume as a local file or NBD export: `sanstone attach` compared with nbdkit plus nbdfuse, nbdkit,
//! qemu-nbd, and the file itself. `make attach-bench` runs it; it needs root.
//!
//! All servers serve the same file in turn, because even copies of a file on one disk differ in cost. Only the server
//! that is being measured runs; it is started for each measurement, when the file is in the page cache and nothing of
//! it is dirty. All of them access it through the page cache. fio generates the load. The result is I/Os per second of
//! the server's CPU time, including its kernel threads and workers.

use harness::attachment::{Attachment, Front, Mounted};
use harness::directory::Directory;
use harness::fio::{At, Load};
use harness::process::{Daemon, find_program, program};
use harness::procfs::cpu_ever;
use harness::samples::{Call, Samples};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SIZE_BYTES: u64 = 128 << 20;
/// How long a new server is used before it is measured.
const WARM_UP_S: f64 = 0.1;

/// What serves the file.
#[derive(Clone, Copy)]
enum Kind {
    /// Nothing: fio uses the file itself.
    File,
    Attach(Front),
    NbdFuse,
    NbdKit,
    QemuNbd,
}

const KINDS: [(&str, Kind); 6] = [
    ("the file itself", Kind::File),
    ("attach --fuse", Kind::Attach(Front::Fuse)),
    ("attach --nbd", Kind::Attach(Front::Nbd)),
    ("nbdkit + nbdfuse", Kind::NbdFuse),
    ("nbdkit", Kind::NbdKit),
    ("qemu-nbd", Kind::QemuNbd),
];

/// A server of the file, and where clients find it.
struct Server {
    at: At,
    pids: Vec<u32>,
    /// Dropped in this order.
    _attachment: Option<Attachment>,
    _mounted: Option<Mounted>,
    _daemons: Vec<Daemon>,
}

/// The comparisons: `sanstone attach` with either front against other servers.
const PAIRS: [(&str, &str); 4] = [
    ("attach --fuse", "nbdkit + nbdfuse"),
    ("attach --fuse", "the file itself"),
    ("attach --nbd", "nbdkit"),
    ("attach --nbd", "qemu-nbd"),
];

fn main() {
    let call = Call::read(9, 0.7);
    let directory = Directory::new();
    let image = directory.write("file.img", harness::noise(1, SIZE_BYTES as usize));
    let kinds = installed();
    let load = |kind, depth| Load {
        kind,
        block_bytes: 4096,
        depth,
        rate: None,
        size_bytes: SIZE_BYTES,
    };
    let loads = [
        ("4K read, depth 1", load("randread", 1)),
        ("4K read, depth 32", load("randread", 32)),
        ("4K write, depth 1", load("randwrite", 1)),
        ("4K write, depth 32", load("randwrite", 32)),
    ];
    println!(
        "{} rounds of {} s, 4 KiB at random, in the page cache; one file, which the servers serve in turn",
        call.rounds, call.seconds
    );
    let mut samples = Samples::default();
    for _ in 0..call.rounds {
        for (what, load) in &loads {
            for (name, kind) in &kinds {
                clean(&image);
                let server = Server::start(*kind, &directory, &image);
                load.run(&server.at, WARM_UP_S);
                let name = format!("{name}, {what}");
                measure(&call, &name, load, &server, &mut samples);
            }
        }
    }
    print(&kinds, &loads.map(|(what, _)| what), &samples);
    samples.write(&call);
}

/// Writes back what is dirty of the file.
fn clean(image: &Path) {
    let file = File::open(image).expect("it was written");
    file.sync_all().expect("the disk works");
}

fn measure(call: &Call, name: &str, load: &Load, server: &Server, samples: &mut Samples) {
    let cpu = || -> Duration { server.pids.iter().map(|pid| cpu_ever(*pid)).sum() };
    let before = cpu();
    let done = load.run(&server.at, call.seconds);
    let served_s = (cpu() - before).as_secs_f64();
    let all_s = served_s + done.client_cpu_s;
    let mut note = |unit: &str, value| samples.note(format!("{name}, {unit}"), value);
    note("IOPS", done.ios / done.seconds);
    note("I/Os per CPU second with the client's", done.ios / all_s);
    if !server.pids.is_empty() {
        note("I/Os per CPU second", done.ios / served_s);
    }
}

fn print(kinds: &[(&str, Kind)], loads: &[&str], samples: &Samples) {
    println!(
        "\n{:20} {:18} {:>10} {:>14} {:>14}",
        "", "", "IOPS", "server µs/IO", "with client"
    );
    for what in loads {
        for (name, _) in kinds {
            let median = |unit: &str| samples.median(&format!("{name}, {what}, {unit}"));
            let cost = |unit: &str| {
                let cost = median(unit).map(|per_s| format!("{:.1}", 1e6 / per_s.median));
                cost.unwrap_or_else(|| "–".to_owned())
            };
            let iops = median("IOPS").map_or(0.0, |iops| iops.median);
            let (own, all) = (
                cost("I/Os per CPU second"),
                cost("I/Os per CPU second with the client's"),
            );
            println!("{what:20} {name:18} {iops:10.0} {own:>14} {all:>14}");
        }
    }
    println!(
        "\n{:20} {:34} {:>28} {:>28} {:>24}",
        "", "", "I/Os per CPU second ÷", "with the client's ÷", "IOPS ÷"
    );
    for what in loads {
        for (ours, theirs) in PAIRS {
            let ratio = |unit: &str| {
                let (a, b) = (
                    format!("{ours}, {what}, {unit}"),
                    format!("{theirs}, {what}, {unit}"),
                );
                let ratio = samples.ratio(&a, &b).map(|ratio| ratio.to_string());
                ratio.unwrap_or_else(|| "–".to_owned())
            };
            let pair = format!("{ours} ÷ {theirs}");
            println!(
                "{what:20} {pair:34} {:>28} {:>28} {:>24}",
                ratio("I/Os per CPU second"),
                ratio("I/Os per CPU second with the client's"),
                ratio("IOPS"),
            );
        }
    }
}

/// The servers that can run here.
fn installed() -> Vec<(&'static str, Kind)> {
    let has_kit = find_program("nbdkit").is_some() && find_program("nbdfuse").is_some();
    if !has_kit {
        println!("skipping nbdkit and nbdfuse: install Debian's packages nbdkit and libnbd-bin");
    }
    let has_qemu = find_program("qemu-nbd").is_some();
    if !has_qemu {
        println!("skipping qemu-nbd: install Debian's package qemu-utils");
    }
    let is_installed = |kind: &Kind| match kind {
        Kind::File | Kind::Attach(_) => true,
        Kind::NbdFuse | Kind::NbdKit => has_kit,
        Kind::QemuNbd => has_qemu,
    };
    let kinds = KINDS.into_iter();
    kinds.filter(|(_, kind)| is_installed(kind)).collect()
}

impl Server {
    /// Starts one on the file, and waits until it serves.
    fn start(kind: Kind, directory: &Directory, image: &Path) -> Server {
        match kind {
            Kind::File => Server {
                at: At::Cached(image.to_owned()),
                pids: Vec::new(),
                _attachment: None,
                _mounted: None,
                _daemons: Vec::new(),
            },
            Kind::Attach(front) => Server::attach(front, image),
            Kind::NbdFuse => Server::nbdfuse(directory, image),
            Kind::NbdKit => {
                let socket = directory.join("nbdkit.sock");
                let kit = nbdkit(directory, image, &socket);
                Server::exporter(socket, kit)
            }
            Kind::QemuNbd => Server::qemu_nbd(directory, image),
        }
    }

    fn attach(front: Front, image: &Path) -> Server {
        let file = format!("{{ path = {image:?}, cache = \"write-back\" }}");
        let attachment = Attachment::start(front, &format!("[volume.db]\nfile = {file}\n"));
        let path = attachment.path();
        Server {
            at: match front {
                Front::Fuse => At::Direct(path),
                Front::Nbd => At::Nbd(path),
            },
            pids: vec![attachment.pid()],
            _attachment: Some(attachment),
            _mounted: None,
            _daemons: Vec::new(),
        }
    }

    fn nbdfuse(directory: &Directory, image: &Path) -> Server {
        let socket = directory.join("nbdfuse.sock");
        let kit = nbdkit(directory, image, &socket);
        let mount = directory.write("nbdfuse.disk", "");
        let mut command = Command::new(program("nbdfuse", "libnbd-bin"));
        command.arg(&mount).arg("--unix").arg(&socket);
        let mut fuse = Daemon::start(&command, directory.join("nbdfuse.log"));
        fuse.wait_until(|| mount.metadata().is_ok_and(|disk| disk.len() == SIZE_BYTES));
        Server {
            at: At::Direct(mount.clone()),
            pids: vec![kit.pid(), fuse.pid()],
            _attachment: None,
            _mounted: Some(Mounted(mount)),
            _daemons: vec![fuse, kit],
        }
    }

    fn qemu_nbd(directory: &Directory, image: &Path) -> Server {
        let socket = fresh(directory.join("qemu.sock"));
        let mut command = Command::new(program("qemu-nbd", "qemu-utils"));
        command.args([
            "--persistent",
            "--format=raw",
            "--cache=writeback",
            "--aio=io_uring",
        ]);
        command.arg("--socket").arg(&socket).arg(image);
        let mut daemon = Daemon::start(&command, directory.join("qemu.log"));
        daemon.wait_until(|| socket.exists());
        Server::exporter(socket, daemon)
    }

    fn exporter(socket: PathBuf, daemon: Daemon) -> Server {
        Server {
            at: At::Nbd(socket),
            pids: vec![daemon.pid()],
            _attachment: None,
            _mounted: None,
            _daemons: vec![daemon],
        }
    }
}

fn nbdkit(directory: &Directory, image: &Path, socket: &Path) -> Daemon {
    let socket = fresh(socket.to_owned());
    let mut command = Command::new(program("nbdkit", "nbdkit"));
    command
        .args(["--foreground", "--unix"])
        .arg(&socket)
        .arg("file")
        .arg(image);
    let mut daemon = Daemon::start(&command, directory.join("nbdkit.log"));
    daemon.wait_until(|| socket.exists());
    daemon
}

/// A socket's path, without the socket that an earlier server has left there.
fn fresh(socket: PathBuf) -> PathBuf {
    let _ = std::fs::remove_file(&socket);
    socket
}
