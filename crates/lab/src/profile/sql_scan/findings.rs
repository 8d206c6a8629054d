//! Turns the sweep's measurements into findings: the best page size and cache for each disk, and that
//! measurement in the form of the published experiment.

use serde_json::json;

use super::sweep::{MeasuredSet, MeasuredStatement, Processors, SweepPoint};
use crate::{
    report::{Axis, Findings, FindingsTable, Marks, Plot, Score, short, speed},
    statements::paper_scores_s,
};

/// A factor above this deserves advice.
const LARGE: f64 = 1.1;

/// Caveat: each page size and cache was loaded only once.
const ONCE: &str = " (one load of each: run it again before you act on it)";

/// All findings for this database.
pub(super) fn findings(all: &[SweepPoint], database: &str) -> Findings {
    let names: Vec<&str> = all.first().map_or(Vec::new(), |measured| {
        measured.sets.iter().map(|set| set.name.as_str()).collect()
    });
    let best: Vec<_> = (0..names.len()).map(|disk| best_of(all, disk)).collect();
    let mut tables = vec![scores(all, &names)];
    let mut shown: Vec<&str> = Vec::new();
    for (measured, _) in best.iter().flatten() {
        if !shown.contains(&measured.name.as_str()) {
            shown.push(&measured.name);
            tables.extend((0..names.len()).map(|disk| statements(measured, disk)));
        }
    }
    tables.push(published());
    let mut notes = Vec::new();
    let incomplete = all
        .iter()
        .flat_map(|m| m.sets.iter().map(move |set| (m, set)));
    for (measured, set) in incomplete.filter(|(_, set)| set.score_s.is_none()) {
        notes.push(format!(
            "{}, {}: not every statement ran within its time, so there is no score",
            set.name, measured.name
        ));
    }
    if names.len() == 1 {
        notes.push(
            "name a second disk with --on to measure both in turn, such as a plain file and a stripe".into(),
        );
    }
    Findings {
        answer: answer(all, &best, &names, database),
        advice: advice(all, names.len()),
        notes,
        tables,
        plots: vec![plot(all, &names)],
        figures: json!({ "database": database, "sweep": all }),
        scores: scores_of(all),
        ..Findings::default()
    }
}

/// The figures a history tracks: each disk's score with each page size and cache.
fn scores_of(all: &[SweepPoint]) -> Vec<Score> {
    let sets = all
        .iter()
        .flat_map(|m| m.sets.iter().map(move |set| (m, set)));
    let score = |(measured, set): (&SweepPoint, &MeasuredSet)| {
        let name = format!("seconds of score, {}, {}", set.name, measured.name);
        Some(Score::less(name, set.score_s?))
    };
    sets.filter_map(score).collect()
}

/// The lowest score of disk number `disk`.
fn best_of(all: &[SweepPoint], disk: usize) -> Option<(&SweepPoint, f64)> {
    let scores = all
        .iter()
        .filter_map(|m| Some((m, m.sets.get(disk)?.score_s?)));
    scores.min_by(|a, b| a.1.total_cmp(&b.1))
}

fn answer(
    all: &[SweepPoint],
    best: &[Option<(&SweepPoint, f64)>],
    names: &[&str],
    database: &str,
) -> String {
    let told: Vec<String> = best
        .iter()
        .zip(names)
        .filter_map(|(best, name)| {
            let (measured, score_s) = (*best)?;
            Some(format!(
                "{name} scores {} s at its best ({})",
                short(score_s),
                measured.name
            ))
        })
        .collect();
    if told.is_empty() {
        return "Nothing was measured.".into();
    }
    // A cache in front hides the disk behind it.
    let is_bare =
        |m: &&SweepPoint| m.cache.starts_with('0') || all.iter().all(|m| !m.cache.starts_with('0'));
    let bare: Vec<SweepPoint> = all.iter().filter(is_bare).cloned().collect();
    let gains: Vec<String> = (1..names.len())
        .filter_map(|disk| {
            let (measured, score_s) = best_of(&bare, disk)?;
            let first = measured.sets.first()?.score_s?;
            let scans = scan_gains(measured, disk);
            let scans = scans.map_or(String::new(), |(least, most)| {
                format!(" (scans {} to {})", speed(least), speed(most))
            });
            Some(format!(
                "; {}: {}{scans}",
                names[disk],
                speed(first / score_s)
            ))
        })
        .collect();
    let gains = match gains.is_empty() {
        true => String::new(),
        false => format!("; beside {} with the same page{}", names[0], gains.concat()),
    };
    format!("{database}: {}{gains}.", told.join(", "))
}

