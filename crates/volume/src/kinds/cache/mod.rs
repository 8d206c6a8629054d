//! A client's memory cache: blocks of a volume that were read or written lately, or will be read
//! soon. It is write-through: a write ends when the child has ended it, never before, so a power
//! cut costs nothing that the child would have kept.
//!
//! A read is a hit when all of it lies in the cache (`store`): it then costs a look-up and gives
//! views of the cached pages. What is missing is read from the child in whole blocks by a *fill*,
//! which others may join and which copies what arrived into pages of the cache's own, so that no
//! buffer of the child's is kept (`in_flight` says what may be kept at all). Sequential readers
//! are found, and fills begun ahead of them (`read_ahead`).
//!
//! Where the child's length is no whole number of blocks, reads of the rest go past the cache: so no
//! block becomes longer when the child does.
//!
//! A cache belongs to one lane and sees only what goes through it: two caches, or a cache and some
//! other way, must not write to one child. Before a stripe it answers from memory only while the
//! stripe's claim was seen to stand a moment ago (`claim`).

mod block_map;
mod blocks;
mod counters;
mod in_flight;
mod read_ahead;
pub mod settings;
mod store;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, fmt, ops::Range, rc::Rc, sync::Arc};

use engine::{Buf, LaneFuture, Payload, share::PIECE_BYTES, spend, time};
use smallvec::SmallVec;

use self::{
    blocks::Blocks,
    counters::{Counters, OpenCounters},
    in_flight::{Fill, InFlight, WriteId},
    read_ahead::ReadAhead,
    store::Store,
};
use crate::{
    Allocation, AtomicWrites, Claim, Durability, Error, ErrorKind, Result, Shape, SharedVolume,
    Volume, layers,
    planted::{Bug, is_planted},
};

pub use self::counters::{CacheHandle, CacheStats};

/// The fewest blocks that a cache is of use with.
const BLOCKS_MIN: u64 = 64;

/// How large a cache is and how it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// All memory for data: cached blocks and reads in flight, in bytes. Bookkeeping adds about
    /// half a percent.
    pub size_bytes: u64,
    /// What is read at least and kept together, in bytes: a power of two from 4 KiB to 1 MiB.
    pub block_bytes: u32,
    /// The most that is read ahead of one sequential reader, in bytes; an eighth of the cache at
    /// most. Zero: nothing.
    pub read_ahead_max_bytes: u64,
}

impl Default for CacheConfig {
    /// 256 MiB in blocks of 16 KiB (InnoDB's page, two of PostgreSQL's, four of SQLite's: a miss
    /// costs a 1 Gbit/s link 0.13 ms, where 64 KiB would cost 0.5), 8 MiB ahead (what a 10 Gbit/s
    /// link carries in 6.7 ms).
    fn default() -> Self {
        CacheConfig {
            size_bytes: 256 << 20,
            block_bytes: 16 << 10,
            read_ahead_max_bytes: 8 << 20,
        }
    }
}

/// A volume with a cache before it.
pub struct Cache(Rc<Inner>);

struct Inner {
    child: SharedVolume,
    shape: Shape,
    blocks: Blocks,
    counters: OpenCounters,
    state: RefCell<State>,
}

struct State {
    store: Store,
    in_flight: InFlight,
    read_ahead: ReadAhead,
    counters: Arc<Counters>,
}

/// A part of a read that was not all in the cache.
enum Part {
    Cached(Payload),
    Coming { fill: Rc<Fill>, bytes: Range<u64> },
}

impl Cache {
    /// A cache, still empty, before `child`.
    ///
    /// # Errors
    /// `Configuration` when a size does not fit.
    pub fn new(child: SharedVolume, config: &CacheConfig) -> Result<Cache> {
        Cache::counted(child, config, &CacheHandle::default())
    }

