//! Which initiator ports know of the last power-on of each disk that is served, so that a restart of the daemon alone
//! does not look like another one.
//!
//! What a disk that is one file has acknowledged is in the hands of the kernel. So a restart of the process within one boot
//! of the machine loses nothing, and the ports hear of a reset. After a power-on initiators hold what they have not flushed
//! to be lost. A port that has not heard of the power-on of this boot still has to, however often the process has been
//! restarted since.
//!
//! A text for each disk, in the state directory, names the boot that it is of. So it need not outlive a power cut, and one
//! that is damaged counts as none. The disk's file is marked with its opener, which the text names too: another machine may
//! have served the file meanwhile, and lost its power. The file leaf removes that mark when the kernel has reported to this
//! process alone that data is lost. While the text is valid, a restart leaves it and the mark as they are.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{fs, spawn, store};
use serde::{Deserialize, Serialize};
use unit::Note;
use uuid::Uuid;

use crate::{
    ReadyDisk, StateError,
    record::{Record, new_identity, read_versioned, write_toml},
    shared_state::aside,
};

const VERSION: u32 = 1;
/// The ports of a disk that are noted, as many as a logical unit remembers: the newest. Others hear of a power-on.
const PORTS_MAX: usize = 1024;

/// What is known of a disk.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    /// The boot of the machine in which the ports were told.
    boot: Uuid,
    /// What the disk's file is marked with by the first daemon that told them.
    opener: Uuid,
    /// That file, by its device and inode: a copy may carry the mark, too.
    file: String,
    /// The most recent is last.
    ports: VecDeque<String>,
}

/// The text of a disk, and where it is stored.
struct KnownText {
    path: PathBuf,
    text: Text,
    /// How often the text has changed.
    revision: u64,
    /// Whether somebody is storing the text, who will store it again if it changes meanwhile.
    is_writing: bool,
}

/// The texts of the served disks.
pub(crate) struct PowerOnReports {
    directory: PathBuf,
    /// That of the machine, nil if unknown.
    boot: Uuid,
    /// By volume name.
    disks: Mutex<BTreeMap<String, KnownText>>,
}

impl PowerOnReports {
    /// The texts in the state directory `directory`, while the machine is in its boot `boot`.
    pub(crate) fn new(directory: &Path, boot: Uuid) -> Arc<PowerOnReports> {
        Arc::new(PowerOnReports {
            directory: directory.to_owned(),
            boot,
            disks: Mutex::default(),
        })
    }

    /// The ports that need not hear of another power-on of `disk`, which is recorded as `record`.
    pub(crate) async fn resume(&self, disk: &ReadyDisk, record: &Record) -> Vec<String> {
        let file = self.file_of(disk, record);
        self.resume_file(disk.tree.name(), &disk.uuid, file).await
    }

    /// Takes up `disk`, which is recorded as `record`, and of whose power-on nobody has been told.
    pub(crate) async fn add_disk(&self, disk: &ReadyDisk, record: &Record) {
        let file = self.file_of(disk, record);
        self.begin(disk.tree.name(), &disk.uuid, file).await;
    }

    /// Forgets the disks that are not `served`, such as those of a change that failed, and removes their texts.
    pub(crate) async fn forget_all_but(&self, served: &BTreeSet<String>) {
        let (stay, go) = std::mem::take(&mut *self.disks())
            .into_iter()
            .partition(|(name, _)| served.contains(name));
        *self.disks() = stay;
        let go: BTreeMap<String, KnownText> = go;
        let removed = aside(move || go.values().try_for_each(|known| remove(&known.path)));
        // A text that stays does no harm: nobody is noted there who was told of another disk.
        if let Err(error) = removed.await.and_then(|removed| removed) {
            tracing::debug!(%error, "a text of a disk that is not served has stayed");
        }
    }

    /// The file that `disk` is, if that can be marked and a restart can lose something. What it has acknowledged does not
    /// end with the process, as memory does; no other target may have lost it unheard; and a device cannot be marked.
    fn file_of(&self, disk: &ReadyDisk, record: &Record) -> Option<PathBuf> {
        let is_noted =
            record.is_file() && !disk.tree.shape().read_only.is_on() && !self.boot.is_nil();
        record.path().filter(|_| is_noted).map(Path::to_owned)
    }

