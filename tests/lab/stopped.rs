//! A target that stalls: an open loop shows it in the latency of all I/Os that arrived in the meantime, a closed loop
//! only in that of the few outstanding ones.

use std::{
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant},
};

use harness::sanstone::Sanstone;
use serde_json::Value;

use crate::{Lab, Place, ram_target};

/// Closed loops, then an open one at an easily reached rate.
const PROFILE: &str = r#"
kind = "queue"
about = "Four at a time, and then 1,500 a second"
size = "8MiB"
block = "4KiB"
luns = 1
outstanding = [4]
rounds = 2
time = "4s"
rates = [1500]
spacing = "even"
"#;

const OUTSTANDING: u64 = 4;
const RATE: f64 = 1500.0;
/// The generator's limit of outstanding I/Os; later arrivals wait, and that wait is part of their latency.
const BEGUN_MAX: f64 = 1024.0;
const STOP: Duration = Duration::from_millis(1500);
const LONG_MS: f64 = 300.0;

/// Waits until the run has stored this step; returns whether it did so before it ended.
fn has_kept(place: &Place, lab: &mut Lab, step: &str) -> bool {
    while lab.0.try_wait().expect("a child of ours").is_none() {
        if place
            .kept()
            .is_some_and(|json| !json["steps"][step].is_null())
        {
            return true;
        }
        sleep(Duration::from_millis(5));
    }
    false
}

/// Stops the target during the load that begins now, as precisely as this machine permits.
fn stop(target: &mut Sanstone) {
    // The first tenth of a load's time is not measured.
    sleep(Duration::from_secs(1));
    target.daemon().stop();
    let began = Instant::now();
    while began.elapsed() < STOP {
        sleep(STOP.saturating_sub(began.elapsed()));
    }
    target.daemon().signal("CONT");
}

/// The number of I/Os that took at least this long.
fn long(buckets: &Value) -> u64 {
    let buckets = buckets.as_array().expect("buckets").iter();
    let count = |bucket: &Value| {
        let from_us = bucket[0].as_f64().expect("a time");
        let is_long = from_us >= LONG_MS * 1e3;
        bucket[1].as_u64().filter(|_| is_long).unwrap_or(0)
    };
    buckets.map(count).sum()
}

fn all(buckets: &Value) -> u64 {
    let buckets = buckets.as_array().expect("buckets").iter();
    buckets
        .map(|bucket| bucket[1].as_u64().expect("a count"))
        .sum()
}

/// The results of a closed and an open loop during each of which the target was stopped.
fn stopped_twice() -> Option<(Value, Value)> {
    let place = Place::new();
    let (_directory, mut target) = ram_target("8MiB");
    let profile = place.directory.write("stopped.toml", PROFILE);
    let mut call = place.command(&["run", &profile.to_string_lossy(), "--on", &target.url(0)]);
    let call = call
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut lab = Lab(call.spawn().expect("it starts"));
    for step in ["4 outstanding", "4 outstanding #2"] {
        if !has_kept(&place, &mut lab, step) {
            return None;
        }
        stop(&mut target);
    }
    assert!(lab.0.wait().expect("a child of ours").success());
    let json = place.json();
    let closed = json["figures"]["outstanding"][0]["runs"][1].clone();
    Some((closed, json["figures"]["rates"][0]["run"].clone()))
}

#[test]
fn an_open_loop_shows_a_stop_in_all_that_arrived_meanwhile_and_a_closed_one_in_few() {
    // All I/Os that arrived during the stop except its last moments (to an eighth, the bucket width), and more than
    // were outstanding.
    let arrived = RATE * (STOP.as_secs_f64() - LONG_MS * 1.125 / 1e3);
    assert!(arrived > 1.5 * BEGUN_MAX);
    // A busy machine may be late with the stop, or stall itself: then try again.
    let seen = (0..5).any(|_| {
        let Some((closed, open)) = stopped_twice() else {
            return false;
        };
        let ios = all(&open["latencies_us"]);
        let late = &open["generator_late_us"];
        assert_eq!(all(late), ios, "how late each began is a series of its own");
        let (shown, hidden) = (long(&open["latencies_us"]), long(&closed["latencies_us"]));
        println!(
            "{shown} of {ios} I/Os of the open loop took long, {hidden} of {} of the closed one; the generator was \
             late for {}",
            all(&closed["latencies_us"]),
            long(late)
        );
        let is_shown = shown as f64 >= 0.98 * arrived;
        is_shown && (1..=OUTSTANDING).contains(&hidden) && 2 * long(late) < shown
    });
    assert!(seen, "the stop was hidden");
}
