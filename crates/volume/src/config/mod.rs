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

mod check;
mod credentials;
mod error;
mod kinds;
mod node;
mod units;
mod url;

pub use credentials::{ChapAlgorithm, ChapSettings, Credentials};
pub use error::ConfigError;
pub use kinds::{
    BlockSize, Cache, Caching, Fault, FaultAction, FaultKind, FaultOperation, FaultRule, File,
    Iscsi, Ram, Recorder, Stats, Stripe, Throttle,
};
pub use node::{Kind, Node, Volumes, What};
pub use units::{Rate, Size, Time};
pub use url::IscsiUrl;

#[cfg(test)]
mod tests;
