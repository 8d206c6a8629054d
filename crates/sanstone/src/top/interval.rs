//! What happened between two samples: rates, and latencies of the requests that completed in between.
//! Counters only grow; one that has shrunk belongs to a restarted daemon, and counts as unchanged.

use std::collections::{BTreeMap, BTreeSet};

use node::{
    description::{CacheDescription, InProgress, PathSession, RequestCounts},
    health::Verdict,
};
use serde::Serialize;

use crate::admin::Sample;

/// The age of a request is known to the second in which it came.
const RESOLUTION_S: f64 = 1.0;

/// An interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Interval {
    /// The version of this JSON schema.
    version: u32,
    /// Length of the interval.
    pub(crate) seconds: f64,
    /// CPU time of the process; 100 is one CPU all the time.
    pub(crate) cpu_percent: f64,
    /// The same without the time in which lanes looked for work in vain, such as while a client was slow.
    pub(crate) busy_percent: f64,
    /// CPU time per command, in microseconds; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_us_per_io: Option<f64>,
    /// The same without looking for work in vain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) busy_us_per_io: Option<f64>,
    /// The commands of all initiators.
    pub(crate) total: Rates,
    /// By the path of the node.
    pub(crate) nodes: BTreeMap<String, ActivityRow>,
    /// By the path of the cache.
    pub(crate) caches: BTreeMap<String, CacheRates>,
    /// By the volume that is served.
    pub(crate) volumes: BTreeMap<String, ActivityRow>,
    /// By the initiator.
    pub(crate) initiators: BTreeMap<String, ActivityRow>,
    /// The sessions of each remote disk at its end, by the path of the node.
    pub(crate) paths: BTreeMap<String, Vec<PathSession>>,
    /// How everything is at its end.
    pub(crate) verdict: Verdict,
}

/// The activity of one node, cache, volume or initiator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ActivityRow {
    /// All kinds together.
    pub(crate) all: Rates,
    /// By the kind of request.
    pub(crate) kinds: BTreeMap<String, Rates>,
}

/// Rates and times.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// Per second.
    pub(crate) iops: f64,
    /// Per second.
    pub(crate) bytes: f64,
    /// Failed requests per second.
    pub(crate) errors: f64,
    /// Average number in progress in the daemon, also of those that do not end.
    pub(crate) queue: f64,
    /// For how long the oldest of them has been in progress, if that is longer than the interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_s: Option<f64>,
    /// Median latency; absent if nothing completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    /// 99th percentile of the latency; absent if nothing completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
}

/// The activity of a cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct CacheRates {
    /// Percentage of reads answered from memory immediately; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hit_percent: Option<f64>,
    /// Reads per second that waited for data already being fetched.
    pub(crate) late_hits: f64,
    /// Reads per second that had to go to the layer below.
    pub(crate) misses: f64,
    /// Bytes per second read ahead.
    pub(crate) read_ahead_bytes: f64,
    /// Bytes per second read ahead and never used.
    pub(crate) read_ahead_wasted_bytes: f64,
}

impl CacheRates {
    fn between(
        before: Option<&CacheDescription>,
        after: &CacheDescription,
        seconds: f64,
    ) -> CacheRates {
        let none = CacheDescription::default();
        let before = before.unwrap_or(&none);
        let count = |of: fn(&CacheDescription) -> u64| of(after).saturating_sub(of(before)) as f64;
        let hits = count(|cache| cache.hits);
        let reads = hits + count(|cache| cache.late_hits) + count(|cache| cache.misses);
        CacheRates {
            hit_percent: (reads > 0.0).then(|| hits * 100.0 / reads),
            late_hits: count(|cache| cache.late_hits) / seconds,
            misses: count(|cache| cache.misses) / seconds,
            read_ahead_bytes: count(|cache| cache.read_ahead_bytes) / seconds,
            read_ahead_wasted_bytes: count(|cache| cache.read_ahead_wasted_bytes) / seconds,
        }
    }
}

