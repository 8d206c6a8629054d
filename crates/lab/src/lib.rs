//! The lab: database workloads on volumes, measured and reported. It makes or reads the data
//! (`drive_stats`), runs SQLite on a volume without a file system between (`sqlite`, and
//! `VolumeDisk` between them), times the statements of the reference experiment on several set-ups
//! in turn (`statements`), and tells the result as terminal text, JSON and one HTML page
//! (`report`). `demo` starts shares and runs that experiment on them; `bench` compares targets.

pub mod bench;
pub mod demo;
pub mod drive_stats;
mod error;
pub mod load;
mod nameless;
pub mod progress;
pub mod report;
pub mod sqlite;
pub mod statements;
pub mod statistics;
mod volume_disk;

pub use error::{Error, Result};
pub use volume_disk::{IN_FLIGHT_BYTES, VolumeDisk};
