//! The state directory of a running daemon: the disks it has served ([`crate::record`]), the
//! persistent state of their logical units ([`crate::unit_files`]), and the numbers of target
//! ports. Small versioned files, replaced atomically, in a directory that is [locked](crate::state_lock) while in use.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use engine::{fs::SharedFile, store};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    ServedSite, StateError, private,
    record::{Records, new_identity, read_versioned, write_toml},
    state_lock,
    stored::Stored,
    unit_files::UnitFiles,
};

const PORTS_VERSION: u32 = 1;
const OWNER_VERSION: u32 = 1;
const PORTS_FILE: &str = "ports.toml";
const OWNER_FILE: &str = "owner.toml";

/// The state directory of a running daemon.
#[derive(Debug)]
pub struct StateDirectory {
    directory: PathBuf,
    records: Stored<Records>,
    ports: Stored<Ports>,
    pub(crate) unit_files: Arc<UnitFiles>,
    /// Whether others use it as well, for other volumes: what they have stored since stays.
    is_shared: bool,
    /// Who finds it locked knows by this that waiting is in vain.
    _served: Option<SharedFile>,
}

/// What is stored of all disks and targets, for a change that may fail.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    pub(crate) records: Records,
    ports: Ports,
}

/// Relative target port identifiers by port name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
struct StatePaths {
    configuration: String,
    directory: String,
}

impl StatePaths {
    fn of(site: &ServedSite<'_>) -> StatePaths {
        let base = site.base();
        let base = store::resolve(&base).unwrap_or(base);
        let configuration = base.join(site.config.file_name().unwrap_or_default());
        let directory = store::resolve(site.state).unwrap_or(site.state.to_owned());
        StatePaths {
            configuration: configuration.to_string_lossy().into_owned(),
            directory: directory.to_string_lossy().into_owned(),
        }
    }
}

/// Another configuration that was last served from the state directory of `site`, if it still exists.
pub(crate) fn sharer(site: &ServedSite<'_>) -> Option<PathBuf> {
    if site.is_successor {
        return None;
    }
    let known: OwnerFile = read_versioned(&site.state.join(OWNER_FILE), OWNER_VERSION).ok()??;
    let ours = StatePaths::of(site);
    let other = PathBuf::from(known.configuration.filter(|it| *it != ours.configuration)?);
    let is_same_file = store::resolve(&other).ok()? == store::resolve(site.config).ok()?;
    (known.directory == Some(ours.directory) && !is_same_file && store::look(&other).is_ok())
        .then_some(other)
}

impl Ports {
    fn read(directory: &Path) -> Result<Stored<Ports>, StateError> {
        let file = directory.join(PORTS_FILE);
        let ports = read_versioned(&file, PORTS_VERSION)?.unwrap_or(Ports {
            version: PORTS_VERSION,
            port: BTreeMap::new(),
        });
        Ok(Stored::new(file, ports))
    }
}

/// Creates `directory`, unless it is there and [ours alone](private::check).
fn make(directory: &Path, with_parents: bool) -> Result<(), StateError> {
    let shown = directory.display();
    let made = store::make_directory(directory, with_parents);
    made.map_err(StateError::io(format!(
        "the state directory {shown} cannot be created"
    )))?;
    private::check(directory)
}

fn used_by_another(directory: &Path) -> StateError {
    let known = read_versioned(&directory.join(OWNER_FILE), OWNER_VERSION);
    let known: Option<OwnerFile> = known.ok().flatten();
    let of = known.and_then(|known| known.configuration);
    let of = of.map_or(String::new(), |of| format!(", that of {of},"));
    StateError::Refused(format!(
        "another daemon{of} uses the state directory {}; stop it, or give each its own with state = \"…\"",
        directory.display()
    ))
}

impl StateDirectory {
    /// Checks that `directory`, which need not exist, is [one user's alone](private::look), and that this release can read
    /// its files.
    ///
    /// # Errors
    /// The first file that is damaged or newer, with a remedy.
    pub(crate) fn look(directory: &Path) -> Result<(), StateError> {
        private::look(directory)?;
        let _: Option<Ports> = read_versioned(&directory.join(PORTS_FILE), PORTS_VERSION)?;
        let _: Option<OwnerFile> = read_versioned(&directory.join(OWNER_FILE), OWNER_VERSION)?;
        Ok(())
    }

