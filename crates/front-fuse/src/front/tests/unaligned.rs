//! Reads and writes of parts of blocks, many at once, on a slow disk in virtual time.

use engine::{
    sim::{Random, World, seeds},
    task::{JoinHandle, join_all, yield_now},
    time,
};

use super::*;
use crate::lane::REQUESTS_MAX;
use unit::CommandId;

/// On one lane, the memory that each of eight has by default: eight writes of [`LONG_BYTES`] fill a nexus' share.
const MEMORY_BYTES: usize = 32 << 20;
const LONG_BYTES: usize = 1 << 20;
/// Enough for any of these tests, by far.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs `test` with access to a disk of `len_bytes`, each of whose requests takes `delay`.
fn with_slow_disk(
    (seed, len_bytes, delay): (u64, usize, Duration),
    test: impl AsyncFnOnce(&Rc<Transfer>) + Send + 'static,
) {
    let world = World::new(seed);
    let host = world.host("client");
    let faults = FaultHandle::new();
    faults.add(Rule::always(FaultAction::Delay(delay)));
    let config = UnitsConfig {
        disks: vec![disk(len_bytes as u64, &faults)],
        keep: None,
        note: None,
        limits: MemoryLimits {
            memory_bytes: MEMORY_BYTES,
            ..MemoryLimits::default()
        },
    };
    let lane = host.lane(0);
    world.block_on(&host, async {
        let units = Units::open(config, &[lane]).await.expect("its disk");
        let (done, ended) = oneshot();
        units.enter(0, move |units| async move {
            let transfer = enter(&spec(), &units, 0).expect("it can be shown");
            let transfer = Rc::new(transfer);
            let tested = time::timeout(LIMIT, test(&transfer));
            tested.await.expect("no request waits for good");
            done.send(());
        });
        ended.outcome().await.expect("the test has passed");
    });
}

/// Writes `data` at byte `at`, once its memory is paid for. As on a lane, the next request is not taken before that.
async fn write(transfer: &Rc<Transfer>, at: usize, data: Vec<u8>) -> JoinHandle<()> {
    let paid = transfer.nexus.take_memory(LUN, data.len()).await;
    let transfer = transfer.clone();
    spawn(async move {
        let (id, data) = (CommandId(at as u64), Buf::copy_of(&data).into());
        let written = transfer.write(id, at as u64, data, false).await;
        written.expect("it is written");
        drop(paid);
    })
}

async fn read(transfer: &Transfer, at: usize, len: usize) -> Vec<u8> {
    let read = transfer.read(CommandId(at as u64), at as u64, len as u32);
    read.await.expect("it is read").0.to_vec()
}

/// Seven long writes and as many short ones as find room hold all the memory of the nexus when each of them still has
/// two blocks to read.
#[test]
fn writes_that_hold_all_memory_complete_at_whatever_bytes_they_begin_and_end() {
    const LONG: usize = 7;
    let lens = (0..REQUESTS_MAX).map(|index| match index {
        ..LONG => LONG_BYTES - 1000 + index,
        _ => (17 << 10) + 201 * index,
    });
    let mut at = 100;
    let writes = lens.enumerate().map(|(index, len)| {
        let begins = at;
        at += len;
        (begins, bytes(index, len))
    });
    let writes: Vec<_> = writes.collect();
    let len_bytes = (at + 100).next_multiple_of(BLOCK_BYTES as usize);
    let delay = Duration::from_millis(10);
    with_slow_disk((1, len_bytes, delay), async move |transfer| {
        let mut expected = vec![0; len_bytes];
        let mut running = Vec::new();
        for (at, data) in writes {
            expected[at..at + data.len()].copy_from_slice(&data);
            running.push(write(transfer, at, data).await);
            // The requests that have been taken get on meanwhile.
            yield_now().await;
        }
        join_all(running).await;
        for (index, expected) in expected.chunks(LONG_BYTES).enumerate() {
            let found = read(transfer, index * LONG_BYTES, expected.len()).await;
            assert!(found == expected, "chunk {index}");
        }
    });
}

/// Each writer has bytes of its own, whose first and last block it shares with others; most have less than a block.
#[test]
fn what_is_written_and_zeroed_at_any_bytes_beside_others_is_read_again() {
    const WRITERS: usize = 24;
    const ROUNDS: usize = 30;
    let own_bytes = |writer: usize| [100_003, 301, 77][writer % 3];
    let all: usize = (0..WRITERS).map(own_bytes).sum();
    let len_bytes = all.next_multiple_of(BLOCK_BYTES as usize);
    seeds(20, |seed| {
        let delay = Duration::from_millis(1 + seed % 4);
        with_slow_disk((seed, len_bytes, delay), async move |transfer| {
            let mut random = Random::new(seed);
            let (mut begin, mut writers) = (0, Vec::new());
            for writer in 0..WRITERS {
                let range = begin..begin + own_bytes(writer);
                begin = range.end;
                let (transfer, random) = (transfer.clone(), random.fork());
                writers.push(spawn(use_own(transfer, random, range, ROUNDS)));
            }
            join_all(writers).await;
        });
    });
}

/// Writes, zeroes and reads parts of `own`, in which nobody else writes.
async fn use_own(
    transfer: Rc<Transfer>,
    mut random: Random,
    own: std::ops::Range<usize>,
    rounds: usize,
) {
    let mut expected = vec![0; own.len()];
    for round in 0..rounds {
        let from = random.index(own.len());
        let left = own.len() - from;
        let longest = [left, left.min(700)][random.index(2)];
        let len = 1 + random.index(longest);
        let (at, part) = (own.start + from, from..from + len);
        match random.index(4) {
            0 | 1 => {
                let data = bytes(at + round, len);
                expected[part].copy_from_slice(&data);
                write(&transfer, at, data).await.await;
            }
            2 => {
                expected[part].fill(0);
                let id = CommandId(at as u64);
                let zeroed = transfer.zero(id, at as u64, len as u64, true);
                zeroed.await.expect("it is zeroed");
            }
            _ => {
                let found = read(&transfer, at, len).await;
                assert!(found == expected[part], "{len} at {at}");
            }
        }
    }
    let found = read(&transfer, own.start, own.len()).await;
    assert!(found == expected, "{own:?}");
}