    /// As [`PowerOnReports::resume`], for the disk `uuid` in `file`, the volume `name`.
    async fn resume_file(&self, name: &str, uuid: &Uuid, file: Option<PathBuf>) -> Vec<String> {
        let (path, boot) = (self.path(uuid), self.boot);
        let valid = match file.clone() {
            Some(file) => aside(move || valid(&path, boot, &file))
                .await
                .ok()
                .flatten(),
            None => None,
        };
        match valid {
            Some(text) => {
                let ports = text.ports.clone().into();
                self.take_up(name, uuid, text);
                ports
            }
            None => {
                self.begin(name, uuid, file).await;
                Vec::new()
            }
        }
    }

    /// Notes from now on who is told of a power-on of the disk `uuid` in `file`, the volume `name`. Nothing is noted if
    /// there is no file, or if it cannot be marked; or if the text cannot be stored, which keeps no disk from being served.
    async fn begin(&self, name: &str, uuid: &Uuid, file: Option<PathBuf>) {
        self.disks().remove(name);
        match self.store_new(uuid, file).await {
            Ok(Some(text)) => self.take_up(name, uuid, text),
            Ok(None) => {}
            Err(error) => tell_failure(name, &error),
        }
    }

    /// Marks `file`, and stores a text without ports; `None` if there is no file, or it cannot be marked.
    async fn store_new(
        &self,
        uuid: &Uuid,
        file: Option<PathBuf>,
    ) -> Result<Option<Text>, StateError> {
        let (path, boot) = (self.path(uuid), self.boot);
        // Chance is the lane's.
        let opener = new_identity()?;
        let stored = match file {
            Some(file) => aside(move || begin(&path, boot, opener, &file)).await,
            None => aside(move || remove(&path).map(|()| None)).await,
        };
        stored?
    }

    /// Goes on with a text that is stored.
    fn take_up(&self, name: &str, uuid: &Uuid, text: Text) {
        let known = KnownText {
            path: self.path(uuid),
            text,
            revision: 0,
            is_writing: false,
        };
        self.disks().insert(name.to_owned(), known);
    }

    /// Notes a port.
    pub(crate) fn note(self: &Arc<PowerOnReports>) -> Note {
        let told = self.clone();
        Arc::new(move |volume, port| {
            if told.add(volume, port) {
                let (told, volume) = (told.clone(), volume.to_owned());
                spawn(async move {
                    let name = volume.clone();
                    let written = aside(move || told.write(&name)).await;
                    if let Err(error) = written.and_then(|written| written) {
                        tell_failure(&volume, &error);
                    }
                });
            }
        })
    }

    /// Adds a port; returns whether the caller has to store the text.
    fn add(&self, volume: &str, port: String) -> bool {
        let mut disks = self.disks();
        let Some(known) = disks.get_mut(volume) else {
            return false;
        };
        let ports = &mut known.text.ports;
        ports.retain(|known| *known != port);
        if ports.len() >= PORTS_MAX {
            ports.pop_front();
        }
        ports.push_back(port);
        known.revision += 1;
        !std::mem::replace(&mut known.is_writing, true)
    }

    /// Stores the text of a disk until all its ports are there.
    fn write(&self, volume: &str) -> Result<(), StateError> {
        let mut written = None;
        loop {
            let (path, text, revision) = {
                let mut disks = self.disks();
                let Some(known) = disks.get_mut(volume) else {
                    return Ok(());
                };
                if written == Some(known.revision) {
                    known.is_writing = false;
                    return Ok(());
                }
                (known.path.clone(), known.text.clone(), known.revision)
            };
            written = Some(revision);
            if let Err(error) = write_toml(&path, &text) {
                if let Some(known) = self.disks().get_mut(volume) {
                    known.is_writing = false;
                }
                return Err(error);
            }
        }
    }

    fn path(&self, uuid: &Uuid) -> PathBuf {
        self.directory.join(format!("told-{uuid}"))
    }

