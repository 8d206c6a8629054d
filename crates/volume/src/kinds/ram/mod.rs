//! The `ram` leaf: a region of this process's memory that all lanes read and write in place.
//!
//! The region is mapped up front and populated by the kernel page by page on first touch, so a large volume costs
//! only what is used of it; discarding gives pages back.
//!
//! A read copies nothing: it lends out the region's own memory, and each page counts its loans. A write to a lent
//! page goes *aside*, to a copy that stands in for the page until the last loan has ended and the copy is moved back.
//! All of this happens under a per-page lock; without it two lanes would race on the same block, and a reader could
//! see half of a write although the contract promises whole blocks. The lock is held for the copy of a few pages at
//! most and is almost never contended. It shares one word with the loan count, so a read of a page touches only one
//! cache line besides its data. Long operations are cut into pieces, each charged to the session's share
//! (`engine::share`), so that other sessions' I/O proceeds meanwhile.

mod past_cache;
pub mod settings;
#[cfg(test)]
mod tests;

use std::{
    cell::Cell,
    collections::HashMap,
    io,
    ops::Range,
    ptr::NonNull,
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
};

use engine::{
    Buf, LaneFuture, Payload, Slice,
    buf::Lender,
    cost,
    share::{PIECE_BYTES, charge, spend, try_spend},
};
use smallvec::SmallVec;

use crate::{
    Allocation, AtomicWrites, CompareOutcome, Discard, Durability, Error, ErrorKind, Len, ReadOnly,
    Result, Shape, Volume, fallback,
    member::{Order, Report},
};

const PAGE_BYTES: usize = 4096;
/// Pages locked and changed together. Taking a lock waits until earlier non-temporal stores have drained; doing that
/// for every single page took as long as the copying itself.
const CHANGED_PAGES: usize = 8;
/// Pages locked and freed together.
const DISCARD_PAGES: usize = 512;
/// The cost of freeing them, in equivalent bytes moved.
const DISCARD_COST_BYTES: usize = 256 << 10;
/// Pages whose allocation state is examined between two charges.
const LOOKED_AT_PAGES: u64 = 4096;
/// The cost of lending a page or examining its state, in equivalent bytes moved.
const PAGE_COST_BYTES: usize = 64;
/// Pages per huge page of the system, which the first touch clears as a whole.
const LARGE_PAGES: usize = 512;
/// The cost of clearing one, in equivalent bytes moved.
const LARGE_PAGE_COST_BYTES: usize = 256 << 10;

/// The memory of a `ram` volume, shared by all lanes.
#[derive(Debug)]
pub struct Region {
    memory: NonNull<u8>,
    mapped_bytes: usize,
    pages: Box<[Page]>,
    /// Which huge pages have been written since they were last given back.
    large: Box<[AtomicBool]>,
    /// The current content of pages that were written while lent.
    aside: Mutex<HashMap<usize, Box<[u8; PAGE_BYTES]>>>,
    shape: Shape,
}

