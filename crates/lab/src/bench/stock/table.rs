//! The first table: every sample of the libiscsi client and of the floors. For people it shows medians and
//! two ratios with their intervals, each the median of one pair per round: tgt's CPU time divided by ours on
//! the same medium, and ours divided by the sum of the floors.

use std::fmt::Write;

use serde::Serialize;

use super::{CASES, OurClientSample, StockCase, StockSample};
use crate::{
    bench::{
        peers::Medium,
        report::{FLOOR, PeerReport, Row},
    },
    statistics::Median,
};

/// Samples by load and by target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StockTable {
    cases: Vec<StockReport>,
}

#[derive(Clone, Debug, Serialize)]
struct StockReport {
    #[serde(flatten)]
    case: StockCase,
    /// By target, in the order of the report's `peers`; for the floor, the bytes through TCP.
    samples: Vec<Vec<StockSample>>,
    /// The I/O on each target's file alone; empty for a disk in memory.
    file_floors: Vec<Vec<StockSample>>,
    /// Our own client instead of libiscsi, on our disk in memory.
    our_client: Vec<OurClientSample>,
}

impl StockTable {
    /// An empty table for `peers` targets.
    pub(crate) fn new(peers: usize) -> StockTable {
        let cases = CASES.iter().map(|&case| StockReport {
            case,
            samples: vec![Vec::new(); peers],
            file_floors: vec![Vec::new(); peers],
            our_client: Vec::new(),
        });
        StockTable {
            cases: cases.collect(),
        }
    }

    /// Adds a sample of load `case` (its index in [`CASES`]) on target `peer`.
    pub(crate) fn add(&mut self, case: usize, peer: usize, sample: StockSample) {
        self.cases[case].samples[peer].push(sample);
    }

    /// Adds the cost of load `case` on the file of target `peer` alone, if it has one.
    pub(crate) fn add_file_floor(&mut self, case: usize, peer: usize, sample: Option<StockSample>) {
        self.cases[case].file_floors[peer].extend(sample);
    }

    /// Adds the cost of load `case` for our own client.
    pub(crate) fn add_our_client(&mut self, case: usize, sample: OurClientSample) {
        self.cases[case].our_client.push(sample);
    }

    /// The loads that were run.
    fn measured(&self) -> impl Iterator<Item = &StockReport> {
        let cases = self.cases.iter();
        cases.filter(|case| case.samples.iter().any(|samples| !samples.is_empty()))
    }

    /// Median CPU time of the client per I/O in load `name` on target `peer`, in microseconds.
    pub(crate) fn client_us(&self, name: &str, peer: usize) -> Option<f64> {
        let case = self.measured().find(|case| case.case.name == name)?;
        Some(case.median(peer, |sample| sample.client_us))
    }

    /// The results of our own targets, for the loads that were run.
    pub(crate) fn rows(&self, peers: &[PeerReport]) -> Vec<Row> {
        let mut rows = Vec::new();
        for case in self.measured() {
            for (peer, own) in peers.iter().enumerate() {
                let Some(medium) = own.medium.filter(|_| own.is_own() && own.wait.is_none()) else {
                    continue;
                };
                if case.samples[peer].is_empty() {
                    continue;
                }
                rows.push(Row {
                    name: case.case.name,
                    medium: medium.name(),
                    iops: case.median(peer, |sample| sample.iops),
                    target_us: case.median(peer, |sample| sample.target_us),
                    times_tgt: case.times_tgt(peers, peer).median,
                    times_floor: case.times_floor(peers, peer).median,
                });
            }
        }
        rows
    }

    /// Writes the table.
    pub(crate) fn write(&self, peers: &[PeerReport], out: &mut String) {
        if self.measured().next().is_none() {
            return;
        }
        let _ = writeln!(
            out,
            "\nClient: libiscsi. Medians; × tgt: tgt's CPU time on the same medium, divided by \
             Sanstone's; × floor: Sanstone's CPU time divided by that of bare TCP plus that of the I/O \
             on the file alone; each with the median of pairs and its 95 % interval"
        );
        for case in self.measured() {
            let _ = writeln!(
                out,
                "\n{:<32} {:>9} {:>9} {:>9} {:>12} {:>9} {:>8}{:>26}",
                case.case.name,
                "IOPS",
                "p50 µs",
                "p99 µs",
                "target µs/IO",
                "client µs",
                "× tgt",
                "× floor"
            );
            for (peer, PeerReport { name, .. }) in peers.iter().enumerate() {
                if case.samples[peer].is_empty() {
                    continue;
                }
                let name = match peer {
                    FLOOR => "bare TCP",
                    _ => name,
                };
                let own = |of: fn(&StockSample) -> f64| case.median(peer, of);
                let _ = writeln!(
                    out,
                    "  {name:<30} {:>9.0} {:>9.1} {:>9.1} {:>12.2} {:>9.2} {:<24} {}",
                    own(|sample| sample.iops),
                    own(|sample| sample.p50_us),
                    own(|sample| sample.p99_us),
                    own(|sample| sample.target_us),
                    own(|sample| sample.client_us),
                    ratio(case.times_tgt(peers, peer)),
                    ratio(case.times_floor(peers, peer)),
                );
                let alone = &case.file_floors[peer];
                if !alone.is_empty() {
                    let alone = |of: fn(&StockSample) -> f64| median(alone, of);
                    let _ = writeln!(
                        out,
                        "  {:<30} {:>9.0} {:>9.1} {:>9.1} {:>12.2}",
                        "  its file alone",
                        alone(|sample| sample.iops),
                        alone(|sample| sample.p50_us),
                        alone(|sample| sample.p99_us),
                        alone(|sample| sample.target_us),
                    );
                }
            }
            case.write_our_client(peers, out);
        }
    }
}

