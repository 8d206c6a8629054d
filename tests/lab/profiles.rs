//! Every profile in its quick form, on each kind of storage it supports.

use std::fs;

use harness::{
    directory::Directory,
    noise,
    process::find_program,
    sanstone::{Sanstone, call},
    tgt::Tgt,
};
use serde_json::Value;

use crate::{Place, assert_gone, assert_told, ram_target};

#[track_caller]
fn assert_queue(json: &Value) {
    let sweep = json["figures"]["outstanding"].as_array().expect("a sweep");
    assert!(sweep.len() >= 11, "{json}");
    for step in sweep {
        assert!(
            step["runs"][0]["iops"].as_f64().expect("a rate") > 0.0,
            "{step}"
        );
    }
    assert!(
        json["figures"]["knee"]["outstanding"]
            .as_u64()
            .expect("a knee")
            >= 1
    );
    let rates = json["figures"]["rates"].as_array().expect("rates");
    assert_eq!(rates.len(), 5);
    assert!(json["layers"].is_array(), "{json}");
    assert!(!rates[0]["series"].as_array().expect("a series").is_empty());
    let run = &rates[0]["run"];
    assert!(run["generator_late_p99_us"].is_number());
    let [due, sent] = ["p99_us", "service_p99_us"].map(|name| run[name].as_f64().expect("a time"));
    assert!(sent > 0.0 && sent <= due, "{run}");
    let times = run["service_times_us"].as_array().expect("a histogram");
    let count: u64 = times.iter().flat_map(|pair| pair[1].as_u64()).sum();
    let all = run["latencies_us"].as_array().expect("a histogram");
    let all: u64 = all.iter().flat_map(|pair| pair[1].as_u64()).sum();
    assert!(count > 0 && count == all, "{run}");
    assert_eq!(
        json["figures"]["adapters"].as_array().map(Vec::len),
        Some(2)
    );
    let notes = json["notes"].to_string();
    assert!(notes.contains("Little's law"), "{notes}");
}

#[test]
fn queue_on_a_file_that_it_makes_and_removes() {
    let place = Place::new();
    let file = place.path("made.img");
    let ran = place
        .run(&["run", "queue", "--on", &file, "--quick"])
        .success();
    assert_queue(&assert_told(&place, &ran));
    assert_gone(&file);
}

