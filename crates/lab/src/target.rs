//! What a profile measures: a volume of a configuration, a local file or block device, or a disk of any iSCSI
//! target. Each is opened the way the product opens it.
//!
//! A measurement never overwrites user data. A file that does not exist is created for the run and removed
//! afterwards. Anything else is written to only if its beginning is empty or from an earlier run, or if the
//! user permits its data to be lost.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    rc::Rc,
};

use engine::{LaneHandle, loops::loop_of, mounts::mounts, store::follow_links};
use rustix::fs::{major, minor};
use serde::Deserialize;
use volume::{
    Advice, SharedVolume,
    config::{Caching, Size, Volumes},
    graph::{Graph, NodeView, Tree},
    layer::stats::{Stats, StatsHandle},
    leaf::file::{FileOptions, OpenFile},
};

use crate::{
    LabError, LabResult,
    load::{Ledger, Lun, is_free_to_write, mark_as_ours},
    on::{On, Remote},
};

/// The trace path of a file or device that no configuration names.
pub(crate) const FILE: &str = "file";
/// Limit on allocation queries, from one extent to the next. Of a more fragmented disk, so many places are examined
/// instead.
const LOOKS_MAX: u64 = 1024;

/// How to open it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    /// Sessions to open to a disk of an iSCSI target.
    pub(crate) sessions: usize,
    /// Length of a file created for the run, in bytes.
    pub(crate) made_bytes: u64,
    /// Whether the run writes to it.
    pub(crate) writes: bool,
    /// Whether existing data may be destroyed.
    pub(crate) overwrite: bool,
    /// Whether requests are traced, to show where the time goes.
    pub(crate) is_watched: bool,
}

/// What a measurement requires of the disks it runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// Sessions to open to a disk of an iSCSI target.
    pub(crate) sessions: usize,
    /// How much of the disk it uses, in bytes; also the length of a file created for it.
    pub(crate) size_bytes: u64,
    /// Whether it writes.
    pub(crate) writes: bool,
    /// Whether its loads are spread over that whole range and read data that was there before.
    pub(crate) is_spread: bool,
}

impl Needs {
    /// For a database, which writes up to `size_bytes` through one session.
    pub(crate) fn of_database(size_bytes: u64) -> Needs {
        Needs {
            sessions: 1,
            size_bytes,
            writes: true,
            is_spread: false,
        }
    }
}

/// Something that is open for measurement.
pub(crate) struct MeasuredDisk {
    pub(crate) name: String,
    /// One for each session.
    volumes: Vec<SharedVolume>,
    /// The volumes' graphs, and the trees that stay open.
    graphs: Vec<Graph>,
    trees: Vec<Tree>,
    /// The file or device.
    pub(crate) path: Option<PathBuf>,
    made: Option<Made>,
}

