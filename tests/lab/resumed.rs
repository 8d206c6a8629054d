//! A run that was interrupted goes on where it stopped, and one that was not is not repeated.

use std::fs;

use harness::process::signal;

use crate::{Place, assert_gone, assert_told, begun};

/// Two pages, of which somebody ends the second.
fn profile(runs: &str) -> String {
    format!(
        "kind = \"sql-scan\"\nabout = \"Scans\"\nrows = 20000\npages = [\"64KiB\", \"32KiB\"]\ncaches = [\"0B\"]\n\
         memory = \"1MiB\"\ntime = \"10h\"\nstatements = [ {{ name = \"failed-drives\", runs = {runs} }} ]\n"
    )
}

/// Runs the profile of `call`, and ends it by SIGINT when it has told of its first page.
fn interrupt_after_the_first_page(place: &Place, call: &[&str]) {
    let mut lab = begun(place.command(call), "pages of 64KiB");
    signal(i64::from(lab.id()), "INT");
    let ended = lab.wait().expect("a child of ours");
    assert!(ended.success(), "{ended}");
}

#[test]
fn an_interrupted_run_goes_on_where_it_stopped() {
    let place = Place::new();
    let file = place.path("made.img");
    let path = place.directory.path().join("mine.toml");
    let path = path.to_string_lossy();
    let call = ["run", &path, "--on", &file, "--resume"];
    // Whoever is slow to send the signal comes too late for a short run.
    let interrupted = [300, 1500].into_iter().find(|runs| {
        let _ = fs::remove_file(&file);
        let _ = fs::remove_file(place.directory.join("lab.json"));
        fs::write(&*path, profile(&runs.to_string())).expect("it is ours");
        interrupt_after_the_first_page(&place, &call);
        place.json()["interrupted"] == true
    });
    let runs = interrupted.expect("one of them was interrupted");
    let json = place.json();
    let known = json["steps"]["pages of 64KiB, no cache"].clone();
    assert_eq!(
        known["sets"][0]["statements"][0]["runs_s"]
            .as_array()
            .map(Vec::len),
        Some(runs)
    );
    assert!(
        json["steps"]["pages of 32KiB, no cache"].is_null(),
        "{json}"
    );

    // Another profile is not what was interrupted.
    fs::write(&*path, profile("7")).expect("it is ours");
    let ran = place.run(&call);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(
        ran.stderr.contains("--resume") && ran.stderr.contains("leave --resume out"),
        "{ran}"
    );

    fs::write(&*path, profile(&runs.to_string())).expect("it is ours");
    let other = place.path("other.img");
    let ran = place.run(&["run", &path, "--on", &other, "--resume"]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains("name the same by --on"), "{ran}");
    assert_gone(&other);

    let ran = place.run(&call).success();
    let json = assert_told(&place, &ran);
    assert_eq!(json["interrupted"], false, "{json}");
    assert!(
        json["steps"]["pages of 64KiB, no cache"] == known,
        "it was measured again"
    );
    assert_eq!(
        json["figures"]["sweep"].as_array().map(Vec::len),
        Some(2),
        "{json}"
    );
    assert_eq!(json["figures"]["sweep"][0], known, "{json}");

    let answer = json["answer"].as_str().expect("an answer").to_owned();
    let ran = place.run(&call).success();
    assert!(
        ran.stderr.contains("finished before") && ran.stdout.contains(&answer),
        "{ran}"
    );
    assert_gone(&file);
}

#[test]
fn loads_of_a_generator_are_recalled_with_their_figures() {
    let place = Place::new();
    let file = place.path("made.img");
    let call = ["run", "queue", "--on", &file, "--quick"];
    place.run(&call).success();
    // What an interrupt would have left: all but the last steps.
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
}

#[test]
fn resume_needs_a_file_to_go_on_from() {
    let place = Place::new();
    let broken = place.directory.write("lab.json", "{ not JSON");
    let ran = place.run(&["run", "queue", "--on", "./f", "--resume"]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains(&*broken.to_string_lossy()), "{ran}");
}