    /// The user whose `directory` is, if this process is root and it is another's: what serves from it has to run as that
    /// user.
    pub fn user_of_service(directory: &Path) -> Option<u32> {
        private::stranger(directory)
    }

    /// Opens and locks `directory`, creating it if needed. `with_parents` also creates missing
    /// parents. The demo's shares do without: they must not bring back what the demo has removed.
    ///
    /// # Errors
    /// If it cannot be written, belongs to a running daemon or to somebody else, or has a newer version.
    pub fn open(directory: &Path, with_parents: bool) -> Result<StateDirectory, StateError> {
        make(directory, with_parents)?;
        let lock = state_lock::whole(directory)?.ok_or_else(|| used_by_another(directory))?;
        state_lock::refuse_attached(directory)?;
        StateDirectory::read(directory, vec![lock], false)
    }

    /// As [`StateDirectory::open`], for as long as a `serve` runs.
    ///
    /// # Errors
    /// As [`StateDirectory::open`].
    pub fn open_to_serve(
        directory: &Path,
        with_parents: bool,
    ) -> Result<StateDirectory, StateError> {
        let state = StateDirectory::open(directory, with_parents)?;
        Ok(StateDirectory {
            _served: state_lock::served(directory)?,
            ..state
        })
    }

    /// As [`StateDirectory::open`], for a process that attaches a volume made of `volumes`: others may attach other volumes
    /// meanwhile.
    ///
    /// # Errors
    /// As [`StateDirectory::open`], and a volume that another process has attached.
    pub fn open_for(
        directory: &Path,
        with_parents: bool,
        volumes: &[String],
    ) -> Result<StateDirectory, StateError> {
        make(directory, with_parents)?;
        let whole = state_lock::whole_for_a_moment(directory)?;
        let whole = whole.ok_or_else(|| used_by_another(directory))?;
        let locks = state_lock::volumes(directory, volumes)?;
        let state = StateDirectory::read(directory, locks, true)?;
        // There is one from now on, which nobody changes.
        state.owner_file()?;
        drop(whole);
        Ok(state)
    }

    /// What `directory` holds, which is locked by `locks`.
    fn read(
        directory: &Path,
        locks: Vec<SharedFile>,
        is_shared: bool,
    ) -> Result<StateDirectory, StateError> {
        Ok(StateDirectory {
            directory: directory.to_owned(),
            records: Stored::new(Records::file(directory), Records::read(directory)?),
            ports: Ports::read(directory)?,
            unit_files: Arc::new(UnitFiles::new(directory.to_owned(), locks)),
            is_shared,
            _served: None,
        })
    }

    /// To be called before anything is stored that others store as well. Nobody else does while the result lives, and what
    /// they have stored is known.
    fn alone(&mut self) -> Result<Option<SharedFile>, StateError> {
        if !self.is_shared {
            return Ok(None);
        }
        let whole = state_lock::whole_for_a_moment(&self.directory)?;
        let whole = whole.ok_or_else(|| used_by_another(&self.directory))?;
        let records = Records::read(&self.directory)?;
        self.records = Stored::new(Records::file(&self.directory), records);
        self.ports = Ports::read(&self.directory)?;
        Ok(Some(whole))
    }

    /// The identity of the directory, and of this daemon while it holds the lock. The daemon claims
    /// the children of stripes under it, and recognises those claims after a crash.
    ///
    /// # Errors
    /// If it cannot be read, or a new one cannot be stored.
    pub fn owner(&self) -> Result<Uuid, StateError> {
        Ok(self.owner_file()?.owner)
    }

