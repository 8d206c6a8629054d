//! Derives advice from the figures of many commits. It is given only where one part of the time is large with
//! certainty, judged by a confidence interval over sections of the run, and it names the setting responsible.

use super::{
    nodes::Nodes,
    own::{Layer, Own},
    trace::{Kept, Traced},
};
use crate::{
    profile::share::{LARGE, Share},
    target::FILE,
};

/// The run is divided into this many sections; each yields one sample of how large a part of the commit time
/// something is.
const PARTS: usize = 12;
/// A part larger than this deserves advice if it is spent waiting for one share that is slower than the
/// others.
const UNEQUAL: f64 = 0.25;
/// A share is slower if it takes at least this many times as long as each of the others.
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
        if let Some(share) = Share::of(parts).told_above(LARGE) {
            let mend = match name {
                super::DURABLE => {
                    "let several rows share a commit, or commits share a flush (MariaDB: \
                     binlog_commit_wait_usec; MySQL: binlog_group_commit_sync_delay; PostgreSQL: commit_delay), or \
                     give the log a medium with a faster flush"
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
pub(super) fn of_nodes(kept: &Kept, nodes: &Nodes) -> Option<String> {
    let size = kept.commits.len().div_ceil(PARTS).max(1);
    let parts: Vec<(Own, f64)> = kept
        .commits
        .chunks(size)
        .map(|commits| {
            let total_ns: u64 = commits.iter().map(|commit: &Traced| commit.total_ns).sum();
            (super::draw::sum(commits.iter(), nodes), total_ns as f64)
        })
        .collect();
    of_shares(&parts, nodes).or_else(|| of_one_node(&parts, nodes))
}

/// The time that a node and those below it have in a commit, for one kind of request.
fn within(own: &Own, nodes: &Nodes, top: usize, kind: &str) -> f64 {
    let mine = own.iter().filter(|(owner, _)| {
        owner.kind == kind && owner.node.is_some_and(|node| nodes.is_within(node, top))
    });
    mine.map(|(_, ns)| ns).sum()
}

fn of_shares(parts: &[(Own, f64)], nodes: &Nodes) -> Option<String> {
    for kind in ["flush", "write", "read"] {
        for parent in 0..nodes.all().len() {
            let children: Vec<usize> = nodes.children(parent).collect();
            let all = |child: usize| -> f64 {
                parts
                    .iter()
                    .map(|(own, _)| within(own, nodes, child, kind))
                    .sum()
            };
            let by_time = |a: &usize, b: &usize| all(*a).total_cmp(&all(*b));
            let Some(slowest) = children.iter().copied().max_by(by_time) else {
                continue;
            };
            let others = children.iter().filter(|child| **child != slowest);
            let most = others.map(|child| all(*child)).fold(0.0, f64::max);
            // If the other shares had nothing to do, there is nothing to compare this one with.
            if most == 0.0 || all(slowest) < SLOWER * most {
                continue;
            }
            let share = parts
                .iter()
                .map(|(own, whole)| (within(own, nodes, slowest, kind), *whole));
            let Some(told) = Share::of(share).told_above(UNEQUAL) else {
                continue;
            };
            return Some(format!(
                "{told} of a commit is waiting for the {kind} of {}, one of {} shares: {:.1} times as \
                 long as for the next slowest; {}",
                nodes.told(slowest),
                children.len(),
                all(slowest) / most,
                cause(parts, nodes, |node| nodes.is_within(node, slowest))?,
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
    let share = Share::of(parts.iter().map(|(own, whole)| (mine(own), *whole)));
    let told = share.told_above(LARGE)?;
    Some(format!(
        "{told} of a commit is {} of {}: {}",
        layer.name(),
        nodes.told(node),
        mend(layer, node, nodes)
    ))
}

/// The layer and node with the most time, among nodes that satisfy `counts`.
fn largest(parts: &[(Own, f64)], counts: impl Fn(usize) -> bool) -> Option<(Layer, usize)> {
    let mut sums = std::collections::BTreeMap::new();
    for (owner, ns) in parts.iter().flat_map(|(own, _)| own) {
        if let Some(node) = owner.node.filter(|node| counts(*node)) {
            *sums.entry((owner.layer, node)).or_insert(0.0) += ns;
        }
    }
    let most = sums.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    most.map(|(at, _)| at)
}

fn cause(parts: &[(Own, f64)], nodes: &Nodes, counts: impl Fn(usize) -> bool) -> Option<String> {
    let (layer, node) = largest(parts, counts)?;
    Some(format!(
        "most of that is {}: {}",
        layer.name(),
        mend(layer, node, nodes)
    ))
}

/// The fix to suggest for a layer of a node.
fn mend(layer: Layer, node: usize, nodes: &Nodes) -> String {
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
            "run `sanstone show` on that machine: the node with the largest median is the cause".to_owned()
        }
        (Layer::Medium, "iscsi") => {
            "put the `path` of the volume that this target serves on a disk with a faster flush, such \
             as one with power-loss protection"
                .to_owned()
        }
        // A file named by its path may be on any file system.
        (Layer::Medium, "file") if path == FILE => format!(
            "that is the file system and the disk beneath this file; if that disk is a volume of Sanstone, `sanstone \
             show` shows which of its nodes; otherwise move `{}` to a disk with a faster flush",
            nodes.all()[node].place.as_deref().unwrap_or("path")
        ),
        (Layer::Medium, _) => format!(
            "put the `path` of {path} on a disk with a faster flush, such as one with power-loss \
             protection"
        ),
        (Layer::Untold, _) => format!("look at the target behind the `url` of {path}, and at the link to it"),
        _ => format!("look at {path} in `sanstone show`"),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Spent,
            nodes::TreeNode,
            own::own_times,
            tests::spent,
            trace::{Call, What, Work},
        },
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
        let flush = |node, from_ns, to_ns, is_medium| Work {
            node: Some(node),
            from_ns,
            to_ns,
            what: What::Request {
                kind: "flush",
                len_bytes: 0,
                is_medium,
            },
        };
        Traced {
            place,
            number: place + 1,
            total_ns: to_ns,
            calls: vec![Call {
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

    fn kept(count: usize, own_us: u64, late_us: u64) -> Kept {
        let mut kept = Kept::default();
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
                "72 % (95 % interval 72–72 %) of a commit is waiting for the flush of db/stripe/1/throttle, one of 2 shares"
            ),
            "{told}"
        );
        assert!(
            told.ends_with("lower `latency` of db/stripe/1/throttle"),
            "{told}"
        );
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
        assert_eq!(of_nodes(&Kept::default(), &nodes()), None);
    }

    #[test]
    fn a_node_that_has_most_of_it_is_named() {
        let nodes = Nodes::file("file", "/srv/db.img");
        let mut kept = Kept::default();
        for _ in 0..12 {
            kept.add(|place| {
                let commit = commit(place, 20, 0);
                Traced {
                    works: vec![Work {
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
                "83 % (95 % interval 83–83 %) of a commit is medium of file (/srv/db.img)"
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