    /// The same, counted in `handle`.
    ///
    /// # Errors
    /// As [`Cache::new`].
    pub fn counted(
        child: SharedVolume,
        config: &CacheConfig,
        handle: &CacheHandle,
    ) -> Result<Cache> {
        let refuse = |what: String| Err(Error::new(ErrorKind::Configuration, what));
        let block = config.block_bytes;
        if !block.is_power_of_two() || !(4096..=1 << 20).contains(&block) {
            return refuse(format!(
                "a cache block of {block} bytes: write a power of two from 4096 to 1048576"
            ));
        }
        let capacity = config.size_bytes / u64::from(block);
        if capacity < BLOCKS_MIN || capacity > u64::from(u32::MAX) {
            return refuse(format!(
                "a cache of {} bytes: it needs at least {} with blocks of {block}",
                config.size_bytes,
                BLOCKS_MIN * u64::from(block)
            ));
        }
        let shape = child.shape().clone();
        let blocks = Blocks::new(block, shape.block_size_bytes);
        let window = config.read_ahead_max_bytes.min(config.size_bytes / 8);
        let open = handle.open();
        let counters = open.counters().clone();
        let state = State {
            store: Store::new(blocks, capacity as usize, counters.clone()),
            in_flight: InFlight::new(blocks),
            read_ahead: ReadAhead::new(blocks, shape.len.clone(), shape.optimal_io_bytes, window),
            counters,
        };
        Ok(Cache(Rc::new(Inner {
            child,
            shape,
            blocks,
            counters: open,
            state: RefCell::new(state),
        })))
    }

    /// What it has done so far and holds now.
    pub fn stats(&self) -> CacheStats {
        self.0.counters.counters().stats()
    }
}

impl Volume for Cache {
    fn shape(&self) -> &Shape {
        &self.0.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            let inner = &self.0;
            inner.shape.check(at, len as u64)?;
            let bytes = at..at + len as u64;
            if bytes.end > inner.blocks.whole(inner.shape.len_bytes()) || inner.is_in_doubt() {
                inner.counters.counters().misses.add(1);
                return inner.child.read(at, len).await;
            }
            spend(inner.look_cost(&bytes)).await;
            let (hit, in_stream) = inner.state.borrow_mut().look_up(inner.blocks, &bytes);
            match hit {
                Some(payload) => {
                    if in_stream {
                        inner.read_ahead();
                    }
                    Ok(payload)
                }
                None => inner.read_through(bytes, in_stream).await,
            }
        })
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.written(at, data, move |child, data| {
            child.write(at, data, durability)
        }))
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            let result = self.0.child.flush().await;
            if result.is_err() {
                // What the child still has of the writes before, only the child can tell.
                self.0.state.borrow_mut().store.remove_all(0..u64::MAX);
            }
            result
        })
    }

    fn claim(&self, claim: &Claim) -> LaneFuture<'_, Result<()>> {
        self.0.child.claim(claim)
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        self.0.child.close()
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.0.shape.check_write(at, len)?;
            for (at, len) in pieces(at, len) {
                spend(self.0.look_cost(&(at..at + len))).await;
                let _write = Write::begin(&self.0, at..at + len);
                self.0.child.discard(at, len).await?;
            }
            Ok(())
        })
    }

    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        self.0.child.allocation(at, len)
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        self.0.child.atomic_writes()
    }

    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.written(at, data, move |child, data| {
            child.write_atomic(at, data, durability)
        }))
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.0.shape.check_write(at, len)?;
            for (at, len) in pieces(at, len) {
                spend(self.0.look_cost(&(at..at + len))).await;
                let _write = Write::begin(&self.0, at..at + len);
                let zeroed = self.0.child.write_zeroes(at, len, may_discard, durability);
                zeroed.await?;
            }
            Ok(())
        })
    }
}

/// Forgotten in one go, in bytes: some thousand blocks.
const FORGOTTEN_BYTES: u64 = 64 << 20;
/// What it costs to look for a block, in bytes moved.
const LOOK_COST_BYTES: u64 = 64;

/// The `len` bytes at `at` in pieces that are forgotten in one go: offset and length.
fn pieces(at: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (at..at + len).step_by(FORGOTTEN_BYTES as usize);
    starts.map(move |start| (start, FORGOTTEN_BYTES.min(at + len - start)))
}

