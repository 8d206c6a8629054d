//! Other paths, time limits and secrets for a disk that is in use, as a step of a new configuration.

use std::{
    cell::{Cell, RefCell},
    fmt,
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{LaneFuture, LaneHandle, blocking};

use super::{
    IscsiDisk,
    config::{LoginTerms, Sessions},
    late::KeptDisk,
    path_settings::{Addresses, PathSettings, WrittenPaths},
};
use crate::{Error, ErrorKind, Result, kinds::change::Step, part::Resident};

/// The handle on an open disk whose paths may change.
#[derive(Clone, Debug)]
pub(super) struct OpenDisk {
    disk: Arc<Resident<KeptDisk>>,
    /// How many lanes use it.
    lanes: usize,
    /// The directory that the paths of its secrets start from.
    base: PathBuf,
    /// The portals of its paths. A name that is in use is not resolved anew: a path that stays keeps its sessions.
    known: Arc<Mutex<Addresses>>,
}

impl OpenDisk {
    pub(super) fn new(
        disk: Arc<Resident<KeptDisk>>,
        lanes: usize,
        base: PathBuf,
        known: Addresses,
    ) -> Self {
        OpenDisk {
            disk,
            lanes,
            base,
            known: Arc::new(Mutex::new(known)),
        }
    }

    /// Keeps `disk` on `home`, the current lane, for as long as there is a handle on it.
    pub(super) fn keep(home: LaneHandle, disk: KeptDisk) -> Arc<Resident<KeptDisk>> {
        Resident::keep(home, disk)
    }

    fn known(&self) -> MutexGuard<'_, Addresses> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a request on the disk's home lane. `None`: it is not there yet.
    async fn ask<R, F>(
        &self,
        request: impl FnOnce(Rc<IscsiDisk>) -> F + Send + 'static,
    ) -> Result<Option<R>>
    where
        R: Send + 'static,
        F: Future<Output = R> + 'static,
    {
        let asked = self.disk.call(|kept: KeptDisk| async move {
            let closed = || Error::new(ErrorKind::Unreachable, "the volume has been closed");
            match kept.disk() {
                Some(disk) => Ok(Some(request(disk).await)),
                None => kept.late().map(|_| None).ok_or_else(closed),
            }
        });
        asked.await
    }
}

/// What changes about the paths and sessions.
pub(super) fn of_paths(old: &WrittenPaths, new: &WrittenPaths) -> Vec<String> {
    let (was, is) = (&old.paths, &new.paths);
    let (added, removed) = (without(is, was), without(was, is));
    let added = added.map(|path| format!("a path to {path} is added"));
    let mut made: Vec<_> = added.collect();
    made.extend(removed.map(|path| format!("the path to {path} is removed")));
    if made.is_empty() && was != is {
        made.push("its paths in another order".to_owned());
    }
    if old.sessions != new.sessions {
        made.push("sessions".to_owned());
    }
    made
}

/// Those of `all` that are not among `others`.
fn without<'a>(
    all: &'a [PathSettings],
    others: &'a [PathSettings],
) -> impl Iterator<Item = &'a PathSettings> {
    all.iter().filter(|path| !others.contains(path))
}

/// Reads time limits and secrets; the paths of secrets start from this directory.
pub(super) type ReadTerms = dyn Fn(&Path) -> Result<LoginTerms> + Send + Sync;

/// Other settings for an open disk.
pub(super) struct DiskChange {
    open: OpenDisk,
    written: WrittenPaths,
    terms: Arc<ReadTerms>,
    /// The sessions that the disk is to have, the addresses of their portals, and how they log in.
    next: RefCell<Option<(Sessions, Addresses, LoginTerms)>>,
    /// What is wrong with the new paths.
    problems: RefCell<Vec<String>>,
    /// Whether the disk was told.
    is_begun: Cell<bool>,
    /// Whether it was not there yet.
    is_late: Cell<bool>,
}

impl DiskChange {
    pub(super) fn new(open: OpenDisk, written: WrittenPaths, terms: Arc<ReadTerms>) -> DiskChange {
        DiskChange {
            open,
            written,
            terms,
            next: RefCell::default(),
            problems: RefCell::default(),
            is_begun: Cell::new(false),
            is_late: Cell::new(false),
        }
    }

    async fn add(&self) -> Result<()> {
        let (terms, base) = (self.terms.clone(), self.open.base.clone());
        let reading = blocking::run(blocking::WorkKind::Files, move || terms(&base));
        let terms = reading
            .await
            .map_err(|error| Error::io("reading the secrets", &error))??;
        let written = &self.written;
        let mut known = self.open.known().clone();
        let next = written
            .resolve(self.open.lanes, &mut known, terms.connect_timeout)
            .await?;
        let paths = &written.paths;
        known.retain(|portal, _| paths.iter().any(|path| path.portal == *portal));
        self.next.replace(Some((next.clone(), known, terms)));
        self.is_begun.set(true);
        let added = self.open.ask(async move |disk| disk.add_paths(&next).await);
        match added.await? {
            Some(problems) => drop(self.problems.replace(problems?)),
            None => self.is_late.set(true),
        }
        Ok(())
    }
}

impl fmt::Debug for DiskChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskChange({:?})", self.written)
    }
}

impl Step for DiskChange {
    fn prepare(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.add())
    }

    fn take_effect(&self) -> LaneFuture<'_, ()> {
        LaneFuture::new(async move {
            let Some((next, known, terms)) = self.next.take() else {
                return;
            };
            *self.open.known() = known;
            let was_late = self.is_late.get();
            let adopted = self.open.disk.call(move |kept: KeptDisk| async move {
                // An attempt that is being made may find it with the old ones.
                let late = kept.late();
                let _turn = match &late {
                    Some(late) => Some(late.turn().await),
                    None => None,
                };
                if let Some(late) = kept.late() {
                    late.adopt(terms, &next);
                } else if let Some(disk) = kept.disk() {
                    if was_late {
                        // It has come meanwhile. What is wrong with a path is retried.
                        let _ = disk.add_paths(&next).await;
                    }
                    disk.adopt_terms(terms);
                    disk.adopt_paths(&next);
                }
                Ok(())
            });
            // An error: it was closed.
            let _ = adopted.await;
        })
    }

    fn finish(&self) -> LaneFuture<'_, Vec<String>> {
        LaneFuture::new(async move {
            let left = self.open.ask(async |disk| disk.parted().await).await;
            let mut problems = self.problems.take();
            problems.extend(left.ok().flatten().unwrap_or_default());
            problems
        })
    }

    fn undo(&self) -> LaneFuture<'_, ()> {
        LaneFuture::new(async move {
            if self.is_begun.get() {
                let undone = self.open.ask(async |disk| {
                    disk.remove_added_paths();
                    disk.parted().await;
                });
                // An error: it was closed.
                let _ = undone.await;
            }
        })
    }
}
