//! Reads Backblaze's daily CSV files. Columns are found by header name, so files of different years, with more or fewer SMART columns, can be
//! read together: the schema is the union, and a column missing from a file is NULL. Columns that are neither
//! fixed nor SMART (newer years name the data centre) are ignored. A day may have no rows: 2014-11-02 has none.

use std::{
    collections::HashMap,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{DailyFile, Date, FIXED_COLUMNS, Row, Schema, SmartColumn};
use crate::{LabError, LabResult};

/// Rows of some files, one file after the other.
pub(crate) struct Files {
    schema: Arc<Schema>,
    files: std::vec::IntoIter<DailyFile>,
    file: Option<CsvFile>,
    /// Models repeat row after row, so each name is stored once.
    models: HashMap<String, Arc<str>>,
}

impl Files {
    /// Reads the headers of all files.
    pub(crate) fn open(files: &[DailyFile]) -> LabResult<Self> {
        if files.is_empty() {
            return Err(LabError::Unusable("no file was given".into()));
        }
        let mut schema = Schema { smart: Vec::new() };
        for file in files {
            for column in CsvFile::open(file)?.smart.into_iter().flatten() {
                if !schema.smart.contains(&column) {
                    schema.smart.push(column);
                }
            }
        }
        Ok(Self {
            schema: Arc::new(schema),
            files: Vec::from(files).into_iter(),
            file: None,
            models: HashMap::new(),
        })
    }

    /// The union of the columns of all files.
    pub(crate) fn schema(&self) -> Arc<Schema> {
        self.schema.clone()
    }
}

impl Iterator for Files {
    type Item = LabResult<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let file = match &mut self.file {
                Some(file) => file,
                None => {
                    let file = self.files.next()?;
                    let opened = CsvFile::open(&file).map(|mut file| {
                        file.place_in(&self.schema);
                        file
                    });
                    match opened {
                        Ok(file) => self.file.insert(file),
                        Err(error) => return Some(Err(error)),
                    }
                }
            };
            match file.next_row(self.schema.smart.len(), &mut self.models) {
                Ok(Some(row)) => return Some(Ok(row)),
                Ok(None) => self.file = None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// One open file and the positions of its columns.
struct CsvFile {
    path: PathBuf,
    reader: csv::Reader<Box<dyn Read>>,
    record: csv::StringRecord,
    /// The field numbers of [`FIXED_COLUMNS`].
    fixed: [usize; FIXED_COLUMNS.len()],
    /// For each field, its SMART column, if it is one.
    smart: Vec<Option<SmartColumn>>,
    /// Field number and index in [`Row::smart`].
    places: Vec<(usize, usize)>,
}

impl CsvFile {
    fn open(file: &DailyFile) -> LabResult<Self> {
        let path = file.path();
        let bytes = file.open().map_err(|source| LabError::File {
            path: path.into(),
            source,
        })?;
        let mut reader = csv::ReaderBuilder::new()
            .buffer_capacity(1 << 16)
            .from_reader(bytes);
        let headers = reader
            .headers()
            .map_err(|error| unreadable(path, 1, &error))?
            .clone();
        let mut fixed = [0; FIXED_COLUMNS.len()];
        for (place, name) in fixed.iter_mut().zip(FIXED_COLUMNS) {
            let found = headers.iter().position(|header| header == name);
            *place = found.ok_or_else(|| LabError::Data {
                path: path.into(),
                line: 1,
                what: format!(
                    "the header has no column `{name}`; a daily drive_stats file begins with \
                     {}",
                    FIXED_COLUMNS.join(",")
                ),
            })?;
        }
        let smart = headers.iter().map(SmartColumn::parse).collect();
        let record = csv::StringRecord::new();
        Ok(Self {
            path: path.into(),
            reader,
            record,
            fixed,
            smart,
            places: Vec::new(),
        })
    }

    fn place_in(&mut self, schema: &Schema) {
        let place = |(field, column): (usize, &Option<SmartColumn>)| {
            Some((
                field,
                schema
                    .smart
                    .iter()
                    .position(|c| Some(c) == column.as_ref())?,
            ))
        };
        self.places = self.smart.iter().enumerate().filter_map(place).collect();
    }

    fn next_row(
        &mut self,
        smart_columns: usize,
        models: &mut HashMap<String, Arc<str>>,
    ) -> LabResult<Option<Row>> {
        let line = self.reader.position().line();
        if !self
            .reader
            .read_record(&mut self.record)
            .map_err(|error| unreadable(&self.path, line, &error))?
        {
            return Ok(None);
        }
        let [date, serial_number, model, capacity_bytes, failure] = self
            .fixed
            .map(|field| self.record.get(field).unwrap_or_default());
        let date: Date = date
            .parse()
            .or_else(|()| of_spreadsheet(date))
            .map_err(|()| self.wrong(&format!("`{date}` is not a date like 2017-01-31")))?;
        if serial_number.is_empty() {
            return Err(self.wrong("the serial_number is empty"));
        }
        let serial_number = serial_number.into();
        let capacity_bytes = self.integer("capacity_bytes", capacity_bytes)?;
        let failure = match failure {
            "0" => false,
            "1" => true,
            other => return Err(self.wrong(&format!("failure is `{other}`, not 0 or 1"))),
        };
        let model = match models.get(model) {
            Some(known) => known.clone(),
            None => models
                .entry(model.into())
                .or_insert_with(|| model.into())
                .clone(),
        };
        let mut smart = vec![None; smart_columns];
        for &(field, place) in &self.places {
            match self.record.get(field).unwrap_or_default() {
                "" => {}
                text => smart[place] = Some(self.integer("a SMART value", text)?),
            }
        }
        Ok(Some(Row {
            date,
            serial_number,
            model,
            capacity_bytes,
            failure,
            smart,
        }))
    }

    fn integer(&self, what: &str, text: &str) -> LabResult<i64> {
        let parsed = text.parse().ok().or_else(|| rounded(text));
        parsed.ok_or_else(|| self.wrong(&format!("{what} is `{text}`, not a whole number")))
    }

    /// An error in the last record read.
    fn wrong(&self, what: &str) -> LabError {
        let line = self.record.position().map_or(1, csv::Position::line);
        LabError::Data {
            path: self.path.clone(),
            line,
            what: what.into(),
        }
    }
}

/// A date of 2018-02-25, whose file went through a spreadsheet before it was published: `2/25/18`.
fn of_spreadsheet(text: &str) -> std::result::Result<Date, ()> {
    let mut parts = text
        .split('/')
        .map(|part| part.parse::<u32>().map_err(drop));
    let mut next = || parts.next().unwrap_or(Err(()));
    let (month, day, year) = (next()?, next()?, next()?);
    let century = if year < 100 { 2000 } else { 0 };
    let year = i32::try_from(year + century).map_err(drop)?;
    Date::new(year, month, day).ok_or(())
}

/// A number of that file: `4.00079E+12`.
fn rounded(text: &str) -> Option<i64> {
    let value: f64 = text.parse().ok().filter(|_| text.contains(['E', 'e']))?;
    (value.abs() < 9e18).then_some(value as i64)
}

fn unreadable(path: &Path, line: u64, error: &csv::Error) -> LabError {
    let line = error.position().map_or(line, csv::Position::line);
    let what = match error.kind() {
        csv::ErrorKind::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the compressed file is truncated; download it again".into()
        }
        csv::ErrorKind::Io(error) => format!("cannot be read: {error}"),
        csv::ErrorKind::Utf8 { .. } => "the line is not UTF-8".into(),
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => {
            format!("{len} fields where the header has {expected_len}")
        }
        _ => error.to_string(),
    };
    LabError::Data {
        path: path.into(),
        line,
        what,
    }
}
