//! The `iscsi` leaf: a disk on somebody else's target, reached by our own initiator.
//!
//! A [`login`] leads to a session, wherever the target sends us. A [`session`] is one connection from login to its end: it runs the pure protocol machine over
//! a socket. The [`disk`] asks the logical unit what it is, turns a volume's calls into SCSI
//! commands, and logs in again when a session is lost; requests that were in flight are then sent
//! again, so that a short loss of the link is a pause and not an error.

mod cdb;
mod disk;
mod ended;
#[cfg(test)]
mod foreign;
mod login;
mod sense;
mod session;
mod tasks;
#[cfg(test)]
mod tests;

pub use disk::{IscsiConfig, IscsiDisk, next_isid};
