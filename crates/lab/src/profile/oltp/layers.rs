//! Where the time of transactions went over all rounds: a table and a bar for each site. The median is that of the median
//! round, the 99th percentile that of the slowest one.

use std::collections::BTreeSet;

use super::spent::{Layer, Row, Spent};
use crate::report::{self, Axis, Bar, BarRow, Layers, Marks, Plot, Table, Times, short};

/// All rounds of a site.
pub(super) struct Breakdown {
    pub(super) layers: Layers,
    rows: Vec<Row>,
}

impl Breakdown {
    /// `None` without a round.
    pub(super) fn of<'a>(rounds: impl Iterator<Item = &'a Spent>) -> Option<Breakdown> {
        let mut rounds: Vec<&Spent> = rounds.filter(|spent| !spent.rows.is_empty()).collect();
        rounds.sort_by(|a, b| a.total_us().total_cmp(&b.total_us()));
        let (middle, slowest) = (
            rounds.get(rounds.len().saturating_sub(1) / 2)?,
            rounds.last()?,
        );
        let count = rounds.len() as f64;
        let times = |of: &dyn Fn(&Spent) -> f64| Times {
            mean_us: rounds.iter().map(|spent| of(spent)).sum::<f64>() / count,
            p50_us: of(middle),
            p99_us: of(slowest),
        };
        // A row without requests is missing in a round.
        let mut rows: Vec<Row> = Vec::new();
        for row in rounds.iter().flat_map(|spent| &spent.rows) {
            match rows.iter_mut().find(|known| known.is_same_place(row)) {
                Some(known) => {
                    known.us += row.us;
                    known.own_us += row.own_us;
                    known.requests += row.requests;
                }
                None => rows.push(row.clone()),
            }
        }
        let layer = |row: &Row| {
            let found = |spent: &Spent| {
                spent
                    .rows
                    .iter()
                    .find(|it| it.is_same_place(row))
                    .map(|it| it.us)
            };
            report::Layer {
                name: row.name(),
                times: times(&|spent| found(spent).unwrap_or(0.0)),
            }
        };
        let layers = Layers {
            total: times(&Spent::total_us),
            layers: rows.iter().map(layer).collect(),
        };
        for row in &mut rows {
            row.us /= count;
            row.own_us /= count;
            row.requests /= count;
        }
        Some(Breakdown { layers, rows })
    }

    /// Whether anything below the database is visible.
    pub(super) fn is_divided(&self) -> bool {
        self.rows.len() > 1
    }

    /// The table for the storage that the user called `on`.
    pub(super) fn table(&self, on: &str) -> Table {
        let mut table = Table::new(
            &format!("Where the time of a transaction went on {on}"),
            "Microseconds for each transaction, on average over the rounds. The total is the time of the connections \
             (connections × elapsed time ÷ transactions), each row below the first is the time that requests spent \
             there, and the first is the rest: requests that run side by side count each, one flush that several \
             connections wait for counts once, and background writes count although nobody waits for them.",
            &["layer", "µs", "of the total", "requests", "µs of each"],
        );
        let total_us = self.layers.total.mean_us;
        for row in &self.rows {
            table.rows.push(vec![
                row.name(),
                format!("{:.1}", row.us),
                format!("{:.0} %", 100.0 * row.us / total_us),
                short(row.requests),
                short(row.request_us()),
            ]);
        }
        let total = format!("{total_us:.1}");
        table
            .rows
            .push(["total", &total, "100 %", "", ""].map(String::from).into());
        table
    }

    fn bars(&self, on: &str) -> BarRow {
        let mut from = 0.0;
        let bar = |row: &Row| {
            let begins = from;
            from += row.us / 1e3;
            Bar {
                from: begins,
                to: from,
                class: row.layer.class(),
                label: row.name(),
                tip: format!("{on}: {}\n{} µs", row.name(), short(row.us)),
            }
        };
        BarRow {
            name: on.to_owned(),
            lines: vec![self.rows.iter().map(bar).collect()],
        }
    }
}

/// A bar for each site, divided into its layers.
pub(super) fn plot<'a>(sites: impl Iterator<Item = (&'a str, &'a Breakdown)> + Clone) -> Plot {
    let rows = sites.clone().flat_map(|(_, breakdown)| &breakdown.rows);
    let used: BTreeSet<Layer> = rows.map(|row| row.layer).collect();
    Plot {
        title: "Layers of a transaction".into(),
        about: "On average over the rounds.".into(),
        x: Axis {
            label: "milliseconds of a transaction".into(),
            is_logarithmic: false,
        },
        y: Axis::default(),
        marks: Marks::Bars {
            legend: used
                .into_iter()
                .map(|layer| (layer.class(), layer.name().to_owned()))
                .collect(),
            rows: sites
                .clone()
                .map(|(on, breakdown)| breakdown.bars(on))
                .collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::spent::tests::{after, before},
        *,
    };

    #[test]
    fn rounds_are_averaged_and_the_median_and_the_slowest_one_kept() {
        let round = |whole_us| Spent::of(whole_us, 10.0, &before(), &after());
        let rounds = [30_000.0, 60_000.0, 20_000.0].map(round);
        let found = Breakdown::of(rounds.iter()).expect("three rounds");
        let Times {
            mean_us,
            p50_us,
            p99_us,
        } = found.layers.total;
        assert!((mean_us - 11_000.0 / 3.0).abs() < 1e-6, "{mean_us}");
        assert_eq!((p50_us, p99_us), (3000.0, 6000.0));
        let medium = found.layers.layers.last().expect("rows").times;
        assert!((medium.mean_us - 300.0).abs() < 1e-6, "{medium:?}");
        let table = found.table("db");
        let throttle = &table.rows[3];
        assert_eq!(throttle[..2], ["tree: db/throttle", "200.0"], "{table:?}");
        assert_eq!(throttle[3..], ["1", "200"], "{table:?}");
        assert!(Breakdown::of([].iter()).is_none());
    }
}