    /// Records that `site` is served from here.
    pub(crate) fn serves(&mut self, site: &ServedSite<'_>) -> Result<(), StateError> {
        let _alone = self.alone()?;
        let known = self.owner_file()?;
        let places = StatePaths::of(site);
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

    fn owner_file(&self) -> Result<OwnerFile, StateError> {
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

    /// The relative identifiers of the target ports called `names`; new ports get the next ones, which
    /// are stored. Registrations are bound to them (SPC-4 5.13.5), so they must not depend on which other
    /// targets exist. A removed port keeps its number, so that no other inherits its registrations.
    ///
    /// # Errors
    /// If no number is left, or a new one cannot be stored: then none is in use.
    pub fn relative_ports<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<u16>, StateError> {
        let _alone = self.alone()?;
        let mut ports = self.ports.get().clone();
        let mut last = ports.port.values().max().copied().unwrap_or(0);
        let mut numbers = Vec::new();
        for name in names {
            if let Some(port) = ports.port.get(name) {
                numbers.push(*port);
                continue;
            }
            last = last.checked_add(1).ok_or_else(|| {
                StateError::Refused(format!(
                    "{} has no number left for {name}; remove the lines of ports that no longer exist",
                    self.ports.file().display()
                ))
            })?;
            ports.port.insert(name.to_owned(), last);
            numbers.push(last);
        }
        self.ports.set(ports)?;
        Ok(numbers)
    }

    /// The recorded disks.
    pub(crate) fn records(&self) -> &Records {
        self.records.get()
    }

    /// Stores the records of disks, unless they are stored already.
    pub(crate) fn set_records(&mut self, mut records: Records) -> Result<(), StateError> {
        let before = self.records().clone();
        if self.alone()?.is_some() {
            records.keep_those_of_others(&before, self.records());
        }
        records.is_as_stored(self.records());
        self.records.set(records)
    }

    /// What is stored before a change.
    pub(crate) fn before(&self) -> Before {
        Before {
            records: self.records().clone(),
            ports: self.ports.get().clone(),
        }
    }

    /// Goes back to what was stored `before` a change that failed, and keeps the records of the disks in `later` that are
    /// marked, except for those whose files were `removed` again. The ports of the change were never served.
    pub(crate) fn take_back(&mut self, mut before: Before, later: &Records, removed: &[PathBuf]) {
        if self.is_shared {
            return; // what others have stored since would go as well
        }
        before.records.keep_marked(later, removed);
        before.records.is_as_stored(self.records());
        let records = self.records.put_back(before.records);
        let ports = self.ports.put_back(before.ports);
        for error in [records, ports].into_iter().filter_map(Result::err) {
            tracing::warn!(
                %error,
                "what a failed change has stored could not be removed yet"
            );
        }
    }

    /// What [`StateDirectory::keep`] stored last for the volume called `name`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn kept(&self, name: &str) -> Result<Option<String>, StateError> {
        let uuid = self.unit_files.served().get(name).copied();
        uuid.map_or(Ok(None), |uuid| self.unit_files.kept_of(&uuid, name))
    }

    /// Stores the state of the logical unit of the volume called `name`: reservations with APTPL
    /// and saved mode pages. `None`: there are none.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&self, name: &str, text: Option<&str>) -> Result<(), StateError> {
        self.unit_files.keep(name, text)
    }
}

