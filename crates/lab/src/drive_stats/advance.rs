//! Continues real data: first the rows of the files unchanged, then the fleet of their last day, advanced day
//! by day until the data covers the requested number of days.

use super::{Date, Row, Schema, csv::Files, fleet::Fleet};
use crate::{LabError, LabResult};
use engine::random::SplitMix64;
use std::sync::Arc;

/// The rows of files, followed by those of their fleet on later days.
pub(crate) struct Continued {
    files: Files,
    schema: Arc<Schema>,
    days: u32,
    seed: u64,
    first_date: Option<Date>,
    /// The rows of the latest day read so far.
    latest: Vec<Row>,
    /// Set once the files are exhausted.
    future: Option<(Fleet, u64)>,
}

impl Continued {
    /// Continues `files` until `days` days are covered, including theirs.
    pub(crate) fn new(files: Files, days: u32, seed: u64) -> Self {
        let schema = files.schema();
        Self {
            files,
            schema,
            days,
            seed,
            first_date: None,
            latest: Vec::new(),
            future: None,
        }
    }

    fn remember(&mut self, row: &Row) {
        let first = *self.first_date.get_or_insert(row.date);
        self.first_date = Some(first.min(row.date));
        let latest = self.latest.last().map_or(row.date, |row| row.date);
        if row.date > latest {
            self.latest.clear();
        }
        if row.date >= latest {
            self.latest.push(row.clone());
        }
    }

    /// The fleet after the files' last day, and how many rows it still owes.
    fn begin_future(&mut self) -> LabResult<(Fleet, u64)> {
        let rows = std::mem::take(&mut self.latest);
        let (Some(first), Some(last)) = (self.first_date, rows.last().map(|row| row.date)) else {
            return Err(LabError::Unusable("the files have no rows".into()));
        };
        let missing = i64::from(self.days) - 1 - last.days_since(first);
        let owed = missing.max(0) as u64 * rows.len() as u64;
        let fleet = Fleet::new(&self.schema, rows, last, SplitMix64::new(self.seed));
        Ok((fleet.starting_tomorrow(), owed))
    }
}

impl Iterator for Continued {
    type Item = LabResult<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.future.is_none() {
            match self.files.next() {
                Some(Ok(row)) => {
                    self.remember(&row);
                    return Some(Ok(row));
                }
                Some(error) => return Some(error),
                None => match self.begin_future() {
                    Ok(future) => self.future = Some(future),
                    Err(error) => return Some(Err(error)),
                },
            }
        }
        let (fleet, owed) = self.future.as_mut()?;
        *owed = owed.checked_sub(1)?;
        fleet.next().map(Ok)
    }
}
