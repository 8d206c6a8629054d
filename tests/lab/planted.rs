//! Where the time of a commit goes, with real daemons: a delay planted in one place, too long to be noise, appears in
//! the row of that place and in no other, and the advice points there.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use harness::{
    directory::Directory,
    sanstone::{Sanstone, call},
};
use serde_json::Value;

use crate::{Place, assert_told};

const DELAY: Duration = Duration::from_millis(50);
const FILE: &str = "{ file = { path = \"v.img\", size = \"80MiB\" } }";

/// A volume `v` with a layer that delays requests by this much.
fn late(kind: &str, delay: Duration) -> String {
    let ms = delay.as_millis();
    let layer = match kind {
        "throttle" => {
            format!("throttle = {{ rate = \"100Gbit/s\", latency = \"{ms}ms\", of = {FILE} }}")
        }
        _ => format!("fault = {{ rules = [{{ delay = \"{ms}ms\" }}], of = {FILE} }}"),
    };
    format!("[volume.v]\n{layer}\n")
}

/// The profile with so many commits, however slow they are.
fn profile(place: &Place, setup: &str, commits: usize) -> String {
    let printed = call(&["lab", "profiles", "commit"]).success().stdout;
    let few = printed.replace("commits = 100000 ", &format!("commits = {commits} "));
    let patient = few.replace("time = \"20s\"", "time = \"240s\"");
    let text = patient.replace("setup = []", setup);
    let profile = place.directory.write("few.toml", text);
    profile.to_string_lossy().into_owned()
}

/// Commits on what `on` names, as JSON.
fn commit(place: &Place, on: &[&str]) -> Value {
    // Enough for an interval.
    commit_with(place, "setup = []", 12, on)
}

fn commit_with(place: &Place, setup: &str, commits: usize, on: &[&str]) -> Value {
    let profile = profile(place, setup, commits);
    let mut call = vec!["run", &profile];
    call.extend(on);
    let json = assert_told(place, &place.run(&call).success());
    assert_eq!(json["figures"]["commits"], commits, "{json}");
    json
}

/// A trigger that counts to this number.
fn trigger(steps: u64) -> String {
    format!(
        "setup = [\"CREATE VIEW slow AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < \
         {steps}) SELECT x FROM c\", \"CREATE TRIGGER late AFTER INSERT ON table1 BEGIN SELECT count(*) FROM slow; \
         END\"]"
    )
}

/// The median of the row, in microseconds.
fn row(json: &Value, name: &str) -> f64 {
    let rows = json["layers"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["name"] == name);
    row.map_or(0.0, |row| row["p50_us"].as_f64().expect("a time"))
}

/// Checks that the row has the delay, and that no other row has half as much.
#[track_caller]
fn assert_planted_in(json: &Value, planted: &str) {
    let there = row(json, planted);
    assert!(there > DELAY.as_micros() as f64, "{planted}: {json}");
    for other in json["layers"].as_array().expect("rows") {
        let name = other["name"].as_str().expect("a name");
        assert!(
            name == planted || row(json, name) < there / 2.0,
            "{name} beside {planted}: {json}"
        );
    }
}

#[track_caller]
fn assert_advises(json: &Value, words: &[&str]) {
    let advice = json["advice"].to_string();
    for word in words {
        assert!(advice.contains(word), "no {word}: {advice}");
    }
}

#[test]
fn a_throttled_node_here_is_the_volumes() {
    let place = Place::new();
    let path = place.directory.write("v.toml", late("throttle", DELAY));
    let json = commit(&place, &["-c", &path.to_string_lossy()]);
    assert_planted_in(&json, "volume");
    assert_advises(&json, &["v/throttle", "lower `latency`"]);
}

#[test]
fn a_slow_medium_here_is_named_by_its_node() {
    let place = Place::new();
    let path = place.directory.write("v.toml", late("fault", DELAY));
    let json = commit(&place, &["-c", &path.to_string_lossy()]);
    assert_planted_in(&json, "volume");
    assert_advises(&json, &["v/fault", "`delay`"]);
}

#[test]
fn a_throttled_node_and_a_slow_medium_of_a_target_are_the_targets() {
    for kind in ["throttle", "fault"] {
        let directory = Directory::new();
        let target = Sanstone::serve(directory.path(), &late(kind, DELAY), &["v"]);
        let place = Place::new();
        let json = commit(&place, &["--on", &target.url(0)]);
        assert_planted_in(&json, "target");
        assert_advises(&json, &["is target of disk/iscsi", "sanstone show"]);
    }
}

