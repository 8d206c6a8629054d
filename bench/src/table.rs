//! The results: for people medians and ratios within a round, for `sanstone lab history` a file with the samples.

use crate::target::Target;
use harness::libiscsi::Done;
use harness::samples::{Call, Median, Samples};
use serde_json::{Value, json};
use std::path::Path;

/// Rows beside the targets: the bytes through TCP alone, the I/O on a target's file alone (after its name), and our own
/// client in place of libiscsi.
pub(crate) const BARE_TCP: &str = "bare TCP";
pub(crate) const FILE_ALONE: &str = ", its file alone";
pub(crate) const OUR_CLIENT: &str = "our own client, memory";

/// All samples so far, by load and row.
#[derive(Default)]
pub(crate) struct Table {
    samples: Samples,
    /// In the order in which they were first measured.
    loads: Vec<&'static str>,
    rows: Vec<String>,
}

fn key(load: &str, row: &str, figure: &str) -> String {
    format!("{load}, {row}, {figure}")
}

impl Table {
    pub(crate) fn note(&mut self, load: &'static str, row: &str, done: &Done) {
        if !self.loads.contains(&load) {
            self.loads.push(load);
        }
        if !self.rows.iter().any(|known| known == row) {
            self.rows.push(row.to_owned());
        }
        for (figure, value) in [
            ("IOPS", done.iops),
            ("p50 µs", done.p50_us),
            ("p99 µs", done.p99_us),
            ("target µs", done.target_us),
            ("client µs", done.client_us),
        ] {
            self.samples.note(key(load, row, figure), value);
        }
    }

    /// What the same round took on the floor of this row, in microseconds of CPU time.
    pub(crate) fn note_floor(&mut self, load: &str, row: &str, floor_us: f64) {
        self.samples.note(key(load, row, "floor µs"), floor_us);
    }

    fn ratio(&self, load: &str, one: (&str, &str), other: (&str, &str)) -> String {
        let [one, other] = [one, other].map(|(row, figure)| key(load, row, figure));
        let ratio = self.samples.ratio(&one, &other);
        ratio.map_or_else(String::new, |ratio: Median| ratio.to_string())
    }

    pub(crate) fn print(&self, targets: &[Target]) {
        println!(
            "medians; × tgt: tgt's CPU time on the same medium, divided by Sanstone's; × floor: Sanstone's CPU time \
             divided by that of bare TCP and of the I/O on the file alone; medians of pairs with 95 % intervals"
        );
        for load in &self.loads {
            println!(
                "\n{load:<40} {:>9} {:>9} {:>9} {:>24} {:>9} {:>20} {:>20}",
                "IOPS", "p50 µs", "p99 µs", "target µs/IO", "client µs", "× tgt", "× floor"
            );
            for row in &self.rows {
                let median = |figure| self.samples.median(&key(load, row, figure));
                let Some(target_us) = median("target µs") else {
                    continue;
                };
                let [iops, p50, p99, client] = ["IOPS", "p50 µs", "p99 µs", "client µs"]
                    .map(|figure| median(figure).map_or(f64::NAN, |median| median.median));
                let target = targets.iter().find(|target| target.name == *row);
                let tgt = target
                    .filter(|target| target.is_own)
                    .and_then(Target::tgt_beside);
                let tgt = tgt.map(|tgt| self.ratio(load, (&tgt, "target µs"), (row, "target µs")));
                let floor = self.ratio(load, (row, "target µs"), (row, "floor µs"));
                println!(
                    "  {row:<38} {iops:>9.0} {p50:>9.1} {p99:>9.1} {target_us:>24} {client:>9.2} {:>20} {floor:>20}",
                    tgt.unwrap_or_default()
                );
            }
            let memory = targets
                .iter()
                .find(|target| target.is_own && target.file().is_none());
            if let Some(memory) = memory {
                let ours = (OUR_CLIENT, "client µs");
                let to_stock = self.ratio(load, ours, (&memory.name, "client µs"));
                if !to_stock.is_empty() {
                    println!("  our client's CPU time, × libiscsi's: {to_stock}");
                }
            }
        }
    }

    /// Writes a file that `sanstone lab history` reads: its scores are the CPU times of our own targets.
    pub(crate) fn write(&self, file: &Path, call: &Call, lanes: &Samples) {
        let is_score = |name: &&str| name.contains(", Sanstone, ") && name.ends_with(", target µs");
        let scores = self.samples.names().filter(is_score).map(|name| {
            let median = self.samples.median(name).map(|median| median.median);
            json!({ "name": name, "value": median, "more_is_better": false })
        });
        let run = json!({
            "profile": "bench",
            "on": ["targets on this machine"],
            "machine": lab::machine::facts(),
            "settings": { "rounds": call.rounds, "seconds": call.seconds },
            "scores": scores.collect::<Vec<Value>>(),
            "figures": { "samples": self.samples.json(), "lanes": lanes.json() },
        });
        std::fs::write(file, format!("{run:#}\n"))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}
