//! Which initiator ports know of the last power-on of each disk that is served, so that a restart of the daemon alone
//! does not look like another one.
//!
//! What a disk has acknowledged is in the hands of the kernel, unless it lies in this process (`ram`) or at another target
//! (`iscsi`). So a restart of the process within one boot of the machine loses nothing, and the ports hear of a reset.
//! After a power-on initiators hold what they have not flushed to be lost. A port that has not heard of the power-on of
//! this boot still has to, however often the process has been restarted since.
//!
//! A file for each disk names the boot that it is of. So it need not outlive a power cut, and one that is damaged counts as
//! none.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{blocking, fs, spawn};
use serde::{Deserialize, Serialize};
use unit::Note;
use uuid::Uuid;
use volume::{SharedVolume, graph::NodeView};

use crate::{
    Disk, Error,
    record::{read_versioned, write_toml},
};

const VERSION: u32 = 1;
/// More ports of a disk are not noted, and hear of a power-on.
const PORTS_MAX: usize = 1024;

/// A file.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    /// The boot of the machine in which the ports were told.
    boot: Uuid,
    ports: Vec<String>,
}

/// The ports of one disk, and their file.
struct Ports {
    file: PathBuf,
    text: Text,
    /// Whether somebody is writing the file, who will write again if the ports change meanwhile.
    is_writing: bool,
}

/// The files of the served disks.
pub(crate) struct Told {
    directory: PathBuf,
    /// That of the machine, nil if unknown.
    boot: Uuid,
    /// By volume name.
    disks: Mutex<BTreeMap<String, Ports>>,
}

impl Told {
    /// The files in the state directory `directory`, while the machine is in its boot `boot`.
    pub(crate) fn new(directory: &Path, boot: Uuid) -> Arc<Told> {
        Arc::new(Told {
            directory: directory.to_owned(),
            boot,
            disks: Mutex::default(),
        })
    }

    /// The ports that need not hear of another power-on of `disk`, which is `view` in the graph. What was written before
    /// the restart is made durable first.
    ///
    /// # Errors
    /// If the state directory cannot be written.
    pub(crate) async fn resume(&self, disk: &Disk, view: &NodeView) -> Result<Vec<String>, Error> {
        if !goes_on(view) {
            self.end(disk.tree.name(), &disk.uuid).await?;
            return Ok(Vec::new());
        }
        let mut ports = self.known(&disk.uuid).unwrap_or_default();
        if !ports.is_empty() {
            if let Err(error) = flush(disk.tree.on_lane().await).await {
                let volume = disk.tree.name();
                tracing::error!(volume, %error, "what was written before the restart may be lost");
                ports.clear();
            }
        }
        self.begin(disk.tree.name(), &disk.uuid, ports.clone())
            .await?;
        Ok(ports)
    }

    /// Takes up `disk`, of which all ports have to be told.
    ///
    /// # Errors
    /// If the state directory cannot be written.
    pub(crate) async fn add_disk(&self, disk: &Disk, view: &NodeView) -> Result<(), Error> {
        let (name, uuid) = (disk.tree.name(), &disk.uuid);
        match goes_on(view) {
            true => self.begin(name, uuid, Vec::new()).await,
            false => self.end(name, uuid).await,
        }
    }

    /// Notes from now on who is told of a power-on of the disk `uuid`, the volume `name`; `ports` have been.
    async fn begin(&self, name: &str, uuid: &Uuid, ports: Vec<String>) -> Result<(), Error> {
        let file = self.file(uuid);
        let (boot, version) = (self.boot, VERSION);
        let text = Text {
            version,
            boot,
            ports,
        };
        let begun = Ports {
            file: file.clone(),
            text: text.clone(),
            is_writing: false,
        };
        aside(move || write_toml(&file, &text)).await?;
        self.disks().insert(name.to_owned(), begun);
        Ok(())
    }