#[test]
fn a_slow_way_to_a_target_is_the_wires() {
    let directory = Directory::new();
    let target = Sanstone::serve(directory.path(), &late("throttle", Duration::ZERO), &["v"]);
    let to = SocketAddr::from(([127, 0, 0, 1], target.port()));
    let slow = slow_way(to);
    let url = target.url(0).replace(&to.to_string(), &slow.to_string());
    assert!(url.contains(&slow.to_string()), "{url}");
    let place = Place::new();
    let json = commit(&place, &["--on", &url]);
    assert_planted_in(&json, "wire");
    assert_advises(&json, &["is wire of disk/iscsi", "ping"]);
}

#[test]
fn a_trigger_is_the_databases() {
    let place = Place::new();
    let file = place.path("made.img");
    let json = commit_with(&place, &trigger(2_000_000), 12, &["--on", &file]);
    assert_planted_in(&json, "SQLite and its files");
    assert_advises(&json, &["a faster disk would not help", "SHOW TRIGGERS"]);
}

#[test]
fn bursts_of_slow_flushes_are_no_more_of_the_sample_than_of_the_commits() {
    let place = Place::new();
    // Flushes in bursts, as of a disk whose cache is full now and then; most commits have none of them.
    let bursts: Vec<String> = (1..=4)
        .map(|burst| {
            format!(
                "{{ on = \"flush\", delay = \"8ms\", skip = {}, times = 40 }}",
                700 * burst
            )
        })
        .collect();
    let rules = bursts.join(", ");
    let volume = format!(
        "[volume.v]\nfault = {{ rules = [{rules}], of = {{ ram = {{ size = \"80MiB\" }} }} }}\n"
    );
    let path = place.directory.write("v.toml", volume);
    let on = ["-c", &path.to_string_lossy()];
    let json = commit_with(&place, "setup = []", 1000, &on);
    // The first table is of the same commits as the second.
    assert_eq!(json["total"], json["figures"]["waits"]["total"], "{json}");
    let commits = json["figures"]["commits_us"].as_array().expect("commits");
    let commits = commits.iter().map(|us| us.as_f64().expect("a time"));
    let all_us = median(commits.collect());
    let told_us = json["total"]["p50_us"].as_f64().expect("a time");
    assert!(
        (told_us / all_us - 1.0).abs() < 0.1,
        "{told_us} of {all_us}"
    );
    let log = &json["figures"]["log"]["total"]["p50_us"];
    assert!(log.as_f64().expect("a time") > 0.0, "{json}");
    let answer = json["answer"].as_str().expect("an answer");
    assert!(
        answer.contains("A MariaDB or PostgreSQL commit would take about"),
        "{answer}"
    );
}

/// What each row of the layers took, in microseconds, and the median of all commits.
struct Taken {
    rows: Vec<(String, f64)>,
    commit_us: f64,
}

