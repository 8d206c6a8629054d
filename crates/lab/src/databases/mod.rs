//! Runs a database server for a measurement, with its files in a directory, or in a file system on a file, a
//! device or an attached volume. `stack` is the storage under it, `mounts` keeps mounts private to this
//! program and its children, `server` runs MariaDB or PostgreSQL, `sysbench` generates a load of
//! transactions, `client` runs single statements, `counted` reads what the storage counts meanwhile, `scratch` finds a
//! directory for sockets, and `child` is a running process.
//!
//! However this program ends, nothing is left behind: each process dies with it (PR_SET_PDEATHSIG), and
//! mounts and loop devices live in a private mount namespace, so they disappear with its last process.

mod bed;
mod child;
mod client;
mod counted;
mod mounts;
mod scratch;
mod server;
mod stack;
mod sysbench;

pub(crate) use bed::Bed;
pub(crate) use client::{Answered, escaped};
#[cfg(test)]
pub(crate) use counted::DeviceTimes;
pub(crate) use counted::{DEVICE_KINDS, IoSnapshot};
pub(crate) use mounts::Namespace;
pub(crate) use server::{DatabaseServer, ServerKind};
pub(crate) use stack::{Stack, derived};
pub(crate) use sysbench::Sysbench;
