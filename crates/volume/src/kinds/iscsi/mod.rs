//! The `iscsi` leaf: a disk on somebody else's target, reached by our own initiator.
//!
//! ```text
//!  settings  a node of the configuration; path_settings: its paths; url: its address; config: all of it
//!  disks     which are in use
//!  disk      a volume's calls as SCSI commands; inquiry, identity: what the disk is, and which
//!  transfer  reads and writes of any length
//!  unit      a command until it has ended; patience: for how long; unflushed: what a restart loses
//!  claim     whose the disk is: the mark and the fence, established again on each nexus; holder: who has
//!            it reserved
//!  paths     which nexus a command takes; recovery: what a loss means, and how a path comes back
//!  branch    the disk on a lane beside its home lane; own: its sessions; link: these as the home lane has them
//!  lanes     when such a lane may use them; doors: whether it may now
//!  access    which target ports may be used, where a target says so (ALUA)
//!  nexus     one path, from its login to its end; login: wherever the target sends us
//!  session   one connection from login to its end: the pure protocol machine over a socket
//!  discovery which targets there are; luns: and what logical units of them
//!  status    what the session does right now, for whoever looks from another thread
//! ```
//!
//! Requests that were in flight when a session was lost are sent again over another one, so that a
//! short loss of the link is a pause and not an error.

mod access;
mod branch;
mod cdb;
mod claim;
mod claimed;
mod config;
pub mod discovery;
mod disk;
mod disks;
mod doors;
mod ended;
mod facts;
#[cfg(any(test, feature = "testing"))]
pub mod foreign;
mod holder;
mod identity;
mod in_flight;
mod inquiry;
mod isids;
mod lanes;
mod link;
mod login;
pub mod luns;
mod nexus;
mod own;
pub mod path_settings;
mod paths;
mod patience;
mod recovery;
mod sense;
mod session;
pub mod settings;
mod status;
mod tasks;
#[cfg(test)]
mod tests;
mod transfer;
mod unflushed;
mod unit;
pub mod url;

pub use config::{IscsiConfig, Multipath, PathConfig, Policy, next_isid};
pub use disk::IscsiDisk;
pub use identity::DiskIdentity;
pub use paths::PathCounts;
pub use status::{PathState, PathStatus, SessionState, SessionStatus};