// SAFETY: the memory is accessed only under the locks of the pages concerned, and is not changed while a page's state
// says that it is lent; only `LaneRegion` lends slices of it, and it counts them.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `len_bytes` zero bytes (whole blocks, above zero), addressed in blocks of `block_size_bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] when the system cannot map a region of this length.
    pub fn new(len_bytes: u64, block_size_bytes: u32) -> Result<Arc<Self>> {
        let too_large = |why: String| {
            Error::new(
                ErrorKind::NoSpace,
                format!(
                    "cannot allocate {len_bytes} bytes of memory ({why}); write a smaller size"
                ),
            )
        };
        let mapped_bytes = usize::try_from(len_bytes)
            .ok()
            .and_then(|len| len.max(1).checked_next_multiple_of(PAGE_BYTES))
            .ok_or_else(|| too_large("more than the address space".into()))?;
        // SAFETY: a fresh private mapping at an address of the kernel's choice; the result is checked.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(too_large(io::Error::last_os_error().to_string()));
        }
        // Huge pages save most of the page-table walks. The region works without them, so a failure is ignored.
        // SAFETY: the mapping just made, in its whole length.
        let _ = unsafe { libc::madvise(memory, mapped_bytes, libc::MADV_HUGEPAGE) };
        let pages = mapped_bytes / PAGE_BYTES;
        Ok(Arc::new(Region {
            memory: NonNull::new(memory.cast()).expect("a mapping that worked is not at zero"),
            mapped_bytes,
            pages: (0..pages).map(|_| Page::default()).collect(),
            large: (0..pages.div_ceil(LARGE_PAGES))
                .map(|_| AtomicBool::default())
                .collect(),
            aside: Mutex::default(),
            shape: Shape {
                block_size_bytes,
                physical_block_bytes: PAGE_BYTES as u32,
                len: Len::new(len_bytes),
                volatile_cache: true,
                read_only: ReadOnly::default(),
                discard: Some(Discard {
                    granularity_bytes: PAGE_BYTES as u32,
                    reads_zeroes: true,
                }),
                optimal_io_bytes: PAGE_BYTES as u32,
                compare_and_write_max_bytes: 0,
            },
        }))
    }

    /// The volume's shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The volume for the current lane.
    pub fn on_lane(self: &Arc<Self>) -> Ram {
        Ram {
            lane: Rc::new(LaneRegion {
                region: self.clone(),
                read_last: Cell::default(),
            }),
        }
    }

    fn aside(&self) -> MutexGuard<'_, HashMap<usize, Box<[u8; PAGE_BYTES]>>> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of byte `at` in the mapping, where it is unless its page is aside.
    fn in_place(&self, at: usize) -> NonNull<u8> {
        assert!(at < self.mapped_bytes);
        // SAFETY: within the mapping, as just seen.
        unsafe { self.memory.add(at) }
    }

    /// Lends all pages of the `len` bytes at `at`; they stay unchanged while lent. Returns false if a page is aside
    /// or has too many loans.
    fn lend(&self, at: usize, len: usize) -> bool {
        let pages = pages_of(at, len);
        for page in pages.clone() {
            if !self.pages[page].lock().lend() {
                self.take_back(pages.start..page);
                return false;
            }
        }
        true
    }

    /// Ends the loan of `pages`.
    fn take_back(&self, pages: Range<usize>) {
        for page in pages {
            let mut locked = self.pages[page].lock();
            if locked.take_back() {
                let content = self.aside().remove(&page);
                let content = content.expect("its state says that it is aside");
                // SAFETY: one whole page of the mapping; its lock is held and nobody has it lent.
                let place = unsafe {
                    std::slice::from_raw_parts_mut(
                        self.in_place(page * PAGE_BYTES).as_ptr(),
                        PAGE_BYTES,
                    )
                };
                place.copy_from_slice(&*content);
            }
        }
    }

    /// Calls `f` with each page's part of the `len` bytes at `at`, in order, to change it; the first argument is the
    /// part's offset within the range. `is_data`: whether the pages count as written.
    fn change(&self, at: usize, len: usize, is_data: bool, mut f: impl FnMut(usize, &mut [u8])) {
        let mut parts = parts(at, len);
        loop {
            // Locks are always taken in ascending order, to avoid deadlock.
            let mut group = SmallVec::<[_; CHANGED_PAGES]>::new();
            for (start, n) in parts.by_ref().take(CHANGED_PAGES) {
                group.push((start, n, self.pages[start / PAGE_BYTES].lock()));
            }
            if group.is_empty() {
                return;
            }
            for (start, n, locked) in &mut group {
                if is_data {
                    locked.set_written(true);
                }
                self.change_part(locked, *start, *n, |part| f(*start - at, part));
            }
            past_cache::settle();
        }
    }

    /// Calls `f` with the `len` bytes at `start`, in one locked page, to change them.
    fn change_part(
        &self,
        locked: &mut Locked<'_>,
        start: usize,
        len: usize,
        f: impl FnOnce(&mut [u8]),
    ) {
        let place = self.in_place(start);
        if locked.may_change_in_place() {
            // SAFETY: in one page of the mapping; its lock is held and it is not lent, so no other reference to it
            // exists.
            return f(unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), len) });
        }
        let (page, inside) = (start / PAGE_BYTES, start % PAGE_BYTES);
        let mut aside = self.aside();
        let content = aside.entry(page).or_insert_with(|| {
            let first = self.in_place(page * PAGE_BYTES).cast::<[u8; PAGE_BYTES]>();
            // SAFETY: one whole page of the mapping, which is lent: nobody changes it.
            Box::new(unsafe { first.read() })
        });
        locked.set_aside();
        f(&mut content[inside..inside + len]);
    }

    /// Fills `to` with the bytes at `at`, wherever their pages currently are.
    fn copy(&self, at: usize, to: &mut [u8]) {
        cost::count_copied(to.len());
        for (start, n) in parts(at, to.len()) {
            let page = start / PAGE_BYTES;
            let locked = self.pages[page].lock();
            let to = &mut to[start - at..start - at + n];
            if locked.is_aside() {
                let inside = start % PAGE_BYTES;
                to.copy_from_slice(&self.aside()[&page][inside..inside + n]);
                continue;
            }
            // SAFETY: in one page of the mapping, whose lock is held: nobody changes it.
            to.copy_from_slice(unsafe {
                std::slice::from_raw_parts(self.in_place(start).as_ptr(), n)
            });
        }
    }

    /// Prefetches the first page of a read into the CPU cache: the kernel will soon copy it to a socket.
    fn fetch(&self, at: usize, len: usize) {
        for line in (at..at + len.min(PAGE_BYTES)).step_by(64) {
            past_cache::fetch(self.memory.as_ptr().wrapping_add(line));
        }
    }

    /// Zeroes the `len` bytes at `at`, piece by piece.
    async fn zero(&self, at: usize, len: usize) {
        let end = at + len;
        let first_whole = at.next_multiple_of(PAGE_BYTES).min(end);
        let end_whole = (end / PAGE_BYTES * PAGE_BYTES).max(first_whole);
        let clear = |at, len| self.change(at, len, false, |_, part| part.fill(0));
        // Skips pages that are already zero. A write that races with the check may as well come after the zeroing.
        let clear_part = |at, len| {
            if pages_of(at, len).any(|page| self.pages[page].was_written()) {
                clear(at, len);
            }
        };
        clear_part(at, first_whole - at);
        let mut page = first_whole / PAGE_BYTES;
        while page < end_whole / PAGE_BYTES {
            let next = (page / DISCARD_PAGES + 1) * DISCARD_PAGES;
            let next = next.min(end_whole / PAGE_BYTES);
            spend(DISCARD_COST_BYTES * (next - page) / DISCARD_PAGES).await;
            if !self.discard_pages(page, next) {
                for (at, len) in pieces(page * PAGE_BYTES, (next - page) * PAGE_BYTES) {
                    spend(len).await;
                    clear(at, len);
                }
            }
            page = next;
        }
        clear_part(end_whole, end - end_whole);
    }

    /// Charges for the first write to a huge page, which costs more than the copy.
    fn touch(&self, at: usize) {
        let large = &self.large[at / PAGE_BYTES / LARGE_PAGES];
        if !large.load(Ordering::Relaxed) {
            large.store(true, Ordering::Relaxed);
            charge(LARGE_PAGE_COST_BYTES);
        }
    }

    /// Gives whole pages back to the system, which makes them zero. Returns false, doing nothing, if any page is
    /// lent.
    fn discard_pages(&self, first: usize, end: usize) -> bool {
        // In ascending order, so that two discards cannot deadlock.
        let pages = self.pages[first..end].iter();
        let mut locked: Vec<Locked<'_>> = pages.map(Page::lock).collect();
        if !locked.iter().all(Locked::may_change_in_place) {
            return false;
        }
        let len = (end - first) * PAGE_BYTES;
        locked.iter_mut().for_each(|page| page.set_written(false));
        if end - first == LARGE_PAGES {
            self.large[first / LARGE_PAGES].store(false, Ordering::Relaxed);
        }
        let start = self.in_place(first * PAGE_BYTES).as_ptr();
        // SAFETY: whole pages of the mapping, all locked: nobody accesses them meanwhile.
        let failed = unsafe { libc::madvise(start.cast(), len, libc::MADV_DONTNEED) };
        if failed != 0 {
            // Locked memory (mlockall) cannot be given back, but can be cleared.
            // SAFETY: as above.
            unsafe { std::ptr::write_bytes(start, 0, len) };
        }
        true
    }
}