/// A file that is created for a run and removed afterwards.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl MeasuredDisk {
    /// Opens `on` on the current lane, whose handle is `home`; `configured` opens the volumes of the
    /// configuration. Nothing is written to it, except that a file which does not exist is created.
    pub(crate) async fn open(
        on: &On,
        configured: Option<&Configured<'_>>,
        home: &LaneHandle,
        opening: Opening,
    ) -> LabResult<MeasuredDisk> {
        let mut target = match on {
            On::Url(remote) => MeasuredDisk::session(remote, on.name(), home, opening).await?,
            On::Name(name) => match configured {
                Some(configured) if configured.names.contains(name) => {
                    MeasuredDisk::configured(name, configured, home, opening).await?
                }
                _ => MeasuredDisk::file(name, opening).await?,
            },
        };
        target.name = on.name().to_owned();
        if opening.writes && !opening.overwrite && target.made.is_none() {
            let free = is_free_to_write(target.volume()).await;
            if !free.map_err(|error| failed(on.name(), error))? {
                let on = on.name();
                target.close().await;
                return Err(LabError::Call(format!(
                    "{on} holds data, and this profile writes to it: name an empty disk, or add \
                     --overwrite if all of its data may be lost"
                )));
            }
        }
        Ok(target)
    }

    /// Marks the disk if its data may be destroyed, whatever old data the profile leaves on it, so that a later run
    /// may write here too. To be called once nothing can be refused any more, because the mark destroys data.
    pub(crate) async fn mark(&self, opening: Opening) -> LabResult<()> {
        if !opening.writes || !opening.overwrite || self.is_made() {
            return Ok(());
        }
        let marked = mark_as_ours(&**self.volume()).await;
        marked.map_err(|error| failed(&self.name, error))
    }

    fn of(volumes: Vec<SharedVolume>, graphs: Vec<Graph>, trees: Vec<Tree>) -> MeasuredDisk {
        MeasuredDisk {
            name: String::new(),
            volumes,
            graphs,
            trees,
            path: None,
            made: None,
        }
    }

    async fn session(
        remote: &Remote,
        url: &str,
        home: &LaneHandle,
        opening: Opening,
    ) -> LabResult<MeasuredDisk> {
        #[derive(Deserialize)]
        struct Configuration {
            volume: Volumes,
        }
        let (settings, _private) = remote.settings()?;
        let text = format!("[volume.disk]\n{settings}\n");
        let wrong = |error: &dyn std::fmt::Display| LabError::Call(format!("--on {url}: {error}"));
        let mut target = MeasuredDisk::of(Vec::new(), Vec::new(), Vec::new());
        for _ in 0..opening.sessions.max(1) {
            let configuration: Configuration =
                toml::from_str(&text).map_err(|error| wrong(&error.message()))?;
            let graph = Graph::new(configuration.volume, Path::new(""));
            let mut graph = graph.map_err(|error| wrong(&error.message()))?;
            graph.set_watched(opening.is_watched);
            let tree = graph.open("disk", home).await;
            let tree = tree.map_err(|error| failed(url, advised(error.message())))?;
            target.volumes.push(on_lane(&tree).await?);
            target.graphs.push(graph);
            target.trees.push(tree);
        }
        Ok(target)
    }

    async fn configured(
        name: &str,
        configured: &Configured<'_>,
        home: &LaneHandle,
        opening: Opening,
    ) -> LabResult<MeasuredDisk> {
        let mut graph = (configured.graph)(name)?;
        graph.set_watched(opening.is_watched);
        let opened = graph.open(name, home).await;
        let tree = opened.map_err(|error| LabError::Call((configured.located)(&error)))?;
        let volume = on_lane(&tree).await?;
        Ok(MeasuredDisk::of(vec![volume], vec![graph], vec![tree]))
    }

    /// Opens a file or device by its path, with direct I/O.
    async fn file(name: &str, opening: Opening) -> LabResult<MeasuredDisk> {
        const WRITE: &str = "write the name of a volume, the path of a file or block device, or an \
                             iSCSI URL";
        if name.trim().is_empty() {
            return Err(LabError::Call(format!(
                "--on '{name}': this is empty; {WRITE}"
            )));
        }
        let path = PathBuf::from(name);
        let there = fs::metadata(&path).ok();
        if let Some(kind) = there.as_ref().and_then(no_disk) {
            return Err(LabError::Call(format!(
                "--on {name}: this is {kind}; {WRITE}"
            )));
        }
        if let Some(point) = there.as_ref().and_then(mounted_at) {
            let point = point.display();
            return Err(LabError::Call(format!(
                "--on {name}: this device is mounted at {point}; unmount it (umount {point}), or name a \
                 file on it, such as {point}/lab.img, which is created for the run",
                point = point.to_string().trim_end_matches('/')
            )));
        }
        if there.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(LabError::Call(format!(
                "--on {name}: this is a directory; name a file in it, such as {}, which is created for \
                 the run",
                path.join("lab.img").display()
            )));
        }
        if opening.writes && there.as_ref().is_some_and(fs::Metadata::is_file) {
            refuse_below_loop(name, &path)?;
        }
        // Use 4096 where the length permits: every direct I/O can be written in such blocks.
        let len_bytes = there.as_ref().map_or(opening.made_bytes, fs::Metadata::len);
        let options = FileOptions {
            path: path.clone(),
            len_bytes: there.is_none().then_some(len_bytes),
            caching: Caching::Direct,
            block_size_bytes: if len_bytes % 4096 == 0 { 4096 } else { 512 },
            read_only: !opening.writes && there.is_some(),
        };
        // The file, not a link to it. If it cannot be opened, it is not left behind either.
        let place = follow_links(&path).map_err(|error| failed(name, error))?;
        let file = OpenFile::open(&options).await;
        let file = file.map_err(|error| cannot_open(name, &error))?;
        let made = there.is_none().then(|| Made(place));
        let counted = Stats::of_medium(Rc::new(file.on_lane()), &StatsHandle::new());
        let counted = counted.found_at(Some(FILE.into()));
        let volume: SharedVolume = Rc::new(counted);
        Ok(MeasuredDisk {
            path: Some(path),
            made,
            ..MeasuredDisk::of(vec![volume], Vec::new(), Vec::new())
        })
    }

    /// The disk, through its first session.
    pub(crate) fn volume(&self) -> &SharedVolume {
        &self.volumes[0]
    }

    /// Its tree of nodes; a file or device opened by path is a single node, with the trace path [`FILE`].
    pub(crate) fn view(&self) -> Option<NodeView> {
        self.graphs.first()?.view(self.trees.first()?.name())
    }

    /// Its length, in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.volume().shape().len_bytes()
    }

    /// Where its data is, for advice: the file or device, or for a file that is created for the run the file system that it
    /// is created on.
    pub(crate) fn place(&self) -> String {
        let Some(Made(path)) = &self.made else {
            return self.name.clone();
        };
        let directory = path.parent().unwrap_or(path);
        let whole = directory.canonicalize();
        let whole = whole.unwrap_or_else(|_| directory.to_owned());
        let all = mounts().unwrap_or_default().into_iter();
        let above = all.filter(|mount| whole.starts_with(&mount.point));
        match above.max_by_key(|mount| mount.point.components().count()) {
            Some(mount) => format!("{} on {}", mount.point.display(), mount.source.display()),
            None => whole.display().to_string(),
        }
    }

    /// Whether it was created for this run.
    pub(crate) fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// Returns `count` sessions with it, reusing some if there are fewer. With `verified`, reads of that many
    /// bytes at the start are compared with what was written.
    pub(crate) fn luns(&self, count: usize, verified: Option<u64>) -> LabResult<Vec<Lun>> {
        let block = self.volume().shape().block_size_bytes as usize;
        let ledger = |span: u64| Ledger::new(span.min(self.len_bytes()), block).map(Rc::new);
        let ledger = verified.map(ledger).transpose();
        let ledger = ledger.map_err(|error| LabError::Call(error.to_string()))?;
        let volumes = self.volumes.iter().cycle().take(count.max(1));
        let lun = |volume: &SharedVolume| Lun {
            volume: volume.clone(),
            ledger: ledger.clone(),
        };
        Ok(volumes.map(lun).collect())
    }

    /// Caveats about it for a measurement with these needs.
    pub(crate) async fn to_know(&self, needs: Needs) -> Vec<String> {
        let (name, len) = (&self.name, self.len_bytes());
        let used = len.min(needs.size_bytes);
        let mut notes = Vec::new();
        if !needs.is_spread {
            return notes;
        }
        if used < needs.size_bytes {
            notes.push(format!(
                "{name} has {}, less than the profile's size of {}: the loads are spread over all of it",
                Size::from_bytes(len),
                Size::from_bytes(needs.size_bytes)
            ));
        }
        if let Some(unwritten) = self.unwritten(used).await {
            notes.push(format!(
                "{unwritten} of the {} to be measured of {name} were never written (a sparse file, or thin \
                 storage): they read as zeroes without access to the disk, which is slower than these \
                 figures say; measure a copy (cp --sparse=never), or name a path that does not exist, \
                 to have a file created and filled",
                Size::from_bytes(used)
            ));
        }
        notes
    }

    /// How much of the first `len` bytes is unallocated, if any: the number of bytes, or an estimate if there are
    /// more extents than [`LOOKS_MAX`].
    async fn unwritten(&self, len: u64) -> Option<String> {
        let (mut at, mut unwritten) = (0, 0);
        for _ in 0..LOOKS_MAX {
            if at >= len {
                break;
            }
            // A volume that cannot tell counts as fully written.
            let found = self.volume().allocation(at, len - at).await.ok()?;
            let end = len.min(at + found.len_bytes.max(1));
            unwritten += if found.is_mapped { 0 } else { end - at };
            at = end;
        }
        if at >= len {
            return (unwritten > 0).then(|| Size::from_bytes(unwritten).to_string());
        }
        let percent = self.unwritten_percent(len).await?;
        match (percent, unwritten) {
            (1.., _) => Some(format!("about {percent} %")),
            (0, 0) => None,
            (0, _) => Some(format!("at least {}", Size::from_bytes(unwritten))),
        }
    }

    /// Estimates the same from [`LOOKS_MAX`] places spread over all of it, in percent.
    async fn unwritten_percent(&self, len: u64) -> Option<u64> {
        /// 2^64 divided by the golden ratio: its multiples are evenly spread, but have no period that could coincide
        /// with a stripe's.
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let block = u64::from(self.volume().shape().block_size_bytes);
        let blocks = u128::from(len / block);
        let mut unwritten = 0;
        for look in 0..LOOKS_MAX {
            let place = (u128::from(look.wrapping_mul(STEP)) * blocks) >> 64;
            let found = self.volume().allocation(place as u64 * block, block).await;
            unwritten += u64::from(!found.ok()?.is_mapped);
        }
        Some((100 * unwritten).div_ceil(LOOKS_MAX))
    }

    /// Flushes and closes it, and removes the file if it was created for the run.
    pub(crate) async fn close(self) {
        let MeasuredDisk {
            volumes,
            graphs,
            trees,
            made,
            ..
        } = self;
        // What a measurement wrote is nobody's data, and an error here does not affect what was measured.
        let _ = volumes[0].flush().await;
        drop(volumes);
        for mut graph in graphs {
            let _ = graph.close().await;
        }
        drop((trees, made));
    }
}

