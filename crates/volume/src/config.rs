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
//!
//! Here are the names for code that reads one. A kind's settings hold nodes, and a node is of some kind, so
//! both stand in `kinds`; the values of settings stand in `values`.

pub use crate::{
    kinds::{Kind, Node, Volumes, What, file::Caching, ram::settings::Ram, starts::Starts},
    values::{BlockSize, ChapAlgorithm, ChapSettings, ConfigError, Credentials, Rate, Size, Time},
};

#[cfg(test)]
mod tests;
