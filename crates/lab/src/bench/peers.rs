//! The targets under measurement, started for the run on the target's core and stopped with it. Each serves
//! one disk on one medium; targets are compared only on the same medium.

use std::{
    fs::{self, File},
    io::Write,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use super::Other;
use crate::{
    Error, Result,
    nameless::nameless_file,
    programs::{dying_with_us, own_command, program},
};

/// Length of every disk measured, in bytes.
pub(super) const DISK_BYTES: u64 = 512 << 20;
const IQN: &str = "iqn.2026-11.io.sanstone:bench";

/// Name prefixes of our own targets and of tgt.
pub(super) const OWN_NAME: &str = "Sanstone";
pub(super) const TGT_NAME: &str = "tgt";

/// Where a run puts its files.
pub(super) struct Places {
    /// Configurations and control sockets.
    pub(super) control: PathBuf,
    /// The disks.
    pub(super) disks: PathBuf,
}

/// What a disk under measurement is stored on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Medium {
    /// A file, bypassing the page cache (O_DIRECT).
    DirectFile,
    /// A file through the page cache.
    CachedFile,
    /// Memory of the target itself.
    Memory,
}

impl Medium {
    /// Its name in the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Medium::DirectFile => "direct file",
            Medium::CachedFile => "page-cache file",
            Medium::Memory => "memory",
        }
    }
}

/// A disk to serve: its medium, and the backing file if there is one.
#[derive(Clone)]
struct Disk {
    medium: Medium,
    /// Open so that its path stays valid.
    file: Option<Arc<File>>,
}

impl Disk {
    /// A new disk. Its backing file, if it has one, is created in `directory` and has no name, so it
    /// disappears with this process and the target, however they end.
    fn new(medium: Medium, directory: &Path) -> Result<Disk> {
        if medium == Medium::Memory {
            return Ok(Disk { medium, file: None });
        }
        let file = nameless_file(directory)?;
        let made = match medium {
            Medium::CachedFile => written_as_cp_does(&file),
            Medium::DirectFile | Medium::Memory => file.set_len(DISK_BYTES),
        };
        made.map_err(|e| Error::bench_io("making the disk of a target", e))?;
        let file = Some(Arc::new(file));
        Ok(Disk { medium, file })
    }

    /// The path by which a target can open our file while we hold it open; `None` for memory.
    fn path(&self) -> Option<String> {
        let file = self.file.as_ref()?;
        Some(format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd()))
    }

    /// The disk's volume, in configuration syntax.
    fn volume(&self) -> String {
        let Some(path) = self.path() else {
            return format!("ram = {{ size = \"{}MiB\" }}", DISK_BYTES >> 20);
        };
        let caching = match self.medium {
            Medium::DirectFile => "direct",
            Medium::CachedFile | Medium::Memory => "write-back",
        };
        format!("file = {{ path = \"{path}\", cache = \"{caching}\" }}")
    }
}

/// Writes the file from its start to its end in pieces of 1 MiB. The kernel's large pages, and with them what a small
/// write costs, depend on the pieces in which a file came into the page cache, and users have files that `cp` or `dd`
/// has written.
fn written_as_cp_does(mut file: &File) -> std::io::Result<()> {
    let piece = vec![0; 1 << 20];
    (0..DISK_BYTES >> 20).try_for_each(|_| file.write_all(&piece))
}

/// The core for targets and the core for the client.
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

/// Pins this thread, and anything it starts from now on, to one CPU.
pub(super) fn pin(cpu: usize) -> Result<()> {
    pin_to(&[cpu])
}

/// Pins this thread, and anything it starts from now on, to these CPUs.
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
    /// `None` for a target that somebody else started.
    pub(super) medium: Option<Medium>,
    /// Our own setting `wait`, where it is not the default.
    pub(super) wait: Option<&'static str>,
    pub(super) address: SocketAddr,
    pub(super) target: String,
    pub(super) lun: u16,
    pub(super) pid: u32,
    child: Option<Child>,
    disk: Option<Disk>,
}

impl Peer {
    pub(super) fn other(other: &Other) -> Peer {
        Peer {
            name: other.name.clone(),
            medium: None,
            wait: None,
            address: other.address,
            target: other.target.clone(),
            lun: other.lun,
            pid: other.pid,
            child: None,
            disk: None,
        }
    }