#[test]
fn what_makes_a_file_faster_than_its_disk_or_a_load_smaller_is_said() {
    let place = Place::new();
    let sparse = place.directory.sparse("sparse.img", 32 << 20);
    let sparse = sparse.to_string_lossy();
    let ran = place
        .run(&["run", "queue", "--on", &sparse, "--quick"])
        .success();
    let notes = assert_told(&place, &ran)["notes"].to_string();
    for part in [
        "sparse.img has 32MiB, less than the profile's size of 64MiB",
        "32MiB of the 32MiB to be measured of",
        "cp --sparse=never",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let whole = place.directory.write("whole.img", noise(4, 64 << 20));
    let ran = place.run(&["run", "queue", "--on", &whole.to_string_lossy(), "--quick"]);
    let notes = assert_told(&place, &ran.success())["notes"].to_string();
    for part in ["sparse", "profile's size"] {
        assert!(!notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn queue_on_a_stripe() {
    let place = Place::new();
    let configuration = place.configuration();
    let ran = place.run(&[
        "run",
        "queue",
        "-c",
        &configuration,
        "--on",
        "db",
        "--quick",
    ]);
    assert_queue(&assert_told(&place, &ran.success()));
}

#[test]
fn queue_only_reads() {
    let place = Place::new();
    let data = noise(1, 64 << 20);
    let file = place.directory.write("data.img", &data);
    let shown = file.to_string_lossy();
    let ran = place
        .run(&["run", "queue", "--on", &shown, "--quick"])
        .success();
    assert_told(&place, &ran);
    assert!(
        fs::read(&file).expect("it is there") == data,
        "the file was changed"
    );
}

#[test]
fn queue_on_a_disk_of_a_target() {
    let place = Place::new();
    let (_directory, target) = ram_target("64MiB");
    let ran = place.run(&["run", "queue", "--on", &target.url(0), "--quick"]);
    assert_queue(&assert_told(&place, &ran.success()));
}

#[track_caller]
fn assert_iozone(json: &Value) {
    let cells = json["figures"]["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 8 * 2 * 3, "{json}");
    let moved = |cell: &Value| cell["megabytes_per_s"].as_f64().expect("a rate") > 0.0;
    assert!(cells.iter().all(moved), "{json}");
}

#[test]
fn iozone_on_a_file() {
    let place = Place::new();
    let file = place.path("made.img");
    let ran = place
        .run(&["run", "iozone", "--on", &file, "--quick"])
        .success();
    assert_iozone(&assert_told(&place, &ran));
    assert_gone(&file);
}

#[test]
fn iozone_compares_what_it_reads_with_what_it_wrote() {
    let place = Place::new();
    let printed = call(&["lab", "profiles", "iozone"]).success().stdout;
    let verified = printed.replace("verify = false", "verify = true");
    assert_ne!(verified, printed);
    let profile = place.directory.write("verified.toml", verified);
    let file = place.path("made.img");
    let ran = place.run(&["run", &profile.to_string_lossy(), "--on", &file, "--quick"]);
    assert_iozone(&assert_told(&place, &ran.success()));
}

#[test]
fn iozone_on_a_stripe() {
    let place = Place::new();
    let configuration = place.configuration();
    let ran = place.run(&[
        "run",
        "iozone",
        "-c",
        &configuration,
        "--on",
        "db",
        "--quick",
    ]);
    assert_iozone(&assert_told(&place, &ran.success()));
}

#[track_caller]
fn assert_effectiveness(json: &Value) {
    let runs = json["figures"]["runs"].as_array().expect("runs");
    for operation in ["read", "write"] {
        let of = |run: &&Value| run["operation"] == operation && run["rate_per_s"].is_null();
        let most = runs.iter().find(of).expect("a run at the most");
        assert!(
            most["ios_per_percent"].as_f64().expect("a figure") > 0.0,
            "{most}"
        );
        assert!(most["figures"]["cpu"]["cores"].as_u64().expect("cores") > 0);
    }
}

#[test]
fn effectiveness_on_a_file() {
    let place = Place::new();
    let file = place.path("made.img");
    let ran = place
        .run(&["run", "effectiveness", "--on", &file, "--quick"])
        .success();
    assert_effectiveness(&assert_told(&place, &ran));
    assert_gone(&file);
}

#[test]
fn effectiveness_names_each_round_that_lacks_a_rate() {
    let place = Place::new();
    let text = "kind = \"effectiveness\"\nabout = \"A few I/Os\"\nsize = \"8MiB\"\nblock = \"4KiB\"\nsessions = \
                2\noutstanding = 2\nrates = [9000000]\ntime = \"100ms\"\nrounds = 2\n";
    let profile = place.directory.write("few.toml", text);
    let (profile, file) = (profile.to_string_lossy(), place.path("made.img"));
    let ran = place.run(&["run", &profile, "--on", &file]).success();
    let json = assert_told(&place, &ran);
    assert_effectiveness(&json);
    let left_out = json["figures"]["left_out"].as_array().expect("a list");
    let all: Vec<String> = left_out
        .iter()
        .map(|left_out| format!("{} {}", left_out["load"], left_out["round"]))
        .collect();
    let [writes, reads] = ["writes", "reads"].map(|what| format!("\"{what}, 9,000,000 a second\""));
    let expected = [1, 2].map(|round| [format!("{writes} {round}"), format!("{reads} {round}")]);
    assert_eq!(all, expected.concat());
    for what in ["writes", "reads"] {
        let note = format!("note: {what}, 9,000,000 a second: left out, because at most ");
        assert!(ran.stdout.contains(&note), "{ran}");
    }
}

#[test]
fn effectiveness_on_a_stripe() {
    let place = Place::new();
    let configuration = place.configuration();
    let arguments = [
        "run",
        "effectiveness",
        "-c",
        &configuration,
        "--on",
        "db",
        "--quick",
    ];
    let ran = place.run(&arguments);
    assert_effectiveness(&assert_told(&place, &ran.success()));
}

#[test]
fn effectiveness_counts_the_process_that_is_named() {
    let place = Place::new();
    let (_directory, target) = ram_target("64MiB");
    let pid = target.pid().to_string();
    let url = target.url(0);
    let arguments = [
        "run",
        "effectiveness",
        "--on",
        &url,
        "--pid",
        &pid,
        "--quick",
    ];
    let ran = place.run(&arguments).success();
    let json = assert_told(&place, &ran);
    assert_effectiveness(&json);
    let cpu = &json["figures"]["runs"][0]["figures"]["cpu"];
    assert!(
        cpu["pid_percent"].as_f64().expect("its time") > 0.0,
        "{cpu}"
    );
    assert!(ran.stdout.contains(&format!("process {pid}")), "{ran}");
}

/// The parts of a commit on a link with this latency.
fn commit(place: &Place, latency: &str) -> Value {
    let text = format!(
        "[volume.db]\nthrottle = {{ rate = \"100Gbit/s\", latency = \"{latency}\", of = {{ file = {{ path = \
         \"{latency}.img\", size = \"80MiB\" }} }} }}\n"
    );
    let path = place.directory.write("link.toml", text);
    let path = path.to_string_lossy();
    let ran = place
        .run(&["run", "commit", "-c", &path, "--quick"])
        .success();
    assert_told(place, &ran)
}

#[test]
fn commit_on_a_file_and_a_planted_delay_is_in_its_row() {
    let place = Place::new();
    let file = place.path("made.img");
    let ran = place
        .run(&["run", "commit", "--on", &file, "--quick"])
        .success();
    let json = assert_told(&place, &ran);
    assert!(json["figures"]["commits"].as_u64().expect("a number") > 0);
    assert_gone(&file);
    // Longer than anything else on this machine takes.
    let delayed = commit(&place, "20ms");
    let layers = delayed["figures"]["waits"]["layers"].as_array();
    let layers = layers.expect("layers");
    let of = |layer: &Value| layer["p50_us"].as_f64().expect("a time");
    let total = of(&delayed["total"]);
    let durable = layers
        .iter()
        .find(|l| l["name"] == "waiting until they are durable");
    let durable = of(durable.expect("its row"));
    assert!(
        durable > 40_000.0,
        "a write and a flush at least: {delayed}"
    );
    assert!(durable > 0.5 * total, "{delayed}");
    let advice = delayed["advice"].to_string();
    assert!(
        advice.contains("waiting until they are durable"),
        "{advice}"
    );
}

/// The rows that a commit on `url` shows: names and medians.
fn commit_rows(url: &str) -> Vec<(String, f64)> {
    let place = Place::new();
    let ran = place
        .run(&["run", "commit", "--on", url, "--quick"])
        .success();
    let json = assert_told(&place, &ran);
    let rows = json["layers"].as_array().expect("layers").iter();
    rows.map(|row| {
        let name = row["name"].as_str().expect("a name");
        (name.to_owned(), row["p50_us"].as_f64().expect("a time"))
    })
    .collect()
}

#[test]
fn commit_shows_what_a_target_of_ours_has_of_it() {
    let directory = Directory::new();
    // One lane, so that the layer and its file are on the session's lane.
    let volume = "lanes = 1\n[volume.v]\nthrottle = { rate = \"100Gbit/s\", latency = \"20ms\", \
                  of = { file = { path = \"v.img\", size = \"80MiB\" } } }\n";
    let target = Sanstone::serve(directory.path(), volume, &["v"]);
    let rows = commit_rows(&target.url(0));
    let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "SQLite and its files",
        "volume",
        "initiator",
        "wire",
        "target",
        "medium",
    ];
    assert_eq!(names, expected);
    // At least a write and a flush, each delayed by the planted latency.
    assert!(rows[4].1 > 40_000.0, "{rows:?}");
}

#[test]
fn commit_says_that_a_target_of_others_does_not_tell() {
    let directory = Directory::new();
    let mut tgt = Tgt::start();
    let url = tgt.add_disk(&directory.sparse("disk.img", 80 << 20));
    let rows = commit_rows(&url);
    let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "SQLite and its files",
        "volume",
        "initiator",
        "wire and target: not visible",
    ];
    assert_eq!(names, expected);
}

#[test]
fn commit_on_a_stripe() {
    let place = Place::new();
    let configuration = place.configuration();
    let call = [
        "run",
        "commit",
        "-c",
        &configuration,
        "--on",
        "db",
        "--quick",
    ];
    let json = assert_told(&place, &place.run(&call).success());
    let nodes = json["figures"]["nodes"].as_array().expect("nodes");
    assert!(
        nodes.iter().any(|node| node["node"] == "db/stripe/0/file"),
        "{json}"
    );
    // What it leaves behind does not count as user data.
    assert_told(&place, &place.run(&call).success());
}

#[test]
fn fio_runs_the_same_loads_beside_it() {
    if find_program("fio").is_none() {
        return harness::skip("fio is not installed");
    }
    let place = Place::new();
    let file = place.path("made.img");
    let ran = place
        .run(&["run", "queue", "--on", &file, "--quick", "--with", "fio"])
        .success();
    let json = assert_told(&place, &ran);
    let beside = json["figures"]["fio"].as_array().expect("a list");
    // The closed loops and the arrival rates; fio has no adapters.
    assert!(beside.len() >= 16, "{}", beside.len());
    for load in beside {
        assert!(
            load["fio"]["iops"].as_f64().expect("a rate") > 0.0,
            "{load}"
        );
    }
    assert!(ran.stdout.contains("Beside fio"), "{ran}");
}

#[test]
fn a_copy_of_a_profile_can_be_changed_and_run() {
    let place = Place::new();
    let printed = call(&["lab", "profiles", "queue"]).success().stdout;
    let changed = printed
        .replace("time = \"1s\"", "time = \"200ms\"")
        .replace("rounds = 6", "rounds = 1\nverify = true")
        .replace("read_percent = 100", "read_percent = 60")
        .replace("order = \"random\"", "order = \"zipf\"")
        .replace("size = \"1GiB\"", "size = \"8MiB\"");
    let profile = place.directory.write("mine.toml", changed);
    let file = place.path("made.img");
    let ran = place
        .run(&["run", &profile.to_string_lossy(), "--on", &file])
        .success();
    let json = assert_told(&place, &ran);
    assert_eq!(json["profile"], "mine");
    assert_queue(&json);
}