impl StockReport {
    fn median(&self, peer: usize, of: impl Fn(&StockSample) -> f64) -> f64 {
        median(&self.samples[peer], of)
    }

    /// Writes the cost of our own client, compared round by round with libiscsi and with a client of bare TCP.
    fn write_our_client(&self, peers: &[PeerReport], out: &mut String) {
        let in_memory = |peer: &PeerReport| peer.is_own() && peer.medium == Some(Medium::Memory);
        let Some(peer) = peers.iter().position(in_memory) else {
            return;
        };
        if self.our_client.is_empty() {
            return;
        }
        let own = |of: fn(&OurClientSample) -> f64| {
            let values: Vec<f64> = self.our_client.iter().map(of).collect();
            Median::of(&values).median
        };
        let times = |peer: usize| {
            let pairs = self.our_client.iter().zip(&self.samples[peer]);
            let ratios: Vec<f64> = pairs
                .map(|(own, other)| own.client_us / other.client_us)
                .collect();
            ratio(Median::of(&ratios))
        };
        let _ = writeln!(
            out,
            "  {:<30} {:>9.0} {:>9.1} {:>9.1} {:>12} {:>9.2} {} of libiscsi's CPU time, {} of bare TCP's client",
            "  our own client on it",
            own(|sample| sample.iops),
            own(|sample| sample.p50_us),
            own(|sample| sample.p99_us),
            "",
            own(|sample| sample.client_us),
            times(peer).trim_start(),
            times(FLOOR).trim_start(),
        );
    }

    /// How many times less CPU time a target uses than tgt on the same medium, round by round.
    fn times_tgt(&self, peers: &[PeerReport], peer: usize) -> Median {
        let Some(tgt) = peers[peer].tgt_beside(peers) else {
            return Median::of(&[]);
        };
        let pairs = self.samples[tgt].iter().zip(&self.samples[peer]);
        let ratios: Vec<f64> = pairs
            .map(|(tgt, own)| tgt.target_us / own.target_us)
            .collect();
        Median::of(&ratios)
    }

    /// CPU time of one of our own targets as a multiple of its floors', round by round.
    fn times_floor(&self, peers: &[PeerReport], peer: usize) -> Median {
        if !peers[peer].is_own() {
            return Median::of(&[]);
        }
        let rounds = self.samples[peer].iter().zip(&self.samples[FLOOR]);
        let ratios: Vec<f64> = rounds
            .enumerate()
            .map(|(round, (own, tcp))| {
                let alone = self.file_floors[peer].get(round);
                own.target_us / (tcp.target_us + alone.map_or(0.0, |alone| alone.target_us))
            })
            .collect();
        Median::of(&ratios)
    }
}

fn median(samples: &[StockSample], of: impl Fn(&StockSample) -> f64) -> f64 {
    Median::of_each(samples, of).median
}

/// Formats a ratio with its interval, or nothing if there was nothing to compare with.
fn ratio(of: Median) -> String {
    if !of.median.is_finite() {
        return String::new();
    }
    let interval = of.interval.map_or(String::new(), |(least, most)| {
        format!(" [{least:.2} … {most:.2}]")
    });
    format!("{:>7.2}×{interval}", of.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(target_us: f64) -> StockSample {
        StockSample {
            iops: 1.0,
            p50_us: 1.0,
            p99_us: 1.0,
            target_us,
            client_us: 1.0,
            late_p50_us: 0.0,
            late_p99_us: 0.0,
        }
    }

    #[test]
    fn ratios_are_of_the_same_medium_and_its_floors_round_by_round() {
        let peer = |name: &str, medium| PeerReport {
            name: name.to_owned(),
            medium,
            wait: None,
        };
        let peers = [
            peer("floor", None),
            peer("Sanstone, page-cache file", Some(Medium::CachedFile)),
            peer("tgt, direct file", Some(Medium::DirectFile)),
            peer("tgt, page-cache file", Some(Medium::CachedFile)),
            peer("Sanstone, memory", Some(Medium::Memory)),
        ];
        let mut table = StockTable::new(peers.len());
        for (own, tgt) in [(10.0, 30.0), (20.0, 20.0), (10.0, 20.0)] {
            table.add(0, 1, sample(own));
            table.add(0, 2, sample(1000.0));
            table.add(0, 3, sample(tgt));
            table.add(0, 4, sample(1.0));
            table.add(0, FLOOR, sample(own / 4.0));
            table.add_file_floor(0, 1, Some(sample(own / 4.0)));
            table.add_file_floor(0, 4, None);
        }
        let rows = table.rows(&peers);
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (rows[0].medium, rows[0].times_tgt),
            ("page-cache file", 2.0)
        );
        assert_eq!(rows[0].times_floor, 2.0, "bare TCP and the file");
        assert_eq!(rows[1].times_floor, 0.4, "bare TCP");
        assert!(rows[1].times_tgt.is_nan(), "tgt has no disk in memory");
    }
}
