//! A whole daemon, from its configuration to its end: the disks that are served, each under an identity
//! that stays with it, the targets that serve them, and the directory that holds what outlives a
//! restart. `serve` runs it and the simulator does; nothing here knows which.
//!
//! [`Config`] is read and checked; [`Daemon::start`] makes all of it serve, and [`Attachment::open`] opens
//! one volume of it for a front on this machine. Within that, [`look`] says
//! what the disks of a configuration are and changes nothing, which is what `check` asks; [`prepare`]
//! makes and locks the state directory; [`open`](fn@open) opens the disks, and ends before anybody may be
//! served.

mod attach;
mod config;
mod create;
mod daemon;
pub mod description;
mod device;
mod difference;
mod error;
mod identity;
mod open;
mod record;
mod state;
mod survey;
mod view;

use std::path::Path;

use volume::config::Volumes;

pub use attach::Attachment;
pub use config::Config;
pub use create::create_stripe;
pub use daemon::{Daemon, Process};
pub use error::{Error, Failure, Refusal};
pub use identity::{Level, Note};
pub use open::{Disk, look, open, prepare};
pub use state::State;
pub use view::{Onlooker, View};

/// What is to be served, and where what belongs to it lies.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The configuration file; paths are relative to its directory.
    pub config: &'a Path,
    /// The state directory.
    pub state: &'a Path,
    /// All volumes of the configuration.
    pub volumes: &'a Volumes,
    /// Those that targets serve, each once.
    pub served: &'a [String],
    /// It takes the place of what is served from the state directory, by the same daemon.
    pub is_successor: bool,
}

impl Site<'_> {
    /// The directory that relative paths start from.
    fn base(&self) -> std::path::PathBuf {
        engine::store::parent_of(self.config)
    }
}
