//! The `cache` setting of a file leaf, such as `cache = "write-through"`: how it uses the page cache, and when a
//! write is durable.

use serde::Deserialize;

/// How a file leaf uses the page cache, and when a write is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Caching {
    /// Bypasses the page cache (O_DIRECT); durable after a flush.
    #[default]
    Direct,
    /// Bypasses the page cache; every write is durable when it completes (O_DIRECT + O_DSYNC).
    DirectSync,
    /// Uses the page cache; every write is durable when it completes (O_DSYNC).
    WriteThrough,
    /// Uses the page cache; durable after a flush.
    WriteBack,
}

impl Caching {
    /// Whether I/O bypasses the page cache.
    pub fn is_direct(self) -> bool {
        matches!(self, Caching::Direct | Caching::DirectSync)
    }

    /// Whether every write is durable when it completes.
    pub fn is_synchronous(self) -> bool {
        matches!(self, Caching::DirectSync | Caching::WriteThrough)
    }
}
