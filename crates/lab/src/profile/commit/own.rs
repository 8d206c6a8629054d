//! Attributes each moment of a commit to the layer and node that worked while the database waited, so that
//! all parts add up to the commit. Concurrent workers share a moment equally. Anything that runs while the
//! database itself works counts as the database's time.

use std::collections::BTreeMap;

use super::{
    layer::Layer,
    nodes::Nodes,
    trace::{Activity, Traced, TracedWork},
};

/// Who worked, and for which kind of request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Owner {
    pub(super) layer: Layer,
    pub(super) node: Option<usize>,
    pub(super) kind: &'static str,
}

/// Nanoseconds by owner.
pub(super) type Own = BTreeMap<Owner, f64>;

/// The time of one commit by owner.
pub(super) fn own_times(commit: &Traced, nodes: &Nodes) -> Own {
    let mut own = Own::new();
    let mut at: Vec<u64> = vec![0, commit.total_ns];
    at.extend(
        commit
            .calls
            .iter()
            .flat_map(|call| [call.from_ns, call.to_ns]),
    );
    at.extend(
        commit
            .works
            .iter()
            .flat_map(|work| [work.from_ns, work.to_ns]),
    );
    at.extend(commit.works.iter().filter_map(|work| match work.what {
        Activity::Command { sent_ns, .. } => Some(sent_ns),
        Activity::Request { .. } => None,
    }));
    at.retain(|ns| *ns <= commit.total_ns);
    at.sort_unstable();
    at.dedup();
    for moment in at.windows(2) {
        let (from_ns, ns) = (moment[0], (moment[1] - moment[0]) as f64);
        let call = commit.calls.iter();
        let call = call
            .clone()
            .find(|call| call.from_ns <= from_ns && from_ns < call.to_ns);
        let Some(call) = call else {
            let owner = Owner {
                layer: Layer::Database,
                node: None,
                kind: "",
            };
            *own.entry(owner).or_default() += ns;
            continue;
        };
        let there: Vec<&TracedWork> = commit
            .works
            .iter()
            .filter(|work| work.is_at(from_ns))
            .collect();
        let working: Vec<&&TracedWork> = there
            .iter()
            .filter(|work| is_below(work, from_ns))
            .collect();
        for work in &working {
            let kind = kind_of(work, &there);
            for (layer, part) in parts(work) {
                let node = work.node;
                *own.entry(Owner { layer, node, kind }).or_default() +=
                    part * ns / working.len() as f64;
            }
        }
        if !working.is_empty() {
            continue;
        }
        let deepest: Vec<&&TracedWork> = there
            .iter()
            .filter(|work| is_deepest(work, &there, nodes))
            .collect();
        if deepest.is_empty() {
            let owner = Owner {
                layer: Layer::Volume,
                node: None,
                kind: call.kind,
            };
            *own.entry(owner).or_default() += ns;
        }
        for work in &deepest {
            let owner = Owner {
                layer: match work.what {
                    Activity::Command { .. } => Layer::Line,
                    Activity::Request { .. } => nodes.layer_of(work.node),
                },
                node: work.node,
                kind: kind_of(work, &there),
            };
            *own.entry(owner).or_default() += ns / deepest.len() as f64;
        }
    }
    own
}

/// Whether a medium or a target is working on it.
fn is_below(work: &TracedWork, now_ns: u64) -> bool {
    match work.what {
        Activity::Request { is_medium, .. } => is_medium,
        Activity::Command { sent_ns, .. } => sent_ns <= now_ns,
    }
}

/// Whether no node below works on the same request.
fn is_deepest(work: &TracedWork, there: &[&TracedWork], nodes: &Nodes) -> bool {
    let is_request = matches!(work.what, Activity::Request { .. });
    let Some(node) = work.node.filter(|_| is_request) else {
        return true;
    };
    !there.iter().any(|other| match (&other.what, other.node) {
        (Activity::Command { .. }, Some(below)) => nodes.is_within(below, node),
        (_, Some(below)) => below != node && nodes.is_within(below, node),
        (_, None) => false,
    })
}

/// The kind of request that it is or belongs to.
fn kind_of(work: &TracedWork, there: &[&TracedWork]) -> &'static str {
    let kind = |work: &TracedWork| match work.what {
        Activity::Request { kind, .. } => Some(kind),
        Activity::Command { .. } => None,
    };
    let whole = || there.iter().filter(|other| other.node == work.node);
    kind(work)
        .or_else(|| whole().find_map(|other| kind(other)))
        .unwrap_or("")
}

/// The layers of a work below this side, and their fractions of its time.
fn parts(work: &TracedWork) -> Vec<(Layer, f64)> {
    let (sent_ns, target_ns, medium_ns) = match work.what {
        Activity::Request { .. } => return vec![(Layer::Medium, 1.0)],
        Activity::Command {
            target_ns: None, ..
        } => return vec![(Layer::Untold, 1.0)],
        Activity::Command {
            sent_ns,
            target_ns: Some(target_ns),
            medium_ns,
        } => (sent_ns, target_ns, medium_ns),
    };
    let whole_ns = (work.to_ns - sent_ns).max(1);
    // Do not trust the target: it cannot have had the command for longer than we waited.
    let target_ns = target_ns.min(whole_ns);
    let medium_ns = medium_ns.min(target_ns);
    let part = |ns: u64| ns as f64 / whole_ns as f64;
    vec![
        (Layer::Wire, part(whole_ns - target_ns)),
        (Layer::Target, part(target_ns - medium_ns)),
        (Layer::Medium, part(medium_ns)),
    ]
}
