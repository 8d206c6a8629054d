//! Volumes: the [`Volume`] trait with its contract, the layers and leaves that keep it, and the
//! graph that builds a tree of them from the configuration.
//!
//! A leaf holds data (`ram`, `file`) or knows who does (`iscsi`). A layer is a volume made of
//! volumes (`stripe`, `cache`, `throttle`, …). Nobody but the graph knows every kind.

pub mod config;
#[cfg(any(test, feature = "testing"))]
pub mod contract;
mod error;
mod initiator;
pub mod leaf;
mod volume;

pub use error::{Error, ErrorKind, Result};
pub use initiator::{IscsiConfig, IscsiDisk};
pub use volume::{Allocation, Discard, Durability, Shape, SharedVolume, Volume};
