//! Volumes: the [`Volume`] trait with its contract, the layers and leaves that keep it, and the
//! graph that builds a tree of them from the configuration.
//!
//! A leaf holds data (`ram`, `file`) or knows who does (`iscsi`). A layer is a volume made of
//! volumes (`stripe`, `cache`, `throttle`, …). Nobody but [`graph`] knows every kind.

pub mod cache;
mod error;
#[cfg(test)]
mod measure;
pub mod stripe;
#[cfg(test)]
mod test_volume;
mod volume;

pub use error::{Error, ErrorKind, Result};
pub use volume::{Discard, Durability, Shape, SharedVolume, Volume};
