//! Two networks to one disk: both carry traffic, one is lost under load and comes back. Nobody above notices more than
//! a pause, and soon the link that is left carries all that it can.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::directory::Directory;
use harness::links::Links;
use harness::process::{Daemon, find_program};
use harness::sanstone::{IQN, binary, target_table};

use crate::attached::{Attached, LONG, can_attach};

pub(crate) const PORT: u16 = 3260;
const MIB: u64 = 1 << 20;
/// How many bytes must pass before judging which link carried them.
const WINDOW_BYTES: u64 = 64 * MIB;
const WRITERS: u64 = 8;
const SLOT_BYTES: usize = 64 << 10;
/// Slots of each writer.
const SLOTS: u64 = 16;
/// The rate of each link where the rate is judged, in Mbit/s. It takes few enough I/Os that a busy machine keeps up.
const RATE_MBIT: u32 = 100;
/// The part of its rate that a link must carry, averaged over [`RATE_WINDOW`]. `tc` sets the rate, so neither the CPU's
/// clock nor the length of a test's time slice changes it; the rest is for a machine that does not get to it at once.
const LEAST_OF_RATE: f64 = 0.8;
const RATE_WINDOW: Duration = Duration::from_secs(1);
/// How soon it must carry that much, and how soon the load must have one link's rate after the other link is lost.
const SOON: Duration = Duration::from_secs(5);

/// What the writers share.
#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    /// What they have written, in bytes.
    written_bytes: AtomicU64,
}

/// `sanstone serve` at the far end, with a portal on each link.
pub(crate) fn serve(links: &Links, directory: &Directory) -> Daemon {
    let addresses: Vec<String> = (0..links.count())
        .map(|link| format!("\"{}:{PORT}\"", links.far_address(link)))
        .collect();
    let portals = target_table(PORT, &["disk"])
        .replace(&format!("\"127.0.0.1:{PORT}\""), &addresses.join(", "));
    let volume = "state = \"state\"\n[volume.disk]\nram = { size = \"16MiB\" }\n";
    let file = directory.write("sanstone.toml", format!("{volume}{portals}"));
    let mut command = links.command();
    command.arg(binary()).args(["serve", "-c"]).arg(file);
    let daemon = Daemon::start(&command, directory.join("sanstone.log"));
    daemon.log_with_times("serving", links.count() as usize);
    daemon
}

/// The disk over all links, as in docs/guide/multipath.md.
fn volume(links: &Links) -> String {
    let path = |link| {
        let (portal, from) = (links.far_address(link), links.near_port(link));
        format!("{{ portal = \"{portal}:{PORT}\", from = \"{from}\" }}")
    };
    let paths: Vec<String> = (0..links.count()).map(path).collect();
    format!(
        "[volume.db]\niscsi = {{ url = \"iscsi://{}:{PORT}/{IQN}/0\", paths = [{}] }}\n",
        links.far_address(0),
        paths.join(", "),
    )
}