impl Cache {
    /// Has the child write `data` at byte `at`, and keeps what the cache has of these bytes true.
    async fn written<'a>(
        &'a self,
        at: u64,
        data: Payload,
        write: impl FnOnce(&'a dyn Volume, Payload) -> LaneFuture<'a, Result<()>>,
    ) -> Result<()> {
        let len = data.len() as u64;
        self.0.shape.check_write(at, len)?;
        spend(self.0.look_cost(&(at..at + len))).await;
        let noted = Write::begin(&self.0, at..at + len);
        write(&*self.0.child, data.clone()).await?;
        noted.end_with(&data).await;
        Ok(())
    }
}

impl Inner {
    /// Whether another may have taken the child over and written to it: then only the child knows.
    fn is_in_doubt(&self) -> bool {
        let claim = self.shape.claim.as_ref();
        let is_in_doubt = claim.is_some_and(|claim| claim.is_in_doubt(time::now()));
        is_in_doubt && !is_planted(Bug::CacheKeptInDoubt)
    }

    /// What it costs to look for the blocks of `bytes`, in bytes moved.
    fn look_cost(&self, bytes: &Range<u64>) -> usize {
        let touched = self.blocks.touched(bytes);
        ((touched.end - touched.start) * LOOK_COST_BYTES) as usize
    }

