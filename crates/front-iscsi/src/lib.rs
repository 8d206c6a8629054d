//! The iSCSI front: accepts connections on portals, runs the protocol machine of each on the lane that owns it, and
//! passes the commands of its sessions to their units.
//!
//! ```text
//!  portal ──► connection ──► iscsi::TargetConnection ──► events ──► command ──► unit::Unit
//!  (server)   reader, writer,    (pure machine)          login      (what is
//!             watchdog                                   task_management  open, in order)
//! ```
//!
//! [`IscsiServer::start`] gives every lane a [`front`](mod@front) with its own view of the targets. Operations on a whole
//! target (session reinstatement, resets) go by message between the lanes, and are answered only when every I/O they
//! affect has ended.
#![forbid(unsafe_code)]

mod aborting;
mod answer;
mod as_front;
mod change;
mod command;
mod config;
mod connection;
mod data_out;
mod events;
mod failures;
mod fate;
mod front;
mod login;
mod notices;
mod offer;
mod open;
mod order;
mod portals;
mod prefix;
mod reader;
mod report;
mod request;
mod sense;
mod server;
mod service;
mod sessions;
mod target;
mod targets;
mod task_management;
mod unacknowledged;
mod watchdog;
mod work;
mod writer;

pub use ::front::{IN_USE_LIMIT, StartError};
pub use config::{Allow, Limits, LunSpec, PortalGroup, Redirect, ServerConfig, TargetSpec};
pub use iscsi::{Chap, text::folded_name};
pub use prefix::Prefix;
pub use report::SessionReport;
pub use server::{IscsiServer, Reporter};
