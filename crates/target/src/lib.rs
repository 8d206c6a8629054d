//! The iSCSI front: it takes connections on portals, runs the protocol machine of each on the
//! lane that owns it, and turns SCSI commands into calls on volumes.
//!
//! ```text
//!  portal ──► connection ──► iscsi::TargetConnection ──► command ──► scsi::LogicalUnit
//!  (server)   (reader, writer,   (pure machine)          (what is     └► volume::Volume
//!              watchdog)                                  open)
//! ```
//!
//! [`Server::start`] gives every lane a [`front`](mod@front) with its own views of the volumes.
//! What concerns a whole target, session reinstatement and resets, goes by message between
//! the lanes and answers only when every I/O that it overtakes has ended.
#![forbid(unsafe_code)]

mod abort;
mod admission;
mod command;
mod config;
mod connection;
mod copy;
mod exclusion;
mod failures;
mod front;
mod introduction;
mod login;
mod medium;
mod memory;
mod notices;
mod open;
mod order;
mod peer;
mod portals;
mod prefix;
mod rest;
mod sanitize;
mod server;
mod sessions;
mod stages;
mod task_management;
mod watchdog;
mod writer;

pub use config::{
    Allow, Keep, Limits, LunSpec, OpenVolume, PortalGroup, Redirect, ServerConfig, TargetSpec,
};
pub use iscsi::{Chap, text::folded_name};
pub use prefix::Prefix;
pub use server::{IN_USE_LIMIT, Server, StartError, StopError};
pub use stages::{Kind, Stage, StageReport, StageTable};
