//! The `iscsi` leaf: a disk on a remote target, accessed through our own initiator.
//!
//! ```text
//!  settings  the configuration section; path_settings: its paths; url: its address; config: the resolved form
//!  disks     which disks are in use; late: one that could not be reached at the start
//!  disk      a volume's calls as SCSI commands; inquiry, identity: what the disk is, and which one
//!  transfer  reads and writes of any length; compare: COMPARE AND WRITE, which must not be sent twice
//!  caching   write cache, FUA and write protection of the disk, at the start and later; remotes: asks all disks again
//!  machine   what is known of the disk and decided about it, as a pure machine
//!  unit      runs a command to its end, and drives the machine; patience: retry limits
//!  restarts  has the sessions report restarts of the target; unflushed: what a restart loses
//!  secrets   what each login proves itself with
//!  claim     who owns the disk: the mark and the fence, re-established on each nexus; holder: who has it reserved
//!  fenced    the fence of a mirror's owner
//!  paths     the nexuses that commands take; path: one of them; recovery: what a loss means, and how a path comes back
//!  path_changes adds and removes paths; change: as a step of a new configuration; withdraw: their part of the claim
//!  same_disk whether a path still leads to the same disk
//!  ghosts    how writes of a lost nexus are ended before others are sent
//!  branch    the disk on a lane other than its home lane; own: its sessions; link: the home lane's handle on them
//!  lanes     when such a lane may use its sessions; lane_grants: what each may use now
//!  access    which target ports may be used, if the target reports it (ALUA)
//!  nexus     one path, from login to end; login: follows redirections; addressing: how the target writes LUNs
//!  session   one connection, from login to end: the pure protocol machine over a socket
//!  discovery lists targets; luns: and their logical units
//!  status    the current state of the sessions, readable from any thread
//! ```
//!
//! Requests in flight when a session is lost are resent over another one, so that a short outage of the link is a
//! pause and not an error.

mod access;
mod addressing;
mod branch;
mod caching;
mod cdb;
mod change;
mod claim;
mod compare;
mod config;
mod defaults;
pub mod discovery;
mod disk;
mod disks;
mod ended;
mod extents;
mod facts;
mod fenced;
#[cfg(any(test, feature = "testing"))]
pub mod foreign;
mod ghosts;
mod guest;
mod holder;
mod identity;
mod in_flight;
mod inquiry;
mod isids;
mod lane_grants;
mod lanes;
mod late;
mod link;
mod login;
pub mod luns;
mod machine;
mod mark;
mod mode_page;
mod nexus;
mod own;
mod path;
mod path_changes;
pub mod path_settings;
mod paths;
mod patience;
mod ping_timeout;
mod recovery;
mod remotes;
mod restarts;
mod same_disk;
mod secrets;
mod sense;
mod session;
pub mod settings;
mod silence;
mod status;
mod tasks;
#[cfg(test)]
mod tests;
mod transfer;
mod unflushed;
mod unit;
pub mod url;
mod withdraw;

pub use config::{
    IscsiConfig, LoginTerms, Multipath, PathConfig, Policy, Sessions, Transport, next_isid,
};
pub use defaults::IscsiDefaults;
pub use disk::IscsiDisk;
pub use identity::DiskIdentity;
pub use paths::PathCounts;
pub use ping_timeout::PingTimeout;
pub(crate) use remotes::Remotes;
pub use secrets::Secrets;
pub use status::{PathState, PathStatus, SessionState, SessionStatus};
