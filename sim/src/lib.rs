//! The whole system in one process under a seeded, faulty, virtual world: targets on simulated machines with simulated
//! disks, our initiator, stripe and cache on another, a network that delays, splits, resets and partitions, and a
//! client that knows what it may observe.
//!
//! ```text
//!  client:  workload ──► cache? ──► stripe ──► iscsi, iscsi        (model checks every read)
//!                                                │      │            network: engine::sim
//!  target A, target B: front_iscsi::Server ──► fault? ──► file     disk: engine::sim
//! ```
//!
//! No part of the product is replaced: the same code runs here as on a ring. A [`Site`] is one such world, drawn from a
//! seed; the scenarios in `tests/` define what happens to it. [`daemons::Daemons`] is another kind of world, with whole
//! daemons started from configuration files, [`mirrored::Mirrored`] one with a mirror over such
//! daemons, [`two_owners::TwoOwners`] one with two owners of a mirror, and [`attached::Attached`] one with a volume of such a daemon that another machine has attached.
#![forbid(unsafe_code)]

pub mod attached;
pub mod attachment_machine;
mod client;
pub mod content;
pub mod daemon_machine;
pub mod daemons;
pub mod drawn_tree;
pub mod machine;
mod mirror_parts;
pub mod mirrored;
pub mod model;
pub mod nbd_client;
pub mod nbd_volume;
pub mod node_machine;
pub mod proof;
pub mod raw;
pub mod sam;
pub mod site;
pub mod slow_disk;
pub mod target_machine;
pub mod two_fronts;
pub mod two_owners;
pub mod windows;
pub mod workload;

pub use proof::{Count, assert_occurred};
pub use site::{Setup, Site};
pub use target_machine::TargetMachine;
