//! The cost of a volume as a local file or NBD export: `sanstone attach` compared with nbdkit plus nbdfuse, nbdkit,
//! qemu-nbd, and the file itself. `make attach-bench` runs it; it needs root.
//!
//! Each server has its own copy of one file, in the page cache, and accesses it through the page cache. fio generates
//! the load. The result is I/Os per second of the server's CPU time, including its kernel threads and workers.

use harness::attachment::{Attachment, Front, Mounted};
use harness::directory::Directory;
use harness::fio::{At, Load};
use harness::process::{Daemon, find_program, program};
use harness::procfs::cpu_ever;
use harness::samples::{Call, Samples};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SIZE_BYTES: u64 = 128 << 20;

/// A server of the file, and where clients find it.
struct Server {
    name: &'static str,
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
    let servers = servers(&directory);
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
        "{} rounds of {} s, 4 KiB at random, in the page cache",
        call.rounds, call.seconds
    );
    let mut samples = Samples::default();
    for _ in 0..call.rounds {
        for (what, load) in &loads {
            for server in &servers {
                measure(&call, what, load, server, &mut samples);
            }
        }
    }
    print(&servers, &loads.map(|(what, _)| what), &samples);
    samples.write(&call);
}

fn measure(call: &Call, what: &str, load: &Load, server: &Server, samples: &mut Samples) {
    let cpu = || -> Duration { server.pids.iter().map(|pid| cpu_ever(*pid)).sum() };
    let before = cpu();
    let done = load.run(&server.at, call.seconds);
    let served_s = (cpu() - before).as_secs_f64();
    let all_s = served_s + done.client_cpu_s;
    let mut note =
        |unit: &str, value| samples.note(format!("{}, {what}, {unit}", server.name), value);
    note("IOPS", done.ios / done.seconds);
    note("I/Os per CPU second with the client's", done.ios / all_s);
    if !server.pids.is_empty() {
        note("I/Os per CPU second", done.ios / served_s);
    }
}

fn print(servers: &[Server], loads: &[&str], samples: &Samples) {
    println!(
        "\n{:20} {:18} {:>10} {:>14} {:>14}",
        "", "", "IOPS", "server µs/IO", "with client"
    );
    for what in loads {
        for Server { name, .. } in servers {
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

/// All servers that are installed.
fn servers(directory: &Directory) -> Vec<Server> {
    let bytes = harness::noise(1, SIZE_BYTES as usize);
    let copy = |name: &str| directory.write(name, &bytes);
    let file = copy("file.img");
    let mut servers = vec![Server {
        name: "the file itself",
        at: At::Cached(file),
        pids: Vec::new(),
        _attachment: None,
        _mounted: None,
        _daemons: Vec::new(),
    }];
    for (name, front) in [("attach --fuse", Front::Fuse), ("attach --nbd", Front::Nbd)] {
        let image = copy(&format!("{front:?}.img"));
        let file = format!("{{ path = {image:?}, cache = \"write-back\" }}");
        let attachment = Attachment::start(front, &format!("[volume.db]\nfile = {file}\n"));
        let path = attachment.path();
        servers.push(Server {
            name,
            at: match front {
                Front::Fuse => At::Direct(path),
                Front::Nbd => At::Nbd(path),
            },
            pids: vec![attachment.pid()],
            _attachment: Some(attachment),
            _mounted: None,
            _daemons: Vec::new(),
        });
    }
    if find_program("nbdkit").is_some() && find_program("nbdfuse").is_some() {
        let (image, socket) = (copy("nbdfuse.img"), directory.join("nbdfuse.sock"));
        let kit = nbdkit(directory, &image, &socket);
        let mount = directory.write("nbdfuse.disk", "");
        let mut command = Command::new(program("nbdfuse", "libnbd-bin"));
        command.arg(&mount).arg("--unix").arg(&socket);
        let mut fuse = Daemon::start(&command, directory.join("nbdfuse.log"));
        fuse.wait_until(|| mount.metadata().is_ok_and(|disk| disk.len() == SIZE_BYTES));
        servers.push(Server {
            name: "nbdkit + nbdfuse",
            at: At::Direct(mount.clone()),
            pids: vec![kit.pid(), fuse.pid()],
            _attachment: None,
            _mounted: Some(Mounted(mount)),
            _daemons: vec![fuse, kit],
        });
        let (image, socket) = (copy("nbdkit.img"), directory.join("nbdkit.sock"));
        let kit = nbdkit(directory, &image, &socket);
        servers.push(exporter("nbdkit", socket, kit));
    } else {
        println!("skipping nbdkit and nbdfuse: install Debian's packages nbdkit and libnbd-bin");
    }
    if find_program("qemu-nbd").is_some() {
        let (image, socket) = (copy("qemu.img"), directory.join("qemu.sock"));
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
        servers.push(exporter("qemu-nbd", socket, daemon));
    } else {
        println!("skipping qemu-nbd: install Debian's package qemu-utils");
    }
    servers
}

fn nbdkit(directory: &Directory, image: &Path, socket: &Path) -> Daemon {
    let mut command = Command::new(program("nbdkit", "nbdkit"));
    command
        .args(["--foreground", "--unix"])
        .arg(socket)
        .arg("file")
        .arg(image);
    let log = directory.join(&format!(
        "nbdkit-{}.log",
        image.file_stem().unwrap_or_default().to_string_lossy()
    ));
    let mut daemon = Daemon::start(&command, log);
    daemon.wait_until(|| socket.exists());
    daemon
}

fn exporter(name: &'static str, socket: PathBuf, daemon: Daemon) -> Server {
    Server {
        name,
        at: At::Nbd(socket),
        pids: vec![daemon.pid()],
        _attachment: None,
        _mounted: None,
        _daemons: vec![daemon],
    }
}
