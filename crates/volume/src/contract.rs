//! The contract of [`Volume`] as a test suite that every leaf and layer runs: random requests against a model,
//! requests that must be refused, and overlapping requests in flight.

use std::{cell::RefCell, rc::Rc};

use engine::{Buf, Lane, LaneConfig, LaneFuture, LaneHandle, Payload, random::SplitMix64, task};

use crate::{AtomicWrites, Durability, ErrorKind, Result, SharedVolume, Volume};

/// The longest request of the suite, in bytes.
const REQUEST_BYTES_MAX: u64 = 300 << 10;

/// Opens a volume on a lane with a real ring and tests it against the contract. The whole volume is read and
/// overwritten, so a few MiB are enough.
pub fn run(open: impl FnOnce(LaneHandle) -> LaneFuture<'static, Result<SharedVolume>>) {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let volume = open(lane.handle()).await.expect("the volume opens");
        hold(volume, 1).await;
    });
}

/// Tests `volume` against the contract on the current lane, with requests drawn from `seed`.
///
/// # Panics
/// Where the contract is broken.
pub async fn hold(volume: SharedVolume, seed: u64) {
    hold_with(volume, seed, true).await;
}

/// As [`hold`], for a disk whose target lets a read see half of a concurrent write, as a target does that serves a
/// file through the page cache. The final content still has to be whole.
///
/// # Panics
/// Where the contract is broken.
pub async fn hold_but_for_reads_beside_writes(volume: SharedVolume, seed: u64) {
    hold_with(volume, seed, false).await;
}

async fn hold_with(volume: SharedVolume, seed: u64, reads_are_whole: bool) {
    let mut random = SplitMix64::new(seed);
    let shape = volume.shape().clone();
    let block = u64::from(shape.block_size_bytes);
    assert!(block == 512 || block == 4096, "{shape:?}");
    assert!(
        shape.len_bytes() > 0 && shape.len_bytes() % block == 0,
        "{shape:?}"
    );
    assert_eq!(
        u64::from(shape.physical_block_bytes) % block,
        0,
        "{shape:?}"
    );

    refuses_what_does_not_fit(&*volume).await;
    refuses_what_is_not_atomic(&*volume).await;
    if shape.read_only.is_on() {
        refuses_writes(&*volume).await;
        return;
    }
    follows_a_model(&*volume, &mut random).await;
    for _ in 0..20 {
        keeps_blocks_whole_in_overlap(&volume, &mut random, reads_are_whole).await;
    }
    follows_a_model(&*volume, &mut random).await;
}

/// A random range of whole blocks within `len` bytes: mostly short, often at an edge.
fn range(random: &mut SplitMix64, block: u64, len: u64) -> (u64, u64) {
    let blocks = len / block;
    let longest = (REQUEST_BYTES_MAX / block).min(blocks);
    let n = match random.below(4) {
        0 => 1,
        1 => 1 + random.below(16.min(longest)),
        _ => 1 + random.below(longest),
    }
    .min(longest);
    let start = match random.below(8) {
        0 => 0,
        1 => blocks - n,
        _ => random.below(blocks - n + 1),
    };
    (start * block, n * block)
}

/// A random range that the volume can write atomically, if there is one.
fn atomic_range(volume: &dyn Volume, random: &mut SplitMix64) -> Option<(u64, usize)> {
    let atomic = volume.atomic_writes()?;
    let unit = u64::from(atomic.unit_bytes);
    let units = volume.shape().len_bytes() / unit;
    let longest = u64::from(atomic.max_bytes.unwrap_or(64 << 10)) / unit;
    let n = 1 + random.below(longest.min(units).max(1));
    let start = random.below(units.checked_sub(n)? + 1);
    Some((start * unit, (n * unit) as usize))
}

/// `bytes` in slices of odd lengths at odd addresses, as the network delivers them.
fn scattered(bytes: &[u8], random: &mut SplitMix64) -> Payload {
    if random.below(3) == 0 {
        return Buf::copy_of(bytes).into();
    }
    let mut payload = Payload::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let n = (1 + random.below(40_000) as usize).min(rest.len());
        let skip = random.below(600) as usize;
        let mut buf = Buf::new(skip + n);
        buf[skip..].copy_from_slice(&rest[..n]);
        payload.push(buf.freeze().slice(skip..skip + n));
        rest = &rest[n..];
    }
    payload
}

fn durability(random: &mut SplitMix64) -> Durability {
    if random.below(4) == 0 {
        Durability::Fua
    } else {
        Durability::Cached
    }
}