/// The pages that the `len` bytes at `at` touch.
fn pages_of(at: usize, len: usize) -> Range<usize> {
    at / PAGE_BYTES..(at + len).div_ceil(PAGE_BYTES)
}

/// Splits the `len` bytes at `at` at page boundaries: offset and length of each part.
fn parts(at: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    pages_of(at, len).map(move |page| {
        let start = at.max(page * PAGE_BYTES);
        (start, (at + len).min((page + 1) * PAGE_BYTES) - start)
    })
}

/// Splits the `len` bytes at `at` into pieces that are copied in one go: offset and length of each.
fn pieces(at: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let starts = (at..at + len).step_by(PIECE_BYTES);
    starts.map(move |start| (start, PIECE_BYTES.min(at + len - start)))
}

/// The state of a page in one word: the number of loans, whether its content is aside because it was written while
/// lent, whether it was written since it was last given back to the system, and the lock bit.
#[derive(Default, Debug)]
struct Page(AtomicU16);

impl Page {
    const WRITTEN: u16 = 1 << 15;
    const ASIDE: u16 = 1 << 14;
    const LOCKED: u16 = 1 << 13;
    const LOANS_MAX: u16 = Page::LOCKED - 1;

    fn lock(&self) -> Locked<'_> {
        let mut spins = 0;
        loop {
            let state = self.0.fetch_or(Page::LOCKED, Ordering::Acquire);
            if state & Page::LOCKED == 0 {
                return Locked { page: self, state };
            }
            spins += 1;
            if spins % 64 == 0 {
                // The holder may have been preempted: let it run.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// Lock-free, so the answer may already be out of date.
    fn was_written(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Page::WRITTEN != 0
    }
}

/// A locked page, and the state it will have when unlocked.
struct Locked<'a> {
    page: &'a Page,
    state: u16,
}

impl Locked<'_> {
    fn set_written(&mut self, is_written: bool) {
        self.state &= !Page::WRITTEN;
        self.state |= if is_written { Page::WRITTEN } else { 0 };
    }

