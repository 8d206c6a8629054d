//! A database on each of several stacks: what a transaction costs where its file system lies on a file, on
//! `sanstone attach` over a file and over iSCSI on loopback, and on nbdkit with nbdfuse. `make oltp` runs it; it
//! needs root.
//!
//! sysbench's `oltp_read_write` on MariaDB on ext4 on a loop device. All stacks are set up at first; those that are not
//! measured stand still (SIGSTOP), so that what one still has to write does not count for the next. Where the CPU time
//! of the whole machine went is told by process; what the network itself would cost is that of as many exchanges of
//! as many bytes by plain TCP, one after the other.

use harness::attachment::{Attachment, Front, Mounted};
use harness::database::Database;
use harness::directory::Directory;
use harness::mariadb::MariaDb;
use harness::process::{Daemon, find_program, program, signal};
use harness::procfs::{cpu_ever, cpu_of_all};
use harness::run::run;
use harness::samples::{Call, Samples};
use harness::sanstone::Sanstone;
use std::any::Any;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SIZE: &str = "640MiB";
const SIZE_BYTES: u64 = 640 << 20;
const LIMIT: Duration = Duration::from_secs(300);
const BARE: &str = "file";

/// A database with all that it lies on. Fields are dropped in this order.
struct Stack {
    name: &'static str,
    database: MariaDb,
    files: Files,
    /// What serves its file, by name.
    servers: Vec<(&'static str, u32)>,
    _below: Below,
    _directory: Directory,
}

/// A mounted file system on a loop device.
struct Files {
    mounted: Mounted,
    device: String,
}

/// What the loop device lies on, in the order of its end.
type Below = Vec<Box<dyn Any>>;

fn main() {
    let call = Call::read(8, 3.0);
    let threads = call.number("threads", 4);
    let stacks = stacks();
    for stack in &stacks {
        run(&mut sysbench(stack, threads, "prepare"), LIMIT).success();
        signal(i64::from(stack.database.pid()), "STOP");
    }
    println!(
        "{} rounds of {} s, {threads} threads",
        call.rounds, call.seconds
    );
    let mut samples = Samples::default();
    for _ in 0..call.rounds {
        for stack in &stacks {
            signal(i64::from(stack.database.pid()), "CONT");
            measure(&call, stack, threads, &mut samples);
            signal(i64::from(stack.database.pid()), "STOP");
        }
    }
    for stack in &stacks {
        signal(i64::from(stack.database.pid()), "CONT");
    }
    print(&stacks, &samples);
    samples.write(&call);
}

fn sysbench(stack: &Stack, threads: u32, verb: &str) -> Command {
    let mut command = Command::new(program("sysbench", "sysbench"));
    command
        .arg("oltp_read_write")
        .args(stack.database.sysbench());
    command.args(["--tables=2", "--table-size=10000", "--rand-type=uniform"]);
    command.arg(format!("--threads={threads}")).arg(verb);
    command
}

/// What the loop device has done: I/Os and flushes, bytes.
fn done_below(stack: &Stack) -> (f64, f64) {
    let name = stack.files.device.trim_start_matches("/dev/");
    let text = std::fs::read_to_string(format!("/sys/block/{name}/stat")).expect("it is there");
    let fields: Vec<f64> = text
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    let field = |number: usize| fields.get(number).copied().unwrap_or(0.0);
    (
        field(0) + field(4) + field(15),
        (field(2) + field(6)) * 512.0,
    )
}

fn measure(call: &Call, stack: &Stack, threads: u32, samples: &mut Samples) {
    let name = stack.name;
    let cpu = |pids: &[(&'static str, u32)]| -> Vec<(&'static str, f64)> {
        let all = pids
            .iter()
            .map(|(name, pid)| (*name, cpu_ever(*pid).as_secs_f64()));
        all.collect()
    };
    let mut pids = vec![("mariadbd", stack.database.pid())];
    pids.extend(&stack.servers);
    let (below, of_all, of_each) = (done_below(stack), cpu_of_all(), cpu(&pids));
    let mut load = sysbench(stack, threads, "run");
    load.arg(format!("--time={}", call.seconds.ceil()))
        .arg("--events=0");
    let ran = run(&mut load, LIMIT).success();
    let all_s = (cpu_of_all() - of_all).as_secs_f64();
    let (ios, bytes) = done_below(stack);
    let transactions = ran.stdout.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("transactions:")?;
        rest.split_whitespace().next()?.parse::<f64>().ok()
    });
    let transactions = transactions.unwrap_or_else(|| panic!("no figures: {ran}"));
    let mut note = |what: &str, value| samples.note(format!("{name}, {what}"), value);
    note("transactions/s", transactions / call.seconds.ceil());
    note("CPU µs", all_s * 1e6 / transactions);
    for ((who, before), (_, after)) in of_each.iter().zip(cpu(&pids)) {
        note(
            &format!("CPU µs of {who}"),
            (after - before) * 1e6 / transactions,
        );
    }
    let (ios, bytes) = (ios - below.0, bytes - below.1);
    note("I/Os", ios / transactions);
    let exchange_us = exchange_us((bytes / ios) as usize);
    note(
        "CPU µs of the network itself",
        exchange_us * ios / transactions,
    );
}