/// The counts of an interval.
#[derive(Clone, Debug, Default)]
struct Delta {
    errors: u64,
    bytes: u64,
    busy_ns: u64,
    times_ns: BTreeMap<u64, u64>,
    pending: u64,
    oldest_s: f64,
}

impl Delta {
    fn between(before: Option<&RequestCounts>, after: &RequestCounts) -> Delta {
        let none = RequestCounts::default();
        let before = before.unwrap_or(&none);
        let known: BTreeMap<u64, u64> = before.times_ns.iter().copied().collect();
        let times = after.times_ns.iter().filter_map(|&(ns, count)| {
            let known = known.get(&ns).copied().unwrap_or_default();
            let new = count.saturating_sub(known);
            (new > 0).then_some((ns, new))
        });
        Delta {
            errors: after.errors.saturating_sub(before.errors),
            bytes: after.bytes.saturating_sub(before.bytes),
            busy_ns: after.busy_ns.saturating_sub(before.busy_ns),
            times_ns: times.collect(),
            pending: after.pending,
            oldest_s: after.oldest_s.unwrap_or_default(),
        }
    }

    fn add(&mut self, other: &Delta) {
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.busy_ns += other.busy_ns;
        self.pending += other.pending;
        self.oldest_s = self.oldest_s.max(other.oldest_s);
        for (ns, count) in &other.times_ns {
            *self.times_ns.entry(*ns).or_default() += count;
        }
    }

    fn wait(&mut self, in_progress: InProgress) {
        self.pending += in_progress.pending;
        self.oldest_s = self.oldest_s.max(in_progress.oldest_s.unwrap_or_default());
    }

    fn count(&self) -> u64 {
        self.times_ns.values().sum()
    }

    /// The latency that `percent` % of the requests did not exceed.
    fn quantile_us(&self, percent: u64) -> Option<f64> {
        let wanted = (self.count() * percent).div_ceil(100).max(1);
        let mut so_far = 0;
        let mut times = self.times_ns.iter();
        let found = times.find(|(_, count)| {
            so_far += **count;
            so_far >= wanted
        });
        found.map(|(ns, _)| *ns as f64 / 1000.0)
    }

    fn rates(&self, seconds: f64) -> Rates {
        let rate = |count: u64| count as f64 / seconds;
        let average = self.busy_ns as f64 / 1e9 / seconds;
        // What has lasted for longer than the interval is in no count yet. It may be all that there is.
        let hangs = self.oldest_s > seconds.max(RESOLUTION_S);
        Rates {
            iops: rate(self.count()),
            bytes: rate(self.bytes),
            errors: rate(self.errors),
            queue: if hangs {
                average.max(self.pending as f64)
            } else {
                average
            },
            oldest_s: hangs.then_some(self.oldest_s),
            p50_us: self.quantile_us(50),
            p99_us: self.quantile_us(99),
        }
    }
}

type Kinds = BTreeMap<String, RequestCounts>;
type ByName<T> = BTreeMap<String, T>;
/// The counts before and after, and what is in progress besides, of whatever kind.
type Counted<'a> = (&'a ByName<Kinds>, &'a ByName<Kinds>, &'a ByName<InProgress>);

impl Interval {
    /// What happened from `before` to `after`.
    pub(crate) fn between(before: &Sample, after: &Sample) -> Interval {
        // Two samples at the same moment are not an interval; a nanosecond keeps the rates finite.
        let ns = after.at_ns.saturating_sub(before.at_ns).max(1);
        let seconds = ns as f64 / 1e9;
        let cpu_ns = after.cpu_ns.saturating_sub(before.cpu_ns);
        let busy_ns = cpu_ns.saturating_sub(after.looked_ns.saturating_sub(before.looked_ns));
        let mut total = Delta::default();
        let (was, is) = (&before.counters, &after.counters);
        let none = BTreeMap::new();
        let volumes = (&was.volumes, &is.volumes, &is.volumes_in_progress);
        let volumes = rows(volumes, seconds, |delta| total.add(delta));
        let initiators = (&was.initiators, &is.initiators, &is.initiators_in_progress);
        let commands = total.count();
        let percent = |of_ns: u64| of_ns as f64 * 100.0 / ns as f64;
        let us_per_io =
            |of_ns: u64| (commands > 0).then(|| of_ns as f64 / 1000.0 / commands as f64);
        Interval {
            version: 1,
            seconds,
            cpu_percent: percent(cpu_ns),
            busy_percent: percent(busy_ns),
            cpu_us_per_io: us_per_io(cpu_ns),
            busy_us_per_io: us_per_io(busy_ns),
            total: total.rates(seconds),
            nodes: rows((&was.nodes, &is.nodes, &none), seconds, |_| {}),
            caches: is
                .caches
                .iter()
                .map(|(path, cache)| {
                    let known = was.caches.get(path);
                    (path.clone(), CacheRates::between(known, cache, seconds))
                })
                .collect(),
            volumes,
            initiators: rows(initiators, seconds, |_| {}),
            paths: after.paths.clone(),
            verdict: after.verdict.clone(),
        }
    }
}