/// The lowest and highest speedup, relative to the first disk, of the read-only statements on this one.
fn scan_gains(measured: &SweepPoint, disk: usize) -> Option<(f64, f64)> {
    let [first, this] = [measured.sets.first()?, measured.sets.get(disk)?];
    let gains = first
        .statements
        .iter()
        .zip(&this.statements)
        .filter(|(first, _)| first.sql.to_ascii_uppercase().starts_with("SELECT"))
        .map(|(first, this)| first.average_s / this.average_s);
    let gains = gains.filter(|gain| gain.is_finite() && *gain > 0.0);
    gains.fold(None, |known, gain| match known {
        None => Some((gain, gain)),
        Some((least, most)) => Some((gain.min(least), gain.max(most))),
    })
}

/// The gain from a page size and a cache on the last disk, if it is large.
fn advice(all: &[SweepPoint], disks: usize) -> Vec<String> {
    let Some(disk) = disks.checked_sub(1) else {
        return Vec::new();
    };
    let Some((best, score_s)) = best_of(all, disk) else {
        return Vec::new();
    };
    let mut advice = Vec::new();
    let worst = |same: &dyn Fn(&&SweepPoint) -> bool| {
        let others = all.iter().filter(same);
        let scores = others.filter_map(|m| Some((m, m.sets.get(disk)?.score_s?)));
        scores.max_by(|a, b| a.1.total_cmp(&b.1))
    };
    if let Some((other, other_s)) = worst(&|m| m.cache == best.cache) {
        if other_s > LARGE * score_s {
            advice.push(format!(
                "create the database with pages of {} (innodb_page_size, page_size): {:.2}× as fast as \
                 with {}{ONCE}",
                best.page,
                other_s / score_s,
                other.page
            ));
        }
    }
    if let Some((other, other_s)) = worst(&|m| m.page == best.page) {
        if other_s > LARGE * score_s && best.sets[disk].can_have_cache() {
            let what = match best.cache.starts_with('0') {
                true => "remove the `cache`".into(),
                false => format!(
                    "put a cache before the disk, with size = \"{}\"",
                    best.cache
                ),
            };
            advice.push(format!(
                "{what}: {:.2}× as fast as with {}{ONCE}",
                other_s / score_s,
                if other.cache.starts_with('0') {
                    "none"
                } else {
                    &other.cache
                },
            ));
        }
    }
    advice
}

fn scores(all: &[SweepPoint], names: &[&str]) -> FindingsTable {
    let mut table = FindingsTable::new(
        "Scores",
        "Seconds: the mean of the statements' weighted averages; less is better. Gain: how many times \
         as fast as the first disk the others are.",
        &["page and cache"],
    );
    for (index, name) in names.iter().enumerate() {
        table.columns.push(format!("{name}, s"));
        if index > 0 {
            table.columns.push("gain".into());
        }
    }
    for measured in all {
        let score = |set: &MeasuredSet| set.score_s;
        let first = measured.sets.first().and_then(score);
        let mut row = vec![measured.name.clone()];
        for (index, set) in measured.sets.iter().enumerate() {
            row.push(set.score_s.map_or("–".into(), short));
            if index > 0 {
                let gain = first.zip(set.score_s).map(|(first, score)| first / score);
                row.push(gain.map_or("–".into(), speed));
            }
        }
        table.rows.push(row);
    }
    table
}

/// One disk's statements in the form of the published experiment.
fn statements(measured: &SweepPoint, disk: usize) -> FindingsTable {
    let set = &measured.sets[disk];
    let first = &measured.sets[0];
    let runs = set
        .statements
        .iter()
        .map(|s| s.runs_s.len())
        .max()
        .unwrap_or(0);
    let mut table = FindingsTable::new(
        &format!("{}: {}", set.name, measured.name),
        &format!(
            "Seconds of each run, their average, its weight and both multiplied. {} rows, {} MiB. Gain: the first \
             disk's average divided by this one's. Published: the gain of two shares over one.",
            measured.rows,
            measured.table_bytes >> 20
        ),
        &["statement"],
    );
    let columns = (1..=runs).map(|run| format!("run {run}, s"));
    table.columns.extend(columns);
    let rest = [
        "average, s",
        "weight",
        "weighted, s",
        "read MB/s",
        "written MB/s",
        "gain",
        "published",
    ];
    table.columns.extend(rest.map(String::from));
    let is_served = set.statements.iter().any(|s| s.processors.is_some());
    if is_served {
        table.about += " CPU: seconds of the machine's processors for each run, and the parts of the server and of \
                        what attaches the volume.";
        let cpu = ["CPU s", "server s", "attach s"];
        table.columns.extend(cpu.map(String::from));
    }
    for (statement, first) in set.statements.iter().zip(&first.statements) {
        let MeasuredStatement {
            name,
            weight,
            runs_s,
            average_s,
            ..
        } = statement;
        let mut row = vec![name.clone()];
        let cell = |run| runs_s.get(run).map_or(String::new(), |s| short(*s));
        row.extend((0..runs).map(cell));
        row.extend([
            short(*average_s),
            format!("{weight:.2}"),
            short(average_s * weight),
            format!("{:.0}", statement.read_megabytes_per_s),
            format!("{:.0}", statement.written_megabytes_per_s),
            gain(first, statement),
            statement
                .paper_s
                .map_or("–".into(), |[one, two]| speed(one / two)),
        ]);
        if is_served {
            let cell = |of: fn(&Processors) -> Option<f64>| {
                let seconds = statement.processors.as_ref().and_then(of);
                seconds.map_or("–".into(), short)
            };
            row.extend([
                cell(|of| Some(of.machine_s)),
                cell(|of| Some(of.server_s)),
                cell(|of| of.attach_s),
            ]);
        }
        table.rows.push(row);
    }
    table
}

