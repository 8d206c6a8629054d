//! The targets under measurement, started for the run on the target's core and stopped with it. Each serves one disk on
//! one medium; targets are compared only on the same medium.

use harness::directory::Directory;
use harness::initiator::{at_url, on_lane, opened};
use harness::process::find_program;
use harness::sanstone::Sanstone;
use harness::tgt::Tgt;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use volume::SharedVolume;

/// Length of every disk, in bytes.
const DISK_BYTES: u64 = 512 << 20;

/// What a disk is stored on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    /// A file past the page cache.
    DirectFile,
    /// A file through the page cache.
    CachedFile,
    /// Memory of the target itself.
    Memory,
}

impl Medium {
    pub(crate) const ALL: [Medium; 3] = [Medium::DirectFile, Medium::CachedFile, Medium::Memory];

    fn name(self) -> &'static str {
        match self {
            Medium::DirectFile => "direct file",
            Medium::CachedFile => "page-cache file",
            Medium::Memory => "memory",
        }
    }
}

/// A disk's file. It has no name, so it disappears with this process and the target, however they end.
#[derive(Clone)]
struct Disk(Option<Arc<File>>);

impl Disk {
    fn new(medium: Medium, directory: &Path) -> Disk {
        if medium == Medium::Memory {
            return Disk(None);
        }
        let mut file = tempfile::tempfile_in(directory).expect("a file in --dir");
        if medium == Medium::DirectFile {
            file.set_len(DISK_BYTES).expect("a file of ours");
        } else {
            // As `cp` and `dd` write: the kernel's large pages, and with them what a small write costs, depend on the
            // pieces in which a file came into the page cache.
            let piece = vec![0; 1 << 20];
            for _ in 0..DISK_BYTES >> 20 {
                file.write_all(&piece).expect("room for the disk");
            }
        }
        Disk(Some(Arc::new(file)))
    }

    /// By which a target can open the file while we hold it open; `None` for memory.
    fn path(&self) -> Option<String> {
        let file = self.0.as_ref()?;
        Some(format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            file.as_raw_fd()
        ))
    }
}

/// A target under measurement.
pub(crate) struct Target {
    /// In tables.
    pub(crate) name: String,
    /// `None` for one that somebody else started.
    pub(crate) medium: Option<Medium>,
    pub(crate) is_own: bool,
    /// Our own setting `wait`, where it is not the default.
    pub(crate) wait: Option<&'static str>,
    pub(crate) url: String,
    pub(crate) pid: u32,
    disk: Option<Disk>,
    /// Until it is dropped.
    _process: Option<TargetProcess>,
}

#[expect(dead_code, reason = "they run until they are dropped")]
enum TargetProcess {
    Sanstone(Sanstone),
    Tgt(Tgt),
}

impl Target {
    /// Sanstone on each medium, with each way to wait where one is a file, and tgt on the files if it is installed; the
    /// disks' files in `directory`.
    pub(crate) fn all(directory: &Path) -> Vec<Target> {
        let mut all = Vec::new();
        for medium in Medium::ALL {
            all.push(Target::own(1, medium, None, directory));
            if medium == Medium::Memory {
                continue; // tgt cannot serve memory.
            }
            for wait in ["latency", "cpu"] {
                all.push(Target::own(1, medium, Some(wait), directory));
            }
            if find_program("tgtd").is_none() {
                eprintln!("without tgt: it is not installed");
                continue;
            }
            // Both serve the same direct file, in turn: where a file lies on a disk can make a difference of a third. One
            // in the page cache would be dirty of the other's writes.
            let disk = match (medium, &all[0].disk) {
                (Medium::DirectFile, Some(disk)) => disk.clone(),
                _ => Disk::new(medium, directory),
            };
            all.push(Target::tgt(medium, disk));
        }
        all
    }