/// The rows of everything that exists now; `each` receives the counts of each.
fn rows(
    (before, after, in_progress): Counted<'_>,
    seconds: f64,
    mut each: impl FnMut(&Delta),
) -> BTreeMap<String, ActivityRow> {
    // One whose first commands hang has no counts yet.
    let waiting = in_progress.iter().filter(|(_, it)| it.pending > 0);
    let names: BTreeSet<&String> = after.keys().chain(waiting.map(|(name, _)| name)).collect();
    let mut rows = BTreeMap::new();
    for name in names {
        let known = before.get(name);
        let mut all = Delta::default();
        all.wait(in_progress.get(name).copied().unwrap_or_default());
        let mut by_kind = BTreeMap::new();
        for (kind, counted) in after.get(name).into_iter().flatten() {
            let known = known.and_then(|known| known.get(kind));
            let delta = Delta::between(known, counted);
            all.add(&delta);
            if delta.count() + delta.pending > 0 {
                by_kind.insert(kind.clone(), delta.rates(seconds));
            }
        }
        each(&all);
        let row = ActivityRow {
            all: all.rates(seconds),
            kinds: by_kind,
        };
        rows.insert(name.clone(), row);
    }
    rows
}

#[cfg(test)]
mod tests {
    use node::description::CounterSnapshot;

    use super::*;

    fn counted(bytes: u64, times_ns: &[(u64, u64)]) -> RequestCounts {
        RequestCounts {
            errors: 0,
            pending: 0,
            oldest_s: None,
            bytes,
            times_ns: times_ns.to_vec(),
            busy_ns: times_ns.iter().map(|(ns, count)| ns * count).sum(),
        }
    }

    fn sample(at_s: u64, cpu_ns: u64, read: RequestCounts) -> Sample {
        let kinds = BTreeMap::from([("read".to_owned(), read)]);
        let rows = |name: &str| BTreeMap::from([(name.to_owned(), kinds.clone())]);
        Sample {
            at_ns: at_s * 1_000_000_000,
            cpu_ns,
            looked_ns: cpu_ns / 4,
            paths: BTreeMap::new(),
            counters: CounterSnapshot {
                nodes: rows("db/file"),
                volumes: rows("db"),
                initiators: rows("iqn.a"),
                ..CounterSnapshot::default()
            },
            verdict: Verdict::default(),
        }
    }

    #[test]
    fn an_interval_has_what_ended_in_it_and_nothing_before() {
        // Before the interval, a thousand slow ones.
        let before = sample(10, 5_000_000, counted(1 << 20, &[(9_000_000, 1000)]));
        let times = [(1_000_000, 98), (2_000_000, 2), (9_000_000, 1000)];
        let after = sample(12, 405_000_000, counted((1 << 20) + 8192, &times));
        let interval = Interval::between(&before, &after);
        assert_eq!(interval.seconds, 2.0);
        assert_eq!(interval.cpu_percent, 20.0);
        assert_eq!(interval.cpu_us_per_io, Some(4000.0));
        assert_eq!(interval.busy_percent, 15.0);
        assert_eq!(interval.busy_us_per_io, Some(3000.0));
        let expected = Rates {
            iops: 50.0,
            bytes: 4096.0,
            errors: 0.0,
            queue: 0.051,
            oldest_s: None,
            p50_us: Some(1000.0),
            p99_us: Some(2000.0),
        };
        assert_eq!(interval.total, expected);
        for rows in [&interval.nodes, &interval.volumes, &interval.initiators] {
            let row = rows.values().next().expect("a row");
            assert_eq!((&row.all, &row.kinds["read"]), (&expected, &expected));
        }
    }

