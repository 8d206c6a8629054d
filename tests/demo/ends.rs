//! However a demo is ended, its shares end and their files are gone.

use crate::Place;
use harness::process::signal;
use std::{
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// Starts a run of some 20 s, ends it with a signal once `ready`, and returns its result.
#[track_caller]
fn ended_by(name: &str, ready: impl Fn(&Place) -> bool) -> ExitStatus {
    let place = Place::new();
    let mut command = place.call(&["--rows", "400000", "--link", "1"]);
    let mut demo = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the demo starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !ready(&place) {
        let ended = demo.try_wait().expect("a child of ours");
        assert!(ended.is_none() && Instant::now() < deadline, "{ended:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    signal(i64::from(demo.id()), name);
    let status = demo.wait().expect("a child of ours");
    place.assert_nothing_is_left();
    status
}

/// Both shares run, and their files have been unlinked.
fn under_way(place: &Place) -> bool {
    place.share_processes().len() == 2 && crate::names(place.shares.path()).is_empty()
}

#[test]
fn an_interrupt_leaves_nothing() {
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(ended_by("INT", under_way).signal(), Some(2));
}

#[test]
fn an_interrupt_at_the_start_leaves_nothing() {
    // The names exist only for a moment, but on a machine that pauses just then they can be caught.
    let at_the_start = |place: &Place| !crate::names(place.shares.path()).is_empty();
    ended_by("INT", |place| at_the_start(place) || under_way(place));
}

#[test]
fn kill_9_leaves_nothing() {
    ended_by("KILL", under_way);
}
