//! A client-side memory cache of blocks that were recently read or written, or are about to be read. It is
//! write-through: a write completes only after the child has completed it, so a power cut loses nothing that the
//! child would have kept.
//!
//! A read that is entirely in the cache (`store`) is a hit: it costs a look-up and returns views of the cached pages.
//! What is missing is read from the child in whole blocks by a *fill*, which other readers may join, and which copies
//! the data into the cache's own pages so that no buffer of the child is retained (`in_flight` decides what may be
//! cached at all). Sequential readers are detected and fills started ahead of them (`read_ahead`).
//!
//! If the child's length is not a whole number of blocks, reads of the tail bypass the cache, so that no cached block
//! grows when the child does.
//!
//! A cache belongs to one lane and sees only its own traffic: two caches, or a cache and any other path, must not
//! write to the same child. In front of a stripe, it answers from memory only if the stripe's claim was proved
//! recently (`claim`).

mod block_map;
mod blocks;
mod counters;
#[cfg(test)]
mod eviction_tests;
mod ghosts;
mod in_flight;
mod queue;
mod read_ahead;
mod resize;
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
    CompareOutcome, Durability, Error, ErrorKind, Result, SetClaim, Shape, SharedVolume, Volume,
    layers,
    planted::{Bug, is_planted},
};

pub use self::counters::{CacheHandle, CacheStats};

/// The fewest blocks for a useful cache.
const BLOCKS_MIN: u64 = 64;

/// The size of a cache and its read behaviour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// All memory for data: cached blocks and reads in flight, in bytes. Bookkeeping adds about one percent.
    pub size_bytes: u64,
    /// The unit of reading and caching, in bytes: a power of two from 4 KiB to 1 MiB.
    pub block_bytes: u32,
    /// The most to read ahead of one sequential reader, in bytes; capped at an eighth of the cache. Zero: no
    /// read-ahead.
    pub read_ahead_max_bytes: u64,
}

impl Default for CacheConfig {
    /// 256 MiB in blocks of 16 KiB (InnoDB's page, two of PostgreSQL's, four of SQLite's; a miss takes 0.13 ms on a 1
    /// Gbit/s link, where 64 KiB would take 0.5 ms), 8 MiB ahead (what a 10 Gbit/s link carries in 6.7 ms).
    fn default() -> Self {
        CacheConfig {
            size_bytes: 256 << 20,
            block_bytes: 16 << 10,
            read_ahead_max_bytes: 8 << 20,
        }
    }
}

/// How many blocks a cache holds.
fn capacity(config: &CacheConfig) -> Result<usize> {
    let block = u64::from(config.block_bytes);
    let capacity = config.size_bytes / block;
    match (BLOCKS_MIN..=u64::from(u32::MAX)).contains(&capacity) {
        true => Ok(capacity as usize),
        false => Err(Error::new(
            ErrorKind::Configuration,
            format!(
                "a cache of {} bytes is not possible: it needs at least {} with blocks of {block}",
                config.size_bytes,
                BLOCKS_MIN * block
            ),
        )),
    }
}

/// How far a cache reads ahead at most, in bytes.
fn window_bytes(config: &CacheConfig) -> u64 {
    config.read_ahead_max_bytes.min(config.size_bytes / 8)
}

/// A volume with a cache in front of it.
pub struct Cache(Rc<Inner>);

struct Inner {
    child: SharedVolume,
    shape: Shape,
    /// On which it depends whether what is in memory still is the child's.
    claims: Vec<SetClaim>,
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

/// A part of a read that was not a complete hit.
enum Part {
    Cached(Payload),
    Coming { fill: Rc<Fill>, bytes: Range<u64> },
}

impl Cache {
    /// An empty cache in front of `child`.
    ///
    /// # Errors
    /// `Configuration` when a size is not allowed.
    pub fn new(child: SharedVolume, config: &CacheConfig) -> Result<Cache> {
        Cache::counted(child, config, &CacheHandle::default(), Vec::new())
    }