async fn refuses_what_does_not_fit(volume: &dyn Volume) {
    let shape = volume.shape();
    let block = shape.block_size_bytes as usize;
    let end = shape.len_bytes();
    let whole = block as u64;
    for (at, len, kind) in [
        (0, 0, ErrorKind::Misaligned),
        (0, block - 1, ErrorKind::Misaligned),
        (0, block + 1, ErrorKind::Misaligned),
        (1, block, ErrorKind::Misaligned),
        (end, block, ErrorKind::OutOfRange),
        (end - whole, 2 * block, ErrorKind::OutOfRange),
        (u64::MAX / whole * whole, block, ErrorKind::OutOfRange),
    ] {
        let error = volume.read(at, len).await.expect_err("it does not fit");
        assert_eq!(error.kind(), kind, "read of {len} at {at}: {error}");
        if shape.read_only.is_on() {
            continue;
        }
        let data = Payload::zeroes(len);
        let error = volume
            .write(at, data, Durability::Cached)
            .await
            .expect_err("it does not fit");
        assert_eq!(error.kind(), kind, "write of {len} at {at}: {error}");
        let error = volume.discard(at, len as u64).await.expect_err("no fit");
        assert_eq!(error.kind(), kind, "discard of {len} at {at}: {error}");
        for may_discard in [false, true] {
            let error = volume
                .write_zeroes(at, len as u64, may_discard, Durability::Cached)
                .await
                .expect_err("it does not fit");
            assert_eq!(error.kind(), kind, "zeroes, {len} at {at}: {error}");
        }
    }
}

async fn refuses_what_is_not_atomic(volume: &dyn Volume) {
    let shape = volume.shape();
    if shape.read_only.is_on() {
        return;
    }
    let write = |at, len| volume.write_atomic(at, Payload::zeroes(len), Durability::Cached);
    let block = shape.block_size_bytes;
    let Some(AtomicWrites {
        unit_bytes,
        max_bytes,
    }) = volume.atomic_writes()
    else {
        write(0, block as usize).await.expect_err("it takes none");
        return;
    };
    assert_eq!(unit_bytes % block, 0);
    let unit = unit_bytes as usize;
    if unit_bytes > block {
        let shifted = write(u64::from(block), unit).await;
        assert_eq!(shifted.expect_err("no unit").kind(), ErrorKind::Misaligned);
    }
    if let Some(max) = max_bytes {
        assert!(max >= unit_bytes && max % unit_bytes == 0, "{max}");
        let long = write(0, max as usize + unit).await;
        assert_eq!(long.expect_err("too long").kind(), ErrorKind::Misaligned);
    }
    let beyond = write(shape.len_bytes(), unit).await;
    beyond.expect_err("beyond the end");
}

async fn refuses_writes(volume: &dyn Volume) {
    let block = volume.shape().block_size_bytes as usize;
    let before = volume.read(0, block).await.expect("it reads").to_vec();
    let mut other = Buf::copy_of(&before);
    other.iter_mut().for_each(|byte| *byte ^= 1);
    let len = block as u64;
    for refused in [
        volume.write(0, other.into(), Durability::Cached).await,
        volume.discard(0, len).await,
        volume.write_zeroes(0, len, true, Durability::Cached).await,
    ] {
        assert_eq!(refused.expect_err("read-only").kind(), ErrorKind::ReadOnly);
    }
    volume.flush().await.expect("nothing to flush is flushed");
    assert_eq!(
        volume.read(0, block).await.expect("it reads").to_vec(),
        before
    );
}

async fn read_all(volume: &dyn Volume) -> Vec<u8> {
    let len = volume.shape().len_bytes();
    let mut all = Vec::new();
    while (all.len() as u64) < len {
        let at = all.len() as u64;
        let n = (len - at).min(1 << 20) as usize;
        let piece = volume.read(at, n).await.expect("it reads");
        assert_eq!(piece.len(), n, "a read gives what was asked for");
        all.extend(piece.to_vec());
    }
    all
}

