//! A database server that is measured, with its files in a directory, or on a file system on a file, a device or an
//! attached volume. `stack` is what it lies on, `mounts` keeps what is mounted to this program and what it starts,
//! `server` runs MariaDB or PostgreSQL, `sysbench` is a load of transactions, `client` runs single statements, `child`
//! and `programs` start all of them.
//!
//! However this program ends, so does what it has started: each process dies with it (PR_SET_PDEATHSIG), and
//! mounts and loop devices, which are in a namespace of theirs alone, go with the last of them.

mod child;
mod client;
mod mounts;
mod programs;
mod server;
mod stack;
mod sysbench;

pub(crate) use client::{Answered, escaped};
pub(crate) use mounts::Namespace;
pub(crate) use server::{Kind, Server};
pub(crate) use stack::{Bed, Stack, derived};
pub(crate) use sysbench::Sysbench;
