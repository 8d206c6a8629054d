//! Seeded scenarios for the whole system: normal operation, a bad network, crowds of strangers, machines that stop,
//! disks that fail, and functions that abort running commands. `SANSTONE_SEEDS=2000` tries more than the few default
//! seeds; a failing seed prints the command that replays it.

mod apply;
mod attached;
mod claims;
mod concats;
mod crowds;
mod daemons;
mod determinism;
mod disks;
mod file_checks;
mod fronts;
mod identity;
mod keeping;
mod layers;
mod log;
mod machines;
mod management;
mod mirrors;
mod nbd;
mod network;
mod path_changes;
mod paths;
mod planted;
mod policies;
mod starts;
mod task_sets;
mod trees;

const MS: std::time::Duration = std::time::Duration::from_millis(1);
