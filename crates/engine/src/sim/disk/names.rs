//! The directories of a simulated disk: which name leads to which file now, which on the medium, and
//! the log of changes between the two. Syncing a directory makes its changes durable; syncing a new
//! file makes the changes up to its own name durable, as journals do. A power cut keeps a prefix of
//! the log, as long as the seed says, and loses the rest.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use crate::sim::Random;

#[derive(Default)]
pub(in crate::sim) struct Names {
    current: Tree,
    medium: Tree,
    log: Vec<NameChange>,
}

#[derive(Clone, Default)]
struct Tree {
    files: BTreeMap<PathBuf, usize>,
    directories: BTreeSet<PathBuf>,
}

#[derive(Clone, PartialEq, Eq)]
pub(in crate::sim) enum NameChange {
    Link(PathBuf, usize),
    Unlink(PathBuf),
    /// Within one directory.
    Rename(PathBuf, PathBuf),
    MakeDirectory(PathBuf),
}

impl NameChange {
    /// The path whose directory entry changes.
    fn path(&self) -> &Path {
        match self {
            NameChange::Link(path, _)
            | NameChange::Unlink(path)
            | NameChange::Rename(path, _)
            | NameChange::MakeDirectory(path) => path,
        }
    }
}

impl Tree {
    fn play(&mut self, change: &NameChange) {
        match change {
            NameChange::Link(path, file) => drop(self.files.insert(path.clone(), *file)),
            NameChange::Unlink(path) => drop(self.files.remove(path)),
            NameChange::Rename(from, to) => {
                if let Some(file) = self.files.remove(from) {
                    self.files.insert(to.clone(), file);
                }
            }
            NameChange::MakeDirectory(path) => drop(self.directories.insert(path.clone())),
        }
    }
}

/// A path in canonical form: absolute, without `.` and `..`.
pub(in crate::sim) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => drop(normal.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    normal
}

impl Names {
    pub(in crate::sim) fn file(&self, path: &Path) -> Option<usize> {
        self.current.files.get(&normal(path)).copied()
    }

    pub(in crate::sim) fn is_directory(&self, path: &Path) -> bool {
        let path = normal(path);
        path == Path::new("/") || self.current.directories.contains(&path)
    }

    /// Whether something can be created at this path.
    pub(in crate::sim) fn has_place_for(&self, path: &Path) -> bool {
        let path = normal(path);
        path.parent()
            .is_some_and(|parent| self.is_directory(parent))
    }

    pub(in crate::sim) fn list(&self, directory: &Path) -> Vec<PathBuf> {
        let directory = normal(directory);
        let all = self.current.files.keys().chain(&self.current.directories);
        all.filter(|path| path.parent() == Some(&*directory))
            .cloned()
            .collect()
    }

    /// What is at `path` and everything below it, directories first.
    pub(in crate::sim) fn all_from(&self, path: &Path) -> Vec<PathBuf> {
        let all = self.current.directories.iter();
        let all = all.chain(self.current.files.keys());
        all.filter(|below| below.starts_with(path))
            .cloned()
            .collect()
    }

    /// Applies a change that becomes durable when its directory is synced. Paths are canonical.
    pub(in crate::sim) fn change(&mut self, change: NameChange) {
        self.current.play(&change);
        self.log.push(change);
    }

    /// Applies a change durably.
    pub(in crate::sim) fn change_durably(&mut self, change: NameChange) {
        self.change(change);
        for change in self.log.drain(..) {
            self.medium.play(&change);
        }
    }

    pub(in crate::sim) fn sync_directory(&mut self, directory: &Path) {
        let directory = normal(directory);
        self.keep(&directory, usize::MAX);
    }

    pub(in crate::sim) fn sync_file(&mut self, file: usize) {
        let is_link =
            |change: &NameChange| matches!(change, NameChange::Link(_, linked) if *linked == file);
        let Some(last) = self.log.iter().rposition(is_link) else {
            return;
        };
        let directory = self.log[last].path().parent().map(Path::to_owned);
        self.keep(&directory.unwrap_or_default(), last + 1);
    }

    /// Makes durable those of the first `count` changes that are in `directory`.
    fn keep(&mut self, directory: &Path, count: usize) {
        let mut index = 0;
        self.log.retain(|change| {
            let is_kept = index < count && change.path().parent() == Some(directory);
            index += 1;
            if is_kept {
                self.medium.play(change);
            }
            !is_kept
        });
    }

    pub(in crate::sim) fn cut_power(&mut self, random: &mut Random) {
        let kept = random.below(self.log.len() as u64 + 1) as usize;
        for change in self.log.drain(..).take(kept) {
            self.medium.play(&change);
        }
        self.current = self.medium.clone();
        // The contents of a directory that is gone are gone, too.
        let directories = self.current.directories.clone();
        let has_way = |path: &Path| {
            let mut above = path.ancestors().skip(1);
            above.all(|path| path == Path::new("/") || directories.contains(path))
        };
        self.current.files.retain(|path, _| has_way(path));
        self.current.directories.retain(|path| has_way(path));
        self.medium = self.current.clone();
    }
}