impl Taken {
    /// By a commit with a trigger of so many steps on memory, which takes the same time always.
    fn with_trigger(place: &Place, steps: u64) -> Taken {
        const COMMITS: usize = 3000;
        let volume = "[volume.v]\nram = { size = \"80MiB\" }\n";
        let path = place.directory.write("v.toml", volume);
        let on = ["-c", &path.to_string_lossy()];
        let json = commit_with(place, &trigger(steps), COMMITS, &on);
        let names = json["layers"].as_array().expect("rows").iter();
        let names = names.map(|row| row["name"].as_str().expect("a name").to_owned());
        let commits = json["figures"]["commits_us"].as_array().expect("commits");
        let commits = commits.iter().map(|us| us.as_f64().expect("a time"));
        Taken {
            rows: names
                .map(|name| (name.clone(), row(&json, &name)))
                .collect(),
            commit_us: median(commits.collect()),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn a_brief_trigger_is_in_the_databases_row_with_its_time_and_in_no_other() {
    const PLANTED_US: f64 = 200.0;
    /// So long that the time of a step is known well.
    const LONG_STEPS: u64 = 4000;
    const ROUNDS: usize = 5;
    let place = Place::new();
    // Counting to one costs all but the counting.
    let measured = |steps| Taken::with_trigger(&place, steps);
    let calibrated = || {
        let (none, long) = (measured(1), measured(LONG_STEPS));
        let step_us = (long.commit_us - none.commit_us) / LONG_STEPS as f64;
        (none, step_us)
    };
    let mut grown: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut whole = Vec::new();
    let (mut before, mut step_us) = calibrated();
    for _ in 0..ROUNDS {
        let steps = (PLANTED_US / step_us) as u64;
        let planted = measured(steps);
        // This machine may have become slower or faster meanwhile, so it is calibrated on both sides.
        let (after, step_us_after) = calibrated();
        let planted_us = steps as f64 * f64::midpoint(step_us, step_us_after);
        let grown_us = planted.rows.iter().map(|(name, us)| {
            let of = |taken: &Taken| {
                let row = taken.rows.iter().find(|(known, _)| known == name);
                row.map_or(0.0, |(_, us)| *us)
            };
            (name, us - f64::midpoint(of(&before), of(&after)))
        });
        let grown_us: Vec<(&String, f64)> = grown_us.collect();
        let all_us: f64 = grown_us.iter().map(|(_, us)| us).sum();
        for (name, us) in grown_us {
            grown.entry(name.clone()).or_default().push(us / all_us);
        }
        whole.push(all_us / planted_us);
        (before, step_us) = (after, step_us_after);
    }
    let grown = grown.into_iter();
    let grown: Vec<(String, f64)> = grown.map(|(name, all)| (name, median(all))).collect();
    assert!(grown.len() > 1, "{grown:?}");
    // A machine that changes its speed between a commit and its yardstick stretches all rows alike, so what is asserted
    // closely is each row's part of what all rows have grown.
    for (name, part) in &grown {
        let is_right = match name == "SQLite and its files" {
            true => (0.85..1.15).contains(part),
            false => part.abs() < 0.3,
        };
        assert!(is_right, "{name} has {part} of what was added: {grown:?}");
    }
    let whole = median(whole);
    assert!((0.5..2.0).contains(&whole), "{whole} of the delay in all");
}

#[test]
fn a_slow_share_of_a_stripe_is_named() {
    let directories = [Directory::new(), Directory::new()];
    let plain = Sanstone::serve(
        directories[0].path(),
        &late("throttle", Duration::ZERO),
        &["v"],
    );
    let slow = Sanstone::serve(directories[1].path(), &late("throttle", DELAY), &["v"]);
    let place = Place::new();
    // The unit is so small that each commit uses both shares.
    let text = format!(
        "[volume.db]\nstripe = {{ unit = \"4KiB\", of = [\n  {{ iscsi = {{ url = \"{}\" }} }},\n  {{ iscsi = {{ url = \
         \"{}\" }} }},\n] }}\n",
        plain.url(0),
        slow.url(0)
    );
    let path = place.directory.write("db.toml", text);
    let path = path.to_string_lossy();
    call(&["volume", "create", "-c", &path, "db"]).success();
    let json = commit(&place, &["-c", &path, "--on", "db"]);
    assert_planted_in(&json, "target");
    assert_advises(
        &json,
        &["of db/stripe/1/iscsi", "one of 2 shares", "sanstone show"],
    );
    // The page has a row for each share.
    let page = place.page();
    for part in ["db/stripe/0/iscsi: commands", "db/stripe/1/iscsi: commands"] {
        assert!(page.contains(part), "the page has no {part}");
    }
}

#[test]
fn a_slow_copy_of_a_mirror_is_named() {
    let directories = [Directory::new(), Directory::new()];
    let durable =
        |delay| late("throttle", delay).replace("\"80MiB\"", "\"80MiB\", cache = \"direct-sync\"");
    let slow = Sanstone::serve(directories[0].path(), &durable(DELAY), &["v"]);
    let plain = Sanstone::serve(directories[1].path(), &durable(Duration::ZERO), &["v"]);
    let place = Place::new();
    // Each commit waits for the first copy from the beginning: the other one is filled from it.
    let text = format!(
        "state = \"state\"\n[volume.db]\nmirror = {{ of = [\n  {{ iscsi = {{ url = \"{}\" }} }},\n  {{ iscsi = {{ url = \
         \"{}\" }} }},\n] }}\n",
        slow.url(0),
        plain.url(0)
    );
    let path = place.directory.write("db.toml", text);
    let path = path.to_string_lossy();
    call(&["volume", "create", "-c", &path, "db"]).success();
    let json = commit(&place, &["-c", &path, "--on", "db"]);
    assert_planted_in(&json, "target");
    assert_advises(&json, &["of db/mirror/0/iscsi", "sanstone show"]);
}

/// A slow path to `to`, in both directions. It ends with its connections.
fn slow_way(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket has one");
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(to) else {
                continue;
            };
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else {
                    continue;
                };
                thread::spawn(move || carry_late(from, to));
            }
        }
    });
    address
}

fn carry_late(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; 1 << 20];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        thread::sleep(DELAY / 2);
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
