//! The cost of an I/O, measured without a clock: system calls, allocations, copied bytes and instructions of target
//! and initiator together, on one lane over a real socket, checked against bounds. The bounds are a little above the
//! measured values; anyone who makes an I/O cheaper should lower them.
//!
//! Instructions are counted by valgrind, which runs this program with each load at two lengths; the difference is the
//! cost of the additional I/Os. The counts apply to the profile of `make test`, and are made only in it.
//!
//! On a busy machine the kernel delivers a stream in more pieces, which adds system calls and instructions. A case
//! may therefore try several rounds, each in a new session: one that really costs too much does so in all of them.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    process::Command,
    rc::Rc,
};

use common::{config, disk_at, ram, with_config};
use engine::{Buf, Duration, Payload, cost, task};
use volume::{
    Durability, IscsiDisk, Volume,
    layers::{Watch, watched},
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches a plain cell.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps to GlobalAlloc's contract, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DISK_BYTES: u64 = 16 << 20;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Direction {
    Read,
    Write,
}

/// A load, and the maximum cost of one of its I/Os, target and initiator together.
struct Case {
    name: &'static str,
    direction: Direction,
    size_bytes: usize,
    depth: usize,
    system_calls: f64,
    allocations: f64,
    /// In addition to the payload, whose copies are counted separately.
    copied_bytes: f64,
    payload_copies: f64,
    instructions: f64,
}

const CASES: [Case; 4] = [
    Case {
        name: "read_4k",
        direction: Direction::Read,
        size_bytes: 4096,
        depth: 32,
        system_calls: 0.12,
        allocations: 0.0,
        copied_bytes: 200.0,
        payload_copies: 1.0,
        instructions: 18500.0,
    },
    Case {
        name: "write_4k",
        direction: Direction::Write,
        size_bytes: 4096,
        depth: 32,
        system_calls: 0.12,
        allocations: 0.0,
        copied_bytes: 200.0,
        payload_copies: 2.0,
        instructions: 19700.0,
    },
    Case {
        name: "read_128k",
        direction: Direction::Read,
        size_bytes: 128 << 10,
        depth: 8,
        system_calls: 2.2,
        allocations: 0.0,
        copied_bytes: 400.0,
        payload_copies: 0.0,
        instructions: 35500.0,
    },
    Case {
        name: "write_128k",
        direction: Direction::Write,
        size_bytes: 128 << 10,
        depth: 8,
        system_calls: 4.4,
        allocations: 0.0,
        copied_bytes: 400.0,
        payload_copies: 1.0,
        instructions: 60000.0,
    },
];

/// The build profile in which instructions are counted.
const PROFILE: &str = "tested";
/// The largest fraction of an I/O's instructions, on both ends, that reporting stage times may add.
const STAGE_TIMES_MAX: f64 = 0.02;
/// One I/O in this many asks for stage times, as in a lab load that keeps its disk busy.
const WATCHED_ONE_OF: usize = 67;

/// Keeps the case's queue depth in flight until `ios` I/Os have completed. If `is_watched`, asks for the stage times
/// of some of them.
async fn load(disk: &Rc<IscsiDisk>, case: &Case, ios: usize, is_watched: bool) {
    let places = DISK_BYTES as usize / case.size_bytes;
    let workers = (0..case.depth).map(|worker| {
        let data: Payload = Buf::zeroed(case.size_bytes).into();
        async move {
            for io in (worker..ios).step_by(case.depth) {
                let at = (io * 7 % places * case.size_bytes) as u64;
                let done = async {
                    match case.direction {
                        Direction::Read => {
                            drop(disk.read(at, case.size_bytes).await.expect("a read"));
                        }
                        Direction::Write => disk
                            .write(at, data.clone(), Durability::Cached)
                            .await
                            .expect("a write"),
                    }
                };
                match is_watched && io % WATCHED_ONE_OF == 0 {
                    true => watched(Watch::new(), done).await,
                    false => done.await,
                }
            }
        }
    });
    task::join_all(workers.map(Box::pin)).await;
}

