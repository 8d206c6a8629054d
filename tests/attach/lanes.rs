//! Which lanes handle requests. The kernel would wake them in turn, so with one request at a time each would go to the
//! lane that had slept longest, and from there to the volume's home. Also checks that a lane rests only when no request
//! is left for which it alone was woken, and that none rests while the first is full of requests that do not end.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use harness::directory::Directory;
use harness::process::Daemon;
use harness::sanstone::call;

use crate::attached::{Attached, LONG, can_attach, text};

/// Requests, one at a time.
const READS: u64 = 4000;

/// How often the threads of this name have gone to sleep (`voluntary_ctxt_switches`).
fn sleeps(process: &Daemon, name: &str) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.pid())).expect("it runs");
    let tasks = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let count = |status: &str, key: &str| -> Option<String> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim().to_owned())
    };
    let named = tasks.filter(|status| count(status, "Name:").as_deref() == Some(name));
    named
        .filter_map(|status| {
            count(&status, "voluntary_ctxt_switches:")?
                .parse::<u64>()
                .ok()
        })
        .sum()
}

#[test]
fn one_request_at_a_time_stays_on_one_lane() {
    if !can_attach() {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return harness::skip("there is one CPU, and so one lane");
    }
    // Each lane does the I/O of a file itself. A cache lives on one lane, and no other lane takes its requests.
    let file =
        |mode| format!("file = {{ path = \"db.img\", size = \"16MiB\", cache = \"{mode}\" }}");
    let cached = format!(
        "cache = {{ size = \"1MiB\", of = {{ {} }} }}",
        file("direct")
    );
    for volume in [file("write-back"), file("direct"), cached] {
        let mut attached = Attached::start(&format!("[volume.db]\n{volume}\n"));
        let file = fs::File::open(&attached.path).expect("it can be opened");
        let read = |count: u64| {
            for index in 0..count {
                let at = index * 4096 % (16 << 20);
                file.read_exact_at(&mut [0; 4096], at).expect("a read");
            }
        };
        // Lanes rest once they have seen that no more requests come.
        read(100);
        let before = sleeps(&attached.daemon, "lane-1");
        read(READS);
        let slept = sleeps(&attached.daemon, "lane-1") - before;
        assert!(
            slept < READS / 10,
            "{volume}: lane 1 has slept {slept} times"
        );
        drop(file);
        attached.stop();
    }
}

#[test]
fn every_request_of_a_burst_is_answered() {
    const THREADS: usize = 8;
    const BURSTS: usize = 20_000;
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start("[volume.db]\nram = { size = \"1MiB\" }\n");
    let (done, ended) = mpsc::channel();
    let barrier = Arc::new(Barrier::new(THREADS));
    for thread in 0..THREADS {
        let file = fs::File::open(&attached.path).expect("it can be opened");
        let (barrier, done) = (barrier.clone(), done.clone());
        thread::spawn(move || {
            for burst in 0..BURSTS {
                barrier.wait();
                // At full depth all lanes are called; they come to rest again when only one or two requests are left at
                // a time.
                let requests = match (burst % 32, burst / 32 % 24) {
                    (0, _) => THREADS,
                    (at, pair) if at == pair + 4 => 2,
                    _ => 1,
                };
                if thread < requests {
                    file.read_exact_at(&mut [0; 4096], 0).expect("a read");
                }
            }
            done.send(()).expect("the test waits");
        });
    }
    for _ in 0..THREADS {
        let answered = ended.recv_timeout(Duration::from_secs(300));
        answered.expect("a request got no answer, with nobody there to ask for more");
    }
    attached.stop();
}

#[test]
fn requests_that_hang_on_the_first_lane_hold_up_no_others() {
    const MIB: u64 = 1 << 20;
    /// The length of the first child without its superblock.
    const QUICK_AT: u64 = 15 * MIB;
    if !can_attach() {
        return;
    }
    let slow = Attached::start("[volume.db]\nram = { size = \"16MiB\" }\n");
    // Two of the longest writes use up a lane's memory. That is too few requests for the first lane to call the other.
    let table = format!(
        "lanes = 2\nmemory = \"32MiB\"\n[limits]\ntransfer = \"1280KiB\"\n\
         [volume.db.concat]\nof = [\n{{ file = {{ path = \"{}\", cache = \"direct\" }} }},\n\
         {{ file = {{ path = \"quick.img\", size = \"16MiB\" }} }},\n]\n",
        text(&slow.path)
    );
    let directory = Directory::new();
    let configuration = directory.write("sanstone.toml", &table);
    call(&["volume", "create", "-c", text(&configuration), "db"]).success();
    let attached = Attached::start_in(directory, &table, &[]);
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&attached.path);
    let file = Arc::new(file.expect("it can be opened"));
    let read = |file: &fs::File, count: u64| {
        for index in 0..count {
            let at = QUICK_AT + index * 4096 % MIB;
            file.read_exact_at(&mut [0; 4096], at).expect("a read");
        }
    };
    // The second lane comes to rest.
    read(&file, 100);
    slow.daemon.stop();
    let writers = [0, 1, 2].map(|index| {
        let file = file.clone();
        thread::spawn(move || file.write_all_at(&vec![7; MIB as usize], index * MIB))
    });
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        read(&file, READS);
        done.send(()).expect("the test waits");
    });
    let ended = ended.recv_timeout(LONG);
    slow.daemon.signal("CONT");
    ended.expect("reads wait for writes that hang");
    for writer in writers {
        let written = writer.join().expect("it does not panic");
        written.expect("the file answers again");
    }
}
