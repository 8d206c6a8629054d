//! The persistent state of logical units (reservations with APTPL, saved mode pages): a file for each disk in the state
//! directory. It is stored while commands wait for it, so nothing else that is done in the directory holds it up.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use engine::{fs::SharedFile, store};
use uuid::Uuid;

use crate::Error;

/// First line of each file, with the version.
const HEADER: &str = "sanstone unit 1\n";

/// The files of the served disks.
#[derive(Debug)]
pub(crate) struct UnitFiles {
    directory: PathBuf,
    /// The identities of the served disks, by volume name.
    served: Mutex<BTreeMap<String, Uuid>>,
    /// Of the directory: nobody else uses it as long as somebody may write here.
    _lock: SharedFile,
}

impl UnitFiles {
    /// The files in `directory`, which is locked by `lock`.
    pub(crate) fn new(directory: PathBuf, lock: SharedFile) -> UnitFiles {
        UnitFiles {
            directory,
            served: Mutex::default(),
            _lock: lock,
        }
    }

    /// The identities of the served disks, by volume name.
    pub(crate) fn served(&self) -> MutexGuard<'_, BTreeMap<String, Uuid>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What [`UnitFiles::keep`] stored last for the disk `uuid`, whose volume is called `name`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn kept_of(&self, uuid: &Uuid, name: &str) -> Result<Option<String>, Error> {
        let file = self.file(uuid);
        let bytes = match store::read(&file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(format!("reading {}", file.display()))(error)),
        };
        let text = String::from_utf8(bytes).ok();
        let text = text.and_then(|text| text.strip_prefix(HEADER).map(str::to_owned));
        text.map(Some).ok_or_else(|| {
            Error::Refused(format!(
                "{} is damaged or from a newer sanstone; restore it from a copy, or remove it and \
                 with it the reservations and saved mode pages of volume {name}",
                file.display()
            ))
        })
    }

    /// Stores the state of the logical unit of the volume called `name`. `None`: there is none.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn keep(&self, name: &str, text: Option<&str>) -> Result<(), Error> {
        let uuid = self.served().get(name).copied();
        let uuid = uuid.ok_or_else(|| Error::Refused(format!("volume {name} has no identity")))?;
        let file = self.file(&uuid);
        let text = format!("{HEADER}{}", text.unwrap_or_default());
        store::replace(&file, text.as_bytes())
            .map_err(Error::io(format!("writing {}", file.display())))
    }

    fn file(&self, uuid: &Uuid) -> PathBuf {
        self.directory.join(format!("unit-{uuid}"))
    }
}
