//! Derives advice from the figures of many commits. It is given only where one part of the time is large with
//! certainty, judged by a confidence interval over sections of the run, and it names the setting responsible.

use std::collections::BTreeMap;

use super::{
    layer::Layer,
    nodes::Nodes,
    own::{Own, Owner},
    trace::{Activity, KeptCommits, Traced, TracedWork},
};
use crate::{
    profile::{
        medium::Kinds,
        share::{LARGE, Proportion},
    },
    report::time_us,
    target::FILE,
};

/// The run is divided into this many sections; each yields one sample of how large a part of the commit time
/// something is.
const PARTS: usize = 12;
/// A part larger than this deserves advice if it is spent waiting for one share that is slower than the
/// others.
const UNEQUAL: f64 = 0.25;
/// A share is slower if a request to it takes at least this many times as long as one to each of the others. One that has
/// more requests is busier, not slower.
const SLOWER: f64 = 2.0;

/// Advice about the calls that the database makes.
pub(super) fn of_calls(all: &[super::Spent]) -> Option<String> {
    let size = all.len().div_ceil(PARTS).max(1);
    for (name, part_ns) in super::PARTS {
        let sum = |commits: &[super::Spent], of: fn(&super::Spent) -> u64| {
            commits.iter().map(of).sum::<u64>() as f64
        };
        let parts = all
            .chunks(size)
            .map(|commits| (sum(commits, part_ns), sum(commits, |c| c.total_ns)));
        if let Some(share) = Proportion::of(parts).told_above(LARGE) {
            let mend = match name {
                super::DURABLE => {
                    "let several rows share a commit, or commits share a flush (MariaDB: \
                     binlog_commit_wait_usec; MySQL: binlog_group_commit_sync_delay; PostgreSQL: commit_delay), or \
                     give the log a medium that makes writes durable sooner"
                }
                super::DATABASE => {
                    "a faster disk would not help; let several rows share a transaction, and look at what else \
                     an insert does (SHOW TRIGGERS, indexes; `setup` of this profile)"
                }
                super::READS => {
                    "give the database more memory for its pages (innodb_buffer_pool_size, shared_buffers)"
                }
                _ => {
                    "more writes are in flight than the disk can handle: limit them \
                      (innodb_io_capacity, checkpoint_completion_target)"
                }
            };
            return Some(format!("{share} of a commit is {name}: {mend}"));
        }
    }
    None
}

/// Advice about where in the volume the time is spent: one share of several that all wait for, or else one
/// layer of one node.
pub(super) fn of_nodes(kept: &KeptCommits, nodes: &Nodes) -> Option<String> {
    let size = kept.commits.len().div_ceil(PARTS).max(1);
    let parts: Vec<(Own, f64)> = kept
        .commits
        .chunks(size)
        .map(|commits| {
            let total_ns: u64 = commits.iter().map(|commit: &Traced| commit.total_ns).sum();
            (super::draw::sum(commits.iter(), nodes), total_ns as f64)
        })
        .collect();
    of_shares(kept, &parts, nodes).or_else(|| of_one_node(&parts, nodes))
}

/// The time that a node and those below it have in a commit, for one kind of request.
fn within(own: &Own, nodes: &Nodes, top: usize, kind: &str) -> f64 {
    let mine = own.iter().filter(|(owner, _)| {
        owner.kind == kind && owner.node.is_some_and(|node| nodes.is_within(node, top))
    });
    mine.map(|(_, ns)| ns).sum()
}

/// The mean time of the requests of one kind to a node, in nanoseconds; `None` if there were none.
fn each_ns(kept: &KeptCommits, node: usize, kind: &str) -> Option<f64> {
    let works = kept.commits.iter().flat_map(|commit| &commit.works);
    let is_it = |work: &&TracedWork| {
        let is_kind = matches!(work.what, Activity::Request { kind: of, .. } if of == kind);
        is_kind && work.node == Some(node)
    };
    let (count, sum_ns) = works.filter(is_it).fold((0_u32, 0), |(count, ns), work| {
        (count + 1, ns + (work.to_ns - work.from_ns))
    });
    (count > 0).then(|| sum_ns as f64 / f64::from(count))
}