/// Refuses a file that a loop device uses: a file system that is mounted there would not know of our writes.
fn refuse_below_loop(name: &str, path: &Path) -> LabResult<()> {
    let found = loop_of(path).map_err(|error| failed(name, error))?;
    let Some(found) = found else {
        return Ok(());
    };
    let device = found.path.display();
    let (used, unmount) = match found.mounted {
        Some(point) => {
            let point = point.display();
            let unmount = format!("unmount it (umount {point}), release the loop device");
            (format!(", which is mounted at {point}"), unmount)
        }
        None => (String::new(), "release it".to_owned()),
    };
    Err(LabError::Call(format!(
        "--on {name}: this file is in use by the loop device {device}{used}, and this profile \
         writes to it; {unmount} (losetup -d {device}), or name another file"
    )))
}

/// What a path leads to that can be no disk.
fn no_disk(there: &fs::Metadata) -> Option<&'static str> {
    let kind = there.file_type();
    let kinds = [
        (kind.is_char_device(), "a character device"),
        (kind.is_fifo(), "a pipe"),
        (kind.is_socket(), "a socket"),
    ];
    let found = kinds.into_iter().find(|(is, _)| *is);
    found.map(|(_, kind)| kind)
}

/// Where a block device is mounted.
fn mounted_at(there: &fs::Metadata) -> Option<PathBuf> {
    if !there.file_type().is_block_device() {
        return None;
    }
    let number = there.rdev();
    let number = format!("{}:{}", major(number), minor(number));
    let mut mounted = mounts().ok()?.into_iter();
    let found = mounted.find(|mount| mount.device == number);
    found.map(|mount| mount.point)
}