    /// Reads what is missing from the child. In a frame of its own, to keep a hit's small.
    fn read_through(
        self: &Rc<Self>,
        bytes: Range<u64>,
        in_stream: bool,
    ) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            let len = (bytes.end - bytes.start) as usize;
            let parts = self.gather(&bytes, in_stream);
            if in_stream {
                self.read_ahead();
            }
            let Some(parts) = parts else {
                return self.child.read(bytes.start, len).await;
            };
            let mut whole = Payload::new();
            for part in parts {
                match part {
                    Part::Cached(payload) => whole.append(payload),
                    Part::Coming { fill, bytes: part } => match fill.result().await {
                        Ok(payload) => {
                            let start = self.blocks.bytes(&fill.blocks).start;
                            let range = (part.start - start) as usize..(part.end - start) as usize;
                            whole.append(payload.slice(range));
                        }
                        // The bad spot may lie where only the fill reaches.
                        Err(error) if error.kind() == ErrorKind::Medium => {
                            return self.child.read(bytes.start, len).await;
                        }
                        Err(error) => return Err(error),
                    },
                }
            }
            Ok(whole)
        })
    }

    /// Finds the parts of a read, and begins fills for what is missing. `None` when there is no
    /// room for that: the read then goes past the cache.
    fn gather(self: &Rc<Self>, bytes: &Range<u64>, in_stream: bool) -> Option<SmallVec<[Part; 4]>> {
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        let touched = self.blocks.touched(bytes);
        // Twice, for what arrives and for the pages it is copied to; one read must not take all.
        if (touched.end - touched.start) * 2 > state.store.capacity() as u64 / 4 {
            state.counters.misses.add(1);
            return None;
        }
        let mut parts: SmallVec<[Part; 4]> = SmallVec::new();
        let mut missed = false;
        let mut next = touched.start;
        while next < touched.end {
            let block = next;
            let within = self.blocks.within(block, bytes);
            if let Some(found) = state.store.get(block, within, false) {
                state.count_use(found.was_read_ahead);
                match parts.last_mut() {
                    Some(Part::Cached(payload)) => payload.push(found.data),
                    _ => parts.push(Part::Cached(found.data.into())),
                }
                next += 1;
                continue;
            }
            let fill = match state.in_flight.fill_of(block).cloned() {
                Some(fill) => {
                    while next < touched.end && state.join(&fill, next) {
                        next += 1;
                    }
                    fill
                }
                None => {
                    missed = true;
                    let run = state.missing_run(self.blocks, block..touched.end, bytes);
                    next = run.end;
                    let Some(fill) = self.begin_fill(state, run, false) else {
                        state.counters.misses.add(1);
                        return None;
                    };
                    fill
                }
            };
            let all = self.blocks.bytes(&(block..next));
            parts.push(Part::Coming {
                fill,
                bytes: all.start.max(bytes.start)..all.end.min(bytes.end),
            });
        }
        if missed {
            state.counters.misses.add(1);
            if in_stream {
                // What had been read ahead here is gone again: go on from here.
                state.read_ahead.advance(bytes.end);
            }
        } else {
            state.counters.late_hits.add(1);
        }
        Some(parts)
    }

    /// Reads ahead for the stream that the last read belongs to, as far as its window has room.
    fn read_ahead(self: &Rc<Self>) {
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        while let Some(piece) = state.read_ahead.next_piece() {
            let mut run = self.blocks.touched(&piece);
            while run.start < run.end && !state.is_missing(run.start) {
                run.start += 1;
            }
            if run.start == run.end {
                state.read_ahead.advance(piece.end);
                continue;
            }
            // One request up to what is coming already; what it brings twice costs less than two.
            let coming = run
                .clone()
                .find(|&block| state.in_flight.fill_of(block).is_some());
            run.end = coming.unwrap_or(run.end);
            while !state.is_missing(run.end - 1) {
                run.end -= 1;
            }
            let needed = 2 * (run.end - run.start) as usize;
            if state.store.reserved() + needed > state.store.capacity() / 4 {
                break;
            }
            let ahead = self.blocks.bytes(&run);
            if self.begin_fill(state, run, true).is_none() {
                break;
            }
            state.counters.read_ahead_bytes.add(ahead.end - ahead.start);
            state.read_ahead.advance(ahead.end);
        }
    }

    /// Begins to read `run` into the cache; `None` when there is no room.
    fn begin_fill(
        self: &Rc<Self>,
        state: &mut State,
        run: Range<u64>,
        read_ahead: bool,
    ) -> Option<Rc<Fill>> {
        if !state.store.reserve(2 * (run.end - run.start) as usize) {
            return None;
        }
        let fill = state.in_flight.begin_fill(run, read_ahead);
        // A task of its own: others may join, and whoever asked first may be cancelled.
        drop(layers::spawn(self.clone().fill(fill.clone())));
        Some(fill)
    }

    async fn fill(self: Rc<Self>, fill: Rc<Fill>) {
        let bytes = self.blocks.bytes(&fill.blocks);
        let len = (bytes.end - bytes.start) as usize;
        let result = match self.child.read(bytes.start, len).await {
            Ok(payload) if payload.len() != len => Err(Error::new(
                ErrorKind::Protocol,
                format!("a read of {len} bytes gave {}", payload.len()),
            )),
            result => result,
        };
        let payload = result.as_ref().ok();
        let block_bytes = self.blocks.block_bytes() as usize;
        for (block, start) in fill.blocks.clone().zip((0..).step_by(block_bytes)) {
            spend(block_bytes).await;
            let mut state = self.state.borrow_mut();
            state.end_fill(&fill, block, payload, start..start + block_bytes);
        }
        let count = (fill.blocks.end - fill.blocks.start) as usize;
        self.state.borrow_mut().store.release(count);
        fill.end(result);
    }
}

impl State {
    /// The bytes if all are cached, and whether they are part of a stream.
    fn look_up(&mut self, blocks: Blocks, bytes: &Range<u64>) -> (Option<Payload>, bool) {
        let seen = self.read_ahead.observe(bytes);
        let mut payload = Payload::new();
        let mut again = !seen.same_block;
        for block in blocks.touched(bytes) {
            let within = blocks.within(block, bytes);
            let Some(found) = self.store.get(block, within, again) else {
                return (None, seen.in_stream);
            };
            self.count_use(found.was_read_ahead);
            payload.push(found.data);
            again = true;
        }
        self.counters.hits.add(1);
        (Some(payload), seen.in_stream)
    }

