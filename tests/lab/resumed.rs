//! A run that was interrupted or killed resumes where it stopped; a completed run is not repeated.

use std::{
    fs,
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant},
};

use harness::{noise, process::signal};
use serde_json::Value;

use crate::{Lab, Place, assert_gone, assert_told};

/// Two streams: of a few I/Os, and of many.
const PROFILE: &str = r#"
kind = "iozone"
about = "Writes"
file_sizes = ["32KiB", "16MiB"]
transfer_sizes = ["4KiB"]
outstanding = 1
streams = ["write"]
time = "10h"
"#;

const FIRST: &str = "write of 32KiB by 4KiB";
const SECOND: &str = "write of 16MiB by 4KiB";

/// The volume `db`, with this latency for each I/O.
fn volume(place: &Place, latency: &str) -> String {
    let text = format!(
        "[volume.db]\nthrottle = {{ rate = \"100Gbit/s\", latency = \"{latency}\", of = {{ ram = {{ size = \
         \"16MiB\" }} }} }}\n"
    );
    let path = place.directory.write("volume.toml", text);
    path.to_string_lossy().into_owned()
}

/// Starts a run whose first step takes a second and the second ten minutes, and ends it with this signal once the first
/// is stored.
fn end_after_the_first_step(place: &Place, call: &[&str], name: &str) {
    let mut lab = place.command(call);
    let lab = lab.stdin(Stdio::null()).stdout(Stdio::null());
    let lab = lab.stderr(Stdio::null());
    let mut lab = Lab(lab.spawn().expect("it starts"));
    let deadline = Instant::now() + Duration::from_secs(300);
    let is_kept = || {
        place
            .kept()
            .is_some_and(|json| !json["steps"][FIRST].is_null())
    };
    while !is_kept() && Instant::now() < deadline {
        sleep(Duration::from_millis(10));
    }
    signal(i64::from(lab.0.id()), name);
    let ended = lab.0.wait().expect("a child of ours");
    assert_eq!(ended.success(), name == "INT", "{ended}");
}

fn goes_on_after(name: &str) {
    let place = Place::new();
    let path = place.directory.write("mine.toml", PROFILE);
    let path = path.to_string_lossy();
    let slow = volume(&place, "100ms");
    let call = ["run", &path, "-c", &slow, "--on", "db", "--resume"];
    end_after_the_first_step(&place, &call, name);
    let json = place.json();
    assert_eq!(json["interrupted"], true, "{json}");
    let known = json["steps"][FIRST].clone();
    assert!(known["iops"].as_f64().expect("a rate") > 0.0, "{json}");
    assert_eq!(json["steps"][SECOND], Value::Null, "{json}");

    // A different profile does not match the interrupted run.
    fs::write(&*path, PROFILE.replace("10h", "9h")).expect("it is ours");
    let ran = place.run(&call);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(
        ran.stderr.contains("--resume") && ran.stderr.contains("leave out --resume"),
        "{ran}"
    );

    fs::write(&*path, PROFILE).expect("it is ours");
    let other = place.path("other.img");
    let ran = place.run(&["run", &path, "--on", &other, "--resume"]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains("name the same with --on"), "{ran}");
    assert_gone(&other);
    let data = noise(5, 1 << 20);
    fs::write(&other, &data).expect("there is room");
    let ran = place.run(&["run", &path, "--on", &other, "--resume", "--overwrite"]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(fs::read(&other).expect("it is there") == data, "{ran}");

    volume(&place, "1us");
    let ran = place.run(&call).success();
    let json = assert_told(&place, &ran);
    assert_eq!(json["interrupted"], false, "{json}");
    assert!(json["steps"][FIRST] == known, "it was measured again");
    let cells = json["figures"]["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 2, "{json}");
    assert_eq!(cells[0]["rounds"], serde_json::json!([known]), "{json}");

    let answer = json["answer"].as_str().expect("an answer").to_owned();
    let ran = place.run(&call).success();
    assert!(
        ran.stderr.contains("already finished") && ran.stdout.contains(&answer),
        "{ran}"
    );
    // That answer is none for another disk.
    let ran = place.run(&["run", &path, "--on", &other, "--resume"]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(
        ran.stderr.contains("[\"db\"]") && ran.stderr.contains(&other),
        "{ran}"
    );
}

#[test]
fn an_interrupted_run_goes_on_where_it_stopped() {
    goes_on_after("INT");
}

#[test]
fn a_run_that_was_killed_goes_on_behind_the_steps_that_were_over() {
    goes_on_after("KILL");
}

#[test]
fn loads_of_a_generator_are_recalled_with_their_figures() {
    let place = Place::new();
    let file = place.path("made.img");
    let call = ["run", "queue", "--on", &file, "--quick"];
    place.run(&call).success();
    // As left by an interrupt: without the last steps.
    let mut json = place.json();
    json["interrupted"] = true.into();
    let steps = json["steps"].as_object_mut().expect("steps");
    let all = steps.len();
    assert!(all >= 18, "{steps:?}");
    let left: Vec<String> = steps
        .keys()
        .filter(|key| key.contains("in all"))
        .cloned()
        .collect();
    for key in &left {
        steps.remove(key);
    }
    let kept = json["figures"]["outstanding"].clone();
    let layers = json["layers"].clone();
    assert!(layers.is_array(), "{layers}");
    fs::write(place.directory.join("lab.json"), json.to_string()).expect("it is ours");
    let ran = place.run(&[&call[..], &["--resume"]].concat()).success();
    let json = assert_told(&place, &ran);
    assert!(
        json["figures"]["outstanding"] == kept,
        "they were measured again"
    );
    assert_eq!(
        json["steps"].as_object().map(serde_json::Map::len),
        Some(all)
    );
    assert_eq!(
        json["figures"]["adapters"].as_array().map(Vec::len),
        Some(2)
    );
    assert_eq!(json["layers"], layers);
    let score = &json["scores"][0];
    assert_eq!(score["name"], "I/Os a second at the knee", "{score}");
    assert_eq!(score["value"], json["figures"]["knee"]["iops"], "{score}");

    // As written by a version that did not keep the layers.
    let mut json = json;
    json["interrupted"] = true.into();
    for (_, step) in json["steps"].as_object_mut().expect("steps") {
        step.as_object_mut().expect("a step").remove("seen");
    }
    fs::write(place.directory.join("lab.json"), json.to_string()).expect("it is ours");
    let ran = place.run(&[&call[..], &["--resume"]].concat()).success();
    let json = assert_told(&place, &ran);
    assert_eq!(json["layers"], serde_json::Value::Null);
    assert!(
        ran.stdout.contains("where the time went is not shown"),
        "{ran}"
    );
}

#[test]
fn resume_needs_a_file_to_go_on_from() {
    let place = Place::new();
    let broken = place.directory.write("lab.json", "{ not JSON");
    let ran = place.run(&["run", "queue", "--on", "./f", "--resume"]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains(&*broken.to_string_lossy()), "{ran}");
}
