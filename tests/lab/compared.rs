//! Two things in turn.

use std::{
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant},
};

use harness::{process::find_program, sanstone::Sanstone};
use serde_json::Value;

use crate::{Lab, Place, assert_told};

/// One load of 4 KiB reads, for a moment each.
const SHORT: &str = r#"
kind = "queue"
about = "A few reads"
size = "8MiB"
block = "4KiB"
luns = 1
outstanding = [4]
time = "60ms"
"#;

#[test]
fn a_delay_is_found_and_named() {
    let place = Place::new();
    let configuration = place.configuration();
    let profile = place.directory.write("short.toml", SHORT);
    let profile = profile.to_string_lossy();
    let arguments = [
        "compare",
        "fast",
        "slow",
        "-c",
        &configuration,
        "--profile",
        &profile,
    ];
    let ran = place.run(&arguments).success();
    let json = assert_told(&place, &ran);
    let throughput = &json["figures"]["throughput"];
    assert_eq!(throughput["pairs"], 12);
    // 5 ms beside microseconds, whatever else this machine does.
    assert!(
        throughput["ratio"].as_f64().expect("a ratio") < 0.5,
        "{throughput}"
    );
    let answer = json["answer"].as_str().expect("an answer");
    assert!(
        answer.contains("slow is slower: 0.") && answer.contains("× fast"),
        "{answer}"
    );
    assert!(
        answer.contains("95 % interval") && answer.contains("12 pairs"),
        "{answer}"
    );
    let load = &json["figures"]["loads"][0];
    for side in ["a", "b"] {
        assert_eq!(
            load[side].as_array().map(Vec::len),
            Some(12),
            "all samples are kept"
        );
    }
    assert!(ran.stdout.contains("Each load"), "{ran}");
}

#[test]
fn a_comparison_that_is_killed_keeps_the_pairs_of_its_rounds() {
    let place = Place::new();
    let configuration = place.configuration();
    let profile = place.directory.write("short.toml", SHORT);
    let profile = profile.to_string_lossy();
    let call = ["compare", "fast", "slow", "-c", &configuration];
    let lab = place
        .command(&[&call[..], &["--profile", &profile, "--pairs", "100000"]].concat())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut lab = Lab(lab);
    let pairs = |json: &Value| {
        let load = &json["figures"]["loads"][0];
        ["a", "b"].map(|side| load[side].as_array().map_or(0, Vec::len))
    };
    let deadline = Instant::now() + Duration::from_secs(300);
    while place.kept().is_none_or(|json| pairs(&json)[0] < 2) && Instant::now() < deadline {
        sleep(Duration::from_millis(10));
    }
    // SIGKILL.
    lab.0.kill().expect("it runs");
    lab.0.wait().expect("a child of ours");
    let json = place.json();
    assert_eq!(json["interrupted"], true, "{json}");
    let [a, b] = pairs(&json);
    assert!(a >= 2 && a == b, "{json}");
    assert_eq!(json["figures"]["throughput"]["pairs"], a, "{json}");
    assert_eq!(json["on"], serde_json::json!(["fast", "slow"]));
}

#[test]
fn the_processor_time_of_two_targets_is_compared() {
    let place = Place::new();
    let volumes =
        "[volume.a]\nram = { size = \"16MiB\" }\n[volume.b]\nram = { size = \"16MiB\" }\n";
    let server = Sanstone::serve(place.directory.path(), volumes, &["a", "b"]);
    let profile = place.directory.write("short.toml", SHORT);
    let (profile, pid) = (profile.to_string_lossy(), server.pid().to_string());
    let (a, b) = (server.url(0), server.url(1));
    let call = ["compare", &a, &b, "--profile", &profile, "--pairs", "6"];
    let ran = place
        .run(&[&call[..], &["--pids", &pid, &pid]].concat())
        .success();
    let json = assert_told(&place, &ran);
    let load = &json["figures"]["loads"][0];
    for side in ["a", "b"] {
        let samples = load[side].as_array().expect("samples");
        let each = samples.iter().map(|sample| sample["per_percent"].as_f64());
        assert!(
            samples.len() == 6 && each.flatten().filter(|one| *one > 0.0).count() == 6,
            "{json}"
        );
    }
    let answer = json["answer"].as_str().expect("an answer");
    let sentence = format!("For each percent of a processor, {b} beside {a}: ");
    assert!(answer.contains(&sentence), "{answer}");
    let refused = place.run(&[&call[..], &["--pids", &pid, "4194305"]].concat());
    assert_eq!(refused.code(), Some(2), "{refused}");
    assert!(
        refused
            .stderr
            .contains("--pids 4194305: there is no such process"),
        "{refused}"
    );
}

#[test]
fn files_and_disks_of_targets_are_compared_as_well() {
    let place = Place::new();
    let profile = place.directory.write("short.toml", SHORT);
    let (a, b) = (place.path("a.img"), place.path("b.img"));
    let profile = profile.to_string_lossy();
    let ran = place
        .run(&["compare", &a, &b, "--profile", &profile, "--pairs", "6"])
        .success();
    let json = assert_told(&place, &ran);
    assert_eq!(json["figures"]["throughput"]["pairs"], 6);
    crate::assert_gone(&a);
    crate::assert_gone(&b);
}

#[test]
fn our_generator_is_compared_with_fio_in_closed_and_open_loops() {
    if find_program("fio").is_none() {
        return harness::skip("fio is not installed");
    }
    let place = Place::new();
    let profile = SHORT.replace("time =", "rates = [200.0]\ntime =");
    let profile = place.directory.write("short.toml", profile);
    let profile = profile.to_string_lossy();
    let file = place.path("a.img");
    let call = [
        "compare",
        &file,
        "--with",
        "fio",
        "--profile",
        &profile,
        "--pairs",
        "6",
    ];
    let ran = place.run(&call).success();
    let json = assert_told(&place, &ran);
    assert_eq!(json["figures"]["b"], "fio");
    let loads = json["figures"]["loads"].as_array().expect("loads");
    let names: Vec<&str> = loads
        .iter()
        .filter_map(|load| load["name"].as_str())
        .collect();
    assert_eq!(names, ["4 outstanding", "200 arrivals a second"]);
    for load in loads {
        assert_eq!(load["b"].as_array().map(Vec::len), Some(6), "{load}");
        for side in ["a", "b"] {
            let time = |name: &str| load[side][0][name].as_f64().expect("a time");
            let [due, sent] = ["p50_us", "service_p50_us"].map(time);
            assert!(sent > 0.0, "{load}");
            // From when an I/O was due, it takes no less than from when it was sent.
            assert!(sent <= due, "{load}");
        }
        assert!(load["service"]["mean"]["ratio"].is_number(), "{load}");
    }
    let heading = "Service times, from when an I/O is sent";
    assert!(ran.stdout.contains(heading), "{ran}");
    crate::assert_gone(&file);

    let refused = |call: &[&str], part: &str| {
        let ran = place.run(call);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains(part), "{ran}");
    };
    let url = "iscsi://127.0.0.1/iqn.2026-11.io.sanstone:a/0";
    refused(
        &["compare", "./a", url, "--with", "fio", "--profile", "queue"],
        "cannot be used",
    );
    refused(&["compare", "./a", "--profile", "queue"], "<B>");
    refused(
        &["compare", "./a", "--with", "fio", "--profile", "commit"],
        "fio has none of the loads of commit",
    );
    let configuration = place.configuration();
    let call = [
        "compare",
        "fast",
        "-c",
        &configuration,
        "--with",
        "fio",
        "--profile",
        &profile,
    ];
    refused(&call, "fast is neither");
}
