//! A fleet of drives that advances day by day. It emits one row per drive and day, ages the SMART values,
//! lets drives fail at their model's annual rate (the last day's row has failure=1), and replaces a failed
//! drive the next day with a new one of the same model. Generated and real fleets use the same code. It keeps
//! one row per drive and no history.

use std::{collections::HashSet, sync::Arc};

use engine::random::SplitMix64;

use super::{Date, Row, Schema, models, models::Vendor, smart};

/// A drive in its slot of the fleet.
struct Drive {
    /// The row of the current day.
    row: Row,
    vendor: Vendor,
    /// Days until its last day; 0 is today.
    days_left: u32,
    /// For how many days before the last its SMART values show the coming failure.
    ill_days: u32,
}

/// The columns of an attribute's two values in a row.
struct Attribute {
    number: u8,
    normalized: Option<usize>,
    raw: Option<usize>,
}

/// The endless sequence of a fleet's rows, drive by drive and day by day.
pub(crate) struct Fleet {
    drives: Vec<Drive>,
    attributes: Vec<Attribute>,
    serials: HashSet<Arc<str>>,
    date: Date,
    /// The drive whose row comes next.
    next: usize,
    random: SplitMix64,
}

impl Fleet {
    /// A fleet that starts with `rows`, all of one day. The first row it returns is the first of that same
    /// day.
    pub(crate) fn new(schema: &Schema, rows: Vec<Row>, date: Date, mut random: SplitMix64) -> Self {
        let serials = rows.iter().map(|row| row.serial_number.clone()).collect();
        let drives = rows
            .into_iter()
            .map(|row| Drive::new(row, &mut random))
            .collect();
        Self {
            drives,
            attributes: attributes(schema),
            serials,
            date,
            next: 0,
            random,
        }
    }

    /// Advances to the next day at once, so that the first row returned is of that day.
    pub(crate) fn starting_tomorrow(mut self) -> Self {
        self.begin_next_day();
        self
    }

    fn begin_next_day(&mut self) {
        self.date = self.date.plus_days(1);
        self.next = 0;
        for drive in &mut self.drives {
            if drive.row.failure {
                let row = replacement(
                    &drive.row,
                    &self.attributes,
                    &mut self.serials,
                    &mut self.random,
                );
                *drive = Drive::new(row, &mut self.random);
            } else {
                drive.live_a_day(&self.attributes, &mut self.random);
            }
            drive.row.date = self.date;
        }
    }
}

impl Iterator for Fleet {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        if self.next == self.drives.len() {
            self.begin_next_day();
        }
        let drive = self.drives.get(self.next)?;
        self.next += 1;
        Some(drive.row.clone())
    }
}

impl Drive {
    fn new(row: Row, random: &mut SplitMix64) -> Self {
        let rate = models::annual_failure_rate(&row.model);
        // Failures have a constant rate, so the time to the next one is exponential; a drive lives at least
        // one day.
        let days_left = (-random.unit().ln() * 365.25 / rate)
            .ceil()
            .min(f64::from(u32::MAX));
        // About a quarter of all drives fail without warning.
        let ill_days = if random.one_in(4) {
            0
        } else {
            random.between(3, 25) as u32
        };
        Self {
            vendor: Vendor::of(&row.model),
            days_left: days_left as u32,
            ill_days,
            row,
        }
    }

    fn live_a_day(&mut self, attributes: &[Attribute], random: &mut SplitMix64) {
        self.days_left = self.days_left.saturating_sub(1);
        self.row.failure = self.days_left == 0;
        let dying = self.days_left < self.ill_days;
        for attribute in attributes {
            let value = |index: Option<usize>, row: &Row| index.and_then(|i| row.smart[i]);
            let mut normalized = value(attribute.normalized, &self.row);
            let mut raw = value(attribute.raw, &self.row);
            if raw.is_none() {
                continue;
            }
            smart::age(
                attribute.number,
                self.vendor,
                dying,
                &mut normalized,
                &mut raw,
                random,
            );
            for (index, value) in [(attribute.normalized, normalized), (attribute.raw, raw)] {
                if let Some(index) = index {
                    self.row.smart[index] = value;
                }
            }
        }
    }
}

/// The new drive that replaces `failed`: same model, reporting the same attributes.
fn replacement(
    failed: &Row,
    attributes: &[Attribute],
    serials: &mut HashSet<Arc<str>>,
    random: &mut SplitMix64,
) -> Row {
    serials.remove(&failed.serial_number);
    let serial_number = new_serial(&failed.serial_number, serials, random);
    let mut row = Row {
        serial_number,
        failure: false,
        ..failed.clone()
    };
    let vendor = Vendor::of(&row.model);
    for attribute in attributes {
        let (normalized, raw) = match smart::initial(attribute.number, vendor, 0, random) {
            // A drive fresh from its box has no defects yet.
            (_, _) if matches!(attribute.number, 5 | 187 | 188 | 196 | 197 | 198) => (100, 0),
            values => values,
        };
        for (index, value) in [(attribute.normalized, normalized), (attribute.raw, raw)] {
            if let Some(slot) = index.map(|index| &mut row.smart[index]) {
                *slot = slot.map(|_| value);
            }
        }
    }
    row
}

/// A serial number shaped like `like` (letters for letters, digits for digits, the same two first characters,
/// or four for "WD-W") that no drive of the fleet has.
pub(crate) fn new_serial(
    like: &str,
    serials: &mut HashSet<Arc<str>>,
    random: &mut SplitMix64,
) -> Arc<str> {
    let kept = if like.starts_with("WD-") { 4 } else { 2 };
    loop {
        let serial: String = like
            .chars()
            .enumerate()
            .map(|(place, old)| match old {
                _ if place < kept => old,
                '0'..='9' => char::from(b'0' + random.below(10) as u8),
                'A'..='Z' => char::from(b'A' + random.below(26) as u8),
                _ => old,
            })
            .collect();
        let serial: Arc<str> = serial.into();
        if serials.insert(serial.clone()) {
            return serial;
        }
        // A shape with few free characters can run out of numbers, so lengthen it now and then.
        if random.one_in(64) {
            return new_serial(&format!("{like}0"), serials, random);
        }
    }
}

fn attributes(schema: &Schema) -> Vec<Attribute> {
    let mut attributes: Vec<Attribute> = Vec::new();
    for (index, column) in schema.smart.iter().enumerate() {
        let known = attributes.iter().position(|a| a.number == column.attribute);
        let at = known.unwrap_or_else(|| {
            attributes.push(Attribute {
                number: column.attribute,
                normalized: None,
                raw: None,
            });
            attributes.len() - 1
        });
        let slot = if column.raw {
            &mut attributes[at].raw
        } else {
            &mut attributes[at].normalized
        };
        *slot = Some(index);
    }
    attributes
}
