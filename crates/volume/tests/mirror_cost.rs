//! What a mirrored write costs beside the writes of its two copies, measured without a clock: polls of tasks, each of which is a
//! wake-up or a beginning, and allocations. The bounds are a little above what was measured; anyone who makes a mirrored
//! write cheaper should lower them.
//!
//! The copies are files in memory. What their own writes cost is measured on such a file alone, and subtracted twice.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs,
    path::{Path, PathBuf},
};

use engine::{Buf, Lane, LaneConfig, Payload, share, task};
use uuid::Uuid;
use volume::{
    Durability, SharedVolume,
    claim::Owner,
    config::Volumes,
    graph::{Graph, NewStripe},
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

const BLOCK: usize = 4096;
const SPAN_BYTES: u64 = 16 << 20;

/// How many writes are under way, and the most that the mirror may add to one.
struct Case {
    depth: usize,
    polls: f64,
    allocations: f64,
}

const CASES: [Case; 2] = [
    Case {
        depth: 1,
        polls: 0.05,
        allocations: 0.05,
    },
    Case {
        depth: 32,
        polls: 0.05,
        allocations: 0.05,
    },
];

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Opens `alone`, a file, or `mirror`, of two of them, and does `work` with it.
fn with_volume<T>(name: &str, work: impl AsyncFnOnce(&SharedVolume) -> T) -> T {
    let directory = format!(
        "/dev/shm/sanstone-cost-{}-{}",
        std::process::id(),
        Uuid::new_v4()
    );
    let scratch = Scratch(PathBuf::from(directory));
    fs::create_dir(&scratch.0).expect("memory for files");
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let home = lane.handle();
    lane.block_on(async {
        let mut graph = graph(&scratch.0);
        if name == "mirror" {
            let new = NewStripe {
                uuid: Uuid::new_v4(),
                created_unix_s: 0,
                force: false,
                from: None,
            };
            let created = graph.create_stripe(name, &home, &new).await;
            created.unwrap_or_else(|error| panic!("{error}"));
        }
        let tree = graph.open(name, &home).await;
        let tree = tree.unwrap_or_else(|error| panic!("{error}"));
        let volume = tree.on_lane().await.expect("its lane is this one");
        // Every block exists, and every region is marked.
        let data = Buf::zeroed(1 << 20).freeze();
        for at in (0..SPAN_BYTES).step_by(1 << 20) {
            let written = volume.write(at, data.clone().into(), Durability::Fua);
            written.await.expect("it writes");
        }
        let output = work(&volume).await;
        drop((volume, tree));
        graph.close().await;
        output
    })
}

fn graph(directory: &Path) -> Graph {
    let file = |name: &str| {
        let size = SPAN_BYTES + (1 << 20);
        format!("file = {{ path = \"{name}\", size = \"{size}B\", cache = \"direct-sync\" }}")
    };
    let (alone, a, b) = (file("alone"), file("a"), file("b"));
    let text = format!("[alone]\n{alone}\n[mirror]\nmirror = {{ of = [{{ {a} }}, {{ {b} }}] }}\n");
    let volumes: Volumes = toml::from_str(&text).expect("it parses");
    let mut graph = Graph::new(volumes, directory).expect("it is valid");
    graph.set_state_directory(directory);
    graph.set_owner(Owner::passing("a test"));
    graph
}

/// Keeps `depth` writes under way until `writes` have completed.
async fn load(volume: &SharedVolume, depth: usize, writes: usize) {
    let places = SPAN_BYTES as usize / BLOCK;
    let workers = (0..depth).map(|worker| {
        let (data, volume): (Payload, _) = (Buf::zeroed(BLOCK).into(), volume.clone());
        task::spawn(async move {
            for write in (worker..writes).step_by(depth) {
                let at = (write * 7 % places * BLOCK) as u64;
                let written = volume.write(at, data.clone(), Durability::Fua);
                written.await.expect("it writes");
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    task::join_all(workers).await;
}

/// Polls and allocations for each write to the volume `name`.
fn counts(name: &str, depth: usize) -> [f64; 2] {
    const WRITES: usize = 4096;
    with_volume(name, async |volume| {
        load(volume, depth, WRITES).await; // tables and free lists grow to what is needed
        let count = || [share::counts().polls, ALLOCATIONS.get()];
        let before = count();
        load(volume, depth, WRITES).await;
        let after = count();
        [0, 1].map(|i| (after[i] - before[i]) as f64 / WRITES as f64)
    })
}

#[test]
fn a_mirror_adds_few_polls_and_allocations_to_the_writes_of_its_copies() {
    for case in &CASES {
        let [alone, mirrored] = ["alone", "mirror"].map(|name| counts(name, case.depth));
        let [polls, allocations] = [0, 1].map(|i| mirrored[i] - 2.0 * alone[i]);
        let depth = case.depth;
        println!("depth {depth}: {mirrored:.2?}, a copy alone {alone:.2?} polls and allocations");
        assert!(polls <= case.polls, "{polls:.2} polls at depth {depth}");
        assert!(
            allocations <= case.allocations,
            "{allocations:.2} allocations at depth {depth}"
        );
    }
}
