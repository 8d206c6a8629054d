//! The lab runs database workloads on volumes, measures them and reports the results.
//!
//! Data comes from `drive_stats`, generated or read from files. `sqlite` runs SQLite directly on a volume,
//! with no file system between them; `VolumeDisk` connects the two. `statements` times the statements of the
//! reference experiment on several set-ups in turn, and `report` presents results as terminal text, JSON or
//! one HTML page. `demo` starts shares and runs that experiment on them.
//!
//! `run` runs a `profile` on anything `target` can open, using the load generator in `load`. `compare`
//! alternates between two such things and judges the difference with `statistics`; `history` finds where a
//! series of runs changed. `databases` runs the servers that some profiles measure and sets up their storage.

pub mod compare;
mod databases;
pub mod demo;
pub mod drive_stats;
mod error;
mod fio;
pub mod history;
pub mod input;
pub mod load;
pub mod machine;
mod nameless;
mod on;
mod others;
pub mod profile;
mod programs;
pub mod progress;
pub mod report;
pub mod run;
mod speed;
pub mod sqlite;
pub mod statements;
pub mod statistics;
mod target;
mod usage;
mod volume_disk;

pub use error::{LabError, LabResult};
pub use on::{On, Remote};
pub use target::Configured;
pub use volume_disk::{IN_FLIGHT_BYTES, VolumeDisk};
