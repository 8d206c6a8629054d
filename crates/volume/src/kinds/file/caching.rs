//! `cache = "write-through"`: what a file leaf does with the page cache, and when a write is durable.

use serde::Deserialize;

/// How a file leaf uses the page cache, and when a write is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Caching {
    /// Past the page cache (O_DIRECT); durable at a flush.
    #[default]
    Direct,
    /// Past the page cache, every write durable before it ends (O_DIRECT + O_DSYNC).
    DirectSync,
    /// Through the page cache, every write durable before it ends (O_DSYNC).
    WriteThrough,
    /// In the page cache; durable at a flush.
    WriteBack,
}

impl Caching {
    /// Whether I/O goes past the page cache.
    pub fn is_direct(self) -> bool {
        matches!(self, Caching::Direct | Caching::DirectSync)
    }

    /// Whether every write is durable when it ends.
    pub fn is_synchronous(self) -> bool {
        matches!(self, Caching::DirectSync | Caching::WriteThrough)
    }
}
