//! Where the time of transactions went over all rounds: a table and a bar for each site. Counters do not tell
//! transactions apart, so in place of a median transaction there is the median round, and in place of the 99th percentile
//! the slowest round.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::spent::{Spent, SpentRow, TransactionLayer};
use crate::report::{
    self, Axis, Bar, BarRow, FindingsTable, Layers, Marks, OperationTimes, Plot, short, time_us,
};

/// All rounds of a site.
pub(super) struct Breakdown {
    pub(super) layers: Layers,
    rows: Vec<SpentRow>,
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
        let times = |of: &dyn Fn(&Spent) -> f64| OperationTimes {
            mean_us: rounds.iter().map(|spent| of(spent)).sum::<f64>() / count,
            p50_us: of(middle),
            p99_us: of(slowest),
        };
        // A row without requests is missing in a round.
        let mut rows: Vec<SpentRow> = Vec::new();
        for row in rounds.iter().flat_map(|spent| &spent.rows) {
            match rows.iter_mut().find(|known| known.is_same_place(row)) {
                Some(known) => {
                    known.us += row.us;
                    known.own_us += row.own_us;
                    known.requests += row.requests;
                    for (kind, us) in &row.kinds_us {
                        *known.kinds_us.entry(kind.clone()).or_default() += us;
                    }
                }
                None => rows.push(row.clone()),
            }
        }
        let layer = |row: &SpentRow| report::LayerShare {
            name: row.name(),
            times: times(&|spent| spent.us_of(row)),
        };
        let layers = Layers {
            total: times(&Spent::total_us),
            layers: rows.iter().map(layer).collect(),
        };
        for row in &mut rows {
            row.us /= count;
            row.own_us /= count;
            row.requests /= count;
            row.kinds_us.values_mut().for_each(|us| *us /= count);
        }
        Some(Breakdown { layers, rows })
    }

    /// Whether anything below the database is visible.
    pub(super) fn is_divided(&self) -> bool {
        self.rows.len() > 1
    }

    /// For readers of the JSON: the total and the layers, each named as what it is.
    pub(super) fn json(&self) -> (Value, Value) {
        let times = |times: &OperationTimes| {
            json!({
                "mean_us": times.mean_us,
                "median_round_us": times.p50_us,
                "slowest_round_us": times.p99_us,
            })
        };
        let layers = self.layers.layers.iter().map(|layer| {
            let mut json = times(&layer.times);
            json["name"] = json!(layer.name);
            json
        });
        (times(&self.layers.total), layers.collect())
    }

    /// The place with the most time.
    pub(super) fn largest(&self) -> Option<&SpentRow> {
        self.rows.iter().max_by(|a, b| a.us.total_cmp(&b.us))
    }

    /// The table for the storage that the user called `on`.
    pub(super) fn table(&self, on: &str) -> FindingsTable {
        let mut table = FindingsTable::new(
            &format!("Where the time of a transaction went on {on}"),
            "Times of each transaction: on average over the rounds, in the round that took the median time, \
             and in the slowest round; rounds, not single transactions. The total is the time of the connections \
             (connections × elapsed time ÷ transactions), each row below the first is the time that requests spent \
             there, and the first is the rest: requests that run side by side count each, one flush that several \
             connections wait for counts once, and background writes count although nobody waits for them.",
            &[
                "layer",
                "mean µs",
                "of the total",
                "median round µs",
                "slowest round µs",
                "requests",
                "each µs",
            ],
        );
        let total_us = self.layers.total.mean_us;
        let times = |name: &str, times: &OperationTimes| -> Vec<String> {
            vec![
                name.to_owned(),
                format!("{:.1}", times.mean_us),
                format!("{:.0} %", 100.0 * times.mean_us / total_us),
                format!("{:.1}", times.p50_us),
                format!("{:.1}", times.p99_us),
            ]
        };
        for (row, layer) in self.rows.iter().zip(&self.layers.layers) {
            let mut cells = times(&layer.name, &layer.times);
            cells.extend([short(row.requests), short(row.request_us())]);
            table.rows.push(cells);
        }
        let mut total = times("total", &self.layers.total);
        total.extend([String::new(), String::new()]);
        table.rows.push(total);
        table
    }

    fn bars(&self, on: &str) -> BarRow {
        let mut from = 0.0;
        let bar = |row: &SpentRow| {
            let begins = from;
            from += row.us / 1e3;
            Bar {
                from: begins,
                to: from,
                class: row.layer.class(),
                label: row.name(),
                tip: format!("{on}: {}\n{}", row.name(), time_us(row.us)),
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
    let used: BTreeSet<TransactionLayer> = rows.map(|row| row.layer).collect();
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
        let OperationTimes {
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
        assert_eq!(throttle[3..], ["200.0", "200.0", "1", "200"], "{table:?}");
        let total = table.rows.last().expect("the total");
        assert_eq!(total[..5], ["total", "3666.7", "100 %", "3000.0", "6000.0"]);
        assert_eq!(table.columns[3..5], ["median round µs", "slowest round µs"]);
        let (total, layers) = found.json();
        assert_eq!(total["median_round_us"], 3000.0);
        assert_eq!(total["slowest_round_us"], 6000.0);
        assert_eq!(layers[3]["name"], "tree: db/throttle");
        assert_eq!(
            layers[3]["p99_us"],
            Value::Null,
            "it is not of transactions"
        );
        assert!(Breakdown::of([].iter()).is_none());
    }
}
