//! How much of a file's length is allocated, and how much its file system has left.

use std::{collections::BTreeMap, os::unix::fs::MetadataExt, path::Path};

use rustix::fs::{StatVfs, StatVfsMountFlags, statvfs};
use volume::config::{Kind, Node, NodeForm, Volumes};

use crate::description::Space;

/// The unit of a file's allocated blocks (stat(2)).
const STAT_BLOCK_BYTES: u64 = 512;

/// What a state directory needs at most when it changes: each of its files is written anew before the old one goes.
const STATE_BYTES: u64 = 1 << 20;

/// Of the regular file at `path`; `None` of anything else, and where nothing can be found out.
pub(crate) fn of(path: &Path) -> Option<Space> {
    let file = path.metadata().ok().filter(|file| file.is_file())?;
    let system = statvfs(path).ok()?;
    Some(Space {
        allocated_bytes: file.blocks() * STAT_BLOCK_BYTES,
        free_bytes: free_bytes(&system),
    })
}

/// What `system` has left for this user.
fn free_bytes(system: &StatVfs) -> u64 {
    system.f_bavail.saturating_mul(system.f_frsize)
}

/// Why no more can be kept in the state directory at `path`, as far as its file system tells.
pub(crate) fn trouble(path: &Path) -> Option<String> {
    let system = statvfs(path).ok()?;
    if system.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Some("its file system is read-only".to_owned());
    }
    let free = free_bytes(&system);
    (free < STATE_BYTES).then(|| format!("its file system has {} KiB left", free >> 10))
}

/// What the files of `volumes` may still need, by file system, where that is more than it has left: a line for each. Paths
/// begin in the directory `base`.
pub(crate) fn scarce(volumes: &Volumes, base: &Path) -> Vec<String> {
    let mut systems: BTreeMap<u64, Room> = BTreeMap::new();
    for node in volumes.0.values().flat_map(Node::all) {
        let NodeForm::Inline(kind) = &node.what else {
            continue;
        };
        let Kind::File(file) = &**kind else { continue };
        let (Some(size), false) = (&file.size, file.read_only) else {
            continue;
        };
        let path = base.join(file.path.get_ref());
        let place = match path.exists() {
            true => path.clone(),
            false => path.parent().unwrap_or(base).to_owned(),
        };
        let (Ok(at), Ok(system)) = (place.metadata(), statvfs(&place)) else {
            continue;
        };
        let has = of(&path).map_or(0, |space| space.allocated_bytes);
        let needed = size.get_ref().bytes().saturating_sub(has);
        let free = free_bytes(&system);
        let room = systems.entry(at.dev()).or_default();
        room.free_bytes = free;
        room.needed_bytes += needed;
        room.paths.push(path.display().to_string());
        if file.preallocate {
            room.at_once_bytes += needed;
        }
    }
    systems.values().filter_map(Room::scarcity).collect()
}

/// What some files may need of their file system.
#[derive(Default)]
struct Room {
    free_bytes: u64,
    needed_bytes: u64,
    /// Of that, what is set aside when the files are opened.
    at_once_bytes: u64,
    paths: Vec<String>,
}

impl Room {
    /// What to say if that is more than it has left.
    fn scarcity(&self) -> Option<String> {
        let mib = |bytes: u64| bytes >> 20;
        let (paths, left) = (self.paths.join(", "), mib(self.free_bytes));
        if self.at_once_bytes > self.free_bytes {
            return Some(format!(
                "{} MiB are to be set aside (preallocate = true) for {paths}, and the file system has {left} MiB left: it \
                 cannot be opened; free space there, or write a smaller size",
                mib(self.at_once_bytes)
            ));
        }
        (self.needed_bytes > self.free_bytes).then(|| {
            format!(
                "{paths} may still grow by {} MiB, and the file system has {left} MiB left: writes fail when it is full; free \
                 space there, or write preallocate = true, so that it is found now",
                mib(self.needed_bytes)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_file_has_what_was_written_and_what_is_left() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk.img");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(1 << 30).expect("a sparse file");
        let space = of(&path).expect("a regular file");
        assert!(space.allocated_bytes < 1 << 20, "{space:?}");
        assert!(space.free_bytes > 0, "{space:?}");
        assert_eq!(of(directory.path()), None);
        assert_eq!(of(&directory.path().join("none")), None);
    }

    #[test]
    fn what_several_files_may_need_of_one_file_system_is_added_up() {
        let directory = tempfile::tempdir().expect("a directory");
        let free = statvfs(directory.path()).expect("a file system");
        let free_mib = (free.f_bavail * free.f_frsize) >> 20;
        let text = |mib: u64, more: &str| {
            let file = |name: &str| {
                format!("{name}.file = {{ path = \"{name}.img\", size = \"{mib}MiB\"{more} }}\n")
            };
            let both = file("a") + &file("b");
            toml::from_str::<Volumes>(&both).expect("it is right")
        };
        let lines = |mib, more| scarce(&text(mib, more), directory.path());
        const AT_ONCE: &str = ", preallocate = true";
        assert_eq!(lines(1, ""), [""; 0]);
        assert_eq!(lines(1, AT_ONCE), [""; 0]);
        // Each alone would fit.
        let [line] = &lines(free_mib * 3 / 4, AT_ONCE)[..] else {
            panic!("one file system");
        };
        assert!(line.contains("it cannot be opened"), "{line}");
        let [line] = &lines(free_mib * 3 / 4, "")[..] else {
            panic!("one file system");
        };
        assert!(
            line.contains("a.img, ") && line.contains("b.img may still grow by"),
            "{line}"
        );
    }
}
