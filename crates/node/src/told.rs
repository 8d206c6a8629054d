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
//! have served the file meanwhile, and lost its power.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{blocking, fs, spawn, store};
use serde::{Deserialize, Serialize};
use unit::Note;
use uuid::Uuid;
use volume::SharedVolume;

use crate::{
    Disk, Error,
    record::{Record, new_identity, read_versioned, write_toml},
};

const VERSION: u32 = 1;
/// More ports of a disk are not noted, and hear of a power-on.
const PORTS_MAX: usize = 1024;

/// What is known of a disk.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    /// The boot of the machine in which the ports were told.
    boot: Uuid,
    /// What the disk's file is marked with by the daemon that told them.
    opener: Uuid,
    ports: Vec<String>,
}

/// The text of a disk, and where it is stored.
struct Known {
    path: PathBuf,
    text: Text,
    /// Whether somebody is storing the text, who will store it again if it changes meanwhile.
    is_writing: bool,
}

/// The texts of the served disks.
pub(crate) struct Told {
    directory: PathBuf,
    /// That of the machine, nil if unknown.
    boot: Uuid,
    /// By volume name.
    disks: Mutex<BTreeMap<String, Known>>,
}

impl Told {
    /// The texts in the state directory `directory`, while the machine is in its boot `boot`.
    pub(crate) fn new(directory: &Path, boot: Uuid) -> Arc<Told> {
        Arc::new(Told {
            directory: directory.to_owned(),
            boot,
            disks: Mutex::default(),
        })
    }

    /// The ports that need not hear of another power-on of `disk`, which is recorded as `record`. What was written before
    /// the restart is made durable first.
    ///
    /// # Errors
    /// If the state directory cannot be written.
    pub(crate) async fn resume(&self, disk: &Disk, record: &Record) -> Result<Vec<String>, Error> {
        let file = file_of(record);
        let told = file.and_then(|file| self.told(&disk.uuid, file));
        let mut ports = told.unwrap_or_default();
        if !ports.is_empty() {
            if let Err(error) = flush(disk.tree.on_lane().await).await {
                let volume = disk.tree.name();
                tracing::error!(volume, %error, "what was written before the restart may be lost");
                ports.clear();
            }
        }
        let begun = self.begin(disk.tree.name(), &disk.uuid, file, ports.clone());
        match begun.await? {
            true => Ok(ports),
            false => Ok(Vec::new()),
        }
    }

    /// Takes up `disk`, which is recorded as `record`, and of whose power-on nobody has been told.
    ///
    /// # Errors
    /// If the state directory cannot be written.
    pub(crate) async fn add_disk(&self, disk: &Disk, record: &Record) -> Result<(), Error> {
        let (name, uuid) = (disk.tree.name(), &disk.uuid);
        let begun = self.begin(name, uuid, file_of(record), Vec::new());
        begun.await.map(drop)
    }

    /// Notes from now on who is told of a power-on of the disk `uuid`, the volume `name`; `ports` have been. `file` is the
    /// disk's, if it is one. False if nothing will be noted, because there is no file that can be marked.
    async fn begin(
        &self,
        name: &str,
        uuid: &Uuid,
        file: Option<&Path>,
        ports: Vec<String>,
    ) -> Result<bool, Error> {
        self.disks().remove(name);
        let opener = new_identity()?;
        let file = file.filter(|_| !self.boot.is_nil());
        let is_marked = match file.map(Path::to_owned) {
            Some(file) => aside(move || Ok(mark(&file, opener))).await?,
            None => false,
        };
        let path = self.path(uuid);
        if !is_marked {
            aside(move || remove(&path)).await?;
            return Ok(false);
        }
        let text = Text {
            version: VERSION,
            boot: self.boot,
            opener,
            ports,
        };
        let known = Known {
            path: path.clone(),
            text: text.clone(),
            is_writing: false,
        };
        aside(move || write_toml(&path, &text)).await?;
        self.disks().insert(name.to_owned(), known);
        Ok(true)
    }