    /// Notes that a reader uses a block, which `was_read_ahead` if this is its first use.
    fn count_use(&self, was_read_ahead: bool) {
        let bytes = u64::from(was_read_ahead) * self.store.block_bytes();
        self.counters.read_ahead_used_bytes.add(bytes);
    }

    /// Whether reading `block` ahead would bring something that can be kept.
    fn is_missing(&self, block: u64) -> bool {
        !self.store.has_all(block)
            && self.in_flight.fill_of(block).is_none()
            && !self.in_flight.is_written(block)
    }

    /// Notes that a reader of `block` waits for `fill`, if that is what brings the block.
    fn join(&mut self, fill: &Rc<Fill>, block: u64) -> bool {
        let brings = self.in_flight.fill_of(block);
        if !brings.is_some_and(|current| Rc::ptr_eq(current, fill)) {
            return false;
        }
        let is_first = fill.want(block);
        self.count_use(is_first && fill.read_ahead);
        true
    }

    /// The blocks from the first of `among` on that neither the cache nor a fill has.
    fn missing_run(&self, blocks: Blocks, among: Range<u64>, bytes: &Range<u64>) -> Range<u64> {
        let mut end = among.start + 1;
        while end < among.end
            && self.in_flight.fill_of(end).is_none()
            && !self.store.has(end, &blocks.within(end, bytes))
        {
            end += 1;
        }
        among.start..end
    }

    /// Copies what has arrived for `block`, which is `part` of the payload, into the cache, if it may
    /// be kept.
    fn end_fill(
        &mut self,
        fill: &Rc<Fill>,
        block: u64,
        payload: Option<&Payload>,
        part: Range<usize>,
    ) {
        self.store.release(1);
        let unused = fill.read_ahead && !fill.is_wanted(block);
        let keep = self.in_flight.end_fill(fill, block);
        match payload.filter(|_| keep) {
            Some(payload) => {
                let mut page = Buf::new(part.len());
                payload.copy_to(part.start, &mut page);
                self.store.insert(block, page.freeze(), unused);
            }
            None => self.store.count_waste(unused),
        }
    }
}

/// A change on its way to the child. However it ends, its end is noted: without
/// [`Write::end_with`] the bytes stay unknown to the cache.
struct Write<'a> {
    inner: &'a Inner,
    id: WriteId,
    bytes: Range<u64>,
}

impl<'a> Write<'a> {
    fn begin(inner: &'a Inner, bytes: Range<u64>) -> Self {
        let mut state = inner.state.borrow_mut();
        state.invalidate(inner.blocks, &bytes);
        Write {
            inner,
            id: state.in_flight.begin_write(bytes.clone()),
            bytes,
        }
    }

    /// The child has ended it well, and holds `data` now. Another write of the same bytes that begins
    /// meanwhile forgets what is here of them, and no more is added.
    async fn end_with(self, data: &Payload) {
        let blocks = self.inner.blocks;
        let mut touched = blocks.touched(&self.bytes);
        let mut start = 0;
        while start < data.len() {
            spend(PIECE_BYTES.min(data.len() - start)).await;
            let mut guard = self.inner.state.borrow_mut();
            let state = &mut *guard;
            if state.in_flight.is_contested(self.id) {
                return;
            }
            let piece_end = start + PIECE_BYTES;
            while start < piece_end.min(data.len()) {
                let Some(block) = touched.next() else { return };
                let part = blocks.within(block, &self.bytes);
                let len = part.len();
                state.store.update(block, part, data, start);
                start += len;
            }
        }
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        self.inner.state.borrow_mut().in_flight.end_write(self.id);
    }
}

impl State {
    /// Declares the bytes invalid; they may be many more than are cached.
    fn invalidate(&mut self, blocks: Blocks, bytes: &Range<u64>) {
        let touched = blocks.touched(bytes);
        if touched.end - touched.start > self.store.held() as u64 {
            self.store.remove_all(touched);
            return;
        }
        for block in touched {
            self.store.invalidate(block, &blocks.within(block, bytes));
        }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({:?})", self.stats())
    }
}
