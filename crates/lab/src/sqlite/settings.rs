//! The database's settings, the same in every set-up. What is reported is read back from SQLite, so that the
//! report cannot claim settings that are not in effect.

use super::Database;
use crate::{LabError, LabResult};

/// The settings that can be chosen; all others are fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Size of a database page in bytes: a power of two, 512 to 65536.
    pub page_bytes: u32,
    /// Memory for pages in bytes.
    pub cache_bytes: u64,
}

impl Default for Settings {
    /// 64 KiB pages: SQLite reads page by page, so each call into the volume transfers one page. 16 MiB of
    /// cache: far smaller than the table, as was the reference experiment's memory.
    fn default() -> Self {
        Self {
            page_bytes: 65_536,
            cache_bytes: 16 << 20,
        }
    }
}

impl Settings {
    /// Configures a new connection.
    pub(crate) fn apply(&self, database: &Database) -> LabResult<()> {
        let Self {
            page_bytes,
            cache_bytes,
        } = self;
        database.execute(&format!(
            "PRAGMA page_size = {page_bytes};
             PRAGMA cache_size = -{cache_kib};
             PRAGMA temp_store = FILE;
             PRAGMA journal_mode = DELETE;
             PRAGMA synchronous = FULL;",
            cache_kib = cache_bytes / 1024,
        ))?;
        let in_use: u32 = Self::pragma(database, "page_size")?;
        if in_use == *page_bytes {
            return Ok(());
        }
        Err(LabError::Unusable(format!(
            "the database has pages of {in_use} bytes where {page_bytes} were asked for"
        )))
    }

    /// The settings in effect, as pairs of name and value for people, read back from SQLite.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn in_use(database: &Database) -> LabResult<Vec<(String, String)>> {
        let pragma = |name| Self::pragma::<i64>(database, name);
        let journal: String = Self::pragma(database, "journal_mode")?;
        let synchronous = ["OFF", "NORMAL", "FULL", "EXTRA"];
        let temp_store = ["DEFAULT", "FILE", "MEMORY"];
        let named = |names: &[&str], value: i64| {
            names
                .get(value as usize)
                .map_or_else(|| value.to_string(), ToString::to_string)
        };
        let (page, cache) = (pragma("page_size")?, pragma("cache_size")?);
        let cache_bytes = if cache < 0 {
            -cache * 1024
        } else {
            cache * page
        };
        Ok([
            ("SQLite", rusqlite::version().to_string()),
            ("journal_mode", journal.to_uppercase()),
            ("synchronous", named(&synchronous, pragma("synchronous")?)),
            ("temp_store", named(&temp_store, pragma("temp_store")?)),
            ("page_size", format!("{page} bytes")),
            ("cache_size", format!("{} MiB", cache_bytes >> 20)),
            ("indexes", "none".to_string()),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into())
    }

    fn pragma<T: rusqlite::types::FromSql>(database: &Database, name: &str) -> LabResult<T> {
        database.run(&format!("PRAGMA {name}"), |connection| {
            connection.pragma_query_value(None, name, |row| row.get(0))
        })
    }
}