#[cfg(test)]
mod tests {
    use engine::sim::{FaultKind, InjectedFault, World};

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
            StateDirectory::open(directory, false).expect_err("what leads there is not made");
            for kept in [None, Some("registration 1\n"), Some("")] {
                let state = StateDirectory::open(directory, true).expect("a state directory");
                let error = StateDirectory::open(directory, true).expect_err("it is in use");
                assert!(error.to_string().contains("another daemon"), "{error}");
                let served = ("db".to_owned(), Uuid::from_u128(1));
                state.unit_files.served().extend([served]);
                assert_eq!(state.kept("db").expect("readable").as_deref(), kept);
                let next = kept.is_none().then_some("registration 1\n");
                state.keep("db", next).expect("room");
            }
            let state = StateDirectory::open(directory, true).expect("a state directory");
            assert_eq!(state.kept("other").expect("nothing"), None);
            state.keep("other", None).expect_err("it has no identity");
        });
    }

    #[test]
    fn volumes_are_attached_beside_each_other_and_not_beside_a_daemon() {
        let attach = |directory: &Path, volumes: &[&str]| {
            let volumes: Vec<String> = volumes.iter().map(|&name| name.to_owned()).collect();
            StateDirectory::open_for(directory, true, &volumes)
        };
        let record = |state: &mut StateDirectory, number: u128, bytes: u64| {
            let mut records = state.records().clone();
            let new = toml::from_str(&format!("volume = \"db\"\nbytes = {bytes}"));
            let new = new.expect("a record");
            records.disks.insert(Uuid::from_u128(number), new);
            state.set_records(records).expect("room");
        };
        on_a_machine(|directory| {
            let mut db = attach(directory, &["db", "disk"]).expect("nobody else is there");
            let mut wal = attach(directory, &["wal"]).expect("it is another volume");
            for taken in [&["db"][..], &["other", "disk"]] {
                let refused = attach(directory, taken).expect_err("it is attached");
                let name = taken.last().expect("a name");
                let said = format!("volume \"{name}\" is attached");
                assert!(refused.to_string().contains(&said), "{refused}");
            }
            let refused = StateDirectory::open(directory, true).expect_err("two are attached");
            assert!(
                refused.to_string().contains("end its `attach`"),
                "{refused}"
            );
            // Each keeps what the other has stored.
            record(&mut db, 1, 10);
            record(&mut wal, 2, 20);
            record(&mut db, 1, 11);
            assert_eq!(db.owner().expect("one"), wal.owner().expect("the same"));
            assert_eq!(
                db.relative_ports(["a"]).expect("room"),
                wal.relative_ports(["a"]).expect("room")
            );
            drop((db, wal));
            let state = StateDirectory::open(directory, true).expect("nobody is there");
            let disks = &state.records().disks;
            let bytes = |number| disks[&Uuid::from_u128(number)].bytes;
            assert_eq!((bytes(1), bytes(2)), (Some(11), Some(20)));
            // Somebody else may have it for a moment only.
            assert!(!state_lock::is_served(directory));
            drop(state);
            let state = StateDirectory::open_to_serve(directory, true).expect("nobody is there");
            assert!(state_lock::is_served(directory), "that is waited for");
            let refused = attach(directory, &["db"]).expect_err("a daemon has all of it");
            assert!(refused.to_string().contains("another daemon"), "{refused}");
            drop(state);
            assert!(!state_lock::is_served(directory));
        });
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_its_name() {
        on_a_machine(|directory| {
            let refused = |file: &str, text: &str, part: &str| {
                let file = directory.join(file);
                store::make_directory(directory, true).expect("room");
                store::replace(&file, text.as_bytes()).expect("room");
                let error = StateDirectory::open(directory, true)
                    .expect_err(text)
                    .to_string();
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
            let state = StateDirectory::open(directory, true).expect("all is right again");
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
                let mut state = StateDirectory::open(directory, true).expect("a state directory");
                Ok::<_, StateError>(state.relative_ports([name])?[0])
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

    #[test]
    fn a_number_that_could_not_be_stored_is_not_served() {
        for (kind, at) in [
            (FaultKind::Create, "/srv/state/ports.new"),
            (FaultKind::Settle, "/srv/state"),
        ] {
            let world = World::new(1);
            let host = world.host("machine");
            let directory = Path::new("/srv/state");
            world.block_on(&host, async {
                let mut state = StateDirectory::open(directory, true).expect("a state directory");
                assert_eq!(state.relative_ports(["m"]).expect("room"), [1]);
                host.add_fault(InjectedFault {
                    path: Some(at.into()),
                    ..InjectedFault::new(kind, 28)
                });
                for _ in 0..2 {
                    state.relative_ports(["z", "m"]).expect_err("no room");
                }
                host.clear_faults();
                assert_eq!(state.relative_ports(["z", "m"]).expect("room"), [2, 1]);
                drop(state);
                let mut state = StateDirectory::open(directory, true).expect("a state directory");
                assert_eq!(state.relative_ports(["a", "z"]).expect("room"), [3, 2]);
            });
        }
    }

    #[test]
    fn what_a_failed_change_has_stored_is_forgotten_even_while_nothing_can_be_written() {
        let world = World::new(1);
        let host = world.host("machine");
        let directory = Path::new("/srv/state");
        world.block_on(&host, async {
            let mut state = StateDirectory::open(directory, true).expect("a state directory");
            state.relative_ports(["m"]).expect("room");
            let before = state.before();
            state.relative_ports(["m", "z"]).expect("room");
            host.add_fault(InjectedFault::new(FaultKind::Create, 28));
            let later = state.records().clone();
            state.take_back(before, &later, &[]);
            host.clear_faults();
            assert_eq!(state.relative_ports(["m", "a"]).expect("room"), [1, 2]);
            drop(state);
            let mut state = StateDirectory::open(directory, true).expect("a state directory");
            assert_eq!(state.relative_ports(["a", "z"]).expect("room"), [2, 3]);
        });
    }
}
