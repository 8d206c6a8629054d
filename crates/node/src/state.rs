//! The state directory of a running daemon: the disks it has served ([`crate::record`]), the
//! persistent state of their logical units ([`crate::unit_files`]), and the numbers of target
//! ports. Small versioned files, replaced atomically, in a directory that is locked while in use.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use engine::{
    fs::{OpenOptions, SharedFile},
    store,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Error, Site,
    record::{Records, new_identity, read_versioned, write_toml},
    unit_files::UnitFiles,
};

const PORTS_VERSION: u32 = 1;
const OWNER_VERSION: u32 = 1;
const PORTS_FILE: &str = "ports.toml";
const OWNER_FILE: &str = "owner.toml";

/// The state directory of a running daemon.
#[derive(Debug)]
pub struct State {
    directory: PathBuf,
    pub(crate) records: Records,
    ports: Ports,
    pub(crate) unit_files: Arc<UnitFiles>,
}

/// Relative target port identifiers by port name.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ports {
    version: u32,
    #[serde(default)]
    port: BTreeMap<String, u16>,
}

/// The owner that claims the children of stripes, and the configuration that was served last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnerFile {
    version: u32,
    owner: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    configuration: Option<String>,
    /// Where this directory was then. A copy of it elsewhere does not count as shared with that configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
}

/// Where a configuration and its state directory are, with symbolic links in the parent directories resolved.
struct Places {
    configuration: String,
    directory: String,
}

impl Places {
    fn of(site: &Site<'_>) -> Places {
        let base = site.base();
        let base = store::resolve(&base).unwrap_or(base);
        let configuration = base.join(site.config.file_name().unwrap_or_default());
        let directory = store::resolve(site.state).unwrap_or(site.state.to_owned());
        Places {
            configuration: configuration.to_string_lossy().into_owned(),
            directory: directory.to_string_lossy().into_owned(),
        }
    }
}

/// Another configuration that was last served from the state directory of `site`, if it still exists.
pub(crate) fn sharer(site: &Site<'_>) -> Option<PathBuf> {
    if site.is_successor {
        return None;
    }
    let known: OwnerFile = read_versioned(&site.state.join(OWNER_FILE), OWNER_VERSION).ok()??;
    let ours = Places::of(site);
    let other = PathBuf::from(known.configuration.filter(|it| *it != ours.configuration)?);
    let is_same_file = store::resolve(&other).ok()? == store::resolve(site.config).ok()?;
    (known.directory == Some(ours.directory) && !is_same_file && store::look(&other).is_ok())
        .then_some(other)
}

impl State {
    /// Checks that this release can read the files of `directory`, which need not exist.
    ///
    /// # Errors
    /// The first file that is damaged or newer, with a remedy.
    pub(crate) fn look(directory: &Path) -> Result<(), Error> {
        let _: Option<Ports> = read_versioned(&directory.join(PORTS_FILE), PORTS_VERSION)?;
        let _: Option<OwnerFile> = read_versioned(&directory.join(OWNER_FILE), OWNER_VERSION)?;
        Ok(())
    }

    /// Opens and locks `directory`, creating it if needed. `with_parents` also creates missing
    /// parents. The demo's shares do without: they must not bring back what the demo has removed.
    ///
    /// # Errors
    /// If it cannot be written, belongs to a running daemon, or has a newer version.
    pub fn open(directory: &Path, with_parents: bool) -> Result<State, Error> {
        let shown = directory.display();
        store::make_directory(directory, with_parents).map_err(Error::io(format!(
            "the state directory {shown} cannot be created"
        )))?;
        let options = OpenOptions {
            write: true,
            create: true,
            lock: true,
            ..OpenOptions::default()
        };
        let lock = SharedFile::open(&directory.join("lock"), &options);
        let lock = lock.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                let known = read_versioned(&directory.join(OWNER_FILE), OWNER_VERSION);
                let known: Option<OwnerFile> = known.ok().flatten();
                let of = known.and_then(|known| known.configuration);
                let of = of.map_or(String::new(), |of| format!(", that of {of},"));
                Error::Refused(format!(
                    "another daemon{of} uses the state directory {shown}; stop it, or give each its own \
                     with state = \"…\""
                ))
            }
            _ => Error::io(format!("the state directory {shown} cannot be written"))(error),
        })?;
        let ports_file = directory.join(PORTS_FILE);
        let ports = read_versioned(&ports_file, PORTS_VERSION)?.unwrap_or(Ports {
            version: PORTS_VERSION,
            port: BTreeMap::new(),
        });
        Ok(State {
            directory: directory.to_owned(),
            records: Records::read(directory)?,
            ports,
            unit_files: Arc::new(UnitFiles::new(directory.to_owned(), lock)),
        })
    }

    /// The identity of the directory, and of this daemon while it holds the lock. The daemon claims
    /// the children of stripes under it, and recognises those claims after a crash.
    ///
    /// # Errors
    /// If it cannot be read, or a new one cannot be stored.
    pub fn owner(&self) -> Result<Uuid, Error> {
        Ok(self.owner_file()?.owner)
    }

    /// Records that `site` is served from here.
    pub(crate) fn serves(&self, site: &Site<'_>) -> Result<(), Error> {
        let known = self.owner_file()?;
        let places = Places::of(site);
        let new = OwnerFile {
            configuration: Some(places.configuration),
            directory: Some(places.directory),
            ..known.clone()
        };
        match new == known {
            true => Ok(()),
            false => write_toml(&self.directory.join(OWNER_FILE), &new),
        }
    }

    fn owner_file(&self) -> Result<OwnerFile, Error> {
        let file = self.directory.join(OWNER_FILE);
        if let Some(known) = read_versioned(&file, OWNER_VERSION)? {
            return Ok(known);
        }
        let new = OwnerFile {
            version: OWNER_VERSION,
            owner: new_identity()?,
            configuration: None,
            directory: None,
        };
        write_toml(&file, &new)?;
        Ok(new)
    }

    /// The relative identifier of the target port called `name`; a new port gets the next one, which
    /// is stored. Registrations are bound to it (SPC-4 5.13.5), so it must not depend on which other
    /// targets exist. A removed port keeps its number, so that no other inherits its registrations.
    ///
    /// # Errors
    /// If no number is left, or a new one cannot be stored.
    pub fn relative_port(&mut self, name: &str) -> Result<u16, Error> {
        if let Some(port) = self.ports.port.get(name) {
            return Ok(*port);
        }
        let last = self.ports.port.values().max().copied().unwrap_or(0);
        let file = self.directory.join(PORTS_FILE);
        let port = last.checked_add(1).ok_or_else(|| {
            Error::Refused(format!(
                "{} has no number left for {name}; remove the lines of ports that no longer exist",
                file.display()
            ))
        })?;
        self.ports.port.insert(name.to_owned(), port);
        write_toml(&file, &self.ports)?;
        Ok(port)
    }

    /// What [`State::keep`] stored last for the volume called `name`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn kept(&self, name: &str) -> Result<Option<String>, Error> {
        let uuid = self.unit_files.served().get(name).copied();
        uuid.map_or(Ok(None), |uuid| self.unit_files.kept_of(&uuid, name))
    }

    /// Stores the state of the logical unit of the volume called `name`: reservations with APTPL
    /// and saved mode pages. `None`: there are none.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&self, name: &str, text: Option<&str>) -> Result<(), Error> {
        self.unit_files.keep(name, text)
    }
}

