//! The lab: database workloads on volumes, measured and reported. It makes or reads the data
//! (`drive_stats`), runs SQLite on a volume without a file system between (`sqlite`, and
//! `VolumeDisk` between them), times the statements of the reference experiment on several set-ups
//! in turn (`statements`), and tells the result as terminal text, JSON and one HTML page
//! (`report`). `demo` starts shares and runs that experiment on them; `bench` compares targets.
//!
//! `run` runs a `profile` on whatever `target` can open, with the load generator in `load`, and
//! `compare` two of them in turn, judged by `statistics`; `history` says where a series of runs changed. `databases`
//! has the servers that some profiles measure, and what they lie on.

pub mod bench;
pub mod compare;
mod databases;
pub mod demo;
pub mod drive_stats;
mod error;
mod fio;
pub mod history;
pub mod load;
mod machine;
mod nameless;
pub mod profile;
pub mod progress;
pub mod report;
pub mod run;
pub mod sqlite;
pub mod statements;
pub mod statistics;
mod target;
mod volume_disk;

pub use error::{Error, Result};
pub use target::{Configured, On};
pub use volume_disk::{IN_FLIGHT_BYTES, VolumeDisk};
