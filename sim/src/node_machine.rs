//! A machine that starts as `serve` does, but stops short of serving: a configuration with one file volume, a state
//! directory, and the names of all these, which an administrator changes.

use std::path::PathBuf;

use engine::{Payload, sim::Host};
use node::{OpenRefusal, Process, ServedSite, StateDirectory};
use uuid::Uuid;
use volume::{Durability, SharedVolume, config::Volumes, graph::Graph};

const BLOCK_BYTES: usize = 4096;

/// The configuration of a machine, as the administrator has written it.
#[derive(Clone, Debug)]
pub struct Names {
    /// The configuration file.
    pub config: PathBuf,
    /// The name of its volume.
    pub volume: String,
    /// The name of the volume's file.
    pub file: String,
}

impl Names {
    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.config.with_extension("state")
    }

    /// The volume's file.
    pub fn path(&self) -> PathBuf {
        self.config.with_file_name(&self.file)
    }
}

/// A disk that an initiator may see.
pub struct Shown {
    /// What it knows the disk by.
    pub uuid: Uuid,
    name: String,
    volume: SharedVolume,
    state: StateDirectory,
}

impl Shown {
    /// Starts on the current lane of `host`, as far as it goes.
    ///
    /// # Errors
    /// Why the disk cannot be served, as shown to the user.
    pub async fn start(host: &Host, names: &Names) -> Result<Shown, String> {
        let Names { volume, file, .. } = names;
        let text = format!("{volume}.file = {{ path = \"{file}\", size = \"64KiB\" }}");
        let volumes: Volumes = toml::from_str(&text).expect("it parses");
        let base = names.config.parent().expect("it lies in a directory");
        let mut graph = Graph::new(volumes.clone(), base).expect("the configuration is valid");
        let site = ServedSite {
            config: &names.config,
            state: &names.state(),
            volumes: &volumes,
            served: std::slice::from_ref(volume),
            is_successor: false,
        };
        let refused = |refusal| match refusal {
            OpenRefusal::State(error) => error.to_string(),
            OpenRefusal::Volumes(errors) => errors[0].to_string(),
            OpenRefusal::Opening(error) => error.to_string(),
        };
        let mut state = node::prepare(&site, true).map_err(refused)?;
        let process = Process {
            boot: Uuid::nil(),
            name: "a simulated machine".to_owned(),
        };
        let disks = node::open(&site, &process, &mut state, &mut graph, &[host.lane(0)]).await;
        let disks = disks.map_err(refused)?;
        let disk = disks.first().expect("one volume is served");
        let volume = disk.tree.on_lane().await;
        Ok(Shown {
            uuid: disk.uuid,
            volume: volume.map_err(|error| error.to_string())?,
            name: names.volume.clone(),
            state,
        })
    }

    /// What its logical unit keeps, reservations say.
    pub fn kept(&self) -> Option<String> {
        self.state.kept(&self.name).expect("readable")
    }

    /// Keeps this.
    pub fn keep(&self, text: &str) {
        self.state.keep(&self.name, Some(text)).expect("room");
    }

    /// Writes `generation` durably; whether that has worked.
    pub async fn write(&self, generation: u8) -> bool {
        let mut buf = engine::Buf::zeroed(BLOCK_BYTES);
        buf.fill(generation);
        let at = BLOCK_BYTES as u64;
        let data = Payload::from(buf);
        let written = self.volume.write(at, data, Durability::Cached).await;
        written.is_ok() && self.volume.flush().await.is_ok()
    }

    /// What was written last; 0 if nothing was.
    pub async fn read(&self) -> u8 {
        let read = self.volume.read(BLOCK_BYTES as u64, BLOCK_BYTES).await;
        let bytes = read.expect("a read").into_buf();
        assert!(
            bytes.iter().all(|&byte| byte == bytes[0]),
            "a block is whole"
        );
        bytes[0]
    }
}