    #[test]
    fn what_hangs_is_in_the_queue_although_nothing_ends() {
        let before = sample(10, 0, counted(0, &[]));
        let hanging = |oldest_s| RequestCounts {
            pending: 3,
            oldest_s: Some(oldest_s),
            ..counted(0, &[])
        };
        let interval = |oldest_s| Interval::between(&before, &sample(12, 0, hanging(oldest_s)));
        let rates = |interval: &Interval| interval.nodes["db/file"].all.clone();
        let hung = rates(&interval(45.2));
        assert_eq!(
            (hung.iops, hung.queue, hung.oldest_s),
            (0.0, 3.0, Some(45.2))
        );
        let busy = rates(&interval(1.9));
        assert_eq!((busy.queue, busy.oldest_s), (0.0, None));
    }

    #[test]
    fn neither_a_volume_whose_first_commands_hang_nor_who_waits_for_it_is_idle() {
        let waits = InProgress {
            pending: 3,
            oldest_s: Some(45.2),
        };
        let (before, mut after) = (Sample::default(), Sample::default());
        after.at_ns = 2_000_000_000;
        after.counters.volumes_in_progress = BTreeMap::from([
            ("db".to_owned(), waits),
            ("spare".to_owned(), InProgress::default()),
        ]);
        after.counters.initiators_in_progress = BTreeMap::from([("host".to_owned(), waits)]);
        let interval = Interval::between(&before, &after);
        assert_eq!(interval.volumes.keys().collect::<Vec<_>>(), ["db"]);
        for rates in [
            &interval.total,
            &interval.volumes["db"].all,
            &interval.initiators["host"].all,
        ] {
            assert_eq!((rates.queue, rates.oldest_s), (3.0, Some(45.2)));
        }
    }

    #[test]
    fn a_cache_has_the_reads_of_the_interval_and_its_waste() {
        let sample = |at_s: u64, hits, misses, wasted| Sample {
            at_ns: at_s * 1_000_000_000,
            cpu_ns: 0,
            looked_ns: 0,
            paths: BTreeMap::new(),
            counters: CounterSnapshot {
                caches: BTreeMap::from([(
                    "db/cache".to_owned(),
                    CacheDescription {
                        hits,
                        misses,
                        read_ahead_wasted_bytes: wasted,
                        ..CacheDescription::default()
                    },
                )]),
                ..CounterSnapshot::default()
            },
            verdict: Verdict::default(),
        };
        let before = sample(10, 1000, 5000, 1 << 20);
        let between = |after: &Sample| Interval::between(&before, after).caches["db/cache"].clone();
        let expected = CacheRates {
            hit_percent: Some(95.0),
            misses: 2.5,
            read_ahead_wasted_bytes: 4096.0,
            ..CacheRates::default()
        };
        assert_eq!(between(&sample(12, 1095, 5005, (1 << 20) + 8192)), expected);
        assert_eq!(between(&sample(12, 1000, 5000, 1 << 20)).hit_percent, None);
    }

    #[test]
    fn a_daemon_that_began_anew_and_one_that_is_idle_give_nothing() {
        let busy = sample(10, 5_000_000, counted(4096, &[(1_000_000, 10)]));
        let anew = sample(11, 1_000_000, counted(0, &[]));
        for (before, after) in [(&busy, &anew), (&busy, &busy)] {
            let interval = Interval::between(before, after);
            assert_eq!(interval.total, Rates::default());
            assert_eq!(interval.cpu_us_per_io, None);
            assert_eq!(interval.nodes["db/file"].kinds, BTreeMap::new());
        }
    }
}
