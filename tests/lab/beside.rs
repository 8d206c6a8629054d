//! Other programs that use the processors meanwhile are named, with what they disturbed, by profiles of databases too.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
};

use serde_json::Value;

use crate::{
    Place, assert_told,
    oltp::{assert_nothing_left, has_packages, run_in_place, short},
    sql_scan::SHORT,
};

/// Processes that are busy on half of the processors; dropping it ends them.
struct Busy(Vec<Child>);

impl Busy {
    fn begin() -> Busy {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let busy = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]);
            command.stdin(Stdio::null()).spawn().expect("a shell")
        };
        Busy((0..cores.div_ceil(2)).map(busy).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = (child.kill(), child.wait());
        }
    }
}

/// Checks that a note names other work, and one of these measurements.
#[track_caller]
fn assert_named(json: &Value, measurements: &[&str]) {
    let notes = json["notes"].as_array().expect("notes");
    let notes = notes.iter().filter_map(Value::as_str);
    let note = notes.into_iter().find(|note| note.contains("other work"));
    let note = note.unwrap_or_else(|| panic!("nothing is said of it: {}", json["notes"]));
    let is_named = |name: &&str| note.contains(&format!("% during {name}"));
    assert!(measurements.iter().any(is_named), "{note}");
}

#[test]
fn commits_and_statements_beside_other_work_are_called_that() {
    let place = Place::new();
    let file = place.path("made.img");
    let busy = Busy::begin();
    let commit = ["run", "commit", "--quick", "--on", &file];
    let json = assert_told(&place, &place.run(&commit).success());
    assert_named(&json, &[&format!("the commits on {file}")]);
    let profile = place.directory.write("short.toml", SHORT);
    let sql_scan = ["run", &profile.to_string_lossy(), "--on", &file];
    let json = assert_told(&place, &place.run(&sql_scan).success());
    assert_named(&json, &["pages of 64KiB, no cache"]);
    drop(busy);
}

#[test]
fn comparisons_of_databases_beside_other_work_are_called_that() {
    let place = Place::new();
    let files = [place.path("a.img"), place.path("b.img")];
    let commit = "kind = \"commit\"\nabout = \"A few commits\"\nsize = \"64MiB\"\npage = \"4KiB\"\ncommits = \
                  100000\ntime = \"500ms\"\n";
    let commit = place.directory.write("commit.toml", commit);
    let scan = place.directory.write("scan.toml", SHORT);
    let busy = Busy::begin();
    for (profile, name) in [(commit, "the commits"), (scan, "pages of 64KiB, no cache")] {
        let [a, b] = &files;
        let profile = profile.to_string_lossy();
        let compare = ["compare", a, b, "--profile", &profile, "--pairs", "6"];
        let json = assert_told(&place, &place.run(&compare).success());
        let names = files.each_ref().map(|file| format!("{name} on {file}"));
        assert_named(&json, &names.each_ref().map(String::as_str));
    }
    drop(busy);
}

#[test]
fn transactions_beside_other_work_are_called_that() {
    if !has_packages() {
        return;
    }
    let place = Place::new();
    let directory = place.directory.join("here");
    fs::create_dir(&directory).expect("a fresh directory");
    let name = directory.to_string_lossy();
    // Long enough for the share of others to be told from chance.
    let text = short("mariadb").replace("transactions = 20\n", "transactions = 400\n");
    let profile = place.directory.write("short.toml", text);
    let busy = Busy::begin();
    let call = ["run", &profile.to_string_lossy(), "--on", &name];
    let json = assert_told(&place, &run_in_place(&place, &call).success());
    drop(busy);
    let rounds = [1, 2].map(|number| format!("round {number}, {name}"));
    assert_named(&json, &rounds.each_ref().map(String::as_str));
    assert_nothing_left(&place);
}