    fn is_aside(&self) -> bool {
        self.state & Page::ASIDE != 0
    }

    fn set_aside(&mut self) {
        self.state |= Page::ASIDE;
    }

    /// Whether it may be changed in place.
    fn may_change_in_place(&self) -> bool {
        self.state & !Page::WRITTEN == 0
    }

    /// Adds a loan, unless the page is aside or has the maximum number of loans; returns whether it did.
    fn lend(&mut self) -> bool {
        let may = !self.is_aside() && self.state & Page::LOANS_MAX < Page::LOANS_MAX;
        self.state += u16::from(may);
        may
    }

    /// Removes a loan. Returns whether it was the last one and the content has to be moved back.
    fn take_back(&mut self) -> bool {
        self.state -= 1;
        let returns = self.state & !Page::WRITTEN == Page::ASIDE;
        if returns {
            self.state &= !Page::ASIDE;
        }
        returns
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.page.0.store(self.state, Ordering::Release);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this region, and nobody can reach it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// A lane's handle on a region, which lends memory from it.
#[derive(Debug)]
struct LaneRegion {
    region: Arc<Region>,
    /// The last range that this lane has lent to a reader: offset and length in bytes.
    read_last: Cell<(usize, usize)>,
}

impl Lender for LaneRegion {
    fn give_back(&self, memory: NonNull<u8>, len: usize) {
        let at = memory.as_ptr() as usize - self.region.memory.as_ptr() as usize;
        self.region.take_back(pages_of(at, len));
    }
}

/// A `ram` volume on one lane.
#[derive(Debug)]
pub struct Ram {
    lane: Rc<LaneRegion>,
}

impl Ram {
    fn region(&self) -> &Region {
        &self.lane.region
    }

    /// Lends the `len` bytes at `at`; `None` if a page is aside or has too many loans.
    fn lend(&self, at: usize, len: usize) -> Option<Payload> {
        let region = self.region();
        region.lend(at, len).then(|| {
            region.fetch(at, len);
            self.lane.read_last.set((at, len));
            let lender = self.lane.clone();
            // SAFETY: within the mapping, which the lender keeps alive; the pages are lent and stay unchanged until
            // it takes them back.
            unsafe { Slice::lent(region.in_place(at), len, lender) }.into()
        })
    }

    /// Returns a function that copies `data`, meant for byte `at`, into consecutive parts of the region.
    fn copier<'a>(&self, at: usize, data: &'a Payload) -> impl FnMut(usize, &mut [u8]) + use<'a> {
        // After a compare-before-write the target is in the CPU cache, and non-temporal stores would have to flush it
        // first.
        let is_cached = self.lane.read_last.get() == (at, data.len());
        let copy = match is_cached {
            true => <[u8]>::copy_from_slice,
            false => past_cache::copy,
        };
        let mut slices = data.slices().iter();
        let mut left: &[u8] = &[];
        move |_, part| {
            // A single pass over the slices, whatever their boundaries.
            let mut done = 0;
            while done < part.len() {
                if left.is_empty() {
                    left = slices
                        .next()
                        .expect("the slices are as long as the payload");
                }
                let n = left.len().min(part.len() - done);
                copy(&mut part[done..done + n], &left[..n]);
                (left, done) = (&left[n..], done + n);
            }
        }
    }
}

