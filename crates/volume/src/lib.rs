//! Volumes: the [`Volume`] trait with its contract, the layers and leaves that keep it, and the
//! graph that builds a tree of them from the configuration.
//!
//! A leaf holds data (`ram`, `file`) or knows who does (`iscsi`). A layer is a volume made of
//! volumes (`stripe`, `cache`, `throttle`, …). Nobody but the table in `kinds/mod.rs` knows every kind.

pub mod claim;
pub mod config;
#[cfg(any(test, feature = "testing"))]
pub mod contract;
mod envelope;
mod error;
pub mod fallback;
mod flush_failure;
pub mod graph;
pub mod histogram;
pub mod kinds;
mod len;
#[cfg(test)]
mod measure;
#[cfg(any(test, feature = "testing"))]
pub mod recorder;
#[cfg(test)]
mod scratch;
#[cfg(test)]
mod seam_tests;
#[cfg(test)]
mod test_volume;
mod volume;

pub use claim::Claim;
pub use error::{Error, ErrorKind, Result};
#[cfg(any(test, feature = "testing"))]
pub use kinds::iscsi::foreign;
pub use kinds::iscsi::{DiskIdentity, IscsiConfig, IscsiDisk, next_isid};
pub use len::Len;
pub use volume::{Allocation, AtomicWrites, Discard, Durability, Shape, SharedVolume, Volume};

pub use kinds::{cache, stripe};

/// Kinds that hold data.
pub mod leaf {
    pub use crate::kinds::{file, ram};
}

/// Kinds that are made of another volume.
pub mod layer {
    pub use crate::kinds::{fault, stats, throttle};
}
