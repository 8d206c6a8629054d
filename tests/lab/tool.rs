//! `tools/lab`: a disk of a target has the same name in each run, so that a series of them is one history.

use std::{fs, net::TcpListener, path::Path, process::Command, time::Duration};

use harness::{directory::Directory, run::run, sanstone::binary};
use serde_json::Value;

/// The first port of a test's targets, its own: a port at which another test's target listens is passed over.
type FirstPort = u16;

/// The quick form of one run on a disk of a target, into a directory of this name.
fn commit_on_a_target(directory: &Directory, name: &str, port: FirstPort) -> Value {
    quick(directory, name, "commit-iscsi", port)
}

/// The quick form of the run called `only`, into a directory of this name.
fn quick(directory: &Directory, name: &str, only: &str, port: FirstPort) -> Value {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/lab");
    let results = directory.join(name);
    let mut command = Command::new(tool);
    command.env("SANSTONE_BIN", binary()).env("QUICK", "1");
    command.env("ONLY", only).env_remove("DATA");
    command.env("PORT", port.to_string());
    command
        .env("DIR", directory.path())
        .env("RESULTS", &results);
    run(&mut command, Duration::from_secs(300)).success();
    let text = fs::read_to_string(results.join(format!("{only}.json"))).expect("it was measured");
    serde_json::from_str(&text).expect("it is JSON")
}

#[test]
fn a_stripe_has_no_holes_whichever_run_is_the_first_on_it() {
    let json = quick(&Directory::new(), "results", "queue-stripe", 13_360);
    let notes = json["notes"].to_string();
    assert!(!notes.contains("never written"), "{notes}");
}

#[test]
fn a_finished_run_keeps_its_text_when_the_tool_is_called_again() {
    let directory = Directory::new();
    let first = commit_on_a_target(&directory, "results", 13_460);
    let text = directory.join("results").join("commit-iscsi.txt");
    let before = fs::read_to_string(&text).expect("it was measured");
    assert!(before.contains("Where the time went"), "{before}");
    let second = commit_on_a_target(&directory, "results", 13_460);
    assert_eq!(first, second, "it was measured again");
    assert_eq!(fs::read_to_string(&text).expect("it is there"), before);
}

/// The port in the name of the disk.
fn port_of(json: &Value) -> u16 {
    let name = json["on"][0].as_str().expect("a disk");
    let address = name.trim_start_matches("iscsi://").split('/').next();
    let (_, port) = address.and_then(|at| at.split_once(':')).expect("a port");
    port.parse().expect("a number")
}

#[test]
fn the_disk_of_a_target_has_one_name_in_all_runs_unless_its_port_is_taken() {
    let directory = Directory::new();
    let [first, second] =
        ["first", "second"].map(|name| commit_on_a_target(&directory, name, 13_560));
    assert_eq!(first["on"], second["on"], "a history needs one disk");
    let port = port_of(&first);
    let taken = TcpListener::bind(("127.0.0.1", port)).expect("nobody listens there any more");
    // An interrupted run at that port is not continued at another one, but begun anew.
    let mut interrupted = first;
    interrupted["interrupted"] = true.into();
    let text = serde_json::to_string_pretty(&interrupted).expect("it is JSON");
    let results = directory.join("third");
    fs::create_dir(&results).expect("a fresh directory");
    fs::write(results.join("commit-iscsi.json"), text).expect("it is ours");
    let third = commit_on_a_target(&directory, "third", 13_560);
    drop(taken);
    assert_ne!(port_of(&third), port);
    assert_eq!(third["interrupted"], false, "{third}");
}