/// Writes its own slots again and again, reading each back, until told to stop.
fn write(path: &Path, writer: u64, load: &Load) {
    let file: File = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("it can be opened");
    let mut back = vec![0; SLOT_BYTES];
    for round in 0.. {
        let data = harness::noise(writer << 32 | round, SLOT_BYTES);
        let at = (writer * SLOTS + round % SLOTS) * SLOT_BYTES as u64;
        file.write_all_at(&data, at).expect("a path is there");
        file.read_exact_at(&mut back, at).expect("a path is there");
        assert!(back == data, "writer {writer}, round {round}");
        if load.is_over.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Writes its own slots again and again until told to stop.
fn overwrite(path: &Path, writer: u64, load: &Load) {
    let file = OpenOptions::new().write(true).open(path);
    let file: File = file.expect("it can be opened");
    let data = harness::noise(writer, SLOT_BYTES);
    for slot in (0..SLOTS).cycle() {
        let at = (writer * SLOTS + slot) * SLOT_BYTES as u64;
        file.write_all_at(&data, at).expect("a path is there");
        load.written_bytes
            .fetch_add(SLOT_BYTES as u64, Ordering::Relaxed);
        if load.is_over.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Waits until this much has passed over the links; returns how much each carried.
fn carried(links: &Links, bytes: u64) -> Vec<u64> {
    let now = || -> Vec<u64> {
        let counts = (0..links.count()).map(|link| links.carried(link).both());
        counts.collect()
    };
    let (before, deadline) = (now(), Instant::now() + LONG);
    loop {
        thread::sleep(Duration::from_millis(20));
        let counts = now();
        let since: Vec<u64> = counts
            .iter()
            .zip(&before)
            .map(|(now, before)| now - before)
            .collect();
        if since.iter().sum::<u64>() >= bytes {
            return since;
        }
        assert!(Instant::now() < deadline, "{since:?} of {bytes} bytes");
    }
}

/// Waits until both carry their part. A lane uses a session a moment after its login.
#[track_caller]
fn both_carry(links: &Links) {
    let (least, deadline) = (WINDOW_BYTES / 3, Instant::now() + SOON);
    loop {
        let carried = carried(links, WINDOW_BYTES);
        if carried.iter().all(|&bytes| bytes > least) {
            return;
        }
        assert!(Instant::now() < deadline, "{carried:?}");
    }
}

/// What one link must carry.
fn least_bytes_per_s() -> f64 {
    LEAST_OF_RATE * f64::from(RATE_MBIT) * 1e6 / 8.0
}

/// Checks that [`SOON`] after `lost`, when one of two links was, the load has the rate of the other.
#[track_caller]
fn has_the_rate_of_one(load: &Load, lost: Instant) {
    let written = || load.written_bytes.load(Ordering::Relaxed);
    thread::sleep((lost + SOON).saturating_duration_since(Instant::now()));
    let (begin, before) = (Instant::now(), written());
    thread::sleep(RATE_WINDOW);
    let bytes = written() - before;
    let rate = bytes as f64 / begin.elapsed().as_secs_f64();
    let least = least_bytes_per_s();
    assert!(rate >= least, "{rate:.0} bytes/s and not {least:.0}");
}

/// Checks that soon a time begins in which each of these links carries its rate, sent from here.
#[track_caller]
fn carry_their_rate(links: &Links, which: &[u32]) {
    let least = least_bytes_per_s();
    let begin = Instant::now();
    let mut samples: Vec<(Instant, Vec<u64>)> = Vec::new();
    loop {
        let now = Instant::now();
        let sent: Vec<u64> = which.iter().map(|&link| links.carried(link).sent).collect();
        let before = samples.iter().rfind(|sample| now - sample.0 >= RATE_WINDOW);
        let rates: Vec<f64> = before.map_or_else(Vec::new, |(at, before)| {
            let bytes = sent.iter().zip(before).map(|(sent, before)| sent - before);
            bytes
                .map(|bytes| bytes as f64 / (now - *at).as_secs_f64())
                .collect()
        });
        if rates.len() == which.len() && rates.iter().all(|&rate| rate >= least) {
            return;
        }
        assert!(
            begin.elapsed() < SOON + RATE_WINDOW,
            "links {which:?} carry {rates:.0?} bytes/s and not {least:.0}"
        );
        samples.push((now, sent));
        thread::sleep(Duration::from_millis(20));
    }
}

/// Runs `judge` while [`WRITERS`] writers use a disk over two links.
fn under_load(
    rate_mbit: Option<u32>,
    write: fn(&Path, u64, &Load),
    judge: impl FnOnce(&Links, &Attached, &Load),
) {
    if !can_attach() {
        return;
    }
    let Some(links) = Links::new(2) else {
        return harness::skip("a network namespace needs root and iproute2");
    };
    if let Some(rate_mbit) = rate_mbit {
        links.limit(rate_mbit);
    }
    let there = Directory::new();
    let _target = serve(&links, &there);
    let mut attached = Attached::start(&volume(&links));
    let load = Load::default();
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (path, load) = (&attached.path, &load);
                scope.spawn(move || write(path, writer, load))
            })
            .collect();
        // Whatever fails below, the writers must end, or the failure would never be reported.
        let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            judge(&links, &attached, &load)
        }));
        load.is_over.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().expect("no error reaches it");
        }
        if let Err(panic) = judged {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(
        !attached.daemon.log().contains("ERROR"),
        "{}",
        attached.daemon.log()
    );
    attached.stop();
}

/// Takes the second of two links away with `lose` under load, and restores it with `mend`.
fn survives(lose: impl Fn(&Links), mend: impl Fn(&Links)) {
    under_load(None, write, |links, attached, _| {
        both_carry(links);
        lose(links);
        attached.daemon.log_with("session lost");
        let carried_by = carried(links, WINDOW_BYTES);
        assert!(carried_by[1] < MIB, "a link that is lost: {carried_by:?}");
        mend(links);
        attached.daemon.log_with("logged in again");
        both_carry(links);
    });
}

/// The same on links with a rate: soon the load has all that the remaining link carries, and in the end both carry it.
fn keeps_the_rate(lose: impl Fn(&Links), mend: impl Fn(&Links)) {
    under_load(Some(RATE_MBIT), overwrite, |links, attached, load| {
        carry_their_rate(links, &[0, 1]);
        lose(links);
        has_the_rate_of_one(load, Instant::now());
        attached.daemon.log_with("session lost");
        mend(links);
        attached.daemon.log_with("logged in again");
        carry_their_rate(links, &[0, 1]);
    });
}

#[test]
fn one_of_two_links_that_is_taken_down_is_not_missed() {
    survives(|links| links.take_down(1), |links| links.bring_up(1));
}

#[test]
fn one_of_two_links_that_swallows_packets_is_not_missed() {
    if find_program("nft").is_none() {
        return harness::skip("there is no nft");
    }
    survives(|links| links.swallow(1), Links::let_through);
}

#[test]
fn the_other_link_has_its_whole_rate_soon_after_one_is_taken_down() {
    keeps_the_rate(|links| links.take_down(1), |links| links.bring_up(1));
}

#[test]
fn the_other_link_has_its_whole_rate_soon_after_one_swallows_packets() {
    if find_program("nft").is_none() {
        return harness::skip("there is no nft");
    }
    keeps_the_rate(|links| links.swallow(1), Links::let_through);
}
