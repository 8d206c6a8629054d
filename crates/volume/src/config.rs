//! The configuration of volumes: a tree of nodes, each of them a table with one key that names its kind, or a string
//! that names a `[volume.NAME]`. Parsing rejects unknown keys; [`Volumes::check`] rejects what parses but makes no
//! sense. Every error knows its place in the text.
//!
//! ```toml
//! [volume.log]
//! file = { path = "/srv/log.img", size = "20GiB", cache = "write-through" }
//!
//! [volume.slow]
//! throttle = { rate = "1Gbit/s", of = "log" }
//! ```
//!
//! This module re-exports the names that code needs to read a configuration. A kind's settings contain nodes, and a
//! node is of some kind, so both are defined in `kinds`; the values of settings are in `values`.

pub use crate::{
    kinds::{
        Kind, Node, NodeForm, VolumeIdentity, Volumes, file::Caching, iscsi::IscsiDefaults,
        ram::settings::Ram, starts::Starts,
    },
    values::{
        BlockSize, ChapAlgorithm, ChapSettings, ConfigError, Credentials, Rate, Size, Time, Wait,
        imagine_credentials, imagined_credentials,
    },
};

#[cfg(test)]
mod tests;