    /// The same, counted in `handle`; the child's content depends on `claims`.
    ///
    /// # Errors
    /// As [`Cache::new`].
    pub fn counted(
        child: SharedVolume,
        config: &CacheConfig,
        handle: &CacheHandle,
        claims: Vec<SetClaim>,
    ) -> Result<Cache> {
        let refuse = |what: String| Err(Error::new(ErrorKind::Configuration, what));
        let block = config.block_bytes;
        if !block.is_power_of_two() || !(4096..=1 << 20).contains(&block) {
            return refuse(format!(
                "a cache block of {block} bytes is not supported; use a power of two from 4096 to \
                 1048576"
            ));
        }
        let capacity = capacity(config)?;
        let shape = child.shape().clone();
        let blocks = Blocks::new(block, shape.block_size_bytes);
        let open = handle.open();
        let counters = open.counters().clone();
        let state = State {
            store: Store::new(blocks, capacity, counters.clone()),
            in_flight: InFlight::new(blocks),
            read_ahead: ReadAhead::new(
                blocks,
                shape.len.clone(),
                shape.optimal_io_bytes,
                window_bytes(config),
            ),
            counters,
        };
        Ok(Cache(Rc::new(Inner {
            child,
            shape,
            claims,
            blocks,
            counters: open,
            state: RefCell::new(state),
        })))
    }

    /// Its counters so far.
    pub fn stats(&self) -> CacheStats {
        self.0.counters.counters().stats()
    }
}

impl Volume for Cache {
    crate::pass_on! { self => self.0.child; member, close, allocation, atomic_writes }