    /// Notes a port.
    pub(crate) fn note(self: &Arc<Told>) -> Note {
        let told = self.clone();
        Arc::new(move |volume, port| {
            if told.add(volume, port) {
                let (told, volume) = (told.clone(), volume.to_owned());
                spawn(async move {
                    let name = volume.clone();
                    let written = aside(move || told.write(&name)).await;
                    if let Err(error) = written {
                        tracing::warn!(
                            volume,
                            %error,
                            "a restart of the daemon will look like a power cut to its initiators"
                        );
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
        if known.text.ports.len() >= PORTS_MAX {
            return false;
        }
        known.text.ports.push(port);
        !std::mem::replace(&mut known.is_writing, true)
    }

    /// Stores the text of a disk until all its ports are there.
    fn write(&self, volume: &str) -> Result<(), Error> {
        let mut written = None;
        loop {
            let (path, text) = {
                let mut disks = self.disks();
                let Some(known) = disks.get_mut(volume) else {
                    return Ok(());
                };
                if written == Some(known.text.ports.len()) {
                    known.is_writing = false;
                    return Ok(());
                }
                (known.path.clone(), known.text.clone())
            };
            written = Some(text.ports.len());
            if let Err(error) = write_toml(&path, &text) {
                if let Some(known) = self.disks().get_mut(volume) {
                    known.is_writing = false;
                }
                return Err(error);
            }
        }
    }

    /// The ports of the disk in `file` that have been told in this boot, if nobody else has opened the file since.
    fn told(&self, uuid: &Uuid, file: &Path) -> Option<Vec<String>> {
        let text: Option<Text> = read_versioned(&self.path(uuid), VERSION).ok().flatten();
        let text = text.filter(|text| text.boot == self.boot && !self.boot.is_nil())?;
        let opener = store::opener(file).ok().flatten()?;
        (opener == text.opener.to_string().as_bytes()).then_some(text.ports)
    }

    fn path(&self, uuid: &Uuid) -> PathBuf {
        self.directory.join(format!("told-{uuid}"))
    }

    fn disks(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file that a disk is, if it is one. What it has acknowledged does not end with the process, as memory does; no other
/// target may have lost it unheard; and unlike a device, it can be marked.
fn file_of(record: &Record) -> Option<&Path> {
    record.is_file().then(|| record.path()).flatten()
}

/// Marks a disk's file with its opener; false if that cannot be done.
fn mark(file: &Path, opener: Uuid) -> bool {
    let marked = store::set_opener(file, opener.to_string().as_bytes());
    if let Err(error) = &marked {
        let path = file.display();
        tracing::debug!(%path, %error, "a restart of the daemon will look like a power cut");
    }
    marked.is_ok()
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("removing {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

async fn flush(volume: volume::Result<SharedVolume>) -> volume::Result<()> {
    volume?.flush().await
}

/// Does `work` on files where it holds up no lane.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = blocking::run(blocking::Kind::Files, work).await;
    done.map_err(Error::io("writing the state directory".to_owned()))?
}

#[cfg(test)]
mod tests {
    use engine::sim::World;

    use super::*;

    const UUID: Uuid = Uuid::from_u128(1);
    const BOOT: Uuid = Uuid::from_u128(2);
    const LATER_BOOT: Uuid = Uuid::from_u128(3);
    const DISK: &str = "/srv/db.img";

    fn of(boot: Uuid) -> Arc<Told> {
        Told::new(Path::new("/srv/state"), boot)
    }

    fn told(boot: Uuid) -> Option<Vec<String>> {
        of(boot).told(&UUID, Path::new(DISK))
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

    async fn begin(told: &Told, ports: &[&str]) -> bool {
        let ports = ports.iter().map(|port| (*port).to_owned()).collect();
        let begun = told.begin("db", &UUID, Some(Path::new(DISK)), ports);
        begun.await.expect("room")
    }

    /// Notes ports, as [`Told::note`] does.
    fn add(told: &Told, ports: impl IntoIterator<Item = String>) {
        for port in ports {
            if told.add("db", port) {
                told.write("db").expect("room");
            }
        }
    }

    #[test]
    fn ports_are_known_after_restarts_within_one_boot() {
        in_directory(async || {
            assert_eq!(told(BOOT), None);
            assert!(begin(&of(BOOT), &[]).await);
            assert_eq!(told(BOOT), Some(vec![]));
            let first = of(BOOT);
            assert!(begin(&first, &["1 iqn.a,i,0x1"]).await);
            add(&first, ["2 iqn.b,i,0x1".to_owned()]);
            let both = ["1 iqn.a,i,0x1", "2 iqn.b,i,0x1"].map(str::to_owned);
            assert_eq!(told(BOOT), Some(both.to_vec()));
            assert_eq!(told(LATER_BOOT), None, "a power cut");
            assert!(begin(&of(LATER_BOOT), &[]).await);
            assert_eq!(told(BOOT), None);
            assert!(!begin(&of(Uuid::nil()), &["1 iqn.a,i,0x1"]).await);
            assert_eq!(told(Uuid::nil()), None);
        });
    }

    /// Its state directory lies elsewhere, and so perhaps did its machine.
    #[test]
    fn nobody_is_known_any_more_when_another_daemon_has_opened_the_file() {
        in_directory(async || {
            assert!(begin(&of(BOOT), &["1 iqn.a,i,0x1"]).await);
            let elsewhere = Path::new("/srv/other");
            store::make_directory(elsewhere, true).expect("room");
            let other = Told::new(elsewhere, LATER_BOOT);
            assert!(begin(&other, &[]).await);
            assert_eq!(told(BOOT), None);
        });
    }

    #[test]
    fn a_damaged_text_counts_as_none() {
        in_directory(async || {
            assert!(begin(&of(BOOT), &["1 iqn.a,i,0x1"]).await);
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
            for file in [None, Some(Path::new("/srv/none"))] {
                assert!(begin(&of(BOOT), &["1 iqn.a,i,0x1"]).await);
                let ports = vec!["1 iqn.a,i,0x1".to_owned()];
                let begun = of(BOOT).begin("db", &UUID, file, ports).await;
                assert!(!begun.expect("room"));
                assert_eq!(told(BOOT), None);
                store::look(&of(BOOT).path(&UUID)).expect_err("it is removed");
            }
        });
    }

    #[test]
    fn so_many_ports_are_noted_and_a_failure_to_store_is_not_for_good() {
        in_directory(async || {
            let first = of(BOOT);
            assert!(begin(&first, &[]).await);
            add(
                &first,
                (0..PORTS_MAX + 10).map(|n| format!("1 iqn.{n},i,0x1")),
            );
            assert_eq!(told(BOOT).expect("as stored").len(), PORTS_MAX);
            assert!(begin(&first, &[]).await);
            for known in first.disks().values_mut() {
                known.path = "/nowhere/told".into();
            }
            assert!(first.add("db", "1 iqn.a,i,0x1".to_owned()));
            first.write("db").expect_err("no such directory");
            assert!(
                first.add("db", "1 iqn.b,i,0x1".to_owned()),
                "the next tries"
            );
        });
    }
}
