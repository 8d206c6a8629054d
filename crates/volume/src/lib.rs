//! Volumes: the [`Volume`] trait with its contract, the layers and leaves that keep it, and the
//! graph that builds a tree of them from the configuration.
//!
//! A leaf holds data (`ram`, `file`) or knows who does (`iscsi`). A layer is a volume made of
//! volumes (`stripe`, `cache`, `throttle`, …). Nobody but the graph knows every kind.

pub mod cache;
pub mod claim;
pub mod config;
#[cfg(any(test, feature = "testing"))]
pub mod contract;
mod error;
pub mod fallback;
pub mod graph;
pub mod histogram;
mod initiator;
pub mod layer;
pub mod leaf;
mod len;
#[cfg(test)]
mod measure;
pub mod recorder;
#[cfg(test)]
mod scratch;
#[cfg(test)]
mod seam_tests;
pub mod stripe;
#[cfg(test)]
mod test_volume;
mod volume;

pub use claim::Claim;
pub use error::{Error, ErrorKind, Result};
#[cfg(any(test, feature = "testing"))]
pub use initiator::foreign;
pub use initiator::{DiskIdentity, IscsiConfig, IscsiDisk, next_isid};
pub use len::Len;
pub use volume::{Allocation, AtomicWrites, Discard, Durability, Shape, SharedVolume, Volume};
