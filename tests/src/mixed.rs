//! A mixed load against a model: many writes, punched ranges and reads of one range at a time, of all lengths. Each
//! read is compared with what must be there. Requests that overlap never run at once, as their order would be unknown.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use std::thread;

/// The unit of all ranges, in bytes.
pub const BLOCK_BYTES: usize = 512;
/// The longest request, in blocks.
const BLOCKS_MAX: usize = (1 << 20) / BLOCK_BYTES;

/// What the load runs on. Offsets are in bytes.
pub trait Device: Sync {
    /// Writes all of `data` at `at`.
    fn write(&self, at: u64, data: &[u8]);
    /// Fills `data` from `at`.
    fn read(&self, at: u64, data: &mut [u8]);
    /// Makes `len` bytes at `at` zero by deallocating them.
    fn punch(&self, at: u64, len: u64);
}

/// How many requests of each kind ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Writes.
    pub writes: usize,
    /// Punched ranges.
    pub punches: usize,
    /// Reads that were compared.
    pub reads: usize,
}

struct Model {
    /// What is in each block: the number of the write, or 0 for zeroes.
    stamps: Vec<u64>,
    /// The blocks of the requests that are running.
    busy: Vec<Range<usize>>,
    counts: Counts,
    last: u64,
}

/// Runs `requests` requests on the first `blocks` blocks of `device`, which hold zeroes, `depth` at a time; then reads
/// all of it.
///
/// # Panics
/// If a read finds something else than the model.
pub fn run(
    device: &impl Device,
    blocks: usize,
    depth: usize,
    requests: usize,
    seed: u64,
) -> Counts {
    let model = Mutex::new(Model {
        stamps: vec![0; blocks],
        busy: Vec::new(),
        counts: Counts::default(),
        last: 0,
    });
    thread::scope(|scope| {
        for worker in 0..depth {
            let (model, seed) = (&model, seed * 1000 + worker as u64);
            let share = requests.div_ceil(depth);
            scope.spawn(move || work(device, model, share, Random::new(seed)));
        }
    });
    let model = model.into_inner().expect("no worker has failed");
    for from in (0..blocks).step_by(BLOCKS_MAX) {
        compare(
            device,
            from,
            &model.stamps[from..blocks.min(from + BLOCKS_MAX)],
        );
    }
    model.counts
}

fn work(device: &impl Device, model: &Mutex<Model>, requests: usize, mut random: Random) {
    for _ in 0..requests {
        let kind = random.below(8);
        let (range, mut stamps) = claim(model, &mut random);
        let at = (range.start * BLOCK_BYTES) as u64;
        match kind {
            0..3 => {
                let stamp = {
                    let mut model = lock(model);
                    model.counts.writes += 1;
                    model.last += 1;
                    model.last
                };
                stamps.fill(stamp);
                device.write(at, &content(range.start, &stamps));
            }
            3..5 => {
                lock(model).counts.punches += 1;
                stamps.fill(0);
                device.punch(at, (range.len() * BLOCK_BYTES) as u64);
            }
            _ => {
                lock(model).counts.reads += 1;
                compare(device, range.start, &stamps);
            }
        }
        let mut model = lock(model);
        model.stamps[range.clone()].copy_from_slice(&stamps);
        model.busy.retain(|busy| *busy != range);
    }
}

/// Reserves blocks that no other request uses, and returns what is in them.
fn claim(model: &Mutex<Model>, random: &mut Random) -> (Range<usize>, Vec<u64>) {
    loop {
        let mut model = lock(model);
        let longest = 1_usize << random.below(BLOCKS_MAX.ilog2() as usize + 1);
        let count = longest - random.below(longest.div_ceil(2));
        let from = random.below(model.stamps.len() - count + 1);
        let range = from..from + count;
        let overlaps = |busy: &Range<usize>| busy.start < range.end && range.start < busy.end;
        if !model.busy.iter().any(overlaps) {
            model.busy.push(range.clone());
            let stamps = model.stamps[range.clone()].to_vec();
            return (range, stamps);
        }
        drop(model);
        thread::yield_now();
    }
}

fn compare(device: &impl Device, from: usize, stamps: &[u64]) {
    let mut found = vec![0xa5; stamps.len() * BLOCK_BYTES];
    device.read((from * BLOCK_BYTES) as u64, &mut found);
    let expected = content(from, stamps);
    for (index, stamp) in stamps.iter().enumerate() {
        let bytes = index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES;
        assert!(
            found[bytes.clone()] == expected[bytes.clone()],
            "block {} of a read of {} blocks at {from} holds {:02x?}… and not write {stamp} (0: zeroes)",
            from + index,
            stamps.len(),
            &found[bytes][..16],
        );
    }
}

/// The bytes of these blocks: each differs from every other block and from every other write.
fn content(from: usize, stamps: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(stamps.len() * BLOCK_BYTES);
    for (index, stamp) in stamps.iter().enumerate() {
        for word in 0..BLOCK_BYTES / 8 {
            let place = ((from + index) * BLOCK_BYTES + word) as u64;
            let word = match stamp {
                0 => 0,
                stamp => (stamp << 32 | place).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            };
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

fn lock(model: &Mutex<Model>) -> MutexGuard<'_, Model> {
    model.lock().expect("no worker has failed with it")
}

/// Random numbers of a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}
