//! A run that is ended early keeps what it has measured.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use harness::process::signal;

use crate::{Place, assert_gone};

#[test]
fn an_interrupt_keeps_what_was_measured_and_removes_what_was_made() {
    let place = Place::new();
    let file = place.path("made.img");
    // Some hours, of which the first load is short.
    let profile = r#"
kind = "queue"
about = "Reads for hours"
size = "8MiB"
block = "4KiB"
luns = 1
outstanding = [1, 2]
rounds = 1000
time = "20s"
"#;
    let profile = place.directory.write("long.toml", profile);
    let mut lab = place
        .command(&["run", &profile.to_string_lossy(), "--on", &file])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // The line says that the file is filled: signals are attended to by then, and the loads begin.
    let mut lines = BufReader::new(lab.stderr.take().expect("it is piped")).lines();
    let filled = lines.next().expect("a line").expect("of text");
    assert!(filled.contains("filling"), "{filled}");
    signal(i64::from(lab.id()), "INT");
    let ended = lab.wait_with_output().expect("a child of ours");
    assert!(ended.status.success(), "{ended:?}");
    let json = place.json();
    assert!(json["notes"].to_string().contains("interrupted"), "{json}");
    assert_gone(&file);
}
