//! A first pass over the data before anything is started: checks that it is readable and contains a full
//! month, and determines the number of rows and the size of the resulting database, from which disks and
//! caches are sized.

use super::load::full_month;
use crate::{
    LabError, LabResult,
    drive_stats::{Date, Month, Row, RowSource},
    load::Stop,
    progress::ProgressOutput,
    sqlite::Settings,
};

/// The properties of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Survey {
    /// Rows.
    pub rows: u64,
    /// The first day.
    pub first: Date,
    /// The last day.
    pub last: Date,
    /// The first full month.
    pub month: Month,
    /// The size of all rows as SQLite stores them, without the overhead of pages, in bytes.
    stored_bytes: u64,
}

impl Survey {
    /// Reads `source` from start to end.
    ///
    /// # Errors
    /// What is wrong with the data: an error of [`RowSource::open`], a bad row, no full month; or [`LabError::Stopped`].
    pub fn of(source: &RowSource, stop: &Stop, progress: ProgressOutput) -> LabResult<Survey> {
        let mut rows = source.open()?;
        let stage = progress.stage("look through the data", rows.expected);
        let (mut count, mut bytes) = (0, 0);
        let mut days: Option<(Date, Date)> = None;
        for row in &mut rows {
            let row = row?;
            let (first, last) = days.unwrap_or((row.date, row.date));
            days = Some((first.min(row.date), last.max(row.date)));
            count += 1;
            bytes += stored_bytes(&row, count);
            if count % 4096 == 0 {
                if stop.is_asked() {
                    return Err(LabError::Stopped);
                }
                stage.set(count);
            }
        }
        let (first, last) = days.ok_or_else(|| LabError::Unusable("it has no rows".into()))?;
        let survey = Survey {
            rows: count,
            first,
            last,
            month: full_month(first, last)?,
            stored_bytes: bytes,
        };
        stage.done(&format!("{count} rows, {first} to {last}"));
        Ok(survey)
    }

    /// An upper bound on the database's size in bytes, 2 to 4 % above its actual size with pages of 4 KiB to
    /// 64 KiB.
    pub fn database_bytes(&self, settings: &Settings) -> u64 {
        let page = f64::from(settings.page_bytes);
        // On average, half a row is left free at each page's end; one page in some hundreds is an inner node
        // of the tree.
        let row = self.stored_bytes as f64 / self.rows.max(1) as f64;
        let filled = self.stored_bytes as f64 * page / (page - row).max(page / 4.0);
        (filled * 1.02) as u64 + 8 * u64::from(settings.page_bytes)
    }
}

/// Size of a row in a leaf of SQLite's table tree: a pointer of two bytes, the length of the payload, the row
/// number, and the payload (a header with each column's type, then the values); see "Record Format" and
/// "B-tree Pages" of SQLite's file format.
fn stored_bytes(row: &Row, number: u64) -> u64 {
    let date = text_bytes(10);
    let texts = [&row.serial_number, &row.model].map(|text| text_bytes(text.len() as u64));
    let integers = [row.capacity_bytes, i64::from(row.failure)].map(Some);
    let smart = row.smart.iter().copied();
    let values: u64 = integers.into_iter().chain(smart).map(integer_bytes).sum();
    let types = 2 + row.smart.len() as u64;
    let header = types + 2;
    let payload = header + date + texts.iter().sum::<u64>() + values;
    2 + varint_bytes(payload) + varint_bytes(number) + payload
}

/// Size of a text including its type.
fn text_bytes(len: u64) -> u64 {
    varint_bytes(13 + 2 * len) + len
}

/// Size of a value without its type, which takes one byte.
fn integer_bytes(value: Option<i64>) -> u64 {
    let Some(value) = value.filter(|value| !matches!(value, 0 | 1)) else {
        return 0;
    };
    let magnitude = if value < 0 { !value } else { value };
    match 65 - u64::from(magnitude.leading_zeros()) {
        0..=8 => 1,
        9..=16 => 2,
        17..=24 => 3,
        25..=32 => 4,
        33..=48 => 6,
        _ => 8,
    }
}

/// SQLite's variable-length integers hold 7 bits per byte.
fn varint_bytes(value: u64) -> u64 {
    (70 - u64::from((value | 1).leading_zeros())) / 7
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::{
        sqlite::{DatabaseStore, MemoryDisk},
        statements::load::load,
    };

    #[test]
    fn numbers_take_what_sqlite_gives_them() {
        let sizes = [
            0,
            1,
            2,
            -1,
            127,
            128,
            -128,
            -129,
            32_768,
            1 << 23,
            1 << 31,
            1 << 47,
            i64::MIN,
        ];
        let bytes = [0, 0, 1, 1, 1, 2, 1, 2, 3, 4, 6, 8, 8];
        assert_eq!(sizes.map(|value| integer_bytes(Some(value))), bytes);
        assert_eq!(
            [0, 127, 128, 16_383, 16_384].map(varint_bytes),
            [1, 1, 2, 2, 3]
        );
    }

    #[test]
    fn the_database_is_as_large_as_foreseen() {
        for (rows, page_bytes) in [(20_000, 65_536), (20_000, 4096), (60_000, 65_536)] {
            let source = RowSource::Generated { rows, seed: 3 };
            let survey = Survey::of(&source, &Stop::default(), ProgressOutput::Silent).unwrap();
            assert_eq!(
                (survey.rows, survey.month.to_string()),
                (rows, "2017-01".into())
            );
            let settings = Settings {
                page_bytes,
                ..Settings::default()
            };
            let store = DatabaseStore::format(Rc::new(MemoryDisk::new(128 << 20))).unwrap();
            let database = store.database(&settings).unwrap();
            let stage = ProgressOutput::Silent.stage("load", None);
            load(&database, &mut source.open().unwrap(), &stage).unwrap();
            drop(database);
            let (said, is) = (survey.database_bytes(&settings), store.database_bytes());
            assert!(
                said >= is && said <= is + is / 16 + 9 * u64::from(page_bytes),
                "{said}, {is}"
            );
        }
    }
}