    fn shape(&self) -> &Shape {
        &self.0.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            let inner = &self.0;
            inner.shape.check(at, len as u64)?;
            inner.claims.iter().try_for_each(SetClaim::check)?;
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
                // After a failed flush only the child knows which earlier writes it still has.
                self.0.state.borrow_mut().store.remove_all(0..u64::MAX);
            }
            result
        })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.0.shape.check(at, len)?;
            for (at, len) in pieces(at, len) {
                spend(self.0.look_cost(&(at..at + len))).await;
                let _write = Write::begin(&self.0, at..at + len);
                self.0.child.discard(at, len).await?;
            }
            Ok(())
        })
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

    /// Forgets the blocks: who asks this does not know what is there, nor does the cache.
    fn compare_and_write(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        LaneFuture::new(async move {
            let len = data.len() as u64 / 2;
            self.0.shape.check(at, len)?;
            spend(self.0.look_cost(&(at..at + len))).await;
            let _write = Write::begin(&self.0, at..at + len);
            self.0.child.compare_and_write(at, data, durability).await
        })
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.0.shape.check(at, len)?;
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

/// Bytes invalidated in one go: some thousand blocks.
const FORGOTTEN_BYTES: u64 = 64 << 20;
/// The cost of looking up a block, in equivalent bytes moved.
const LOOK_COST_BYTES: u64 = 64;

/// Splits the `len` bytes at `at` into pieces that are invalidated in one go: offset and length of each.
fn pieces(at: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (at..at + len).step_by(FORGOTTEN_BYTES as usize);
    starts.map(move |start| (start, FORGOTTEN_BYTES.min(at + len - start)))
}

impl Cache {
    /// Has the child write `data` at byte `at`, and keeps the cache consistent.
    async fn written<'a>(
        &'a self,
        at: u64,
        data: Payload,
        write: impl FnOnce(&'a dyn Volume, Payload) -> LaneFuture<'a, Result<()>>,
    ) -> Result<()> {
        let len = data.len() as u64;
        self.0.shape.check(at, len)?;
        spend(self.0.look_cost(&(at..at + len))).await;
        let noted = Write::begin(&self.0, at..at + len);
        write(&*self.0.child, data.clone()).await?;
        noted.end_with(&data).await;
        Ok(())
    }
}

impl Inner {
    /// Whether another owner may have taken over and written to the child, so that cached data cannot be trusted.
    fn is_in_doubt(&self) -> bool {
        let mut claims = self.claims.iter();
        let is_in_doubt = claims.any(|claim| claim.is_in_doubt(time::now()));
        is_in_doubt && !is_planted(Bug::CacheKeptInDoubt)
    }

    /// The cost of looking up the blocks of `bytes`, in equivalent bytes moved.
    fn look_cost(&self, bytes: &Range<u64>) -> usize {
        let touched = self.blocks.touched(bytes);
        ((touched.end - touched.start) * LOOK_COST_BYTES) as usize
    }

    /// Reads what is missing from the child. Boxed, to keep the future of a hit small.
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
                        // The bad sector may be outside the read, in a part that only the fill covers.
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

    /// Finds the parts of a read and starts fills for what is missing. Returns `None` when there is no room for that;
    /// the read then bypasses the cache.
    fn gather(self: &Rc<Self>, bytes: &Range<u64>, in_stream: bool) -> Option<SmallVec<[Part; 4]>> {
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        let touched = self.blocks.touched(bytes);
        // Twice, for the arriving buffer and the pages it is copied to; and a single read must not use all of the
        // cache.
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
                // What had been read ahead here is gone again: restart from here.
                state.read_ahead.advance(bytes.end);
            }
        } else {
            state.counters.late_hits.add(1);
        }
        Some(parts)
    }

    /// Reads ahead for the stream of the last read, as far as its window has room.
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
            // One request up to the next block already in flight; reading some blocks twice is cheaper than a second
            // request.
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

    /// Starts reading `run` into the cache; `None` when there is no room.
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
        // In a task of its own, because others may join it and the first caller may be cancelled.
        drop(layers::spawn(self.clone().fill(fill.clone())));
        Some(fill)
    }

    async fn fill(self: Rc<Self>, fill: Rc<Fill>) {
        let bytes = self.blocks.bytes(&fill.blocks);
        let len = (bytes.end - bytes.start) as usize;
        let result = match self.child.read(bytes.start, len).await {
            Ok(payload) if payload.len() != len => Err(Error::new(
                ErrorKind::Protocol,
                format!("a read of {len} bytes returned {}", payload.len()),
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
    /// Returns the bytes if all are cached, and whether the read belongs to a stream.
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

    /// Records a reader's use of a block; `was_read_ahead`: it is the first use of a read-ahead block.
    fn count_use(&self, was_read_ahead: bool) {
        let bytes = u64::from(was_read_ahead) * self.store.block_bytes();
        self.counters.read_ahead_used_bytes.add(bytes);
    }

    /// Whether reading `block` ahead would yield something that can be cached.
    fn is_missing(&self, block: u64) -> bool {
        !self.store.has_all(block)
            && self.in_flight.fill_of(block).is_none()
            && !self.in_flight.is_written(block)
    }

    /// Records that a reader of `block` waits for `fill`; returns false if the block is not attached to that fill.
    fn join(&mut self, fill: &Rc<Fill>, block: u64) -> bool {
        let brings = self.in_flight.fill_of(block);
        if !brings.is_some_and(|current| Rc::ptr_eq(current, fill)) {
            return false;
        }
        let is_first = fill.want(block);
        self.count_use(is_first && fill.read_ahead);
        true
    }

    /// The run of blocks, starting with the first of `among`, that are neither cached nor being filled.
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

    /// Caches the bytes that arrived for `block`, which are `part` of the payload, if that is allowed.
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

/// A modification on its way to the child. Its end is recorded on drop, whatever the outcome; unless
/// [`Write::end_with`] was called, the bytes stay invalid in the cache.
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

    /// The child has completed the write and now holds `data`, which is cached. If another write of the same bytes
    /// begins meanwhile, it invalidates what was stored and nothing more is added.
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
    /// Invalidates the bytes; the range may be far larger than what is cached.
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
