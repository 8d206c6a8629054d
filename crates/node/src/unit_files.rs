//! The persistent state of logical units (reservations with APTPL, saved mode pages): a file for each disk in the state
//! directory. It is stored while commands wait for it, so nothing else that is done in the directory holds it up.
//!
//! A disk whose file is damaged is never served: initiators that it fenced off could write. Version 1 was a header and
//! the lines of the state. It can still be read, and is replaced by version 2 when the state is stored again.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use engine::{fs::SharedFile, store};
use serde::{Deserialize, Serialize};
use unit::{Kept, KeptError};
use uuid::Uuid;

use crate::{
    StateError,
    record::{FILE_BYTES_MAX, read_versioned, write_toml},
};

const VERSION: u32 = 2;

/// First line of each file of version 1.
const HEADER_1: &str = "sanstone unit 1\n";

/// A file of the current version.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    /// The lines of the state. An array, so that a file that was cut short anywhere cannot be read.
    state: Vec<String>,
}

/// The files of the served disks.
#[derive(Debug)]
pub(crate) struct UnitFiles {
    directory: PathBuf,
    /// The identities of the served disks, by volume name.
    served: Mutex<BTreeMap<String, Uuid>>,
    /// Of the directory: nobody else uses it as long as somebody may write here.
    _locks: Vec<SharedFile>,
}

impl UnitFiles {
    /// The files in `directory`, which is locked by `locks`, at least for the disks that are served.
    pub(crate) fn new(directory: PathBuf, locks: Vec<SharedFile>) -> UnitFiles {
        UnitFiles {
            directory,
            served: Mutex::default(),
            _locks: locks,
        }
    }