/// What both ends of plain TCP on loopback spend on a request of a header and an answer with so many bytes.
fn exchange_us(bytes: usize) -> f64 {
    const HEADER_BYTES: usize = 48;
    const EXCHANGES: u32 = 4000;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let own = std::process::id();
    let before = cpu_ever(own);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut socket, _) = listener.accept().expect("a connection");
            socket.set_nodelay(true).expect("a socket");
            let (mut request, answer) = ([0; HEADER_BYTES], vec![0; HEADER_BYTES + bytes]);
            while socket.read_exact(&mut request).is_ok() {
                socket.write_all(&answer).expect("somebody reads");
            }
        });
        let mut socket = TcpStream::connect(address).expect("somebody listens");
        socket.set_nodelay(true).expect("a socket");
        let (request, mut answer) = ([0; HEADER_BYTES], vec![0; HEADER_BYTES + bytes]);
        for _ in 0..EXCHANGES {
            socket.write_all(&request).expect("somebody reads");
            socket.read_exact(&mut answer).expect("an answer");
        }
    });
    (cpu_ever(own) - before).as_secs_f64() * 1e6 / f64::from(EXCHANGES)
}

fn print(stacks: &[Stack], samples: &Samples) {
    let value = |name: &str, what: &str| samples.median(&format!("{name}, {what}"));
    println!(
        "\n{:18} {:>24} {:>22} {:>26} {:>22} {:>8} {:>10}",
        "", "transactions/s", "÷ file", "CPU µs of a transaction", "÷ file", "I/Os", "network µs"
    );
    for Stack { name, .. } in stacks {
        let text =
            |what: &str| value(name, what).map_or("–".to_owned(), |value| value.to_string());
        let ratio = |what: &str| {
            let ratio = samples.ratio(&format!("{name}, {what}"), &format!("{BARE}, {what}"));
            ratio.map_or("–".to_owned(), |ratio| ratio.to_string())
        };
        let least = |what: &str| value(name, what).map_or(0.0, |value| value.median);
        println!(
            "{name:18} {:>24} {:>22} {:>26} {:>22} {:8.1} {:10.0}",
            text("transactions/s"),
            ratio("transactions/s"),
            text("CPU µs"),
            ratio("CPU µs"),
            least("I/Os"),
            least("CPU µs of the network itself"),
        );
    }
    println!("\nwhere it went, µs of CPU for each transaction");
    for Stack { name, servers, .. } in stacks {
        let of =
            |who: &str| value(name, &format!("CPU µs of {who}")).map_or(0.0, |value| value.median);
        let all = value(name, "CPU µs").map_or(0.0, |value| value.median);
        let mut rest = all - of("mariadbd");
        let mut line = format!("{name:18} mariadbd {:.0}", of("mariadbd"));
        for (who, _) in servers {
            line += &format!(", {who} {:.0}", of(who));
            rest -= of(who);
        }
        println!("{line}, sysbench and the kernel's own threads {rest:.0}");
    }
}