fn published() -> FindingsTable {
    let [one, two] = paper_scores_s();
    let mut table = FindingsTable::new(
        "Beside the published results",
        "MariaDB on Windows over links of 1 Gbit/s with a larger table: compare the gain, not the \
         times.",
        &["published", "score, s", "gain"],
    );
    for (name, score) in [("one share", one), ("two shares, striped", two)] {
        let row = [name.into(), format!("{score:.2}"), speed(one / score)];
        table.rows.push(row.into());
    }
    table
}

/// A field plot: page sizes from left to right, disks and caches upwards.
fn plot(all: &[SweepPoint], names: &[&str]) -> Plot {
    let mut pages: Vec<String> = Vec::new();
    let mut caches: Vec<String> = Vec::new();
    for measured in all {
        if !pages.contains(&measured.page) {
            pages.push(measured.page.clone());
        }
        if !caches.contains(&measured.cache) {
            caches.push(measured.cache.clone());
        }
    }
    let mut rows = Vec::new();
    for (disk, name) in names.iter().enumerate() {
        for cache in &caches {
            let value = |page: &String| {
                let here = all.iter().find(|m| m.page == *page && m.cache == *cache)?;
                here.sets.get(disk)?.score_s.map(|score_s| 1.0 / score_s)
            };
            rows.push((
                format!("{name}, {cache}"),
                pages.iter().map(value).collect(),
            ));
        }
    }
    let axis = |label: &str| Axis {
        label: label.into(),
        is_logarithmic: false,
    };
    Plot {
        title: "1 ÷ score, by page and cache".into(),
        about: "The stronger the colour, the faster.".into(),
        x: axis("the database's page"),
        y: axis("disk and cache"),
        marks: Marks::Field {
            rows,
            columns: pages,
            unit: "scores a second".into(),
        },
    }
}

/// The speedup relative to the first disk, if the statement ran on both.
fn gain(first: &MeasuredStatement, this: &MeasuredStatement) -> String {
    match first.runs_s.is_empty() || this.runs_s.is_empty() {
        true => "–".into(),
        false => speed(first.average_s / this.average_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::others::Others;

    /// One disk with one page size that scores `score_s` with this cache; with processor times, if it is a
    /// server's.
    fn measured(cache: &str, score_s: f64, processors: Option<Processors>) -> SweepPoint {
        let statement = MeasuredStatement {
            name: "scan".into(),
            sql: "SELECT 1".into(),
            weight: 1.0,
            runs_s: vec![score_s],
            average_s: score_s,
            read_megabytes_per_s: 1.0,
            written_megabytes_per_s: 0.0,
            paper_s: None,
            processors,
        };
        SweepPoint {
            name: format!("pages of 16KiB, {cache}"),
            page: "16KiB".into(),
            cache: cache.into(),
            rows: 1,
            table_bytes: 1 << 20,
            sets: vec![MeasuredSet {
                name: "disk".into(),
                score_s: Some(score_s),
                statements: vec![statement],
            }],
            others: Others::default(),
        }
    }

    #[test]
    fn a_cache_is_advised_where_one_can_be() {
        let of_server = |attach_s| {
            Some(Processors {
                machine_s: 1.0,
                server_s: 0.5,
                attach_s,
            })
        };
        let advised = |processors| {
            let sweep = [("0B", 2.0), ("16MiB", 1.0)];
            let all = sweep.map(|(cache, score_s)| measured(cache, score_s, processors));
            advice(&all, 1).concat()
        };
        for can in [None, of_server(Some(0.1))] {
            let advice = advised(can);
            assert!(advice.contains("size = \"16MiB\": 2.00×"), "{advice}");
        }
        assert_eq!(advised(of_server(None)), "", "a file, or a directory");
    }
}
