//! A run that is ended early keeps what it has measured.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
};

use harness::process::signal;

use crate::{Place, assert_gone};

/// A run that ends with its test, however that ends.
struct Lab(Child);

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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
    let lab = place
        .command(&["run", &profile.to_string_lossy(), "--on", &file])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lab = Lab(lab);
    // The line says that the file is filled: signals are attended to by then, and the loads begin.
    let mut lines = BufReader::new(lab.0.stderr.take().expect("it is piped")).lines();
    let filled = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("filling")));
    assert!(filled.is_some(), "it never filled its file");
    signal(i64::from(lab.0.id()), "INT");
    let ended = lab.0.wait().expect("a child of ours");
    assert!(ended.success(), "{ended}");
    let json = place.json();
    assert!(json["notes"].to_string().contains("interrupted"), "{json}");
    assert_gone(&file);
}
