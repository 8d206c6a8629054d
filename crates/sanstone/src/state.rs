//! What outlives a restart: the identity of each volume, a UUID that its NAA name and serial
//! number derive from. One small file, versioned, replaced atomically; locked while in use.

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

    /// Replaces the file: after a power cut either the old or the new one is there.
    fn save(&self) -> Result<()> {
        let new = self.file.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(toml::to_string(&self.identities)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.file)?;
        File::open(self.file.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(())
    }
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
        fs::remove_dir_all(&directory).expect("a clean-up");
    }
}
