//! The cost of an I/O of the file leaf, measured without a clock: system calls, sleeps (each of which costs a
//! wake-up) and what the kernel hands to worker threads, against bounds slightly above what was measured.
//!
//! How many completions arrive together depends on the disk and on how busy the machine is, so a case may take a few
//! rounds; one that is really too expensive exceeds its bounds in all of them.

use std::{collections::BTreeMap, fs, path::PathBuf, rc::Rc, sync::Arc};

use engine::{Buf, Lane, LaneConfig, Payload, cost, task};
use volume::{
    Durability, Volume,
    config::Caching,
    leaf::file::{BackingFile, FileOptions, FileVolume, OpenFile},
};

const FILE_BYTES: u64 = 16 << 20;
const IO_BYTES: usize = 4096;
const IOS: usize = 2048;

/// A load, and the most that one of its I/Os may cost.
struct Case {
    caching: Caching,
    is_write: bool,
    depth: usize,
    system_calls: f64,
    sleeps: f64,
    /// Whether worker threads may be involved.
    may_punt: bool,
}

const fn case(caching: Caching, is_write: bool, depth: usize, bounds: [f64; 2]) -> Case {
    Case {
        caching,
        is_write,
        depth,
        system_calls: bounds[0],
        sleeps: bounds[1],
        // ext4 does not accept a buffered write that must not block.
        may_punt: matches!(caching, Caching::WriteBack) && is_write,
    }
}

/// With one I/O at a time, a lane that sleeps makes one call per I/O, and a lane that polls makes two: to submit and
/// to collect.
const CASES: [Case; 8] = [
    case(Caching::Direct, false, 1, [2.1, 1.1]),
    case(Caching::Direct, true, 1, [2.1, 1.1]),
    case(Caching::Direct, false, 32, [0.6, 0.4]),
    case(Caching::Direct, true, 32, [0.6, 0.4]),
    case(Caching::WriteBack, false, 1, [2.1, 1.1]),
    case(Caching::WriteBack, true, 1, [2.1, 1.1]),
    case(Caching::WriteBack, false, 32, [0.4, 0.1]),
    case(Caching::WriteBack, true, 32, [0.6, 0.4]),
];

impl Case {
    fn name(&self) -> String {
        let what = if self.is_write { "writes" } else { "reads" };
        format!("{:?}, {what}, depth {}", self.caching, self.depth)
    }
}

/// Keeps the case's number of I/Os in flight until all have completed.
async fn load(volume: &Rc<FileVolume<BackingFile>>, case: &Case) {
    let places = FILE_BYTES as usize / IO_BYTES;
    let workers = (0..case.depth).map(|worker| {
        let data: Payload = Buf::zeroed(IO_BYTES).into();
        async move {
            for io in (worker..IOS).step_by(case.depth) {
                let at = (io * 7 % places * IO_BYTES) as u64;
                match case.is_write {
                    false => drop(volume.read(at, IO_BYTES).await.expect("a read")),
                    true => {
                        let write = volume.write(at, data.clone(), Durability::Cached);
                        write.await.expect("a write");
                    }
                }
            }
        }
    });
    task::join_all(workers.map(Box::pin)).await;
}

/// How many times each of this process's kernel worker threads has gone to sleep.
fn workers_sleeps() -> BTreeMap<String, u64> {
    let threads = fs::read_dir("/proc/self/task").expect("this process has threads");
    let sleeps = threads.filter_map(|thread| {
        let thread = thread.ok()?.path();
        let name = fs::read_to_string(thread.join("comm")).ok()?;
        let status = fs::read_to_string(thread.join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        let count = line.trim().parse().ok()?;
        name.starts_with("iou-wrk")
            .then(|| (thread.display().to_string(), count))
    });
    sleeps.collect()
}

/// How often worker threads were woken between two counts: each goes back to sleep afterwards.
fn woken(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> u64 {
    let woken = after
        .iter()
        .map(|(thread, count)| count - before.get(thread).copied().unwrap_or(0));
    woken.sum()
}

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The cost of an I/O of the case: system calls and sleeps; and the total number of worker wake-ups.
async fn measure(case: &Case) -> ([f64; 2], u64) {
    let name = format!("cost-{}-{}.img", std::process::id(), case.depth);
    let scratch = Scratch(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name));
    let file = OpenFile::open(&FileOptions {
        path: scratch.0.clone(),
        len_bytes: Some(FILE_BYTES),
        caching: case.caching,
        block_size_bytes: 512,
        read_only: false,
    })
    .await
    .expect("a file");
    let volume = Rc::new(Arc::clone(&file).on_lane());
    // Every block exists, and is in the page cache if that is used.
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        let data = Payload::zeroes(1 << 20);
        volume
            .write(at, data, Durability::Cached)
            .await
            .expect("a write");
    }
    volume.flush().await.expect("a flush");
    load(&volume, case).await;
    let (calls, sleeps, workers) = (cost::system_calls(), cost::sleeps(), workers_sleeps());
    load(&volume, case).await;
    let per_io = [cost::system_calls() - calls, cost::sleeps() - sleeps];
    let woken = woken(&workers, &workers_sleeps());
    volume.close().await.expect("its end");
    (per_io.map(|count| count as f64 / IOS as f64), woken)
}

#[test]
fn an_io_of_a_file_makes_few_system_calls_and_sleeps_and_needs_no_other_thread() {
    const ROUNDS: usize = 5;
    for case in &CASES {
        let name = case.name();
        let kept = (0..ROUNDS).any(|_| {
            let lane = Lane::new(&LaneConfig::default()).expect("a ring");
            let ([system_calls, sleeps], woken) = lane.block_on(measure(case));
            println!("{name}: {system_calls:.3} system calls, {sleeps:.3} sleeps, workers woken {woken} times");
            let is_alone = woken == 0 || case.may_punt;
            system_calls <= case.system_calls && sleeps <= case.sleeps && is_alone
        });
        assert!(kept, "{name}: costs more in {ROUNDS} rounds");
    }
}
