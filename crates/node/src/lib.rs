//! A whole daemon, from its configuration to its end: the served disks, each with an identity that
//! stays with it, the targets that serve them, and the directory of persistent state. Both `serve` and
//! the simulator run it; nothing here knows which.
//!
//! [`Config`] is read and validated. [`Daemon::start`] starts serving all of it, and [`Attachment::open`]
//! opens one volume for a front on this machine. The steps within: [`look`] determines the disks of a
//! configuration without changing anything, as `check` does; [`prepare`] creates and locks the state
//! directory; [`open`](fn@open) opens the disks, and returns before anything may be served.

mod attach;
mod changed;
mod config;
mod create;
mod daemon;
pub mod description;
mod device;
mod difference;
mod ending;
mod error;
mod fronts;
pub mod health;
mod identity;
mod measuring;
mod open;
mod power_on;
mod private;
mod process;
mod record;
mod shared_state;
mod space;
mod state;
mod state_lock;
mod stored;
mod survey;
mod take_over;
mod unit_files;
mod usable;
mod view;
mod written;

use std::path::{Path, PathBuf};

use volume::config::Volumes;

pub use attach::Attachment;
pub use changed::{ConfigChange, LunOf, Refused, Warning};
pub use config::Config;
pub use create::{create_stripe, grow_stripe};
pub use daemon::Daemon;
pub use ending::{Ending, StopError};
pub use error::{DaemonFailure, OpenRefusal, StateError};
pub use identity::{Level, Note};
pub use measuring::Measuring;
pub use open::{ReadyDisk, look, open, prepare};
pub use process::Process;
pub use state::StateDirectory;
pub use state_lock::{attached_directories, attached_directory};
pub use take_over::{TakenOver, take_over};
pub use view::{Onlooker, View};

/// What is to be served, and where its files are.
#[derive(Clone, Copy, Debug)]
pub struct ServedSite<'a> {
    /// The configuration file; paths are relative to its directory.
    pub config: &'a Path,
    /// The state directory.
    pub state: &'a Path,
    /// All volumes of the configuration.
    pub volumes: &'a Volumes,
    /// The volumes that targets serve, without duplicates.
    pub served: &'a [String],
    /// It replaces what the same daemon now serves from this state directory.
    pub is_successor: bool,
}

impl ServedSite<'_> {
    /// The directory that relative paths start from.
    fn base(&self) -> PathBuf {
        engine::store::parent_of(self.config)
    }

    /// A copy for another thread.
    fn to_send(self) -> SentSite {
        SentSite {
            config: self.config.to_owned(),
            state: self.state.to_owned(),
            volumes: self.volumes.clone(),
            served: self.served.to_vec(),
            is_successor: self.is_successor,
        }
    }
}

/// A [`ServedSite`] that owns what it names.
#[derive(Debug)]
struct SentSite {
    config: PathBuf,
    state: PathBuf,
    volumes: Volumes,
    served: Vec<String>,
    is_successor: bool,
}

impl SentSite {
    fn site(&self) -> ServedSite<'_> {
        ServedSite {
            config: &self.config,
            state: &self.state,
            volumes: &self.volumes,
            served: &self.served,
            is_successor: self.is_successor,
        }
    }
}
