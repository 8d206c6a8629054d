//! The register of a mirror: one record, changed by compare-and-swap alone. [`StateRegister`] keeps it in the state
//! directory, whose lock leaves it to one process; `lun_register` has one for several nodes.
//!
//! An answer means that the record lies on persistent media. A file that was replaced, but whose directory could not be
//! synced, shows a record that a power cut may take back: so every read and every swap writes what it answers.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use ::mirror::register::{Record, Swap};
use engine::{LaneFuture, blocking, store};
use uuid::Uuid;

use crate::{
    Error, Result,
    planted::{Bug, is_planted},
};

/// Where the record of a mirror is.
pub(super) trait Register {
    /// The record; `None`: there is none.
    fn read(&self) -> LaneFuture<'_, Result<Option<Record>>>;

    /// Changes the record as `swap` says, and returns what it is afterwards. An error leaves open which it is.
    fn swap(&self, swap: Swap) -> LaneFuture<'_, Result<Record>>;

    /// Stores the first record that this register has of the mirror.
    fn begin(&self, record: Record) -> LaneFuture<'_, Result<()>>;

    /// Gives up the record, if there is one, and the room that it takes from those of others.
    fn end(&self) -> LaneFuture<'_, Result<()>>;

    /// Whether other nodes reach it too, so that its record is the newest there is, whoever has written it.
    fn is_shared(&self) -> bool;

    /// What messages call it.
    fn describe(&self) -> String;
}

/// One compare-and-swap at a time.
static SWAPPING: Mutex<()> = Mutex::new(());

/// A register in a file of the state directory.
pub(super) struct StateRegister {
    path: PathBuf,
}

impl StateRegister {
    /// The register of `mirror` in the state directory.
    pub(super) fn new(state_directory: &Path, mirror: Uuid) -> StateRegister {
        StateRegister {
            path: state_directory.join(format!("mirror-{mirror}.register")),
        }
    }

    /// Runs `work` on the file where it holds up no lane.
    async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let path = self.path.clone();
        let done = blocking::run(blocking::WorkKind::Files, move || {
            let _alone = SWAPPING.lock().unwrap_or_else(PoisonError::into_inner);
            work(&path)
        });
        let done = done.await.and_then(|done| done);
        done.map_err(|error| {
            let mend = match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    ", on whose file system some space has to be freed"
                }
                _ => "",
            };
            Error::io(format_args!("{}{mend}", self.describe()), &error)
        })
    }
}

/// The record in the file at `path`, if there is one.
fn read(path: &Path) -> io::Result<Option<Record>> {
    match store::read(path) {
        Ok(sector) => match Record::decode(&sector) {
            Ok(record) => Ok(Some(record)),
            Err(why) => Err(io::Error::new(io::ErrorKind::InvalidData, why)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Register for StateRegister {
    fn read(&self) -> LaneFuture<'_, Result<Option<Record>>> {
        LaneFuture::new(self.aside(|path| {
            let found = read(path)?;
            if let Some(record) = &found {
                store::replace(path, &record.encode())?;
            }
            Ok(found)
        }))
    }

    fn swap(&self, swap: Swap) -> LaneFuture<'_, Result<Record>> {
        LaneFuture::new(self.aside(move |path| {
            let held = read(path)?;
            let held = held.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            let next = swap.land(held);
            if next != held || !is_planted(Bug::RegisterUnsettled) {
                store::replace(path, &next.encode())?;
            }
            Ok(next)
        }))
    }

    fn begin(&self, record: Record) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.aside(move |path| store::replace(path, &record.encode())))
    }

    /// Its file is in nobody's way.
    fn end(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { Ok(()) })
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("the register {}", self.path.display())
    }
}
