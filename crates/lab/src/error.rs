//! The lab's error type, one enum. Messages are shown to the user unchanged, so each names the file, line,
//! value or statement that was wrong and says what to do about it.

use std::{io, path::PathBuf};

/// The lab's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A file of the host (data, report, image) could not be opened, read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A data file is not in the format of a daily drive_stats file.
    #[error("{path}, line {line}: {what}")]
    Data {
        /// The data file.
        path: PathBuf,
        /// Line in it, from 1 (the header).
        line: u64,
        /// What was wrong, with the value, and what is expected.
        what: String,
    },
    /// The data set as a whole is unsuitable for a measurement.
    #[error("the data cannot be used: {0}")]
    Unusable(String),
    /// The volume is too small, or does not contain the database layout.
    #[error("the volume cannot hold the database: {0}")]
    Layout(String),
    /// The volume under the database failed.
    #[error("the volume failed: {0}")]
    Disk(#[from] io::Error),
    /// SQLite refused or failed; `disk` is the volume's error below it, if there was one.
    #[error("{doing}: {source}{}", disk.as_ref().map(|d| format!(" (the volume said: {d})")).unwrap_or_default())]
    Sqlite {
        /// What was being done: a statement, or "opening the database".
        doing: String,
        /// SQLite's error.
        source: rusqlite::Error,
        /// The volume error that SQLite reported as an I/O error.
        disk: Option<String>,
    },
    /// A share or a volume of the demo could not be used.
    #[error("{0}")]
    Demo(String),
    /// The command line or a profile asks for something invalid.
    #[error("{0}")]
    Call(String),
    /// What is to be measured could not be opened, or an I/O on it failed.
    #[error("{0}")]
    Target(String),
    /// The user asked to stop while a program was waited for.
    #[error("the user asked to stop")]
    Stopped,
    /// A statement did not do the work that its time is supposed to measure.
    #[error("{0}")]
    Meaningless(String),
}

/// A result with the lab's error.
pub type LabResult<T> = std::result::Result<T, LabError>;
