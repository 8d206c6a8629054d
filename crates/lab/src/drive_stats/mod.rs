//! Backblaze's daily drive_stats: one row per drive and day, with the drive's SMART values. Rows come from a
//! seeded synthetic fleet (`generate`), from the published CSV files (`daily` finds them, `csv` reads them), or from such
//! files with their last fleet continued day by day (`advance`). All three are streams: memory holds at most one day of the
//! fleet.

mod advance;
mod csv;
mod daily;
mod date;
mod fleet;
mod generate;
mod models;
mod smart;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

pub use daily::DailyFile;
pub use date::{Date, Month};

use crate::LabResult;

/// One drive on one day.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The day.
    pub date: Date,
    /// The drive's serial number.
    pub serial_number: Arc<str>,
    /// Its model, with the vendor's name where the vendor gives it.
    pub model: Arc<str>,
    /// Its capacity in bytes (-1 if the drive did not report it).
    pub capacity_bytes: i64,
    /// Whether this was the drive's last day.
    pub failure: bool,
    /// SMART values, one for each of [`Schema::smart`].
    pub smart: Vec<Option<i64>>,
}

/// One SMART column: an attribute's raw or normalized value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmartColumn {
    /// Attribute number, 1 to 255.
    pub attribute: u8,
    /// Whether this is the raw value rather than the normalized one.
    pub raw: bool,
}

impl SmartColumn {
    /// Reads a column's name; `None` if it is not one of `smart_<n>_normalized`, `smart_<n>_raw`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (attribute, kind) = name.strip_prefix("smart_")?.split_once('_')?;
        let raw = match kind {
            "raw" => true,
            "normalized" => false,
            _ => return None,
        };
        Some(Self {
            attribute: attribute.parse().ok()?,
            raw,
        })
    }
}

impl fmt::Display for SmartColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.raw { "raw" } else { "normalized" };
        write!(f, "smart_{}_{kind}", self.attribute)
    }
}

/// The columns of a data set: [`FIXED_COLUMNS`], followed by these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    /// The SMART columns in their order.
    pub smart: Vec<SmartColumn>,
}

/// The columns every daily file begins with.
pub const FIXED_COLUMNS: [&str; 5] = [
    "date",
    "serial_number",
    "model",
    "capacity_bytes",
    "failure",
];

/// The attributes of the first published year (2013).
const ATTRIBUTES_2013: [u8; 40] = [
    1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 15, 183, 184, 187, 188, 189, 190, 191, 192, 193, 194,
    195, 196, 197, 198, 199, 200, 201, 223, 225, 240, 241, 242, 250, 251, 252, 254, 255,
];

impl Schema {
    /// The 85 columns of the 2013 files, which a generated fleet has.
    pub fn of_2013() -> Self {
        let both = |attribute| [false, true].map(|raw| SmartColumn { attribute, raw });
        Self {
            smart: ATTRIBUTES_2013.into_iter().flat_map(both).collect(),
        }
    }

    /// All column names in their order.
    pub fn column_names(&self) -> impl Iterator<Item = String> + '_ {
        let smart = self.smart.iter().map(ToString::to_string);
        FIXED_COLUMNS.iter().map(ToString::to_string).chain(smart)
    }
}

/// Where the rows come from.
#[derive(Debug, Clone)]
pub enum RowSource {
    /// A generated fleet from 2017-01-01 on.
    Generated {
        /// How many rows.
        rows: u64,
        /// The same seed gives the same rows.
        seed: u64,
    },
    /// Backblaze's daily files.
    Files {
        /// The files, in the order of their days.
        files: Vec<DailyFile>,
        /// Continue the fleet of the last day until the data covers this many days.
        days: Option<u32>,
        /// The same seed continues a fleet in the same way.
        seed: u64,
    },
}

/// Rows for [`RowSource::Generated`] with which a scan moves 275 MiB (at 64 KiB pages).
pub const DEFAULT_ROWS: u64 = 1_600_000;

/// A stream of rows and its description.
pub struct Rows {
    /// The columns of each row.
    pub schema: Arc<Schema>,
    /// How many rows will come, if known in advance.
    pub expected: Option<u64>,
    rows: Box<dyn Iterator<Item = LabResult<Row>>>,
}

impl Iterator for Rows {
    type Item = LabResult<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rows.next()
    }
}

impl RowSource {
    /// Opens the source: reads the files' headers, or creates the fleet.
    ///
    /// # Errors
    /// A file cannot be read or lacks a column of [`FIXED_COLUMNS`]. A bad row is an error of the stream,
    /// with its file and line.
    pub fn open(&self) -> LabResult<Rows> {
        match self {
            Self::Generated { rows, seed } => Ok(Rows {
                schema: Arc::new(Schema::of_2013()),
                expected: Some(*rows),
                rows: Box::new(generate::rows(*rows, *seed).map(Ok)),
            }),
            Self::Files { files, days, seed } => {
                let files = csv::Files::open(files)?;
                let schema = files.schema();
                let rows: Box<dyn Iterator<Item = _>> = match days {
                    None => Box::new(files),
                    Some(days) => Box::new(advance::Continued::new(files, *days, *seed)),
                };
                Ok(Rows {
                    schema,
                    expected: None,
                    rows,
                })
            }
        }
    }
}
