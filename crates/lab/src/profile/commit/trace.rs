//! Records what ran when within a commit: the database's calls, and below them each request of each node and
//! each command, all by one clock. Of many commits, an evenly spaced sample is kept.

use std::time::{Duration, Instant};

use engine::{Lane, time};
use volume::layers::{Ran, Span};

use super::nodes::Nodes;

/// Maximum spans of all kept commits together: some 20 MB.
const SPANS_MAX: usize = 200_000;

/// One commit; times are nanoseconds since its start.
#[derive(Clone, Debug, Default)]
pub(super) struct Traced {
    /// Its number among the traced commits, from 0.
    pub(super) place: usize,
    /// Its number among all commits, from 1.
    pub(super) number: usize,
    pub(super) total_ns: u64,
    /// In order and without overlap.
    pub(super) calls: Vec<DiskWait>,
    pub(super) works: Vec<TracedWork>,
    /// Spans that ran but were not kept.
    pub(super) left_out: usize,
}

/// An interval in which the database waited for its disk.
#[derive(Clone, Debug)]
pub(super) struct DiskWait {
    /// Such as "write".
    pub(super) kind: &'static str,
    pub(super) len_bytes: u64,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
}

/// Something that worked for the database meanwhile.
#[derive(Clone, Debug)]
pub(super) struct TracedWork {
    /// The index of its node, if the tree is known.
    pub(super) node: Option<usize>,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) what: Activity,
}

#[derive(Clone, Debug)]
pub(super) enum Activity {
    Request {
        kind: &'static str,
        len_bytes: u64,
        is_medium: bool,
    },
    Command {
        /// It was queued until then.
        sent_ns: u64,
        /// How long the target reports having had it.
        target_ns: Option<u64>,
        /// The part of that spent in the target's medium.
        medium_ns: u64,
    },
}

impl TracedWork {
    pub(super) fn is_at(&self, from_ns: u64) -> bool {
        self.from_ns <= from_ns && from_ns < self.to_ns
    }
}

/// Relates the lane's clock to the thread's clock.
pub(super) struct Clock {
    thread: Instant,
    lane: engine::Instant,
}

impl Clock {
    pub(super) fn of(lane: &Lane) -> Clock {
        let before = Instant::now();
        let lane = lane.block_on(async { time::now() });
        Clock {
            thread: before + before.elapsed() / 2,
            lane,
        }
    }

    /// Nanoseconds from `began` to this moment.
    fn since(&self, began: Instant, at: engine::Instant) -> u64 {
        let at = self.thread + at.since(self.lane);
        at.saturating_duration_since(began).as_nanos() as u64
    }
}

/// Converts the spans of a watch to works of a commit that started at `began` and took `total`.
pub(super) fn works(
    spans: Vec<Span>,
    nodes: &Nodes,
    clock: &Clock,
    (began, total): (Instant, Duration),
) -> Vec<TracedWork> {
    let total_ns = total.as_nanos() as u64;
    let ns = |at| clock.since(began, at).min(total_ns);
    let nanos = |of: engine::Duration| of.as_nanos() as u64;
    let work = |span: Span| TracedWork {
        node: nodes.index_of(&span.node),
        from_ns: ns(span.began),
        to_ns: ns(span.ended),
        what: match span.ran {
            Ran::Request(request) => Activity::Request {
                kind: request.kind,
                len_bytes: request.len_bytes,
                is_medium: request.is_medium,
            },
            Ran::Command { sent, told } => Activity::Command {
                sent_ns: ns(sent),
                target_ns: told.map(|told| nanos(told.total)),
                medium_ns: told.and_then(|told| told.medium).map_or(0, nanos),
            },
        },
    };
    let mut works: Vec<TracedWork> = spans.into_iter().map(work).collect();
    works.sort_by_key(|work| (work.node, work.from_ns));
    works
}

/// The kept commits: all at first; when their spans exceed the limit, every other one is dropped.
#[derive(Debug, Default)]
pub(super) struct KeptCommits {
    pub(super) commits: Vec<Traced>,
    spans: usize,
    /// The sampling interval, as a power of two.
    one_of: u32,
    count: usize,
}

impl KeptCommits {
    pub(super) fn add(&mut self, commit: impl FnOnce(usize) -> Traced) {
        let place = self.count;
        self.count += 1;
        if place % (1 << self.one_of) != 0 {
            return;
        }
        let commit = commit(place);
        self.spans += commit.works.len();
        self.commits.push(commit);
        while self.spans > SPANS_MAX && self.commits.len() > 1 {
            self.one_of += 1;
            let one_of = 1 << self.one_of;
            self.commits.retain(|commit| commit.place % one_of == 0);
            self.spans = self.commits.iter().map(|commit| commit.works.len()).sum();
        }
    }

    /// The commit whose time is closest to this.
    pub(super) fn nearest(&self, total_us: f64) -> Option<&Traced> {
        let off = |commit: &&Traced| (commit.total_ns as f64 / 1e3 - total_us).abs();
        let commits = self.commits.iter();
        commits.min_by(|a, b| off(a).total_cmp(&off(b)))
    }

    /// The commits whose times rank between the fractions `from` and `to` of all.
    pub(super) fn band(&self, from: f64, to: f64) -> Vec<&Traced> {
        let mut sorted: Vec<&Traced> = self.commits.iter().collect();
        sorted.sort_by_key(|commit| commit.total_ns);
        let count = sorted.len() as f64;
        let from = ((from * count) as usize).min(sorted.len().saturating_sub(1));
        let to = ((to * count).ceil() as usize).clamp(from, sorted.len());
        sorted[from..to.max((from + 1).min(sorted.len()))].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_from_all_of_the_time() {
        let work = TracedWork {
            node: None,
            from_ns: 0,
            to_ns: 1,
            what: Activity::Request {
                kind: "write",
                len_bytes: 1,
                is_medium: true,
            },
        };
        let mut kept = KeptCommits::default();
        let count = 10 * SPANS_MAX / 50;
        for _ in 0..count {
            kept.add(|place| Traced {
                place,
                number: place + 1,
                total_ns: place as u64 * 1000,
                works: vec![work.clone(); 50],
                ..Traced::default()
            });
        }
        let commits = &kept.commits;
        let spans: usize = commits.iter().map(|commit| commit.works.len()).sum();
        assert!(spans <= SPANS_MAX && spans > SPANS_MAX / 4, "{spans}");
        let step = commits[1].place;
        assert!(
            commits
                .windows(2)
                .all(|two| two[1].place - two[0].place == step)
        );
        assert!(commits.last().expect("some").place + step >= count);
        let middle = kept.nearest(count as f64 / 2.0).expect("some").place;
        assert!(middle.abs_diff(count / 2) <= step, "{middle}");
        assert!(kept.band(0.45, 0.55).iter().all(|c| c.place > count / 3));
        assert_eq!(KeptCommits::default().band(0.45, 0.55).len(), 0);
    }
}
