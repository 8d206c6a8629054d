//! Draws single commits: the waterfall of one, bars of the layers, a table by node.
//!
//! Clocks of two machines are never compared. For each command, this side knows when it was sent and when its
//! response arrived, while the target reports only durations. So the target's stages are drawn in the middle
//! of the wait, with half of the wire time on each side.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    layer::Layer,
    nodes::Nodes,
    own::{Own, own_times},
    trace::{Activity, KeptCommits, Traced, TracedWork},
};
use crate::report::{Axis, Bar, BarRow, FindingsTable, Layers, Marks, Plot, short, time_us};

/// Maximum number of lines for concurrent work.
const LINES_MAX: usize = 6;

/// The waterfalls of the commits at the median and the 99th percentile.
pub(super) fn waterfalls(kept: &KeptCommits, layers: &Layers, nodes: &Nodes) -> Vec<Plot> {
    let [median, late] = examples(kept, layers);
    let total = layers.total;
    let plots = [
        (("median", total.p50_us), median),
        (("99th percentile", total.p99_us), late),
    ];
    let plots = plots.into_iter();
    plots
        .filter_map(|(at, commit)| Some(waterfall(at, commit?, nodes)))
        .collect()
}

fn examples<'a>(kept: &'a KeptCommits, layers: &Layers) -> [Option<&'a Traced>; 2] {
    [layers.total.p50_us, layers.total.p99_us].map(|us| kept.nearest(us))
}

fn waterfall((at, at_us): (&str, f64), commit: &Traced, nodes: &Nodes) -> Plot {
    let mut rows = vec![database(commit), calls(commit)];
    for index in (0..nodes.all().len()).map(Some).chain([None]) {
        let works = commit.works.iter().filter(|work| work.node == index);
        let (requests, commands): (Vec<&TracedWork>, Vec<&TracedWork>) =
            works.partition(|work| matches!(work.what, Activity::Request { .. }));
        let path = index.map_or("elsewhere", |index| &nodes.all()[index].path);
        let place = index.map_or_else(String::new, |index| nodes.told(index));
        for (works, name) in [
            (requests, path.to_owned()),
            (commands, format!("{path}: commands")),
        ] {
            if !works.is_empty() {
                let tip = format!("{name}\n{place}");
                rows.push(BarRow {
                    lines: lines(&works, nodes, &tip),
                    name,
                });
            }
        }
    }
    let left_out = match commit.left_out {
        0 => String::new(),
        count => format!(" {count} more spans are not shown."),
    };
    Plot {
        title: format!("One commit at the {at}"),
        about: format!(
            "Commit number {} took {}, nearest to the {at} of {}; this is what ran when, from \
             its start. Clocks are not compared across machines: what a target reports of a command is \
             drawn in the middle of the wait for its answer, with half of the wire time on each \
             side.{left_out}",
            commit.number,
            time_us(commit.total_ns as f64 / 1e3),
            time_us(at_us),
        ),
        x: microseconds(),
        y: Axis::default(),
        marks: bars(rows),
    }
}

fn microseconds() -> Axis {
    Axis {
        label: "microseconds".into(),
        is_logarithmic: false,
    }
}

fn bars(rows: Vec<BarRow>) -> Marks {
    let bars = || rows.iter().flat_map(|row| row.lines.iter().flatten());
    let there = |layer: &Layer| bars().any(|bar| bar.class == layer.class());
    let layers = Layer::ALL.into_iter().filter(there);
    let legend = layers.map(|layer| (layer.class(), layer.name().to_owned()));
    Marks::Bars {
        legend: legend.collect(),
        rows,
    }
}

fn bar(layer: Layer, from_ns: u64, to_ns: u64, label: &str, tip: &str) -> Bar {
    let (from, to) = (from_ns as f64 / 1e3, to_ns.max(from_ns) as f64 / 1e3);
    Bar {
        from,
        to,
        class: layer.class(),
        label: label.to_owned(),
        tip: format!(
            "{tip}\n{}, from {} to {}",
            time_us(to - from),
            time_us(from),
            time_us(to)
        ),
    }
}

