//! What outlives a restart: the identity of each volume, a UUID that its NAA name and serial
//! number derive from, and what its logical unit has to remember (reservations, mode pages). Small
//! files, versioned, replaced atomically; locked while in use.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

const VERSION: u32 = 1;
/// First line of a logical unit's file, with its version.
const UNIT_HEADER: &str = "sanstone unit 1\n";

/// The state directory of a running daemon.
#[derive(Debug)]
pub(crate) struct State {
    file: PathBuf,
    identities: Identities,
    _lock: File,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identities {
    version: u32,
    #[serde(default)]
    volume: BTreeMap<String, Uuid>,
}

impl State {
    /// Opens `directory`, which is made if it does not exist, and locks it.
    ///
    /// # Errors
    /// When it cannot be written, belongs to a running daemon, or has a newer version.
    pub(crate) fn open(directory: &Path) -> Result<State> {
        let shown = directory.display();
        fs::create_dir_all(directory).with_context(|| {
            format!("the state directory {shown} cannot be made; name another with state = \"…\"")
        })?;
        let lock = File::create(directory.join("lock"))
            .with_context(|| format!("the state directory {shown} cannot be written"))?;
        if rustix::fs::flock(
            lock.as_fd(),
            rustix::fs::FlockOperation::NonBlockingLockExclusive,
        )
        .is_err()
        {
            bail!(
                "another daemon uses the state directory {shown}; give each its own with state = \"…\""
            );
        }
        let file = directory.join("volumes.toml");
        let identities = match fs::read_to_string(&file) {
            Ok(text) => toml::from_str(&text).with_context(|| {
                format!("{} is damaged; restore it from a copy", file.display())
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Identities {
                version: VERSION,
                volume: BTreeMap::new(),
            },
            Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
        };
        if identities.version != VERSION {
            let version = identities.version;
            bail!(
                "{} has version {version}; this sanstone reads version {VERSION}",
                file.display()
            );
        }
        Ok(State {
            file,
            identities,
            _lock: lock,
        })
    }

    /// The identity of the volume called `name`; a new one is made, and kept, the first time.
    pub(crate) fn identity(&mut self, name: &str) -> Result<Uuid> {
        if let Some(uuid) = self.identities.volume.get(name) {
            return Ok(*uuid);
        }
        let uuid = Uuid::new_v4();
        self.identities.volume.insert(name.to_owned(), uuid);
        self.save()
            .with_context(|| format!("writing {}", self.file.display()))?;
        Ok(uuid)
    }

    /// What [`State::keep`] kept last for the volume called `name`.
    pub(crate) fn kept(&self, name: &str) -> Result<Option<String>> {
        let Some(uuid) = self.identities.volume.get(name) else {
            return Ok(None);
        };
        let file = self.unit_file(uuid);
        match fs::read_to_string(&file) {
            Ok(text) => match text.strip_prefix(UNIT_HEADER) {
                Some(text) => Ok(Some(text.to_owned())),
                None => bail!(
                    "{} is damaged or from a newer sanstone; restore it from a copy, or remove it \
                     and with it the reservations and saved mode pages of volume {name}",
                    file.display()
                ),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", file.display())),
        }
    }

    /// Keeps the state of the logical unit of the volume called `name`: reservations with APTPL
    /// and saved mode pages, or that there are none.
    pub(crate) fn keep(&self, name: &str, text: Option<&str>) -> Result<()> {
        let uuid = self.identities.volume.get(name);
        let uuid = uuid.with_context(|| format!("volume {name} has no identity"))?;
        let file = self.unit_file(uuid);
        let text = format!("{UNIT_HEADER}{}", text.unwrap_or_default());
        replace(&file, &text).with_context(|| format!("writing {}", file.display()))
    }

    fn unit_file(&self, uuid: &Uuid) -> PathBuf {
        self.file.with_file_name(format!("unit-{uuid}"))
    }

    fn save(&self) -> Result<()> {
        replace(&self.file, &toml::to_string(&self.identities)?)
    }
}

/// Replaces a file: after a power cut either the old or the new one is there.
fn replace(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_stays_and_a_second_daemon_is_refused() {
        let directory = std::env::temp_dir().join(format!("sanstone-state-{}", std::process::id()));
        let first = {
            let mut state = State::open(&directory).expect("a new state directory");
            let error = State::open(&directory)
                .expect_err("it is in use")
                .to_string();
            assert!(error.contains("another daemon"), "{error}");
            state.identity("db").expect("a new identity")
        };
        let mut state = State::open(&directory).expect("the same directory again");
        assert_eq!(state.identity("db").expect("the kept identity"), first);
        assert_ne!(state.identity("log").expect("another identity"), first);
        assert_eq!(state.kept("db").expect("nothing yet"), None);
        state.keep("db", Some("registration 1\n")).expect("kept");
        assert_eq!(
            state.kept("db").expect("kept").as_deref(),
            Some("registration 1\n")
        );
        state.keep("db", None).expect("kept");
        assert_eq!(state.kept("db").expect("nothing").as_deref(), Some(""));
        fs::remove_dir_all(&directory).expect("a clean-up");
    }
}
