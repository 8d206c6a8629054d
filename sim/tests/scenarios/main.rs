//! What happens to the system under seeds: a calm day, a bad network, crowds of strangers, machines that stop, disks
//! that fail, and functions that abort what runs. `SANSTONE_SEEDS=2000` tries more than the few
//! of every day; a seed that fails prints the command that replays it.

mod apply;
mod claims;
mod crowds;
mod daemons;
mod determinism;
mod disks;
mod fronts;
mod identity;
mod keeping;
mod layers;
mod log;
mod machines;
mod management;
mod nbd;
mod network;
mod paths;
mod planted;
mod task_sets;

const MS: std::time::Duration = std::time::Duration::from_millis(1);