/// The error about a file that does not open. Its caching is not the user's to set here.
fn cannot_open(name: &str, error: &volume::Error) -> LabError {
    let message = error.to_string();
    let (message, mend) = match message.split_once("; set cache = ") {
        Some((message, _)) => (
            message,
            "; name a file on another file system, or a volume of a configuration (-c FILE) with cache \
             = \"write-back\"",
        ),
        None => (&*message, ""),
    };
    let why = message.strip_prefix(name).map_or(message, str::trim_start);
    LabError::Target(format!("--on {name}: it {why}{mend}"))
}

/// The message of an error with the advice for a command line in place of that for a configuration.
fn advised(message: &str) -> String {
    let advice = "add --chap-user USER --chap-secret-file FILE, or check them";
    message.replace(&Advice::Credentials.to_string(), advice)
}

async fn on_lane(tree: &Tree) -> LabResult<SharedVolume> {
    let volume = tree.on_lane().await;
    volume.map_err(|error| failed(tree.name(), error))
}

fn failed(what: &str, error: impl std::fmt::Display) -> LabError {
    LabError::Target(format!("{what}: {error}"))
}

/// The volumes of a configuration, independent of how it was parsed.
pub struct Configured<'a> {
    /// The configuration's file.
    pub path: &'a Path,
    /// The volumes' names.
    pub names: Vec<String>,
    /// Builds their graph, for the use of the named one.
    pub graph: &'a dyn Fn(&str) -> LabResult<Graph>,
    /// Formats a configuration error with its place in the file.
    pub located: &'a dyn Fn(&volume::config::ConfigError) -> String,
}

