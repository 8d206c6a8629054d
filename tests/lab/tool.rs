//! `tools/lab`: a disk of a target has the same name in each run, so that a series of them is one history.

use std::{fs, net::TcpListener, path::Path, process::Command, time::Duration};

use harness::{directory::Directory, run::run, sanstone::binary};
use serde_json::Value;

/// The quick form of one run on a disk of a target, into a directory of this name.
fn commit_on_a_target(directory: &Directory, name: &str) -> Value {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/lab");
    let results = directory.join(name);
    let mut command = Command::new(tool);
    command.env("SANSTONE_BIN", binary()).env("QUICK", "1");
    command.env("ONLY", "commit-iscsi").env_remove("DATA");
    command
        .env("DIR", directory.path())
        .env("RESULTS", &results);
    run(&mut command, Duration::from_secs(300)).success();
    let text = fs::read_to_string(results.join("commit-iscsi.json")).expect("it was measured");
    serde_json::from_str(&text).expect("it is JSON")
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
    let [first, second] = ["first", "second"].map(|name| commit_on_a_target(&directory, name));
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
    let third = commit_on_a_target(&directory, "third");
    drop(taken);
    assert_ne!(port_of(&third), port);
    assert_eq!(third["interrupted"], false, "{third}");
}
