//! A run that is ended early keeps what it has measured.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    thread::sleep,
    time::Duration,
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

/// Reads of a volume that answers each of them until it never answers any more.
const HUNG: &str = "[volume.db.fault]\nrules = [{ on = \"read\", hang = true, skip = 2000 }]\n\
                    of = { ram = { size = \"8MiB\" } }\n";
const READS: &str = r#"
kind = "queue"
about = "Reads"
size = "8MiB"
block = "4KiB"
luns = 1
outstanding = [1]
rounds = 1000
time = "20s"
"#;

/// A run that waits for a disk which does not answer, or soon will.
fn hung(place: &Place) -> Lab {
    let profile = place.directory.write("reads.toml", READS);
    let volumes = place.directory.write("hung.toml", HUNG);
    let (profile, volumes) = (profile.to_string_lossy(), volumes.to_string_lossy());
    let mut call = place.command(&["run", &profile, "-c", &volumes, "--on", "db"]);
    let call = call.stdin(Stdio::null()).stdout(Stdio::null());
    let mut lab = Lab(call.stderr(Stdio::null()).spawn().expect("it starts"));
    while place.kept().is_none() {
        assert!(
            lab.0.try_wait().expect("a child of ours").is_none(),
            "it ended"
        );
        sleep(Duration::from_millis(5));
    }
    // Then it reads until the disk hangs, which on most machines is soon.
    sleep(Duration::from_secs(1));
    lab
}

#[test]
fn an_interrupt_ends_a_run_whose_disk_hangs_and_leaves_whole_results() {
    let place = Place::new();
    let mut lab = hung(&place);
    signal(i64::from(lab.0.id()), "INT");
    let ended = lab.0.wait().expect("a child of ours");
    // 0: it was between two loads, before the disk hung, and ended by itself.
    assert!(matches!(ended.code(), Some(0 | 130)), "{ended}");
    assert_eq!(place.json()["interrupted"], true, "{}", place.json());
}

#[test]
fn a_second_interrupt_ends_a_run_at_once_and_leaves_no_half_results() {
    let place = Place::new();
    let mut lab = hung(&place);
    for _ in 0..2 {
        signal(i64::from(lab.0.id()), "INT");
        sleep(Duration::from_millis(500));
    }
    let ended = lab.0.wait().expect("a child of ours");
    assert_eq!(ended.code(), Some(130), "{ended}");
    assert_eq!(place.json()["interrupted"], true, "{}", place.json());
}