    fn disks(&self) -> MutexGuard<'_, BTreeMap<String, KnownText>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The text at `path`, if it is of this `boot` and of this `file`, and nobody else has opened the file since.
fn valid(path: &Path, boot: Uuid, file: &Path) -> Option<Text> {
    let text: Option<Text> = read_versioned(path, VERSION).ok().flatten();
    let text = text.filter(|text| text.boot == boot)?;
    let opener = store::opener(file).ok().flatten()?;
    let is_opener = opener == text.opener.to_string().as_bytes();
    let is_file = identity_of(file).ok()? == text.file;
    (is_opener && is_file).then_some(text)
}

/// Marks `file` with a new `opener`, and stores a text without ports at `path`. `None` if the file cannot be marked.
fn begin(path: &Path, boot: Uuid, opener: Uuid, file: &Path) -> Result<Option<Text>, StateError> {
    let marked = store::set_opener(file, opener.to_string().as_bytes());
    let file = match marked.and_then(|()| identity_of(file)) {
        Ok(identity) => identity,
        Err(error) => {
            let file = file.display();
            tracing::info!(%file, %error, "it cannot be marked, so {LOOKS_LIKE_POWER_CUT}");
            return remove(path).map(|()| None);
        }
    };
    let text = Text {
        version: VERSION,
        boot,
        opener,
        file,
        ports: VecDeque::new(),
    };
    write_toml(path, &text).map(|()| Some(text))
}

/// A file by its device and inode.
fn identity_of(file: &Path) -> io::Result<String> {
    let (device, inode) = store::look(file)?.id;
    Ok(format!("{device:x}:{inode:x}"))
}

const LOOKS_LIKE_POWER_CUT: &str =
    "a restart of the daemon will look like a power cut to its initiators";

fn tell_failure(volume: &str, error: &StateError) {
    tracing::warn!(volume, %error, "{LOOKS_LIKE_POWER_CUT}");
}

fn remove(path: &Path) -> Result<(), StateError> {
    match fs::remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StateError::io(format!(
            "removing {}",
            path.display()
        ))(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use engine::sim::World;

    use super::*;

    const UUID: Uuid = Uuid::from_u128(1);
    const BOOT: Uuid = Uuid::from_u128(2);
    const LATER_BOOT: Uuid = Uuid::from_u128(3);
    const DISK: &str = "/srv/db.img";
    const PORT: &str = "1 iqn.a,i,0x1";

    fn of(boot: Uuid) -> Arc<PowerOnReports> {
        PowerOnReports::new(Path::new("/srv/state"), boot)
    }

    fn told(boot: Uuid) -> Option<Vec<String>> {
        let text = valid(&of(boot).path(&UUID), boot, Path::new(DISK));
        text.map(|text| text.ports.into())
    }

    fn in_directory(test: impl AsyncFnOnce()) {
        let world = World::new(1);
        let host = world.host("machine");
        host.put_file(DISK, b"content");
        world.block_on(&host, async {
            store::make_directory(Path::new("/srv/state"), true).expect("room");
            test().await;
        });
    }

    /// Takes up the disk, as a daemon does that starts in `boot`.
    async fn start(boot: Uuid) -> (Arc<PowerOnReports>, Vec<String>) {
        let told = of(boot);
        let ports = told.resume_file("db", &UUID, Some(DISK.into())).await;
        (told, ports)
    }

    /// Notes ports, as [`PowerOnReports::note`] does.
    fn add(told: &PowerOnReports, ports: impl IntoIterator<Item = String>) {
        for port in ports {
            if told.add("db", port) {
                told.write("db").expect("room");
            }
        }
    }

    /// A daemon that has noted a port.
    async fn start_and_note() {
        let (told, _) = start(BOOT).await;
        add(&told, [PORT.to_owned()]);
    }

    fn opener() -> Option<Vec<u8>> {
        store::opener(Path::new(DISK)).expect("it is there")
    }

    #[test]
    fn ports_are_known_after_restarts_within_one_boot() {
        in_directory(async || {
            assert_eq!(told(BOOT), None);
            let (first, ports) = start(BOOT).await;
            assert!(ports.is_empty());
            add(&first, [PORT.to_owned()]);
            let (second, ports) = start(BOOT).await;
            assert_eq!(ports, [PORT]);
            add(&second, ["2 iqn.b,i,0x1".to_owned()]);
            assert_eq!(start(BOOT).await.1, [PORT, "2 iqn.b,i,0x1"]);
            assert!(start(LATER_BOOT).await.1.is_empty(), "a power cut");
            assert_eq!(told(BOOT), None);
        });
    }

    #[test]
    fn a_restart_without_any_news_writes_nothing() {
        in_directory(async || {
            start_and_note().await;
            let path = of(BOOT).path(&UUID);
            let before = (opener(), store::read(&path).expect("it is there"));
            let inode = store::look(&path).expect("it is there").id;
            assert_eq!(start(BOOT).await.1, [PORT]);
            assert_eq!((opener(), store::read(&path).expect("it is there")), before);
            let same = store::look(&path).expect("it is there").id;
            assert_eq!(same, inode, "it was not replaced");
        });
    }

    /// Its state directory lies elsewhere, and so perhaps did its machine.
    #[test]
    fn nobody_is_known_any_more_when_another_daemon_has_opened_the_file() {
        in_directory(async || {
            start_and_note().await;
            let elsewhere = Path::new("/srv/other");
            store::make_directory(elsewhere, true).expect("room");
            let other = PowerOnReports::new(elsewhere, LATER_BOOT);
            other.begin("db", &UUID, Some(DISK.into())).await;
            assert_eq!(told(BOOT), None);
            assert!(start(BOOT).await.1.is_empty());
        });
    }

    #[test]
    fn nobody_is_known_to_a_copy_of_the_file_though_it_has_its_mark() {
        in_directory(async || {
            start_and_note().await;
            let mark = opener().expect("it is marked");
            let copy = Path::new("/srv/copy");
            store::replace(copy, b"content").expect("room");
            store::set_opener(copy, &mark).expect("room");
            let text = |file| valid(&of(BOOT).path(&UUID), BOOT, file);
            assert!(text(Path::new(DISK)).is_some());
            assert!(text(copy).is_none());
        });
    }

    #[test]
    fn a_damaged_text_counts_as_none() {
        in_directory(async || {
            start_and_note().await;
            let path = of(BOOT).path(&UUID);
            let whole = store::read(&path).expect("it is there");
            for len in 0..whole.len() - 1 {
                store::replace(&path, &whole[..len]).expect("room");
                assert_eq!(told(BOOT), None, "{len} bytes");
            }
        });
    }

    #[test]
    fn a_disk_that_is_no_file_or_cannot_be_marked_leaves_no_text() {
        in_directory(async || {
            for file in [None, Some("/srv/none".into())] {
                start_and_note().await;
                let ports = of(BOOT).resume_file("db", &UUID, file).await;
                assert!(ports.is_empty());
                assert_eq!(told(BOOT), None);
                store::look(&of(BOOT).path(&UUID)).expect_err("it is removed");
            }
        });
    }

    #[test]
    fn a_state_directory_that_cannot_be_written_keeps_no_disk_from_being_served() {
        in_directory(async || {
            start_and_note().await;
            let nowhere = PowerOnReports::new(Path::new("/nowhere"), BOOT);
            let ports = nowhere.resume_file("db", &UUID, Some(DISK.into())).await;
            assert!(ports.is_empty());
            assert!(!nowhere.add("db", PORT.to_owned()), "nothing is noted");
            assert_eq!(told(BOOT), None, "somebody else has opened the file");
        });
    }

    #[test]
    fn the_newest_ports_are_noted_once_each() {
        let name = |n: usize| format!("1 iqn.{n},i,0x1");
        in_directory(async || {
            let (first, _) = start(BOOT).await;
            add(&first, (0..PORTS_MAX).map(name));
            add(&first, [name(500)]);
            add(&first, (PORTS_MAX..PORTS_MAX + 10).map(name));
            let others = (10..PORTS_MAX).filter(|n| *n != 500);
            let expected = others.chain([500]).chain(PORTS_MAX..PORTS_MAX + 10);
            let expected: Vec<String> = expected.map(name).collect();
            assert_eq!(told(BOOT).expect("as stored"), expected);
        });
    }

    #[test]
    fn a_failure_to_store_is_not_for_good() {
        in_directory(async || {
            let (first, _) = start(BOOT).await;
            for known in first.disks().values_mut() {
                known.path = "/nowhere/told".into();
            }
            assert!(first.add("db", PORT.to_owned()));
            first.write("db").expect_err("no such directory");
            assert!(
                first.add("db", "1 iqn.b,i,0x1".to_owned()),
                "the next tries"
            );
        });
    }
}
