//! The findings of a profile or a comparison, in the form that the text, the page and the JSON share: the
//! answer in one sentence first, then the advice, then the figures.

use std::{
    collections::BTreeMap,
    fmt::Write,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{date, number::time_us};

/// The findings.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The profile's name.
    pub profile: String,
    /// What was measured.
    pub on: Vec<String>,
    /// The profile's subject, in one sentence.
    pub about: String,
    /// The answer, in one sentence.
    pub answer: String,
    /// Recommended changes, each with the figure that supports it.
    pub advice: Vec<String>,
    /// What weakens the figures, or must be known to read them.
    pub notes: Vec<String>,
    /// The machine and the program.
    pub machine: BTreeMap<String, String>,
    /// Tables for people.
    pub tables: Vec<FindingsTable>,
    /// Plots for people.
    pub plots: Vec<Plot>,
    /// Breakdown of an operation's time for programs, if the profile provides one; its table is among the tables.
    pub layers: Option<Layers>,
    /// Every sample.
    pub figures: Value,
    /// Figures tracked over many runs.
    pub scores: Vec<Score>,
    /// The journal of measurements, for a later run that continues this one.
    pub steps: Value,
    /// The profile's settings, for the same purpose.
    pub settings: Value,
    /// Whether the user stopped it early.
    pub is_interrupted: bool,
}

/// A figure used to compare runs over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    /// Its name, with the unit.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Whether more is better.
    pub more_is_better: bool,
}

impl Score {
    /// A score where more is better.
    pub(crate) fn more(name: String, value: f64) -> Score {
        Score {
            name,
            value,
            more_is_better: true,
        }
    }

    /// A score where less is better.
    pub(crate) fn less(name: String, value: f64) -> Score {
        Score {
            more_is_better: false,
            ..Score::more(name, value)
        }
    }
}

/// A table whose cells are already formatted.
#[derive(Clone, Debug, Default)]
pub struct FindingsTable {
    /// What it shows.
    pub title: String,
    /// How to read it.
    pub about: String,
    /// Column headers; the first is for the names of the rows.
    pub columns: Vec<String>,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// How to read it.
    pub about: String,
    /// The axis from left to right.
    pub x: Axis,
    /// The axis from bottom to top.
    pub y: Axis,
    /// What is drawn.
    pub marks: Marks,
}

/// An axis.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// Its quantity and unit.
    pub label: String,
    /// Whether the scale is logarithmic.
    pub is_logarithmic: bool,
}

/// What a plot draws.
#[derive(Clone, Debug)]
pub enum Marks {
    /// Lines through points.
    Lines(Vec<PlotLine>),
    /// Lines over named spans of the x axis, one after the other.
    Timeline {
        /// The spans.
        spans: Vec<Span>,
        /// The lines.
        lines: Vec<PlotLine>,
    },
    /// A field of values, with a row for each name on the y axis.
    Field {
        /// Column names, from left to right.
        columns: Vec<String>,
        /// Rows from bottom to top, with a value for each column that was measured.
        rows: Vec<(String, Vec<Option<f64>>)>,
        /// The unit of the values.
        unit: String,
    },
    /// Bars in rows.
    Bars {
        /// Rows from top to bottom.
        rows: Vec<BarRow>,
        /// The classes of bars and their meaning.
        legend: Vec<(usize, String)>,
    },
}

/// A row of bars.
#[derive(Clone, Debug)]
pub struct BarRow {
    /// Its name.
    pub name: String,
    /// Lines of bars, one below the other.
    pub lines: Vec<Vec<Bar>>,
}

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its start on the x axis.
    pub from: f64,
    /// Its end.
    pub to: f64,
    /// Its class, which determines its colour.
    pub class: usize,
    /// Written on it if there is room.
    pub label: String,
    /// Its figures, shown when it is pointed at.
    pub tip: String,
}

/// A named part of the x axis.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its name.
    pub name: String,
    /// Its start on the x axis.
    pub from: f64,
    /// Its end.
    pub to: f64,
}

/// A line of a plot.
#[derive(Clone, Debug)]
pub struct PlotLine {
    /// Its name.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Breakdown of an operation's time.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Layers {
    /// The whole.
    pub total: OperationTimes,
    /// Its parts, from top to bottom.
    pub layers: Vec<LayerShare>,
}

/// Times of operations, in microseconds. A layer's time at a quantile is taken from the operations whose
/// *total* time lies at that quantile, so that the parts add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct OperationTimes {
    /// The mean.
    pub mean_us: f64,
    /// At the median.
    pub p50_us: f64,
    /// At the 99th percentile.
    pub p99_us: f64,
}

/// One part of the whole.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LayerShare {
    /// Its name.
    pub name: String,
    /// Its times.
    #[serde(flatten)]
    pub times: OperationTimes,
}

