//! What outlives a restart: the identity of each volume, a UUID that its NAA name and serial
//! number derive from, what its logical unit has to remember (reservations, mode pages), and the numbers
//! of target ports. Small files, versioned, replaced atomically; locked while in use.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;
use volume::graph::Served;

const VERSION: u32 = 1;
/// First line of a logical unit's file, with its version.
const UNIT_HEADER: &str = "sanstone unit 1\n";

/// The state directory of a running daemon.
#[derive(Debug)]
pub(crate) struct State {
    file: PathBuf,
    identities: Identities,
    ports_file: PathBuf,
    ports: Ports,
    _lock: File,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identities {
    version: u32,
    #[serde(default)]
    volume: BTreeMap<String, Uuid>,
}

/// Relative target port identifiers by the ports' names.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ports {
    version: u32,
    #[serde(default)]
    port: BTreeMap<String, u16>,
}

impl Identities {
    /// What `file` holds; nothing if it does not exist.
    fn read(file: &Path) -> Result<Identities> {
        let identities: Option<Identities> = read(file)?;
        let identities = identities.unwrap_or(Identities {
            version: VERSION,
            volume: BTreeMap::new(),
        });
        check_version(file, identities.version)?;
        Ok(identities)
    }
}

impl Ports {
    /// As [`Identities::read`].
    fn read(file: &Path) -> Result<Ports> {
        let ports: Option<Ports> = read(file)?;
        let ports = ports.unwrap_or(Ports {
            version: VERSION,
            port: BTreeMap::new(),
        });
        check_version(file, ports.version)?;
        Ok(ports)
    }
}

