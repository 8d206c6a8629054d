//! Reads Backblaze's daily CSV files, plain or gzip (recognised by their first two bytes, not by name).
//! Columns are found by header name, so files of different years, with more or fewer SMART columns, can be
//! read together: the schema is the union, and a column missing from a file is NULL. Columns that are neither
//! fixed nor SMART (newer years name the data centre) are ignored.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{Date, FIXED_COLUMNS, Row, Schema, SmartColumn};
use crate::{Error, Result};

/// Rows of some files, one file after the other.
pub(crate) struct Files {
    schema: Arc<Schema>,
    paths: std::vec::IntoIter<PathBuf>,
    file: Option<DailyFile>,
    /// Models repeat row after row, so each name is stored once.
    models: HashMap<String, Arc<str>>,
}

impl Files {
    /// Reads the headers of all files.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self> {
        if paths.is_empty() {
            return Err(Error::Unusable("no file was given".into()));
        }
        let mut schema = Schema { smart: Vec::new() };
        for path in paths {
            for column in DailyFile::open(path)?.smart.into_iter().flatten() {
                if !schema.smart.contains(&column) {
                    schema.smart.push(column);
                }
            }
        }
        let paths = Vec::from(paths).into_iter();
        Ok(Self {
            schema: Arc::new(schema),
            paths,
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
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let file = match &mut self.file {
                Some(file) => file,
                None => {
                    let path = self.paths.next()?;
                    let opened = DailyFile::open(&path).map(|mut file| {
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
                Ok(None) if file.rows == 0 => {
                    let error = file.wrong("the file has a header but no rows");
                    self.file = None;
                    return Some(Err(error));
                }
                Ok(None) => self.file = None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// One open file and the positions of its columns.
struct DailyFile {
    path: PathBuf,
    reader: csv::Reader<Box<dyn Read>>,
    record: csv::StringRecord,
    /// The field numbers of [`FIXED_COLUMNS`].
    fixed: [usize; FIXED_COLUMNS.len()],
    /// For each field, its SMART column, if it is one.
    smart: Vec<Option<SmartColumn>>,
    /// Field number and index in [`Row::smart`].
    places: Vec<(usize, usize)>,
    rows: u64,
}

impl DailyFile {
    fn open(path: &Path) -> Result<Self> {
        let file = |source| Error::File {
            path: path.into(),
            source,
        };
        let mut bytes = BufReader::with_capacity(1 << 16, File::open(path).map_err(file)?);
        let gzip = bytes.fill_buf().map_err(file)?.starts_with(&[0x1f, 0x8b]);
        let bytes: Box<dyn Read> = if gzip {
            Box::new(flate2::bufread::MultiGzDecoder::new(bytes))
        } else {
            Box::new(bytes)
        };
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
            *place = found.ok_or_else(|| Error::Data {
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
            rows: 0,
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
    ) -> Result<Option<Row>> {
        let line = self.reader.position().line();
        if !self
            .reader
            .read_record(&mut self.record)
            .map_err(|error| unreadable(&self.path, line, &error))?
        {
            return Ok(None);
        }
        self.rows += 1;
        let [date, serial_number, model, capacity_bytes, failure] = self
            .fixed
            .map(|field| self.record.get(field).unwrap_or_default());
        let date: Date = date
            .parse()
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

    fn integer(&self, what: &str, text: &str) -> Result<i64> {
        text.parse()
            .map_err(|_| self.wrong(&format!("{what} is `{text}`, not a whole number")))
    }

    /// An error in the last record read.
    fn wrong(&self, what: &str) -> Error {
        let line = self.record.position().map_or(1, csv::Position::line);
        Error::Data {
            path: self.path.clone(),
            line,
            what: what.into(),
        }
    }
}

fn unreadable(path: &Path, line: u64, error: &csv::Error) -> Error {
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
    Error::Data {
        path: path.into(),
        line,
        what,
    }
}