#[cfg(test)]
mod tests {
    use engine::Buf;
    use volume::{Durability, leaf::ram::Region};

    use super::*;
    use crate::run::lane;

    const PAGE_BYTES: u64 = 4096;

    /// What is said of a disk of so many pages, of which those that `is_written` names were written.
    fn unwritten(pages: u64, is_written: impl Fn(u64) -> bool) -> Option<String> {
        let ram = Region::new(pages * PAGE_BYTES, 512).expect("little memory");
        let lane = lane().expect("a ring");
        lane.block_on(async {
            let disk: SharedVolume = Rc::new(ram.on_lane());
            for page in (0..pages).filter(|page| is_written(*page)) {
                let mut data = Buf::zeroed(PAGE_BYTES as usize);
                data[0] = 1;
                let written = disk.write(page * PAGE_BYTES, data.into(), Durability::Cached);
                written.await.expect("it fits");
            }
            let target = MeasuredDisk::of(vec![disk], Vec::new(), Vec::new());
            target.unwritten(pages * PAGE_BYTES).await
        })
    }

    #[test]
    fn holes_are_counted_or_else_estimated_over_the_whole_disk() {
        assert_eq!(unwritten(4096, |_| true), None);
        assert_eq!(unwritten(4096, |page| page >= 256).as_deref(), Some("1MiB"));
        // More extents than are looked at, in each period that a stripe could have.
        for period in [1, 2, 4, 8] {
            let every_other = unwritten(16384, |page| page / period % 2 == 0);
            let told = every_other.expect("half of it");
            let percent = told
                .strip_prefix("about ")
                .and_then(|told| told.strip_suffix(" %"));
            let percent: u64 = percent.expect("an estimate").parse().expect("a number");
            assert!((47..=53).contains(&percent), "{period}: {told}");
        }
        // Fragmented at its beginning, and then never written.
        let told = unwritten(16384, |page| page < 4096 && page % 2 == 0).expect("most of it");
        assert!(
            ["about 87 %", "about 88 %", "about 89 %"].contains(&&*told),
            "{told}"
        );
        let told = unwritten(16384, |page| page >= 2048 || page % 512 != 0);
        assert_eq!(told.as_deref(), Some("16KiB"));
    }
}
