//! A series of runs, and where it changed.

use std::fs;

use serde_json::{Value, json};

use crate::{Place, assert_told};

/// The JSON of a run whose median is this.
pub(crate) fn made(place: &Place, number: usize, p50_us: f64) -> String {
    let run = json!({
        "format": 1, "profile": "commit", "on": ["db"], "figures": {}, "interrupted": false,
        "total": { "mean_us": p50_us, "p50_us": p50_us, "p99_us": 900.0 + p50_us },
        "machine": { "cpu": "one" },
    });
    let path = place
        .directory
        .write(&format!("run-{number:02}.json"), run.to_string());
    path.to_string_lossy().into_owned()
}

fn history(place: &Place, runs: &[String]) -> harness::run::Ran {
    let runs: Vec<&str> = runs.iter().map(String::as_str).collect();
    place.run(&[&["history"], &runs[..]].concat())
}

#[test]
fn a_change_is_found_at_its_run_and_nothing_where_there_is_none() {
    let place = Place::new();
    let median = |run: usize| 100.0 + (run * 7 % 5) as f64;
    let same: Vec<String> = (0..20).map(|run| made(&place, run, median(run))).collect();
    let ran = history(&place, &same).success();
    let json = assert_told(&place, &ran);
    assert_eq!(json["answer"], "No change found in 20 runs.");
    let slower = |run: usize| median(run) * if run < 12 { 1.0 } else { 1.3 };
    let changed: Vec<String> = (0..20).map(|run| made(&place, run, slower(run))).collect();
    let ran = history(&place, &changed).success();
    let json = assert_told(&place, &ran);
    assert!(
        ran.stdout.contains("run-12") && ran.stdout.contains("worse"),
        "{ran}"
    );
    let series = json["figures"]["series"].as_array().expect("series");
    let of = |name: &str| {
        series
            .iter()
            .find(|s| s["name"] == name)
            .expect("its series")
    };
    let changes = of("µs at the median")["changes"]
        .as_array()
        .expect("changes");
    assert_eq!(changes.len(), 1, "{json}");
    assert_eq!(changes[0]["at"], 12, "{json}");
}

#[test]
fn runs_of_the_lab_itself_are_followed() {
    let place = Place::new();
    let profile = "kind = \"sql-scan\"\nabout = \"A scan\"\nrows = 10000\npages = [\"64KiB\"]\ncaches = [\"0B\"]\n\
                   memory = \"1MiB\"\ntime = \"1h\"\nstatements = [ { name = \"failed-drives\", runs = 1 } ]\n";
    let profile = place.directory.write("short.toml", profile);
    let file = place.path("made.img");
    let mut runs = Vec::new();
    for run in 0..8 {
        place
            .run(&["run", &profile.to_string_lossy(), "--on", &file])
            .success();
        let kept = place.directory.join(&format!("{run}.json"));
        fs::copy(place.directory.join("lab.json"), &kept).expect("it was written");
        runs.push(kept.to_string_lossy().into_owned());
    }
    let json = assert_told(&place, &history(&place, &runs).success());
    let values = json["figures"]["series"][0]["values"]
        .as_array()
        .map(Vec::len);
    assert_eq!(values, Some(8), "{json}");
}

#[test]
fn what_is_no_history_is_named() {
    let place = Place::new();
    let refused = |runs: &[String], part: &str| {
        let ran = history(&place, runs);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains(part), "{ran}");
    };
    let runs: Vec<String> = (0..8).map(|run| made(&place, run, 100.0)).collect();
    refused(&runs[..7], "7 runs are too few");
    let rewritten = |change: &dyn Fn(&mut Value)| {
        let text = fs::read_to_string(&runs[3]).expect("it is ours");
        let mut run: Value = serde_json::from_str(&text).expect("it is JSON");
        change(&mut run);
        let other = place.directory.write("other.json", run.to_string());
        let mut runs = runs.clone();
        runs[3] = other.to_string_lossy().into_owned();
        runs
    };
    refused(
        &rewritten(&|run| run["profile"] = "queue".into()),
        "other.json: its profile is \"queue\"",
    );
    refused(
        &rewritten(&|run| run["on"] = json!(["other"])),
        "other.json: its on is",
    );
    refused(
        &rewritten(&|run| run["interrupted"] = true.into()),
        "finish it with --resume",
    );
    refused(
        &rewritten(&|run| *run = json!([1])),
        "other.json: not a file that lab run --json wrote",
    );
}
