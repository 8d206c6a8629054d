//! `lab history`: reads a series of runs of one profile and finds where it changed. For each figure, the
//! series is split where the two sides differ most, then each side is split again, as long as chance does not
//! explain the difference.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    LabError, LabResult,
    report::{Axis, Findings, FindingsTable, Marks, Plot, PlotLine, short},
    statistics::{RUNS_MIN, SeriesChange, changes},
};

/// More runs than anybody looks at; the test takes time quadratic in their number.
const RUNS_MAX: usize = 1000;

/// Probability of reporting any change where there is none, over all figures together.
const FALSE_ALARMS: f64 = 0.05;

/// One figure over all runs.
struct Series {
    name: String,
    more_is_better: bool,
    values: Vec<f64>,
}

/// Analyses files in their order, each the JSON of one run.
///
/// # Errors
/// A file is not a run or is of another profile, or there are too few files.
pub fn history(paths: &[PathBuf]) -> LabResult<Findings> {
    // What is wrong with a file says more than that there are too few of them.
    let read_first = paths.iter().take(RUNS_MAX).map(|path| read(path));
    let runs: Vec<Value> = read_first.collect::<LabResult<_>>()?;
    if !(RUNS_MIN..=RUNS_MAX).contains(&paths.len()) {
        let named = match paths.len() {
            1 => "1 run is".to_owned(),
            several => format!("{several} runs are"),
        };
        let (few, which) = match paths.len() < RUNS_MIN {
            true => ("few", "to tell a change from chance"),
            false => ("many", "nobody could look at them all"),
        };
        return Err(LabError::Call(format!(
            "{named} too {few} ({which}): name {RUNS_MIN} to {RUNS_MAX} files, each written by lab run \
             --json"
        )));
    }
    let first = &runs[0];
    for (path, run) in paths.iter().zip(&runs) {
        for what in ["profile", "on"] {
            if run[what] != first[what] {
                return Err(LabError::Call(format!(
                    "{}: its {what} is {}, that of {} is {}: a history needs runs of one profile on \
                     one disk",
                    path.display(),
                    run[what],
                    paths[0].display(),
                    first[what]
                )));
            }
        }
    }
    let series = series(&runs);
    if series.is_empty() {
        return Err(LabError::Call(format!(
            "{}: the runs have no figure in common",
            paths[0].display()
        )));
    }
    let names: Vec<String> = paths.iter().map(|path| name(path)).collect();
    Ok(findings(first, &names, &runs, &series))
}

fn read(path: &Path) -> LabResult<Value> {
    let text = crate::input::read(path).map_err(|error| {
        LabError::Call(format!(
            "{}: {error}; name the JSON files of runs, each written by lab run --json",
            path.display()
        ))
    })?;
    let wrong = |what: &str| LabError::Call(format!("{}: {what}", path.display()));
    let run: Value = serde_json::from_str(&text).map_err(|error| {
        wrong(&format!(
            "not the JSON of a run: {error}; write one with lab run --json"
        ))
    })?;
    match run["profile"].is_string() && run["figures"].is_object() {
        true if run["interrupted"] == true => Err(wrong(
            "this run was interrupted: finish it with --resume, or leave it out",
        )),
        true => Ok(run),
        false => Err(wrong("not a file that lab run --json wrote")),
    }
}

/// The figures that every run has.
fn series(runs: &[Value]) -> Vec<Series> {
    let of_each: Vec<BTreeMap<String, (f64, bool)>> = runs.iter().map(scores).collect();
    let names = of_each.first().map(|first| first.keys().cloned());
    let all = names.into_iter().flatten().filter_map(|name| {
        let values = of_each
            .iter()
            .map(|of| of.get(&name).map(|(value, _)| *value));
        let values: Vec<f64> = values.collect::<Option<_>>()?;
        let (_, more_is_better) = of_each[0][&name];
        Some(Series {
            name,
            more_is_better,
            values,
        })
    });
    all.collect()
}

/// The figures that a run is tracked by: its scores, or else the total of its layers if its profile has them.
fn scores(run: &Value) -> BTreeMap<String, (f64, bool)> {
    let mut all = BTreeMap::new();
    for score in run["scores"].as_array().into_iter().flatten() {
        if let (Some(name), Some(value)) = (score["name"].as_str(), score["value"].as_f64()) {
            all.insert(name.to_owned(), (value, score["more_is_better"] == true));
        }
    }
    let knee = "/figures/knee/iops";
    let told = [
        ("/total/p50_us", "µs at the median", false),
        ("/total/p99_us", "µs at the 99th percentile", false),
        // Of runs from before `queue` had scores.
        (knee, "I/Os a second at the knee", true),
        ("/figures/throughput/ratio", "ratio of throughputs", true),
    ];
    let has_scores = !all.is_empty() || run.pointer(knee).is_some_and(Value::is_number);
    for (place, name, more_is_better) in told {
        // With scores, the layers are there to explain them.
        if has_scores && place.starts_with("/total/") {
            continue;
        }
        if let Some(value) = run.pointer(place).and_then(Value::as_f64) {
            all.insert(name.to_owned(), (value, more_is_better));
        }
    }
    all.retain(|_, (value, _)| *value > 0.0 && value.is_finite());
    all
}

fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}

fn findings(first: &Value, names: &[String], runs: &[Value], series: &[Series]) -> Findings {
    let chance = FALSE_ALARMS / series.len() as f64;
    let found: Vec<Vec<SeriesChange>> = series.iter().map(|s| changes(&s.values, chance)).collect();
    let mut table = FindingsTable::new(
        "Where it changed",
        "For each change: the first run after it, the medians of the runs before and after it up to \
         the neighbouring changes, and the probability of such a difference without a change. Over all \
         figures together, at most 5 % of histories raise a false alarm.",
        &["figure", "since", "before", "after", "ratio", "", "chance"],
    );
    let mut advice = Vec::new();
    for (series, changes) in series.iter().zip(&found) {
        for change in changes {
            let ratio = change.after / change.before;
            let verdict = match (ratio > 1.0) == series.more_is_better {
                true => "better",
                false => "worse",
            };
            let since = &names[change.at];
            table.rows.push(vec![
                series.name.clone(),
                since.clone(),
                short(change.before),
                short(change.after),
                format!("{ratio:.2}×"),
                verdict.into(),
                short(change.chance),
            ]);
            if verdict == "worse" {
                advice.push(format!(
                    "{} became {ratio:.2}× at {since}: look at what changed after {}",
                    series.name,
                    names[change.at - 1]
                ));
            }
        }
    }
    let answer = match table.rows.len() {
        0 => format!("No change found in {} runs.", runs.len()),
        1 => format!(
            "{} became {} at {}.",
            table.rows[0][0], table.rows[0][4], table.rows[0][1]
        ),
        several => format!(
            "{several} changes found in {} runs; the table says where.",
            runs.len()
        ),
    };
    let mut notes = Vec::new();
    for what in ["machine", "settings"] {
        // Runs of several versions are what a history is for.
        let told = |run: &Value| {
            let mut told = run[what].clone();
            if let Some(table) = told.as_object_mut() {
                table.remove("sanstone");
            }
            told
        };
        let other = runs.iter().position(|run| told(run) != told(first));
        if let Some(other) = other {
            notes.push(format!(
                "{}: its {what} differs from that of {}",
                names[other], names[0]
            ));
        }
    }
    let figures: Vec<Value> = series
        .iter()
        .zip(&found)
        .map(|(series, changes)| {
            json!({
                "name": series.name, "values": series.values, "more_is_better": series.more_is_better,
                "changes": changes,
            })
        })
        .collect();
    let on = first["on"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    Findings {
        profile: format!(
            "history of {}",
            first["profile"].as_str().unwrap_or_default()
        ),
        on: on.map(str::to_owned).collect(),
        about: "Runs in the order given, and where they changed".into(),
        answer,
        advice,
        notes,
        tables: vec![table],
        plots: series.iter().map(plot).collect(),
        figures: json!({ "runs": names, "series": figures }),
        ..Findings::default()
    }
}

fn plot(series: &Series) -> Plot {
    let axis = |label: &str| Axis {
        label: label.into(),
        is_logarithmic: false,
    };
    let points = (1_u32..)
        .zip(&series.values)
        .map(|(n, value)| (f64::from(n), *value));
    Plot {
        title: series.name.clone(),
        about: "Each run, in the order given.".into(),
        x: axis("runs"),
        y: axis(&series.name),
        marks: Marks::Lines(vec![PlotLine {
            name: series.name.clone(),
            points: points.collect(),
        }]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_tracked_by_its_scores_or_else_by_its_total() {
        let total = json!({ "p50_us": 10.0, "p99_us": 30.0 });
        let score =
            json!({ "name": "transactions a minute", "value": 7.0, "more_is_better": true });
        let names = |run: Value| scores(&run).into_keys().collect::<Vec<_>>();
        assert_eq!(
            names(json!({ "total": total })),
            ["µs at the 99th percentile", "µs at the median"]
        );
        assert_eq!(
            names(json!({ "total": total, "scores": [score] })),
            ["transactions a minute"]
        );
        // Its layers are those of the knee, which may be at another number in each run.
        let knee = json!({ "outstanding": 64, "iops": 5000.0, "mean_us": 12.8 });
        let queue = json!({ "total": total, "figures": { "knee": knee } });
        assert_eq!(names(queue), ["I/Os a second at the knee"]);
    }
}