/// Requests that need not wait, which is nearly all of them, complete immediately and without an allocation.
impl Volume for Ram {
    fn shape(&self) -> &Shape {
        &self.region().shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        if let Err(error) = self.region().shape.check(at, len as u64) {
            return LaneFuture::ready(Err(error));
        }
        let at = at as usize;
        let cost = pages_of(at, len).len() * PAGE_COST_BYTES;
        if try_spend(cost) {
            if let Some(lent) = self.lend(at, len) {
                return LaneFuture::ready(Ok(lent));
            }
        }
        LaneFuture::new(async move {
            spend(cost).await;
            if let Some(lent) = self.lend(at, len) {
                return Ok(lent);
            }
            let mut buf = Buf::new(len);
            for (piece, len) in pieces(at, len) {
                spend(len).await;
                self.region()
                    .copy(piece, &mut buf[piece - at..piece - at + len]);
            }
            Ok(buf.into())
        })
    }

    fn write(&self, at: u64, data: Payload, _durability: Durability) -> LaneFuture<'_, Result<()>> {
        let (region, len) = (self.region(), data.len());
        if let Err(error) = region.shape.check_write(at, len as u64) {
            return LaneFuture::ready(Err(error));
        }
        let at = at as usize;
        cost::count_copied(len);
        if len <= PIECE_BYTES && try_spend(len) {
            region.touch(at);
            region.change(at, len, true, self.copier(at, &data));
            return LaneFuture::ready(Ok(()));
        }
        LaneFuture::new(async move {
            let mut copy = self.copier(at, &data);
            for (at, len) in pieces(at, len) {
                spend(len).await;
                region.touch(at);
                region.change(at, len, true, &mut copy);
            }
            Ok(())
        })
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::ready(Ok(()))
    }

    /// Nobody else can reach this process's memory.
    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>> {
        fallback::member(self, order)
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { Ok(()) })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.region().shape.check_write(at, len)?;
            self.region().zero(at as usize, len as usize).await;
            Ok(())
        })
    }

    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        LaneFuture::new(async move {
            self.region().shape.check(at, len)?;
            let is_written = |page: u64| self.region().pages[page as usize].was_written();
            let page_bytes = PAGE_BYTES as u64;
            let is_mapped = is_written(at / page_bytes);
            let mut end = (at / page_bytes + 1) * page_bytes;
            while end < at + len && is_written(end / page_bytes) == is_mapped {
                end += page_bytes;
                if end / page_bytes % LOOKED_AT_PAGES == 0 {
                    spend(LOOKED_AT_PAGES as usize * PAGE_COST_BYTES).await;
                }
            }
            let len_bytes = end.min(at + len) - at;
            Ok(Allocation {
                is_mapped,
                len_bytes,
            })
        })
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        Some(AtomicWrites {
            unit_bytes: self.region().shape.block_size_bytes,
            max_bytes: None,
        })
    }

    /// A power cut leaves nothing at all.
    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        self.write(at, data, durability)
    }

    /// Nobody else reaches it: whoever needs that keeps its own users away.
    fn compare_and_write(
        &self,
        _: u64,
        _: Payload,
        _: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        fallback::compare_and_write()
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        _may_discard: bool,
        _durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        self.discard(at, len)
    }
}