    /// Our own; `wait` is the setting of that name, if not the default.
    pub(crate) fn own(
        lanes: usize,
        medium: Medium,
        wait: Option<&'static str>,
        directory: &Path,
    ) -> Target {
        let disk = Disk::new(medium, directory);
        let volume = match disk.path() {
            None => format!("ram = {{ size = \"{}MiB\" }}", DISK_BYTES >> 20),
            Some(path) if medium == Medium::DirectFile => format!("file = {{ path = {path:?} }}"),
            Some(path) => format!("file = {{ path = {path:?}, cache = \"write-back\" }}"),
        };
        let settings = format!("lanes = {lanes}\nwait = \"{}\"", wait.unwrap_or("balanced"));
        let toml = format!("state = \"state\"\n{settings}\n[volume.disk]\n{volume}\n");
        let place = Directory::new();
        let process = Sanstone::serve(place.path(), &toml, &["disk"]).owning(place);
        let wait_name = wait.map(|wait| format!(", {wait}")).unwrap_or_default();
        Target {
            name: format!("Sanstone, {}{wait_name}", medium.name()),
            medium: Some(medium),
            is_own: true,
            wait,
            url: process.url(0),
            pid: process.pid(),
            disk: Some(disk),
            _process: Some(TargetProcess::Sanstone(process)),
        }
    }

    fn tgt(medium: Medium, disk: Disk) -> Target {
        let path = disk.path().expect("tgt serves files only");
        let mut process = Tgt::start();
        let flags: &[&str] = match medium {
            Medium::DirectFile => &["--bsoflags", "direct"],
            _ => &[],
        };
        Target {
            name: tgt_name(medium),
            medium: Some(medium),
            is_own: false,
            wait: None,
            url: process.add_disk_with(path.as_ref(), flags),
            pid: process.pid(),
            disk: Some(disk),
            _process: Some(TargetProcess::Tgt(process)),
        }
    }

    /// One that runs already: `NAME=iscsi://ADDRESS:PORT/IQN/LUN,PID`.
    pub(crate) fn other(text: &str) -> Option<Target> {
        let (name, rest) = text.split_once("=iscsi://")?;
        let (url, pid) = rest.rsplit_once(',')?;
        Some(Target {
            name: name.to_owned(),
            medium: None,
            is_own: false,
            wait: None,
            url: format!("iscsi://{url}"),
            pid: pid.parse().ok()?,
            disk: None,
            _process: None,
        })
    }

    /// The path of the disk's file, if it is a file of ours.
    pub(crate) fn file(&self) -> Option<String> {
        self.disk.as_ref()?.path()
    }

    /// The name of tgt on the same medium.
    pub(crate) fn tgt_beside(&self) -> Option<String> {
        self.medium.map(tgt_name)
    }

    /// Ends the program if the disk holds data, which [`Target::fill`] and the loads overwrite, unless `may_overwrite`.
    pub(crate) fn check_free(&self, may_overwrite: bool) {
        let is_free = on_lane(async {
            let disk = opened(at_url(&self.url)).await;
            let is_free = lab::load::is_free_to_write(&(disk.clone() as SharedVolume)).await;
            disk.close().await;
            is_free.unwrap_or_else(|error| panic!("{}: {error}", self.name))
        });
        if !is_free && !may_overwrite {
            eprintln!(
                "{} at {} holds data, and the benchmark writes to it: name an empty disk, or add `overwrite` if all of \
                 its data may be lost",
                self.name, self.url
            );
            std::process::exit(2);
        }
    }

    /// Writes the whole disk, so that no measurement pays for first touching memory.
    pub(crate) fn fill(&self) {
        eprintln!("filling the disk of {}", self.name);
        on_lane(async {
            let disk = opened(at_url(&self.url)).await;
            let filled = lab::load::fill(&*disk).await;
            filled.unwrap_or_else(|error| panic!("{}: {error}", self.name));
            disk.close().await;
        });
    }
}

fn tgt_name(medium: Medium) -> String {
    format!("tgt, {}", medium.name())
}