fn of_shares(kept: &KeptCommits, parts: &[(Own, f64)], nodes: &Nodes) -> Option<String> {
    for kind in ["flush", "write", "read"] {
        for parent in 0..nodes.all().len() {
            // If the other shares had nothing to do, there is nothing to compare one with.
            let mut shares: Vec<(usize, f64)> = nodes
                .children(parent)
                .filter_map(|child| Some((child, each_ns(kept, child, kind)?)))
                .collect();
            shares.sort_by(|a, b| b.1.total_cmp(&a.1));
            let [(slowest, slowest_ns), (_, next_ns), ..] = shares[..] else {
                continue;
            };
            if slowest_ns < SLOWER * next_ns {
                continue;
            }
            let share = parts
                .iter()
                .map(|(own, whole)| (within(own, nodes, slowest, kind), *whole));
            let Some(told) = Proportion::of(share).told_above(UNEQUAL) else {
                continue;
            };
            let is_within = |owner: &Owner| {
                let node = owner.node;
                owner.kind == kind && node.is_some_and(|node| nodes.is_within(node, slowest))
            };
            let (layer, node) = largest(parts, is_within)?;
            return Some(format!(
                "{told} of a commit is waiting for the {kind} of {}, one of {} shares: {} for each, {:.1} times as \
                 long as for the next slowest; most of that is {}: {}",
                nodes.told(slowest),
                nodes.children(parent).count(),
                time_us(slowest_ns / 1e3),
                slowest_ns / next_ns,
                place(layer, node, nodes),
                mend(layer, node, nodes, &Kinds::of(std::iter::once((kind, 1.0)))),
            ));
        }
    }
    None
}

fn of_one_node(parts: &[(Own, f64)], nodes: &Nodes) -> Option<String> {
    let (layer, node) = largest(parts, |_| true)?;
    let mine = |own: &Own| -> f64 {
        let mine = own
            .iter()
            .filter(|(owner, _)| (owner.layer, owner.node) == (layer, Some(node)));
        mine.map(|(_, ns)| ns).sum()
    };
    let share = Proportion::of(parts.iter().map(|(own, whole)| (mine(own), *whole)));
    let told = share.told_above(LARGE)?;
    let kinds = kinds(parts, layer, node);
    let figure = match layer {
        Layer::Medium => kinds.told(),
        _ => String::new(),
    };
    Some(format!(
        "{told} of a commit is {}{figure}: {}",
        place(layer, node, nodes),
        mend(layer, node, nodes, &kinds)
    ))
}

/// A layer of a node, in words.
fn place(layer: Layer, node: usize, nodes: &Nodes) -> String {
    let told = nodes.told(node);
    match layer {
        Layer::Medium if nodes.all()[node].path == FILE => {
            format!("the disk below {}", nodes.place(node))
        }
        Layer::Volume => format!("{told} itself"),
        _ => format!("{} of {told}", layer.name()),
    }
}

/// The layer and node with the most time, among the owners that satisfy `counts`.
fn largest(parts: &[(Own, f64)], counts: impl Fn(&Owner) -> bool) -> Option<(Layer, usize)> {
    let mut sums = BTreeMap::new();
    for (owner, ns) in parts.iter().flat_map(|(own, _)| own) {
        if let Some(node) = owner.node.filter(|_| counts(owner)) {
            *sums.entry((owner.layer, node)).or_insert(0.0) += ns;
        }
    }
    let most = sums.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    most.map(|(at, _)| at)
}

/// The kinds of requests that take the time of a layer of a node.
fn kinds(parts: &[(Own, f64)], layer: Layer, node: usize) -> Kinds<'static> {
    let mut sums = BTreeMap::new();
    for (owner, ns) in parts.iter().flat_map(|(own, _)| own) {
        if (owner.layer, owner.node) == (layer, Some(node)) {
            *sums.entry(owner.kind).or_insert(0.0) += ns;
        }
    }
    Kinds::of(sums.into_iter())
}