/// What `file` holds, if it exists.
fn read<T: DeserializeOwned>(file: &Path) -> Result<Option<T>> {
    let shown = file.display();
    match fs::read_to_string(file) {
        Ok(text) => toml::from_str(&text)
            .map(Some)
            .with_context(|| format!("{shown} is damaged; restore it from a copy")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {shown}")),
    }
}

fn check_version(file: &Path, version: u32) -> Result<()> {
    if version != VERSION {
        let shown = file.display();
        bail!("{shown} has version {version}; this sanstone reads version {VERSION}");
    }
    Ok(())
}

/// The volumes that have been served from `directory`, which is neither made nor locked. A volume
/// has its identity when it has been opened well, so that whoever has one has been there.
pub(crate) fn served(directory: &Path) -> Result<Served> {
    let record = directory.join("volumes.toml");
    let identities = Identities::read(&record)?;
    Ok(Served {
        names: identities.volume.into_keys().collect(),
        record,
    })
}

impl State {
    /// Opens `directory`, which is made if it does not exist, and locks it. What leads there is made
    /// too `with_parents`: a share of the demo must not bring back what the demo has removed.
    ///
    /// # Errors
    /// When it cannot be written, belongs to a running daemon, or has a newer version.
    pub(crate) fn open(directory: &Path, with_parents: bool) -> Result<State> {
        let shown = directory.display();
        let made = match with_parents {
            true => fs::create_dir_all(directory),
            false if directory.is_dir() => Ok(()),
            false => fs::create_dir(directory),
        };
        made.with_context(|| {
            format!("the state directory {shown} cannot be made; name another with state = \"…\"")
        })?;
        let lock = File::create(directory.join("lock")).with_context(|| {
            format!(
                "the state directory {shown} cannot be written; give this user the right, or name \
                     another with state = \"…\""
            )
        })?;
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
        let identities = Identities::read(&file)?;
        let ports_file = directory.join("ports.toml");
        let ports = Ports::read(&ports_file)?;
        Ok(State {
            file,
            identities,
            ports_file,
            ports,
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

    /// The relative identifier of the target port called `name`; a new one gets the next, which is
    /// kept. Registrations are kept under it (SPC-4 5.12.4), so that it must not depend on which other
    /// targets there are, and a port that is gone keeps its own: no other inherits what it left.
    pub(crate) fn relative_port(&mut self, name: &str) -> Result<u16> {
        if let Some(port) = self.ports.port.get(name) {
            return Ok(*port);
        }
        let last = self.ports.port.values().max().copied().unwrap_or(0);
        let shown = self.ports_file.display();
        let port = last.checked_add(1).with_context(|| {
            format!(
                "{shown} has no number left for {name}; remove the lines of ports that are gone"
            )
        })?;
        self.ports.port.insert(name.to_owned(), port);
        let text = toml::to_string(&self.ports)?;
        replace(&mut System, &self.ports_file, &text)
            .with_context(|| format!("writing {}", self.ports_file.display()))?;
        Ok(port)
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
        replace(&mut System, &file, &text).with_context(|| format!("writing {}", file.display()))
    }

    fn unit_file(&self, uuid: &Uuid) -> PathBuf {
        self.file.with_file_name(format!("unit-{uuid}"))
    }

    fn save(&self) -> Result<()> {
        replace(&mut System, &self.file, &toml::to_string(&self.identities)?)?;
        Ok(())
    }
}

/// What replacing a file asks of the system, so that a test can cut the power between two steps.
trait Files {
    type File;
    fn create(&mut self, path: &Path) -> io::Result<Self::File>;
    fn write(&mut self, file: &mut Self::File, text: &str) -> io::Result<()>;
    fn sync(&mut self, file: &Self::File) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    fn sync_directory(&mut self, path: &Path) -> io::Result<()>;
}

struct System;

impl Files for System {
    type File = File;

    fn create(&mut self, path: &Path) -> io::Result<File> {
        File::create(path)
    }

    fn write(&mut self, file: &mut File, text: &str) -> io::Result<()> {
        file.write_all(text.as_bytes())
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_directory(&mut self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

/// Replaces a file: after a power cut either the old or the new one is there, and the new one once
/// this has ended.
fn replace(files: &mut impl Files, path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = files.create(&new)?;
    files.write(&mut file, text)?;
    files.sync(&file)?;
    files.rename(&new, path)?;
    files.sync_directory(path.parent().unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_stays_and_a_second_daemon_is_refused() {
        let directory = std::env::temp_dir().join(format!("sanstone-state-{}", std::process::id()));
        let first = {
            let mut state = State::open(&directory, true).expect("a new state directory");
            let error = State::open(&directory, true)
                .expect_err("it is in use")
                .to_string();
            assert!(error.contains("another daemon"), "{error}");
            state.identity("db").expect("a new identity")
        };
        let mut state = State::open(&directory, true).expect("the same directory again");
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
        State::open(&directory.join("below"), false).expect_err("what leads there is gone");
    }

    #[test]
    fn a_target_port_keeps_its_number_whatever_comes_before_it() {
        let directory = std::env::temp_dir().join(format!("sanstone-ports-{}", std::process::id()));
        let number = |name: &str| {
            let mut state = State::open(&directory, true).expect("a state directory");
            state.relative_port(name).expect("a number")
        };
        // In the order of the configuration, as in directories from before numbers were kept.
        assert_eq!(number("iqn.2026-11.test:m,t,0x0001"), 1);
        assert_eq!(number("iqn.2026-11.test:n,t,0x0001"), 2);
        assert_eq!(number("iqn.2026-11.test:a,t,0x0001"), 3);
        assert_eq!(number("iqn.2026-11.test:m,t,0x0001"), 1);
        let file = directory.join("ports.toml");
        let last = "version = 1\n[port]\n\"iqn.2026-11.test:m,t,0x0001\" = 65535\n";
        fs::write(&file, last).expect("room");
        let mut state = State::open(&directory, true).expect("a state directory");
        fs::remove_dir_all(&directory).expect("a clean-up");
        let error = state.relative_port("iqn.2026-11.test:a,t,0x0001");
        assert!(
            error
                .expect_err("none is left")
                .to_string()
                .contains("ports.toml")
        );
    }

    /// A directory on a disk whose power goes after some steps: names and contents that were not
    /// synced may or may not have arrived.
    #[derive(Default)]
    struct Doomed {
        names: BTreeMap<PathBuf, usize>,
        durable_names: BTreeMap<PathBuf, usize>,
        contents: Vec<String>,
        durable_contents: Vec<String>,
        steps_left: usize,
    }

    impl Doomed {
        fn step(&mut self) -> io::Result<()> {
            let left = self.steps_left.checked_sub(1);
            self.steps_left = left.ok_or_else(|| io::Error::other("the power is off"))?;
            Ok(())
        }

        /// What may be in a file after the power has come back.
        fn outcomes(&self, path: &Path) -> Vec<&str> {
            let mut outcomes = Vec::new();
            for names in [&self.names, &self.durable_names] {
                match names.get(path) {
                    None => outcomes.push("nothing"),
                    Some(&file) => {
                        outcomes.push(&self.contents[file]);
                        outcomes.push(&self.durable_contents[file]);
                    }
                }
            }
            outcomes
        }
    }

    impl Files for Doomed {
        type File = usize;

        fn create(&mut self, path: &Path) -> io::Result<usize> {
            self.step()?;
            self.contents.push(String::new());
            self.durable_contents.push(String::new());
            self.names.insert(path.to_owned(), self.contents.len() - 1);
            Ok(self.contents.len() - 1)
        }

        fn write(&mut self, file: &mut usize, text: &str) -> io::Result<()> {
            self.step()?;
            self.contents[*file].push_str(text);
            Ok(())
        }

        fn sync(&mut self, file: &usize) -> io::Result<()> {
            self.step()?;
            self.durable_contents[*file] = self.contents[*file].clone();
            Ok(())
        }

        fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
            self.step()?;
            let file = self.names.remove(from).expect("it was made");
            self.names.insert(to.to_owned(), file);
            Ok(())
        }

        fn sync_directory(&mut self, _: &Path) -> io::Result<()> {
            self.step()?;
            self.durable_names = self.names.clone();
            Ok(())
        }
    }

    #[test]
    fn a_power_cut_leaves_the_old_or_the_new() {
        let path = Path::new("/state/unit-1");
        let mut ended = false;
        for steps in 0.. {
            let mut disk = Doomed {
                steps_left: 100,
                ..Doomed::default()
            };
            replace(&mut disk, path, "old").expect("there is power");
            disk.steps_left = steps;
            ended = replace(&mut disk, path, "new").is_ok();
            for outcome in disk.outcomes(path) {
                assert!(
                    outcome == "new" || outcome == "old" && !ended,
                    "{outcome:?} after {steps} steps"
                );
            }
            if ended {
                break;
            }
        }
        assert!(ended);
    }
}