/// Runs `work` with a disk of a server on the same lane; `stage_times`: whether to negotiate stage-time reports.
fn with_disk<T>(stage_times: bool, work: impl AsyncFnOnce(&Rc<IscsiDisk>) -> T) -> T {
    let mut config = config(ram(DISK_BYTES, 512));
    config.server.digests = false;
    with_config(config, async |server| {
        let mut patient = disk_at(server.portals()[0]);
        patient.stage_times = stage_times;
        // Everything is slow under valgrind.
        for limit in [
            &mut patient.connect_timeout,
            &mut patient.request_timeout,
            &mut patient.reconnect_timeout,
        ] {
            *limit = Duration::from_secs(60);
        }
        let disk = IscsiDisk::open(patient).await.expect("a login");
        let output = work(&disk).await;
        disk.close().await;
        output
    })
}

/// Asserts that at least one round of each case is within its bounds; prints the counts.
fn expect_each(within_bounds: impl Fn(&Case) -> bool) {
    const ROUNDS: usize = 5;
    for case in &CASES {
        let kept = (0..ROUNDS).any(|_| within_bounds(case));
        assert!(kept, "{} costs more in {ROUNDS} rounds", case.name);
    }
}

#[test]
fn an_io_makes_few_system_calls_and_copies_and_allocates_nothing() {
    const IOS: usize = 4096;
    expect_each(|case| {
        let counts = with_disk(false, async |disk| {
            load(disk, case, IOS, false).await; // tables and free lists grow to what is needed
            let count = || {
                [
                    cost::system_calls(),
                    ALLOCATIONS.get(),
                    cost::copied_bytes(),
                ]
            };
            let before = count();
            load(disk, case, IOS, false).await;
            let after = count();
            [0, 1, 2].map(|i| (after[i] - before[i]) as f64 / IOS as f64)
        });
        let [system_calls, allocations, copied_bytes] = counts;
        let payload = case.payload_copies * case.size_bytes as f64;
        println!(
            "{}: {system_calls:.3} system calls, {allocations:.4} allocations, {copied_bytes:.0} bytes copied",
            case.name
        );
        // The load's own workers are allocated too.
        let own = 4.0 * case.depth as f64 / IOS as f64;
        assert!(allocations <= case.allocations + own, "{}", case.name);
        assert!(copied_bytes <= payload + case.copied_bytes, "{}", case.name);
        system_calls <= case.system_calls
    });
}

/// The load that valgrind counts; does nothing useful by itself.
#[test]
#[ignore = "run by an_io_takes_few_instructions_and_reporting_stage_times_few_more"]
fn counted() {
    let variable = |name| std::env::var(name).expect("set by who runs this");
    let case = CASES.iter().find(|case| case.name == variable("COST_CASE"));
    let ios = variable("COST_IOS").parse().expect("a number");
    let stage_times = variable("COST_STAGE_TIMES") == "true";
    with_disk(stage_times, async |disk| {
        load(disk, case.expect("a case"), ios, stage_times).await
    });
}

/// Instructions per I/O of a case, target and initiator together.
fn instructions(case: &Case, stage_times: bool) -> f64 {
    let (few, many) = (16 * case.depth, 48 * case.depth);
    let count = |ios| instructions_of(case, stage_times, ios);
    (count(many) - count(few)) / (many - few) as f64
}

fn instructions_of(case: &Case, stage_times: bool, ios: usize) -> f64 {
    let program = std::env::current_exe().expect("this program has a path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--exact", "counted", "--ignored"])
        .env("COST_CASE", case.name)
        .env("COST_IOS", ios.to_string())
        .env("COST_STAGE_TIMES", stage_times.to_string())
        .output()
        .expect("valgrind; `tools/install test` brings it");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let (_, count) = said.rsplit_once("Collected : ").expect("a count");
    let count = count.split_whitespace().next().expect("a number");
    count.parse().expect("a number")
}

#[test]
fn an_io_takes_few_instructions_and_reporting_stage_times_few_more() {
    let program = std::env::current_exe().expect("this program has a path");
    if !program.ancestors().any(|path| path.ends_with(PROFILE)) {
        println!("instructions are not counted: this is not the profile \"{PROFILE}\"");
        return;
    }
    expect_each(|case| {
        let (plain, reporting) = (instructions(case, false), instructions(case, true));
        println!(
            "{}: {plain:.0} instructions, {reporting:.0} with stage times",
            case.name
        );
        plain <= case.instructions && reporting - plain <= STAGE_TIMES_MAX * plain
    });
}