    /// Whether it is our own target.
    pub(super) fn is_own(&self) -> bool {
        self.name.starts_with(OWN_NAME)
    }

    /// The path of the disk's file, if it is a file of ours.
    pub(super) fn file(&self) -> Option<String> {
        self.disk.as_ref()?.path()
    }

    /// Starts our own target; `wait` is the setting of that name, if not the default, and `places` is where its
    /// files go.
    pub(super) fn sanstone(
        binary: &Path,
        lanes: usize,
        medium: Medium,
        wait: Option<&'static str>,
        places: &Places,
    ) -> Result<Peer> {
        let address = free_address()?;
        let disk = Disk::new(medium, &places.disks)?;
        let config = places.control.join(format!("{}.toml", address.port()));
        let text = format!(
            "lanes = {lanes}\nwait = \"{}\"\n[volume.disk]\n{}\n\
             [target.\"{IQN}\"]\nportals = [\"{address}\"]\nluns = [\"disk\"]\nallow = [\"*\"]\n",
            wait.unwrap_or("balanced"),
            disk.volume()
        );
        fs::write(&config, text).map_err(|e| Error::bench_io("writing a configuration", e))?;
        let mut command = own_command(binary);
        command
            .args(["--log", "warn", "serve", "--supervised", "-c"])
            .arg(&config);
        let mut name = format!("{OWN_NAME}, {}", medium.name());
        if let Some(wait) = wait {
            name += &format!(", {wait}");
        }
        let mut peer = Peer::start(&name, &mut command, address, 0, disk)?;
        peer.wait = wait;
        Ok(peer)
    }

    /// Starts Debian's tgt beside `own`. Both serve the same direct file, in turn: where a file lies on a disk can make
    /// a difference of a third in I/Os and in CPU time. Through the page cache tgt has a file of its own, written alike:
    /// one that both had would be dirty of the other's writes.
    pub(super) fn tgt(own: &Peer, places: &Places) -> Result<Peer> {
        let address = free_address()?;
        let disk = match &own.disk {
            Some(disk) if disk.medium == Medium::DirectFile => disk.clone(),
            Some(disk) => Disk::new(disk.medium, &places.disks)?,
            None => return Err(Error::bench("tgt runs beside a target of ours only")),
        };
        let medium = disk.medium;
        let Some(path) = disk.path() else {
            return Err(Error::bench("tgt serves files only"));
        };
        let socket = places.control.join(format!("{}.ctl", address.port()));
        let mut command = dying_with_us(&program("tgtd", "tgt", "this benchmark")?)?;
        command
            .env("TGT_IPC_SOCKET", &socket)
            .args(["-f", "-C", "1"]);
        command.arg("--iscsi").arg(format!("portal={address}"));
        let name = format!("{TGT_NAME}, {}", medium.name());
        let peer = Peer::start(&name, &mut command, address, 1, disk)?;
        let direct = match medium {
            Medium::DirectFile => "--bsoflags direct ",
            Medium::CachedFile | Medium::Memory => "",
        };
        for arguments in [
            format!("--op new --mode target --tid 1 -T {IQN}"),
            format!("--op new --mode logicalunit --tid 1 --lun 1 --bstype rdwr {direct}-b {path}"),
            "--op bind --mode target --tid 1 -I ALL".to_owned(),
        ] {
            let mut command = dying_with_us(&program("tgtadm", "tgt", "this benchmark")?)?;
            command
                .env("TGT_IPC_SOCKET", &socket)
                .args(["-C", "1", "--lld", "iscsi"]);
            command.args(arguments.split(' '));
            let output = command.output().map_err(|e| Error::bench_io("tgtadm", e))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(Error::bench(format!("tgtadm {arguments}: {}", said.trim())));
            }
        }
        Ok(peer)
    }

    fn start(
        name: &str,
        command: &mut Command,
        address: SocketAddr,
        lun: u16,
        disk: Disk,
    ) -> Result<Peer> {
        let program = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().map_err(|e| Error::bench_io(&program, e))?;
        let peer = Peer {
            name: name.into(),
            medium: Some(disk.medium),
            wait: None,
            address,
            target: IQN.into(),
            lun,
            pid: child.id(),
            child: Some(child),
            disk: Some(disk),
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
            // tgtd ignores SIGTERM while it has a target, so it is killed.
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