impl FindingsTable {
    /// An empty table.
    pub(crate) fn new(title: &str, about: &str, columns: &[&str]) -> FindingsTable {
        FindingsTable {
            title: title.into(),
            about: about.into(),
            columns: columns.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }
}

impl FindingsTable {
    /// The same, each time in the unit that suits it: columns whose headers end with "µs" hold microseconds.
    pub(super) fn fitted(&self) -> FindingsTable {
        let mut fitted = self.clone();
        for (column, header) in self.columns.iter().enumerate() {
            // After a comma it is the unit of the whole table.
            let name = header.strip_suffix(" µs");
            let Some(name) = name.filter(|name| !name.ends_with(',')) else {
                continue;
            };
            fitted.columns[column] = name.to_owned();
            for cell in fitted.rows.iter_mut().filter_map(|row| row.get_mut(column)) {
                if let Ok(us) = cell.replace(',', "").parse() {
                    *cell = time_us(us);
                }
            }
        }
        fitted
    }
}

impl OperationTimes {
    /// Each of the three from those of both.
    fn with(self, other: OperationTimes, of: fn(f64, f64) -> f64) -> OperationTimes {
        OperationTimes {
            mean_us: of(self.mean_us, other.mean_us),
            p50_us: of(self.p50_us, other.p50_us),
            p99_us: of(self.p99_us, other.p99_us),
        }
    }

    pub(crate) fn plus(self, other: OperationTimes) -> OperationTimes {
        self.with(other, |a, b| a + b)
    }

    pub(crate) fn minus(self, other: OperationTimes) -> OperationTimes {
        self.with(other, |a, b| (a - b).max(0.0))
    }

    /// Of this, the part that `part` is of `whole`.
    fn times(self, part: OperationTimes, whole: OperationTimes) -> OperationTimes {
        let ratio = part.with(
            whole,
            |part, whole| if whole > 0.0 { part / whole } else { 0.0 },
        );
        self.with(ratio, |of, ratio| of * ratio)
    }
}

impl Layers {
    /// The same layers as parts of another total: that of all operations, where these are of a sample. So a page has one
    /// median, and the sample decides only how it divides.
    pub(crate) fn of_total(self, total: OperationTimes) -> Layers {
        let sum = |sum: OperationTimes, layer: &LayerShare| sum.plus(layer.times);
        let whole = self.layers.iter().fold(OperationTimes::default(), sum);
        let layers = self.layers.into_iter().map(|layer| LayerShare {
            times: total.times(layer.times, whole),
            ..layer
        });
        Layers {
            total,
            layers: layers.collect(),
        }
    }

    /// The table of a breakdown.
    pub(crate) fn table(&self) -> FindingsTable {
        let mut table = FindingsTable::new(
            "Where the time went",
            "A layer's times at the median and the 99th percentile are those of the same operations as the \
             total's, so they add up.",
            &[],
        );
        let (unit, us) = match self.total.p50_us {
            ..1000.0 => ("µs", 1.0),
            _ => ("ms", 1000.0),
        };
        let in_unit = |name: &str| format!("{name}, {unit}");
        table.columns = vec![
            "layer".into(),
            in_unit("mean"),
            "of the total".into(),
            in_unit("median"),
            in_unit("99 %"),
        ];
        let shown = |time_us: f64| match us {
            1.0 => format!("{time_us:.1}"),
            us => format!("{:.2}", time_us / us),
        };
        let total = LayerShare {
            name: "total".into(),
            times: self.total,
        };
        for layer in self.layers.iter().chain([&total]) {
            let times = layer.times;
            table.rows.push(vec![
                layer.name.clone(),
                shown(times.mean_us),
                format!("{:.0} %", 100.0 * times.mean_us / self.total.mean_us),
                shown(times.p50_us),
                shown(times.p99_us),
            ]);
        }
        table
    }
}

impl Findings {
    /// Everything as JSON, for programs. Keys may be added.
    pub fn json(&self) -> Value {
        let mut json = json!({
            "format": 1,
            "profile": self.profile,
            "on": self.on,
            "answer": self.answer,
            "advice": self.advice,
            "notes": self.notes,
            "machine": self.machine,
            "figures": self.figures,
            "scores": self.scores,
            "settings": self.settings,
            "steps": self.steps,
            "interrupted": self.is_interrupted,
            "time": now(),
        });
        if let Some(layers) = &self.layers {
            json["total"] = json!(layers.total);
            json["layers"] = json!(layers.layers);
        }
        json
    }

    /// The answer, the advice and the tables, for a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (key, value) in &self.machine {
            let _ = writeln!(out, "{key}: {value}");
        }
        let _ = writeln!(out, "date: {}", date::utc(now()));
        let _ = writeln!(out, "{} on {}", self.profile, self.on.join(", "));
        for table in &self.tables {
            let _ = writeln!(out, "\n{}", table.title);
            write_table(&mut out, &table.fitted());
        }
        if !self.notes.is_empty() {
            let _ = writeln!(out);
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        let _ = writeln!(out, "\n{}", self.answer);
        for advice in &self.advice {
            let _ = writeln!(out, "advice: {advice}");
        }
        out
    }
}

/// The current time, in seconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Writes columns as wide as necessary, the first aligned left, the others right.
fn write_table(out: &mut String, table: &FindingsTable) {
    let width = |column: usize| {
        let rows = table.rows.iter().chain([&table.columns]);
        let cells = rows.filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    for row in [&table.columns].into_iter().chain(&table.rows) {
        let mut line = String::from(" ");
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(line, " {cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}
