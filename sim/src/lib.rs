//! The whole system in one process under a seeded, faulty, virtual world: targets on simulated
//! machines with simulated disks, our initiator, stripe and cache on another, a network that
//! delays, splits, resets and parts them, and a client that knows what it may see.
//!
//! ```text
//!  client:  workload ──► cache? ──► stripe ──► iscsi, iscsi        (model checks every read)
//!                                                │      │            network: engine::sim
//!  target A, target B: front_iscsi::Server ──► fault? ──► file     disk: engine::sim
//! ```
//!
//! Nothing of the product is replaced: the code that runs here is the code that runs on a ring. A
//! [`Site`] is one such world, drawn from a seed; the scenarios in `tests/` are what happens to it.
//! [`daemons::Daemons`] is another, of whole daemons that are started from configuration files.
#![forbid(unsafe_code)]

pub mod content;
pub mod daemon_machine;
pub mod daemons;
pub mod model;
pub mod nbd_client;
pub mod node_machine;
pub mod proof;
pub mod raw;
pub mod sam;
pub mod site;
pub mod slow_disk;
pub mod target_machine;
pub mod two_fronts;
pub mod workload;

pub use proof::assert_occurred;
pub use site::{Setup, Site};
pub use target_machine::TargetMachine;