    /// Notes and knows nothing of that disk any more.
    async fn end(&self, name: &str, uuid: &Uuid) -> Result<(), Error> {
        self.disks().remove(name);
        let file = self.file(uuid);
        let removed = aside(move || match fs::remove(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("removing {}", file.display()))(error))
            }
            _ => Ok(()),
        });
        removed.await
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
                        let told = "after a restart of the daemon, its initiators will be told of a power-on";
                        tracing::warn!(volume, %error, "{told}");
                    }
                });
            }
        })
    }

    /// Adds a port; returns whether the caller has to write the file.
    fn add(&self, volume: &str, port: String) -> bool {
        let mut disks = self.disks();
        let Some(disk) = disks.get_mut(volume) else {
            return false;
        };
        if disk.text.ports.len() >= PORTS_MAX {
            return false;
        }
        disk.text.ports.push(port);
        !std::mem::replace(&mut disk.is_writing, true)
    }

    /// Writes the file of a disk until it has all its ports.
    fn write(&self, volume: &str) -> Result<(), Error> {
        let mut written = None;
        loop {
            let (file, text) = {
                let mut disks = self.disks();
                let Some(disk) = disks.get_mut(volume) else {
                    return Ok(());
                };
                if written == Some(disk.text.ports.len()) {
                    disk.is_writing = false;
                    return Ok(());
                }
                (disk.file.clone(), disk.text.clone())
            };
            written = Some(text.ports.len());
            if let Err(error) = write_toml(&file, &text) {
                if let Some(disk) = self.disks().get_mut(volume) {
                    disk.is_writing = false;
                }
                return Err(error);
            }
        }
    }

    /// The ports of a disk that have been told in this boot.
    fn known(&self, uuid: &Uuid) -> Option<Vec<String>> {
        let known: Option<Text> = read_versioned(&self.file(uuid), VERSION).ok().flatten();
        let of_this_boot = known.filter(|text| text.boot == self.boot && !self.boot.is_nil());
        of_this_boot.map(|text| text.ports)
    }

    fn file(&self, uuid: &Uuid) -> PathBuf {
        self.directory.join(format!("told-{uuid}"))
    }

    fn disks(&self) -> MutexGuard<'_, BTreeMap<String, Ports>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the kernel of this machine keeps what the volume has acknowledged when the process ends.
fn goes_on(view: &NodeView) -> bool {
    match view.children.is_empty() {
        true => view.kind == "file",
        false => view.children.iter().all(goes_on),
    }
}

async fn flush(volume: volume::Result<SharedVolume>) -> volume::Result<()> {
    volume?.flush().await
}

/// Does `work` on files where it holds up no lane.
async fn aside(work: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Result<(), Error> {
    let done = blocking::run(blocking::Kind::Files, work).await;
    done.map_err(Error::io("writing the state directory".to_owned()))?
}

#[cfg(test)]
mod tests {
    use engine::{sim::World, store};

    use super::*;

    const UUID: Uuid = Uuid::from_u128(1);
    const BOOT: Uuid = Uuid::from_u128(2);

    fn told(boot: Uuid) -> Arc<Told> {
        Told::new(Path::new("/srv/state"), boot)
    }

    fn in_directory(test: impl AsyncFnOnce()) {
        let world = World::new(1);
        let host = world.host("machine");
        world.block_on(&host, async {
            store::make_directory(Path::new("/srv/state"), true).expect("room");
            test().await;
        });
    }

    async fn begin(told: &Told, ports: &[&str]) {
        let ports = ports.iter().map(|port| (*port).to_owned()).collect();
        told.begin("db", &UUID, ports).await.expect("room");
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
            assert_eq!(told(BOOT).known(&UUID), None);
            begin(&told(BOOT), &[]).await;
            assert_eq!(told(BOOT).known(&UUID), Some(vec![]));
            let first = told(BOOT);
            begin(&first, &["1 iqn.a,i,0x1"]).await;
            add(&first, ["2 iqn.b,i,0x1".to_owned()]);
            let known = ["1 iqn.a,i,0x1", "2 iqn.b,i,0x1"].map(str::to_owned);
            assert_eq!(told(BOOT).known(&UUID), Some(known.to_vec()));
            assert_eq!(told(Uuid::from_u128(3)).known(&UUID), None, "a power cut");
            begin(&told(Uuid::from_u128(3)), &[]).await;
            assert_eq!(told(BOOT).known(&UUID), None);
            let unknown = told(Uuid::nil());
            begin(&unknown, &["1 iqn.a,i,0x1"]).await;
            assert_eq!(told(Uuid::nil()).known(&UUID), None);
        });
    }

    #[test]
    fn a_damaged_file_counts_as_none() {
        in_directory(async || {
            begin(&told(BOOT), &["1 iqn.a,i,0x1"]).await;
            let file = told(BOOT).file(&UUID);
            let whole = store::read(&file).expect("it is there");
            for len in 0..whole.len() - 1 {
                store::replace(&file, &whole[..len]).expect("room");
                assert_eq!(told(BOOT).known(&UUID), None, "{len} bytes");
            }
        });
    }

    #[test]
    fn a_disk_that_does_not_go_on_leaves_no_file() {
        in_directory(async || {
            begin(&told(BOOT), &["1 iqn.a,i,0x1"]).await;
            told(BOOT).end("db", &UUID).await.expect("it is there");
            assert_eq!(told(BOOT).known(&UUID), None);
            told(BOOT).end("db", &UUID).await.expect("nothing is there");
        });
    }

    #[test]
    fn so_many_ports_are_noted_and_a_failure_to_write_is_not_for_good() {
        in_directory(async || {
            let first = told(BOOT);
            begin(&first, &[]).await;
            add(
                &first,
                (0..PORTS_MAX + 10).map(|n| format!("1 iqn.{n},i,0x1")),
            );
            let known = told(BOOT).known(&UUID).expect("as written");
            assert_eq!(known.len(), PORTS_MAX);
            begin(&first, &[]).await;
            for disk in first.disks().values_mut() {
                disk.file = "/nowhere/told".into();
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
