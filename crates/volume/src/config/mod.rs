//! The configuration of volumes: a tree of nodes, each a table with one key that names its kind,
//! or a string that names a `[volume.NAME]`. Parsing refuses unknown keys; [`Volumes::check`]
//! refuses what parses and cannot be meant. Every error knows where in the text it is.
//!
//! ```toml
//! [volume.log]
//! file = { path = "/srv/log.img", size = "20GiB", cache = "write-through" }
//!
//! [volume.slow]
//! throttle = { rate = "1Gbit/s", of = "log" }
//! ```

mod block_size;
mod check;
mod credentials;
mod error;
mod node;
mod units;

pub use block_size::BlockSize;
pub use credentials::{ChapAlgorithm, ChapSettings, Credentials};
pub use error::ConfigError;
pub use node::{Node, Volumes, What};
pub use units::{Rate, Size, Time};

pub use crate::kinds::{Kind, file::Caching, ram::settings::Ram};

#[cfg(test)]
mod tests;