#[cfg(test)]
mod tests {
    use engine::sim::World;

    use super::*;

    /// Runs `test` on a machine with an empty disk.
    fn on_a_machine(test: impl FnOnce(&Path)) {
        let world = World::new(1);
        let host = world.host("machine");
        world.block_on(&host, async { test(Path::new("/srv/state")) });
    }

    #[test]
    fn what_is_kept_is_there_again_and_a_second_daemon_is_refused() {
        on_a_machine(|directory| {
            State::open(directory, false).expect_err("what leads there is not made");
            for kept in [None, Some("registration 1\n"), Some("")] {
                let state = State::open(directory, true).expect("a state directory");
                let error = State::open(directory, true).expect_err("it is in use");
                assert!(error.to_string().contains("another daemon"), "{error}");
                let served = ("db".to_owned(), Uuid::from_u128(1));
                state.unit_files.served().extend([served]);
                assert_eq!(state.kept("db").expect("readable").as_deref(), kept);
                let next = kept.is_none().then_some("registration 1\n");
                state.keep("db", next).expect("room");
            }
            let state = State::open(directory, true).expect("a state directory");
            assert_eq!(state.kept("other").expect("nothing"), None);
            state.keep("other", None).expect_err("it has no identity");
        });
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_its_name() {
        on_a_machine(|directory| {
            let refused = |file: &str, text: &str, part: &str| {
                let file = directory.join(file);
                store::make_directory(directory, true).expect("room");
                store::replace(&file, text.as_bytes()).expect("room");
                let error = State::open(directory, true).expect_err(text).to_string();
                assert!(error.contains(part), "{error}");
                assert!(error.contains(&*file.to_string_lossy()), "{error}");
                store::replace(&file, b"version = 1\n").expect("room");
            };
            refused("volumes.toml", "version = 3\n", "reads version 2");
            refused("volumes.toml", "version = 3\n", "state = \"…\"");
            refused("volumes.toml", "version = ", "restore it from a copy");
            let twice = "version = 1\n[volume]\na = \"6f9619ff-8b86-4011-b42d-00c04fc964ff\"\n\
                         b = \"6f9619ff-8b86-4011-b42d-00c04fc964ff\"\n";
            refused("volumes.toml", twice, "two volumes");
            refused("ports.toml", "version = 2\n", "reads version 1");
            // Fields added by a newer release are not reported as damage.
            refused("ports.toml", "version = 2\nadded = 1\n", "reads version 1");
            refused("ports.toml", "ports = []\n", "restore it from a copy");
            let state = State::open(directory, true).expect("all is right again");
            let newer = b"version = 2\nadded = 1\n";
            store::replace(&directory.join(OWNER_FILE), newer).expect("room");
            let error = state.owner().expect_err("newer").to_string();
            assert!(error.contains("reads version 1"), "{error}");
        });
    }

    #[test]
    fn a_target_port_keeps_its_number_whatever_comes_before_it() {
        on_a_machine(|directory| {
            let number = |name: &str| {
                let mut state = State::open(directory, true).expect("a state directory");
                state.relative_port(name)
            };
            // In the order of the configuration, as in directories from before numbers were stored.
            for (name, port) in [("m", 1), ("n", 2), ("a", 3), ("m", 1)] {
                let name = format!("iqn.2026-11.test:{name},t,0x0001");
                assert_eq!(number(&name).expect("a number"), port);
            }
            let last = "version = 1\n[port]\n\"iqn.2026-11.test:m,t,0x0001\" = 65535\n";
            store::replace(&directory.join("ports.toml"), last.as_bytes()).expect("room");
            let error = number("iqn.2026-11.test:a,t,0x0001").expect_err("none is left");
            assert!(error.to_string().contains("ports.toml"), "{error}");
        });
    }
}