/// All of them, each with an empty database.
fn stacks() -> Vec<Stack> {
    let mut stacks = vec![
        stack(BARE, |directory| {
            (sparse(directory), Below::new(), Vec::new())
        }),
        stack("attach, file", |directory| {
            let file = format!(
                "file = {{ path = {:?}, cache = \"direct\" }}",
                sparse(directory)
            );
            let (path, attachment) = attach(&file);
            let servers = vec![("attach", attachment.pid())];
            (path, vec![Box::new(attachment)], servers)
        }),
        stack("attach, iSCSI", |directory| {
            let file = format!("{{ path = \"disk.img\", size = \"{SIZE}\", cache = \"direct\" }}");
            let volume = format!("state = \"state\"\n[volume.disk]\nfile = {file}\n");
            let target = Sanstone::serve(directory.path(), &volume, &["disk"]);
            let (path, attachment) = attach(&format!("iscsi = {{ url = \"{}\" }}", target.url(0)));
            let servers = vec![("attach", attachment.pid()), ("serve", target.pid())];
            let below: Below = vec![Box::new(attachment), Box::new(target)];
            (path, below, servers)
        }),
    ];
    if find_program("nbdkit").is_some() && find_program("nbdfuse").is_some() {
        stacks.push(stack("nbdkit + nbdfuse", nbdfuse));
    } else {
        println!(
            "nbdkit or nbdfuse is not here (Debian's packages nbdkit and libnbd-bin): left out"
        );
    }
    stacks
}

fn sparse(directory: &Directory) -> PathBuf {
    directory.sparse("disk.img", SIZE_BYTES)
}

fn attach(volume: &str) -> (PathBuf, Attachment) {
    let attachment = Attachment::start(Front::Fuse, &format!("[volume.db]\n{volume}\n"));
    (attachment.path(), attachment)
}

fn nbdfuse(directory: &Directory) -> (PathBuf, Below, Vec<(&'static str, u32)>) {
    let (image, socket) = (sparse(directory), directory.join("socket"));
    let mut command = Command::new(program("nbdkit", "nbdkit"));
    command
        .args(["--foreground", "--unix"])
        .arg(&socket)
        .arg("file")
        .arg(image);
    let mut kit = Daemon::start(&command, directory.join("nbdkit.log"));
    kit.wait_until(|| socket.exists());
    let disk = directory.write("disk", "");
    let mut command = Command::new(program("nbdfuse", "libnbd-bin"));
    command.arg(&disk).arg("--unix").arg(&socket);
    let mut fuse = Daemon::start(&command, directory.join("nbdfuse.log"));
    fuse.wait_until(|| disk.metadata().is_ok_and(|disk| disk.len() == SIZE_BYTES));
    let servers = vec![("nbdkit", kit.pid()), ("nbdfuse", fuse.pid())];
    let below: Below = vec![
        Box::new(Mounted(disk.clone())),
        Box::new(fuse),
        Box::new(kit),
    ];
    (disk, below, servers)
}

fn stack(
    name: &'static str,
    make: impl FnOnce(&Directory) -> (PathBuf, Below, Vec<(&'static str, u32)>),
) -> Stack {
    let directory = Directory::new();
    let (path, below, servers) = make(&directory);
    let files = Files::on(&path, directory.join("files"));
    let run_in = directory.join("run");
    std::fs::create_dir(&run_in).expect("a fresh directory");
    let database = MariaDb::create(&files.mounted.0, &run_in);
    Stack {
        name,
        database,
        files,
        servers,
        _below: below,
        _directory: directory,
    }
}

impl Files {
    /// Makes a file system on a loop device on this file.
    fn on(file: &Path, at: PathBuf) -> Files {
        let mut losetup = Command::new(program("losetup", "mount"));
        losetup
            .args(["--find", "--show", "--direct-io=on"])
            .arg(file);
        let device = run(&mut losetup, LIMIT).success().stdout.trim().to_owned();
        std::fs::create_dir(&at).expect("a fresh directory");
        let mut mkfs = Command::new(program("mkfs.ext4", "e2fsprogs"));
        run(mkfs.args(["-q", "-F", &device]), LIMIT).success();
        let mut mount = Command::new(program("mount", "mount"));
        run(mount.arg(&device).arg(&at), LIMIT).success();
        let mounted = Mounted(at);
        Files { mounted, device }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.database.kill();
    }
}

impl Drop for Files {
    /// The kernel lets go of the device when it is unmounted, which comes next.
    fn drop(&mut self) {
        let mut losetup = Command::new(program("losetup", "mount"));
        let _ = losetup.args(["--detach", &self.device]).status();
    }
}
