//! A target is shut down, or killed, and restarted below a daemon whose volume it serves: writers only see a pause,
//! nothing is lost, and there is no error above.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use harness::{
    directory::Directory,
    free_port,
    sanstone::{IQN, Sanstone},
    wire::{Session, read_10, write_10},
};

const BLOCKS: u32 = 2048;
const SYNCHRONIZE_CACHE_10: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Writes one block after the other, with its number in it, until told to stop.
fn write_on(session: &mut Session, written: &AtomicU32, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let number = written.load(Ordering::Relaxed);
        let block = number.to_be_bytes().repeat(128);
        let (status, _) = session
            .execute(&write_10(number % BLOCKS, 1), &block, 0)
            .expect("the session stays");
        assert_eq!(status, 0, "write {number}");
        written.store(number + 1, Ordering::Relaxed);
    }
}

/// Waits until this many more have been written.
fn goes_on(written: &AtomicU32, more: u32) {
    let (before, deadline) = (
        written.load(Ordering::Relaxed),
        Instant::now() + Duration::from_secs(120),
    );
    while written.load(Ordering::Relaxed) < before + more {
        assert!(Instant::now() < deadline, "nothing is written any more");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_clean_restart_of_a_target_loses_nothing_and_is_no_error_above() {
    let log = restart_under_writes("TERM");
    assert!(log.contains("requested a logout"), "{log}");
}

/// What it has acknowledged is in the page cache, which outlives the process: the target reports a reset, and no
/// power-on.
#[test]
fn a_target_that_is_killed_loses_nothing_and_is_no_error_above() {
    let log = restart_under_writes("KILL");
    assert!(!log.contains("requested a logout"), "{log}");
}

/// Restarts a target with a volatile cache again and again below a daemon to whose volume somebody writes. Returns the
/// daemon's log.
fn restart_under_writes(signal: &str) -> String {
    let (below, above) = (Directory::new(), Directory::new());
    let port = free_port();
    let disk =
        "[volume.disk]\nfile = { path = \"disk.img\", size = \"1MiB\", cache = \"write-back\" }\n";
    let mut storage = Sanstone::serve_on(port, below.path(), disk, &["disk"]);
    let url = format!("iscsi://127.0.0.1:{port}/{IQN}/0");
    let volume =
        format!("[volume.db]\niscsi = {{ url = \"{url}\", reconnect_timeout = \"120s\" }}\n");
    let mut gateway = Sanstone::serve(above.path(), &volume, &["db"]);
    let address = format!("127.0.0.1:{}", gateway.port());
    let keys = ["ImmediateData=Yes", "InitialR2T=Yes"];
    let mut session = Session::login(&address, IQN, 0, 1, &keys).expect("a login");
    session.wait_until_ready().expect("a ready disk");

    let (written, stop) = (
        Arc::new(AtomicU32::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let writer = {
        let (written, stop) = (written.clone(), stop.clone());
        thread::spawn(move || {
            write_on(&mut session, &written, &stop);
            session
        })
    };
    for _ in 0..3 {
        goes_on(&written, 50);
        storage.daemon().signal(signal);
        let ended = storage.daemon().wait(Duration::from_secs(120));
        let is_good = ended.expect("it stops").code() == Some(0);
        assert_eq!(is_good, signal == "TERM");
        storage = Sanstone::serve_on(port, below.path(), disk, &["disk"]);
        goes_on(&written, 50);
    }
    stop.store(true, Ordering::Relaxed);
    let mut session = writer.join().expect("every write was good");
    let (status, _) = session
        .execute(&SYNCHRONIZE_CACHE_10, &[], 0)
        .expect("the session stays");
    assert_eq!(status, 0, "{}", gateway.daemon().log());
    let last = written.load(Ordering::Relaxed) - 1;
    let (status, block) = session
        .execute(&read_10(last % BLOCKS, 1), &[], 512)
        .expect("the session stays");
    assert_eq!((status, block), (0, last.to_be_bytes().repeat(128)));
    let log = gateway.daemon().log();
    assert!(!log.contains("unflushed"), "{log}");
    log
}