/// The database's own time: everything except its calls.
fn database(commit: &Traced) -> BarRow {
    let mut line = Vec::new();
    let mut from_ns = 0;
    let ends = commit.calls.iter().map(|call| (call.from_ns, call.to_ns));
    for (to_ns, next_ns) in ends.chain([(commit.total_ns, commit.total_ns)]) {
        if to_ns > from_ns {
            line.push(bar(Layer::Database, from_ns, to_ns, "", super::DATABASE));
        }
        from_ns = next_ns;
    }
    BarRow {
        name: super::DATABASE.into(),
        lines: vec![line],
    }
}

/// The calls that the database waited for.
fn calls(commit: &Traced) -> BarRow {
    let line = commit.calls.iter().map(|call| {
        let tip = format!("the database waits: {}", sized(call.kind, call.len_bytes));
        bar(Layer::Volume, call.from_ns, call.to_ns, call.kind, &tip)
    });
    BarRow {
        name: "its calls".into(),
        lines: vec![line.collect()],
    }
}

fn sized(kind: &str, len_bytes: u64) -> String {
    match len_bytes {
        0 => kind.to_owned(),
        bytes => format!("{kind} of {} KiB", short(bytes as f64 / 1024.0)),
    }
}

/// Distributes the works over lines, so that concurrent ones do not overlap.
fn lines(works: &[&TracedWork], nodes: &Nodes, tip: &str) -> Vec<Vec<Bar>> {
    let mut lines: Vec<(u64, Vec<Bar>)> = Vec::new();
    for work in works {
        let free = lines
            .iter()
            .position(|(until_ns, _)| *until_ns <= work.from_ns);
        let line = free.unwrap_or_else(|| match lines.len() < LINES_MAX {
            true => {
                lines.push((0, Vec::new()));
                lines.len() - 1
            }
            false => LINES_MAX - 1,
        });
        let (until_ns, line) = &mut lines[line];
        *until_ns = (*until_ns).max(work.to_ns);
        line.extend(of_work(work, nodes, tip));
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

fn of_work(work: &TracedWork, nodes: &Nodes, tip: &str) -> Vec<Bar> {
    let (from_ns, to_ns) = (work.from_ns, work.to_ns);
    let (sent_ns, target_ns, medium_ns) = match work.what {
        Activity::Request {
            kind,
            len_bytes,
            is_medium,
        } => {
            let layer = match is_medium {
                true => Layer::Medium,
                false => nodes.layer_of(work.node),
            };
            let tip = format!("{tip}\n{}", sized(kind, len_bytes));
            return vec![bar(layer, from_ns, to_ns, kind, &tip)];
        }
        Activity::Command {
            sent_ns,
            target_ns,
            medium_ns,
        } => (sent_ns, target_ns, medium_ns),
    };
    let stage = |layer: Layer, from_ns, to_ns| {
        let tip = format!("{tip}\n{}", layer.name());
        bar(layer, from_ns, to_ns, "", &tip)
    };
    let mut stages = vec![stage(Layer::Line, from_ns, sent_ns)];
    match target_ns {
        None => stages.push(stage(Layer::Untold, sent_ns, to_ns)),
        Some(target_ns) => {
            let target_ns = target_ns.min(to_ns - sent_ns);
            let medium_ns = medium_ns.min(target_ns);
            let came_ns = sent_ns + (to_ns - sent_ns - target_ns) / 2;
            let began_ns = came_ns + (target_ns - medium_ns) / 2;
            stages.extend([
                stage(Layer::Wire, sent_ns, came_ns),
                stage(Layer::Target, came_ns, began_ns),
                stage(Layer::Medium, began_ns, began_ns + medium_ns),
                stage(Layer::Target, began_ns + medium_ns, came_ns + target_ns),
                stage(Layer::Wire, came_ns + target_ns, to_ns),
            ]);
        }
    }
    stages.retain(|bar| bar.to > bar.from);
    stages
}

/// The layers of commits at the median and the 99th percentile, with the nodes of each below it.
pub(super) fn flames(kept: &KeptCommits, layers: &Layers, nodes: &Nodes) -> Plot {
    let mut rows = Vec::new();
    for (at, band, of) in [
        (
            "median",
            (0.45, 0.55),
            (|times| times.p50_us) as fn(crate::report::OperationTimes) -> f64,
        ),
        ("99 %", (0.985, 0.995), |times| times.p99_us),
    ] {
        let total_us = of(layers.total);
        let own = sum(kept.band(band.0, band.1).into_iter(), nodes);
        let (mut whole, mut split) = (Vec::new(), Vec::new());
        let mut from = 0.0;
        for row in &layers.layers {
            let us = of(row.times);
            let percent = 100.0 * us / total_us;
            let parts = own
                .iter()
                .filter(|(owner, _)| owner.layer.row() == row.name);
            let parts_ns: f64 = parts.clone().map(|(_, ns)| ns).sum();
            let layer = Layer::ALL.into_iter().find(|layer| layer.row() == row.name);
            let class = layer.unwrap_or(Layer::Database).class();
            let piece = |from: f64, percent: f64, class, label: &str, tip: String| Bar {
                from,
                to: from + percent,
                class,
                label: label.to_owned(),
                tip: format!(
                    "{tip}\n{}, {percent:.1} %",
                    time_us(total_us * percent / 100.0)
                ),
            };
            whole.push(piece(
                from,
                percent,
                class,
                &row.name,
                format!("{at}: {}", row.name),
            ));
            let mut at_percent = from;
            for (owner, ns) in parts {
                let percent = percent * ns / parts_ns.max(1.0);
                let node = owner.node.map_or(String::new(), |node| nodes.told(node));
                let tip = [at, owner.layer.name(), &node, owner.kind];
                let tip: Vec<&str> = tip.into_iter().filter(|line| !line.is_empty()).collect();
                let path = owner.node.map_or("", |node| &nodes.all()[node].path);
                let label = format!("{} {path}", owner.kind);
                let label = label.trim();
                split.push(piece(
                    at_percent,
                    percent,
                    owner.layer.class(),
                    label,
                    tip.join("\n"),
                ));
                at_percent += percent;
            }
            from += percent;
        }
        rows.push(BarRow {
            name: format!("{at}: {}", time_us(total_us)),
            lines: vec![whole, split],
        });
    }
    Plot {
        title: "Layers of a commit".into(),
        about: "The layers are on top; below them are the nodes of the volume and their kinds of \
                requests, from the commits that were kept."
            .into(),
        x: Axis {
            label: "percent of a commit".into(),
            is_logarithmic: false,
        },
        y: Axis::default(),
        marks: bars(rows),
    }
}

/// The total time of these commits by owner.
pub(super) fn sum<'a>(commits: impl Iterator<Item = &'a Traced>, nodes: &Nodes) -> Own {
    let mut sum = Own::new();
    for (owner, ns) in commits.flat_map(|commit| own_times(commit, nodes)) {
        *sum.entry(owner).or_default() += ns;
    }
    sum
}

/// The time each node had in a commit, by kind of request.
struct NodeRow {
    node: usize,
    kind: &'static str,
    requests: f64,
    request_us: [f64; 2],
    own_us: f64,
}

fn node_rows(kept: &KeptCommits, nodes: &Nodes, mean_us: f64) -> Vec<NodeRow> {
    let commits = &kept.commits;
    let count = commits.len().max(1) as f64;
    let own = sum(commits.iter(), nodes);
    // The watched commits tell how a commit divides; how long it takes is known from all.
    let seen_ns: u64 = commits.iter().map(|commit| commit.total_ns).sum();
    let scale = mean_us * 1e3 * count / seen_ns.max(1) as f64;
    let mut took: BTreeMap<(usize, &'static str), Vec<u64>> = BTreeMap::new();
    for work in commits.iter().flat_map(|commit| &commit.works) {
        if let (Activity::Request { kind, .. }, Some(node)) = (&work.what, work.node) {
            took.entry((node, kind))
                .or_default()
                .push(work.to_ns - work.from_ns);
        }
    }
    let row = |((node, kind), mut took): ((usize, &'static str), Vec<u64>)| {
        took.sort_unstable();
        let at = |part: f64| took[(part * (took.len() - 1) as f64).round() as usize] as f64 / 1e3;
        let mine = own
            .iter()
            .filter(|(owner, _)| owner.node == Some(node) && owner.kind == kind);
        NodeRow {
            node,
            kind,
            requests: took.len() as f64 / count,
            request_us: [at(0.5), at(0.99)],
            // The sum of nothing is -0.
            own_us: scale * mine.map(|(_, ns)| ns).sum::<f64>() / 1e3 / count + 0.0,
        }
    };
    took.into_iter().map(row).collect()
}

/// The table of the nodes, and the same as JSON.
pub(super) fn by_node(
    kept: &KeptCommits,
    layers: &Layers,
    nodes: &Nodes,
) -> (FindingsTable, Value) {
    let mut table = FindingsTable::new(
        "By node of the volume",
        "Each node of the volume's tree by kind of request. Its own time is how long a commit waited \
         for it and for no node below it (including its time at the target); concurrent work shares \
         the time.",
        &[
            "node",
            "request",
            "a commit",
            "median",
            "99 %",
            "own time",
            "of a commit",
        ],
    );
    let rows = node_rows(kept, nodes, layers.total.mean_us);
    for row in &rows {
        let percent = 100.0 * row.own_us / layers.total.mean_us;
        table.rows.push(vec![
            nodes.told(row.node),
            row.kind.into(),
            short(row.requests),
            time_us(row.request_us[0]),
            time_us(row.request_us[1]),
            time_us(row.own_us),
            format!("{percent:.0} %"),
        ]);
    }
    let json = rows.iter().map(|row| {
        json!({
            "node": nodes.all()[row.node].path,
            "request": row.kind,
            "requests_per_commit": row.requests,
            "p50_us": row.request_us[0],
            "p99_us": row.request_us[1],
            "own_us": row.own_us,
        })
    });
    (table, json.collect())
}

/// The commits of the waterfalls, as JSON.
pub(super) fn traced(kept: &KeptCommits, layers: &Layers, nodes: &Nodes) -> Value {
    let json_of = |commit: &Traced| {
        let calls = commit.calls.iter().map(|call| {
            json!({
                "kind": call.kind, "bytes": call.len_bytes,
                "from_us": call.from_ns as f64 / 1e3, "to_us": call.to_ns as f64 / 1e3,
            })
        });
        let works = commit.works.iter().map(|work| {
            let mut json = json!({
                "node": work.node.map(|node| &nodes.all()[node].path),
                "from_us": work.from_ns as f64 / 1e3, "to_us": work.to_ns as f64 / 1e3,
            });
            match work.what {
                Activity::Request {
                    kind, len_bytes, ..
                } => {
                    json["kind"] = kind.into();
                    json["bytes"] = len_bytes.into();
                }
                Activity::Command {
                    sent_ns,
                    target_ns,
                    medium_ns,
                } => {
                    json["sent_us"] = (sent_ns as f64 / 1e3).into();
                    json["target_us"] = target_ns.map(|ns| ns as f64 / 1e3).into();
                    json["medium_us"] = (medium_ns as f64 / 1e3).into();
                }
            }
            json
        });
        json!({
            "number": commit.number,
            "total_us": commit.total_ns as f64 / 1e3,
            "calls": calls.collect::<Vec<_>>(),
            "works": works.collect::<Vec<_>>(),
        })
    };
    let [median, late] = examples(kept, layers).map(|commit| commit.map(json_of));
    json!({ "p50": median, "p99": late })
}