async fn follows_a_model(volume: &dyn Volume, random: &mut SplitMix64) {
    let shape = volume.shape().clone();
    let block = u64::from(shape.block_size_bytes);
    let mut model = read_all(volume).await;
    for _ in 0..300 {
        let (at, len) = range(random, block, shape.len_bytes());
        let range = at as usize..(at + len) as usize;
        match random.below(10) {
            0..=3 => {
                let seen = volume.read(at, len as usize).await.expect("it reads");
                assert!(seen.to_vec() == model[range], "read of {len} at {at}");
            }
            4..=6 => {
                let stamp = random.bits();
                for (i, byte) in model[range.clone()].iter_mut().enumerate() {
                    *byte = (stamp >> (8 * (i % 7))) as u8 ^ (i / 512) as u8;
                }
                let data = scattered(&model[range], random);
                volume
                    .write(at, data, durability(random))
                    .await
                    .expect("it writes");
            }
            7 if random.below(2) == 0 => {
                let Some((at, len)) = atomic_range(volume, random) else {
                    continue;
                };
                let range = at as usize..at as usize + len;
                model[range.clone()].fill(random.bits() as u8);
                let data = scattered(&model[range], random);
                volume
                    .write_atomic(at, data, durability(random))
                    .await
                    .expect("it writes all of it");
            }
            7 => {
                volume
                    .write_zeroes(at, len, random.below(2) == 0, durability(random))
                    .await
                    .expect("it writes zeroes");
                model[range].fill(0);
            }
            8 => {
                volume.discard(at, len).await.expect("it discards");
                if shape.discard.is_some_and(|discard| discard.reads_zeroes) {
                    model[range].fill(0);
                } else {
                    discarded_as_allowed(volume, at, &mut model[range]).await;
                }
            }
            _ => volume.flush().await.expect("it flushes"),
        }
        let (at, len) = self::range(random, block, shape.len_bytes());
        let found = volume.allocation(at, len).await.expect("it looks");
        let run = found.len_bytes;
        assert!(
            run % block == 0 && (block..=len).contains(&run),
            "{found:?} of {len}"
        );
        let promises = shape.discard.is_some_and(|discard| discard.reads_zeroes);
        if !found.is_mapped && promises {
            let run = &model[at as usize..(at + run) as usize];
            assert!(run.iter().all(|byte| *byte == 0), "{found:?} at {at}");
        }
    }
    assert!(read_all(volume).await == model, "all of it");
}

/// Without a guarantee, each discarded block is zero or unchanged; whichever it is now, it must stay so.
async fn discarded_as_allowed(volume: &dyn Volume, at: u64, model: &mut [u8]) {
    let block = volume.shape().block_size_bytes as usize;
    let seen = volume.read(at, model.len()).await.expect("it reads");
    let seen = seen.to_vec();
    for (now, before) in seen.chunks(block).zip(model.chunks_mut(block)) {
        assert!(
            now == before || now.iter().all(|&byte| byte == 0),
            "a discarded block is neither zero nor as it was"
        );
        before.copy_from_slice(now);
    }
}

/// Overlapping requests in flight: afterwards, and in each concurrent read if `reads_are_whole`, every block is whole
/// and is either what it was before or what one of the writes made of it.
async fn keeps_blocks_whole_in_overlap(
    volume: &SharedVolume,
    random: &mut SplitMix64,
    reads_are_whole: bool,
) {
    let shape = volume.shape().clone();
    let block = shape.block_size_bytes as usize;
    // A small window, to make requests overlap.
    let window = shape.len_bytes().min(64 << 10);
    let offset = random.below((shape.len_bytes() - window) / block as u64 + 1) * block as u64;
    let before = volume
        .read(offset, window as usize)
        .await
        .expect("it reads")
        .to_vec();
    // For each block of the window, the contents that it may have.
    let allowed: Rc<RefCell<Vec<Vec<Vec<u8>>>>> = Rc::new(RefCell::new(
        before.chunks(block).map(|b| vec![b.to_vec()]).collect(),
    ));
    let check = {
        let allowed = allowed.clone();
        move |from: u64, seen: &[u8]| {
            let first = (from - offset) as usize / block;
            for (i, now) in seen.chunks(block).enumerate() {
                assert!(
                    allowed.borrow()[first + i].iter().any(|value| value == now),
                    "block {} of the window holds what nobody wrote",
                    first + i
                );
            }
        }
    };
    let mut running = Vec::new();
    for _ in 0..32 {
        let (from, len) = range(random, block as u64, window);
        let at = offset + from;
        let blocks = from as usize / block..(from + len) as usize / block;
        let volume = volume.clone();
        match random.below(8) {
            0..=3 => {
                let mut bytes = Vec::new();
                for index in blocks {
                    let stamp = random.bits().to_le_bytes();
                    let value: Vec<u8> = stamp.iter().copied().cycle().take(block).collect();
                    bytes.extend_from_slice(&value);
                    allowed.borrow_mut()[index].push(value);
                }
                let data = scattered(&bytes, random);
                let durability = durability(random);
                running.push(task::spawn(async move {
                    volume.write(at, data, durability).await.expect("it writes");
                }));
            }
            4 | 5 => {
                let check = check.clone();
                running.push(task::spawn(async move {
                    let seen = volume.read(at, len as usize).await.expect("it reads");
                    if reads_are_whole {
                        check(at, &seen.to_vec());
                    }
                }));
            }
            6 => running.push(task::spawn(async move {
                volume.flush().await.expect("it flushes");
            })),
            _ => {
                for index in blocks {
                    allowed.borrow_mut()[index].push(vec![0; block]);
                }
                running.push(task::spawn(async move {
                    volume.discard(at, len).await.expect("it discards");
                }));
            }
        }
    }
    task::join_all(running).await;
    let after = volume
        .read(offset, window as usize)
        .await
        .expect("it reads");
    check(offset, &after.to_vec());
}