/// The fix to suggest for a layer of a node.
fn mend(layer: Layer, node: usize, nodes: &Nodes, kinds: &Kinds<'_>) -> String {
    let path = &nodes.all()[node].path;
    match (layer, nodes.all()[node].kind) {
        (Layer::Volume, "throttle") => format!("raise `rate` or lower `latency` of {path}"),
        (Layer::Volume, "fault") => format!("remove the rule with `delay` from {path}"),
        (Layer::Line, _) => format!(
            "the window of that target is full: raise its `limits.commands`, or give {path} more `sessions`"
        ),
        (Layer::Wire, _) => format!(
            "look at the link to the `url` of {path} (ping, errors of the interface), or name a faster \
             one with `paths`"
        ),
        (Layer::Target, _) => {
            "run `sanstone show` on that machine: the node with the largest median is the cause"
                .to_owned()
        }
        (Layer::Medium, "iscsi") => format!(
            "put the `path` of the volume that this target serves on {}",
            kinds.disk()
        ),
        // A file named by its path may be on any file system.
        (Layer::Medium, "file") if path == FILE => format!(
            "if {} is on a volume of Sanstone, `sanstone show` shows which of its nodes it is; otherwise put the database \
             on {}",
            nodes.place(node),
            kinds.disk()
        ),
        (Layer::Medium, _) => format!("put the `path` of {path} on {}", kinds.disk()),
        (Layer::Untold, _) => {
            format!("look at the target behind the `url` of {path}, and at the link to it")
        }
        _ => format!("look at {path} in `sanstone show`"),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Spent, nodes::TreeNode, own::own_times, tests::spent, trace::DiskWait},
        *,
    };

    fn nodes() -> Nodes {
        let node = |path: &str, kind, parent| TreeNode {
            path: path.into(),
            kind,
            place: None,
            parent,
        };
        Nodes::made(vec![
            node("db/stripe", "stripe", None),
            node("db/stripe/0/file", "file", Some(0)),
            node("db/stripe/1/throttle", "throttle", Some(0)),
            node("db/stripe/1/throttle/file", "file", Some(2)),
        ])
    }

    /// A commit with a flush on two shares; the second spends `late_us` in its throttle first.
    fn commit(place: usize, own_us: u64, late_us: u64) -> Traced {
        const MEDIUM_NS: u64 = 100_000;
        let (from_ns, late_ns) = (own_us * 1000, late_us * 1000);
        let to_ns = from_ns + late_ns + MEDIUM_NS;
        let flush = |node, from_ns, to_ns, is_medium| TracedWork {
            node: Some(node),
            from_ns,
            to_ns,
            what: Activity::Request {
                kind: "flush",
                len_bytes: 0,
                is_medium,
            },
        };
        Traced {
            place,
            number: place + 1,
            total_ns: to_ns,
            calls: vec![DiskWait {
                kind: "flush",
                len_bytes: 0,
                from_ns,
                to_ns,
            }],
            works: vec![
                flush(0, from_ns, to_ns, false),
                flush(1, from_ns, from_ns + MEDIUM_NS, true),
                flush(2, from_ns, to_ns, false),
                flush(3, from_ns + late_ns, to_ns, true),
            ],
            left_out: 0,
        }
    }

    fn kept(count: usize, own_us: u64, late_us: u64) -> KeptCommits {
        let mut kept = KeptCommits::default();
        for _ in 0..count {
            kept.add(|place| commit(place, own_us, late_us));
        }
        kept
    }

    #[test]
    fn all_of_a_commit_belongs_to_somebody() {
        let (commit, nodes) = (commit(0, 70, 430), nodes());
        let own = own_times(&commit, &nodes);
        let sum: f64 = own.values().sum();
        assert!((sum - commit.total_ns as f64).abs() < 1.0, "{own:?}");
        let of = |layer, node| -> f64 {
            let mine = own
                .iter()
                .filter(|(owner, _)| (owner.layer, owner.node) == (layer, node));
            mine.map(|(_, ns)| ns).sum()
        };
        assert_eq!(of(Layer::Database, None), 70_000.0);
        // While the first share's medium works, the time is its own; after that only the throttle's wait is
        // left.
        assert_eq!(of(Layer::Medium, Some(1)), 100_000.0);
        assert_eq!(of(Layer::Volume, Some(2)), 330_000.0);
        assert_eq!(of(Layer::Medium, Some(3)), 100_000.0);
    }

    #[test]
    fn a_share_that_all_wait_for_is_named_with_its_cause_and_setting() {
        let told = of_nodes(&kept(60, 70, 430), &nodes()).expect("it is slow");
        assert!(
            told.starts_with(
                "72 % (95 % interval 72–72 %) of a commit is waiting for the flush of db/stripe/1/throttle, one of 2 shares: \
                 530 µs for each, 5.3 times as long as for the next slowest; most of that is db/stripe/1/throttle itself: "
            ),
            "{told}"
        );
        assert!(
            told.ends_with("lower `latency` of db/stripe/1/throttle"),
            "{told}"
        );
    }

    /// A commit with flushes one after the other: of these nodes, each for so many microseconds.
    fn flushes(place: usize, all: &[(usize, u64)]) -> Traced {
        let mut from_ns = 0;
        let works = all.iter().map(|(node, us)| {
            let to_ns = from_ns + us * 1000;
            let work = TracedWork {
                node: Some(*node),
                from_ns,
                to_ns,
                what: Activity::Request {
                    kind: "flush",
                    len_bytes: 0,
                    is_medium: true,
                },
            };
            from_ns = to_ns;
            work
        });
        let works: Vec<TracedWork> = works.collect();
        Traced {
            works,
            calls: vec![DiskWait {
                kind: "flush",
                len_bytes: 0,
                from_ns: 0,
                to_ns: from_ns,
            }],
            total_ns: from_ns,
            ..commit(place, 0, 0)
        }
    }

    #[test]
    fn a_share_that_is_busier_than_the_others_is_not_slower() {
        let of = |even: &[(usize, u64)], odd: &[(usize, u64)]| {
            let mut kept = KeptCommits::default();
            for _ in 0..60 {
                kept.add(|place| flushes(place, if place % 2 == 0 { even } else { odd }));
            }
            of_nodes(&kept, &nodes()).expect("most of it is somewhere")
        };
        // As published (docs/results/2026-11-25, `commit-stripe`): four flushes to one share, each faster than those of the
        // other, which has one in every second commit.
        let busy = [(1, 54); 4];
        let both = [(1, 54), (1, 54), (1, 54), (1, 54), (2, 112)];
        let told = of(&busy, &both);
        assert!(!told.contains("shares"), "{told}");
        assert!(told.contains("medium of db/stripe/0/file"), "{told}");
        // The slower one is named, even if the other has more requests.
        let told = of(&[(1, 54), (2, 400)], &[(1, 54), (1, 54), (2, 400)]);
        let share = "waiting for the flush of db/stripe/1/throttle, one of 2 shares: 400 µs for each, 7.4 times";
        assert!(told.contains(share), "{told}");
    }

    #[test]
    fn shares_that_are_alike_and_few_commits_give_no_advice() {
        assert_eq!(of_nodes(&kept(60, 70, 0), &nodes()), None);
        assert_eq!(of_nodes(&kept(5, 70, 430), &nodes()), None, "no interval");
        assert_eq!(
            of_nodes(&kept(60, 5000, 430), &nodes()),
            None,
            "a small part"
        );
        assert_eq!(of_nodes(&KeptCommits::default(), &nodes()), None);
    }

    #[test]
    fn a_node_that_has_most_of_it_is_named() {
        let nodes = Nodes::file("file", "/srv/db.img");
        let mut kept = KeptCommits::default();
        for _ in 0..12 {
            kept.add(|place| {
                let commit = commit(place, 20, 0);
                Traced {
                    works: vec![TracedWork {
                        node: Some(0),
                        ..commit.works[1].clone()
                    }],
                    ..commit
                }
            });
        }
        let told = of_nodes(&kept, &nodes).expect("the medium");
        assert!(
            told.starts_with(
                "83 % (95 % interval 83–83 %) of a commit is the disk below /srv/db.img (flush 100 % of that): if \
                 /srv/db.img is on a volume of Sanstone, "
            ),
            "{told}"
        );
    }

    #[test]
    fn advice_needs_a_part_that_surely_has_most_of_it() {
        let told = of_calls(&[spent(100, 70); 24]).expect("most of it");
        assert!(
            told.starts_with("70 % (95 % interval 70–70 %) of a commit is waiting until"),
            "{told}"
        );
        let told = of_calls(&[spent(100, 10); 24]).expect("most of it");
        assert!(told.contains("a faster disk would not help"), "{told}");
        assert_eq!(of_calls(&[spent(100, 48); 24]), of_calls(&[]));
        assert_eq!(of_calls(&[spent(100, 70); 5]), None, "no interval");
        // The cost alternates, so the next run might differ.
        let unsteady: Vec<Spent> = (0..24)
            .map(|n| spent(100, if n / 2 % 2 == 0 { 20 } else { 95 }))
            .collect();
        assert_eq!(of_calls(&unsteady), None);
    }
}
