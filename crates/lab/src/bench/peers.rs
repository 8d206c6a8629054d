//! The targets that are measured: started for the run, each on the target's core, each with a disk
//! in memory, and ended with it.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    path::Path,
    process::{self, Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Other;
use crate::{Error, Result, nameless::nameless_file};

/// Length of every disk that is measured.
pub(super) const DISK_BYTES: u64 = 512 << 20;
const IQN: &str = "iqn.2026-11.io.sanstone:bench";

/// The core for the targets and the one for the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cores {
    pub(super) target: usize,
    pub(super) client: usize,
}

/// The first two CPUs that this process may use.
pub(super) fn cores() -> Result<Cores> {
    let mask = sched_getaffinity(None).map_err(|e| Error::bench_io("asking for CPUs", e))?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| mask.is_set(cpu));
    match (cpus.next(), cpus.next()) {
        (Some(target), Some(client)) => Ok(Cores { target, client }),
        _ => Err(Error::bench(
            "the benchmark needs two CPUs: one for the target, one for the client",
        )),
    }
}

/// Keeps this thread, and what it starts from now on, on one CPU.
pub(super) fn pin(cpu: usize) -> Result<()> {
    pin_to(&[cpu])
}

/// Keeps this thread, and what it starts from now on, on some CPUs.
pub(super) fn pin_to(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(|e| Error::bench_io("pinning to a CPU", e))
}

/// A target under measurement.
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    pub(super) target: String,
    pub(super) lun: u16,
    pub(super) pid: u32,
    child: Option<Child>,
}

impl Peer {
    pub(super) fn other(other: &Other) -> Peer {
        Peer {
            name: other.name.clone(),
            address: other.address,
            target: other.target.clone(),
            lun: other.lun,
            pid: other.pid,
            child: None,
        }
    }

    /// Our own target with a RAM volume.
    pub(super) fn sanstone(binary: &Path, lanes: usize, directory: &Path) -> Result<Peer> {
        let address = free_address()?;
        let config = directory.join(format!("{}.toml", address.port()));
        let text = format!(
            "lanes = {lanes}\n[volume.disk]\nram = {{ size = \"{}MiB\" }}\n\
             [target.\"{IQN}\"]\nportals = [\"{address}\"]\nluns = [\"disk\"]\nallow = [\"*\"]\n",
            DISK_BYTES >> 20
        );
        fs::write(&config, text).map_err(|e| Error::bench_io("writing a configuration", e))?;
        let mut command = Command::new(binary);
        command
            .args(["--log", "warn", "serve", "--supervised", "-c"])
            .arg(&config);
        Peer::start("Sanstone", &mut command, address, 0)
    }

    /// Debian's tgt over a file in memory.
    pub(super) fn tgt(name: &str, flags: &[&str], directory: &Path) -> Result<Peer> {
        let address = free_address()?;
        let disk_file = nameless_file(Path::new("/dev/shm"))?;
        disk_file
            .set_len(DISK_BYTES)
            .map_err(|e| Error::bench_io("making a disk in /dev/shm", e))?;
        let socket = directory.join(format!("{name}.ctl"));
        // It goes with us, however we end.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "tgtd"]);
        command
            .env("TGT_IPC_SOCKET", &socket)
            .args(["-f", "-C", "1"])
            .args(flags);
        command.arg("--iscsi").arg(format!("portal={address}"));
        let peer = Peer::start(name, &mut command, address, 1)?;
        // tgtd opens it by our descriptor and is the only one that keeps it, so it goes with tgtd.
        let disk = format!("/proc/{}/fd/{}", process::id(), disk_file.as_raw_fd());
        for arguments in [
            format!("--op new --mode target --tid 1 -T {IQN}"),
            format!("--op new --mode logicalunit --tid 1 --lun 1 --bstype rdwr -b|{disk}"),
            "--op bind --mode target --tid 1 -I ALL".to_owned(),
        ] {
            let (words, path) = arguments.split_once('|').unwrap_or((&arguments, ""));
            let mut command = Command::new("tgtadm");
            command
                .env("TGT_IPC_SOCKET", &socket)
                .args(["-C", "1", "--lld", "iscsi"]);
            command
                .args(words.split(' '))
                .args(Some(path).filter(|path| !path.is_empty()));
            let output = command.output().map_err(|e| Error::bench_io("tgtadm", e))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(Error::bench(format!("tgtadm {words}: {}", said.trim())));
            }
        }
        Ok(peer)
    }

    fn start(name: &str, command: &mut Command, address: SocketAddr, lun: u16) -> Result<Peer> {
        let program = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().map_err(|e| Error::bench_io(&program, e))?;
        let peer = Peer {
            name: name.into(),
            address,
            target: IQN.into(),
            lun,
            pid: child.id(),
            child: Some(child),
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            if Instant::now() > deadline {
                return Err(Error::bench(format!(
                    "{program} does not listen on {address}"
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(peer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // tgtd does not end on SIGTERM while it has a target.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    listener
        .and_then(|l| l.local_addr())
        .map_err(|e| Error::bench_io("looking for a free port", e))
}