    /// The identities of the served disks, by volume name.
    pub(crate) fn served(&self) -> MutexGuard<'_, BTreeMap<String, Uuid>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What [`UnitFiles::keep`] stored last for the disk `uuid`, whose volume is called `name`, ready to be restored.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub(crate) fn state_of(&self, uuid: &Uuid, name: &str) -> Result<Option<Kept>, StateError> {
        let text = self.kept_of(uuid, name)?;
        let parsed = text.as_deref().map(str::parse).transpose();
        parsed.map_err(|error: KeptError| self.damaged(uuid, name, &error.to_string()))
    }

    /// The same as text.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn kept_of(&self, uuid: &Uuid, name: &str) -> Result<Option<String>, StateError> {
        let file = self.file(uuid);
        if let Some(text) = self.version_1(uuid, name)? {
            return Ok(Some(text));
        }
        let text: Option<Text> = read_versioned(&file, VERSION)?;
        Ok(text.map(|text| text.state.iter().map(|line| format!("{line}\n")).collect()))
    }

    /// The text of a file of version 1; `None` if there is none, or one of another version.
    fn version_1(&self, uuid: &Uuid, name: &str) -> Result<Option<String>, StateError> {
        let file = self.file(uuid);
        let bytes = match store::read_file(&file, FILE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StateError::io(format!("reading {}", file.display()))(error)),
        };
        let Some(lines) = bytes.strip_prefix(HEADER_1.as_bytes()) else {
            return Ok(None);
        };
        let text = String::from_utf8(lines.to_vec())
            .map_err(|error| self.damaged(uuid, name, &error.to_string()))?;
        // The end of a name that was cut short would be the name of another initiator.
        match text.is_empty() || text.ends_with('\n') {
            true => Ok(Some(text)),
            false => Err(self.damaged(uuid, name, "its last line is cut short")),
        }
    }

    fn damaged(&self, uuid: &Uuid, name: &str, why: &str) -> StateError {
        StateError::Refused(format!(
            "{} is damaged: {why}, so volume {name} is not served, as initiators could write that its reservations \
             fence off; restore the file from a copy, or remove it and with it the reservations and saved mode pages \
             of the volume",
            self.file(uuid).display()
        ))
    }

    /// Stores the state of the logical unit of the volume called `name`. `None`: there is none.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn keep(&self, name: &str, text: Option<&str>) -> Result<(), StateError> {
        let uuid = self.served().get(name).copied();
        let uuid =
            uuid.ok_or_else(|| StateError::Refused(format!("volume {name} has no identity")))?;
        let lines = text.unwrap_or_default().lines();
        let text = Text {
            version: VERSION,
            state: lines.map(str::to_owned).collect(),
        };
        write_toml(&self.file(&uuid), &text)
    }

    fn file(&self, uuid: &Uuid) -> PathBuf {
        self.directory.join(format!("unit-{uuid}"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use engine::sim::World;

    use super::*;
    use crate::StateDirectory;

    const UUID: Uuid = Uuid::from_u128(1);
    const FENCE: &str = "registration 000000000000000a 1 0 iqn.a,i,0x1\n\
                         reservation 5 1 iqn.a,i,0x1\n";

    /// Runs `test` with the files of an empty state directory, and the file of the disk with [`UUID`].
    fn with_files(test: impl FnOnce(&UnitFiles, &Path)) {
        let world = World::new(1);
        let host = world.host("machine");
        world.block_on(&host, async {
            let directory = Path::new("/srv/state");
            let state = StateDirectory::open(directory, true).expect("a state directory");
            let files = state.unit_files.clone();
            files.served().insert("db".to_owned(), UUID);
            test(&files, &files.file(&UUID));
        });
    }

    fn put(file: &Path, text: &str) {
        store::replace(file, text.as_bytes()).expect("room");
    }

    #[test]
    fn what_is_kept_is_restored_from_both_versions() {
        with_files(|files, file| {
            let fence: Kept = FENCE.parse().expect("as saved");
            assert_eq!(files.state_of(&UUID, "db").expect("nothing"), None);
            for (text, kept) in [(Some(FENCE), fence.clone()), (None, Kept::default())] {
                files.keep("db", text).expect("room");
                assert_eq!(files.state_of(&UUID, "db").expect("readable"), Some(kept));
            }
            for (text, kept) in [(FENCE, fence), ("", Kept::default())] {
                put(file, &format!("{HEADER_1}{text}"));
                assert_eq!(files.state_of(&UUID, "db").expect("readable"), Some(kept));
            }
        });
    }

    #[test]
    fn a_file_that_is_torn_anywhere_is_refused_with_its_name_and_a_remedy() {
        with_files(|files, file| {
            files.keep("db", Some(FENCE)).expect("room");
            let whole = store::read(file).expect("it is there");
            let whole = String::from_utf8(whole).expect("text");
            for len in 0..whole.trim_end().len() {
                put(file, &whole[..len]);
                let error = files.state_of(&UUID, "db").expect_err("torn").to_string();
                assert!(error.contains(&*file.to_string_lossy()), "{error}");
                assert!(error.contains("from a copy"), "{error}");
            }
        });
    }

    #[test]
    fn a_damaged_line_is_named_and_its_disk_is_not_served() {
        with_files(|files, file| {
            let cut = &FENCE[..FENCE.len() - 1];
            put(file, &format!("{HEADER_1}{cut}"));
            let error = files.state_of(&UUID, "db").expect_err("torn").to_string();
            assert!(error.contains("cut short"), "{error}");
            let damaged = FENCE.replace("registration 0", "registration x");
            files.keep("db", Some(&damaged)).expect("room");
            for version in 1..=2 {
                let error = files
                    .state_of(&UUID, "db")
                    .expect_err("damaged")
                    .to_string();
                for part in [
                    "line 1",
                    "registration x",
                    "volume db",
                    "from a copy",
                    "remove it",
                ] {
                    assert!(error.contains(part), "{version}: {error}");
                }
                put(file, &format!("{HEADER_1}{damaged}"));
            }
        });
    }

    #[test]
    fn a_newer_file_is_not_called_damaged() {
        with_files(|files, file| {
            put(file, "version = 3\nadded = 1\n");
            let error = files.state_of(&UUID, "db").expect_err("newer").to_string();
            assert!(error.contains("reads version 2"), "{error}");
            assert!(!error.contains("damaged"), "{error}");
        });
    }
}
