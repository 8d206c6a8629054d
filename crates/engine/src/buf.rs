//! Memory for I/O. A [`Buf`] is page-aligned and has one owner, who may write it. Frozen, it
//! becomes a [`Slice`], which is shared and read-only; several slices in a row are a [`Payload`].
//! Splitting, joining and passing them on costs a reference count, never a copy. A slice may also
//! refer to memory borrowed from a [`Lender`], which does not change it meanwhile.
//!
//! Memory comes from the thread's free lists (bounded, by powers of two) and returns to them.
//! Allocating a buffer never waits: the code that admits work from outside bounds what is in flight
//! *before* the work starts, so no I/O can wait for memory that another one holds.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    cell::{Cell, RefCell},
    fmt,
    ops::{Deref, DerefMut, Range},
    ptr::NonNull,
    rc::Rc,
};

use smallvec::SmallVec;

use crate::{chunk::Piece, cost::count_copied};

/// Every buffer begins at a multiple of this many bytes: enough for O_DIRECT on any disk.
pub const ALIGN_BYTES: usize = 4096;
const SMALLEST_SHIFT: u32 = 12;
const CLASSES: usize = 13; // 4 KiB … 16 MiB
/// The default limit of free memory that a thread keeps for reuse, in bytes.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// A thread that may keep at least this much free memory cuts its buffers from huge pages.
const CHUNKS_FROM_BYTES: usize = 8 << 20;

/// The owner of memory that a [`Slice`] may refer to for a while.
pub trait Lender {
    /// The last reference to the `len` lent bytes at `memory` is gone.
    fn give_back(&self, memory: NonNull<u8>, len: usize);
}

/// A piece of aligned memory, own or lent, and its reference count.
struct Block {
    memory: NonNull<u8>,
    capacity: usize,
    refs: Cell<u32>,
    source: MemorySource,
}

/// Where a block's memory comes from.
enum MemorySource {
    Allocator,
    /// Cut from a chunk, to which it returns on drop.
    Chunk(#[expect(dead_code, reason = "it is kept to be dropped")] Piece),
    Lender(Rc<dyn Lender>),
    /// No memory: what was lent has been given back.
    Nowhere,
}

impl Block {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN_BYTES)
            .expect("buffer sizes are far below isize::MAX")
    }

    fn class(capacity: usize) -> Option<usize> {
        let class = (capacity.trailing_zeros().checked_sub(SMALLEST_SHIFT)?) as usize;
        (capacity.is_power_of_two() && class < CLASSES).then_some(class)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let MemorySource::Allocator = self.source {
            // SAFETY: allocated in `take` with this layout, and the last reference is gone.
            unsafe { dealloc(self.memory.as_ptr(), Block::layout(self.capacity)) };
        }
    }
}

#[derive(Default)]
struct FreeBlocks {
    #[allow(
        clippy::vec_box,
        reason = "the box is what is recycled: its address is in use elsewhere"
    )]
    classes: [Vec<Box<Block>>; CLASSES],
    bytes: usize,
    /// Blocks without memory, kept for lent memory.
    #[allow(clippy::vec_box, reason = "as above")]
    empty: Vec<Box<Block>>,
}

/// The most blocks without memory that a thread keeps.
const EMPTY_MAX: usize = 4096;

thread_local! {
    static FREE: RefCell<FreeBlocks> = RefCell::default();
    static KEPT_MAX: Cell<usize> = const { Cell::new(KEPT_BYTES_MAX) };
    static KEPT_IS_FIXED: Cell<bool> = const { Cell::new(false) };
}

/// Sets how much free memory this thread keeps for reuse, in bytes. Memory already kept beyond that is released as it
/// gets used. No effect on a simulated machine, which shares its thread with others.
pub fn keep_at_most(bytes: usize) {
    if !KEPT_IS_FIXED.get() {
        KEPT_MAX.set(bytes);
    }
}

/// Makes [`keep_at_most`] a no-op on this thread from now on.
#[cfg(feature = "sim")]
pub(crate) fn fix_what_is_kept() {
    KEPT_IS_FIXED.set(true);
}

/// The bytes of memory that a buffer of `len` bytes occupies.
pub fn capacity_for(len: usize) -> usize {
    len.max(1).next_power_of_two().max(1 << SMALLEST_SHIFT)
}

fn take(len: usize) -> NonNull<Block> {
    let capacity = capacity_for(len);
    let kept = Block::class(capacity).and_then(|class| {
        FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            let block = free.classes[class].pop()?;
            free.bytes -= capacity;
            Some(block)
        })
        .ok()?
    });
    let block = kept.unwrap_or_else(|| {
        // A chunk is a huge page: a few retained buffers would hold far more memory than was asked for.
        let may_cut = KEPT_MAX.get() >= CHUNKS_FROM_BYTES;
        let piece = may_cut.then(|| Piece::new(capacity)).flatten();
        let memory = piece.as_ref().map(Piece::memory).unwrap_or_else(|| {
            // SAFETY: the layout's size is at least 4096.
            let memory = unsafe { alloc_zeroed(Block::layout(capacity)) };
            NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(Block::layout(capacity)))
        });
        Box::new(Block {
            memory,
            capacity,
            refs: Cell::new(0),
            source: piece.map_or(MemorySource::Allocator, MemorySource::Chunk),
        })
    });
    block.refs.set(1);
    NonNull::from(Box::leak(block))
}

/// A block for `len` bytes of a lender's memory.
fn borrow(memory: NonNull<u8>, len: usize, lender: Rc<dyn Lender>) -> NonNull<Block> {
    let kept = FREE.try_with(|free| free.borrow_mut().empty.pop());
    let mut block = kept.ok().flatten().unwrap_or_else(|| {
        Box::new(Block {
            memory,
            capacity: 0,
            refs: Cell::new(0),
            source: MemorySource::Nowhere,
        })
    });
    block.memory = memory;
    block.capacity = len;
    block.refs.set(1);
    block.source = MemorySource::Lender(lender);
    NonNull::from(Box::leak(block))
}

/// Drops one reference.
fn release(block: NonNull<Block>) {
    // SAFETY: the caller owns one reference, so the block is alive.
    let refs = unsafe { &block.as_ref().refs };
    refs.set(refs.get() - 1);
    if refs.get() > 0 {
        return;
    }
    // SAFETY: that was the last reference; the block came from Box::leak in `take` or `borrow`.
    let mut block = unsafe { Box::from_raw(block.as_ptr()) };
    if let MemorySource::Lender(lender) = &block.source {
        lender.give_back(block.memory, block.capacity);
        block.source = MemorySource::Nowhere;
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.empty.len() < EMPTY_MAX {
                free.empty.push(block);
            }
        });
        return;
    }
    if let Some(class) = Block::class(block.capacity) {
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.bytes + block.capacity <= KEPT_MAX.get() {
                free.bytes += block.capacity;
                free.classes[class].push(block);
            }
        });
    }
}

/// Aligned memory with one owner. Its bytes are always initialised (to zero, or to whatever an
/// earlier owner left).
pub struct Buf {
    block: NonNull<Block>,
    len: usize,
}

// SAFETY: a Buf is the only reference to its block; the count is not touched by anyone else.
unsafe impl Send for Buf {}

impl Buf {
    /// A buffer of `len` bytes with arbitrary content.
    pub fn new(len: usize) -> Self {
        Buf {
            block: take(len),
            len,
        }
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Buf::new(len);
        buf.fill(0);
        buf
    }

    /// A buffer with a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        count_copied(bytes.len());
        let mut buf = Buf::new(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Bytes of memory behind this buffer; at least its length.
    pub fn capacity(&self) -> usize {
        // SAFETY: self holds a reference.
        unsafe { self.block.as_ref().capacity }
    }

    /// Changes the length within the capacity. Panics beyond it.
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity(),
            "a buffer of {} bytes cannot hold {len}",
            self.capacity()
        );
        self.len = len;
    }

    /// Makes the buffer shareable and immutable.
    pub fn freeze(self) -> Slice {
        let this = std::mem::ManuallyDrop::new(self);
        Slice {
            block: this.block,
            start: 0,
            len: this.len,
        }
    }

    pub(crate) fn ptr(&self) -> NonNull<u8> {
        // SAFETY: self holds a reference.
        unsafe { self.block.as_ref().memory }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is initialised, at least `len` long, and only self refers to it.
        unsafe { std::slice::from_raw_parts(self.ptr().as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and self is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr().as_ptr(), self.len) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        release(self.block);
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} of {} bytes)", self.len, self.capacity())
    }
}

/// A shared, read-only view of a part of a buffer.
pub struct Slice {
    block: NonNull<Block>,
    start: usize,
    len: usize,
}

impl Slice {
    /// A view of `len` (> 0) lent bytes at `memory`. They go back to `lender` when the last view of
    /// them is dropped.
    ///
    /// # Safety
    /// Until `lender` gets them back, the bytes must stay initialised, in place and unchanged.
    pub unsafe fn lent(memory: NonNull<u8>, len: usize, lender: Rc<dyn Lender>) -> Slice {
        assert!(len > 0, "nothing is not lent");
        Slice {
            block: borrow(memory, len, lender),
            start: 0,
            len,
        }
    }

    /// The part `range` of this slice. Panics if it reaches beyond the end.
    pub fn slice(&self, range: Range<usize>) -> Slice {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "slice {range:?} of {} bytes",
            self.len
        );
        let mut part = self.clone();
        part.start += range.start;
        part.len = range.end - range.start;
        part
    }

    /// Turns the slice back into its buffer if this is the only reference, the memory is not lent,
    /// and the slice starts at the beginning of the buffer.
    pub fn try_unfreeze(self) -> Result<Buf, Slice> {
        // SAFETY: self holds a reference.
        let block = unsafe { self.block.as_ref() };
        if self.start == 0
            && block.refs.get() == 1
            && !matches!(block.source, MemorySource::Lender(_))
        {
            let this = std::mem::ManuallyDrop::new(self);
            Ok(Buf {
                block: this.block,
                len: this.len,
            })
        } else {
            Err(self)
        }
    }

    /// Bytes of memory that this slice keeps from being reused.
    pub fn held_bytes(&self) -> usize {
        // SAFETY: self holds a reference.
        unsafe { self.block.as_ref().capacity }
    }
}

impl Clone for Slice {
    fn clone(&self) -> Self {
        // SAFETY: self holds a reference.
        let refs = unsafe { &self.block.as_ref().refs };
        refs.set(
            refs.get()
                .checked_add(1)
                .expect("fewer than 2^32 views of one buffer"),
        );
        Slice {
            block: self.block,
            start: self.start,
            len: self.len,
        }
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        release(self.block);
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is initialised and immutable while any Slice exists.
        unsafe {
            std::slice::from_raw_parts(
                self.block.as_ref().memory.as_ptr().add(self.start),
                self.len,
            )
        }
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({} bytes at {})", self.len, self.start)
    }
}

impl From<Buf> for Slice {
    fn from(buf: Buf) -> Slice {
        buf.freeze()
    }
}

/// Bytes in several slices: what a read returns and a write takes.
#[derive(Clone, Default)]
pub struct Payload {
    slices: SmallVec<[Slice; 2]>,
    len: usize,
}

impl Payload {
    /// A payload of no bytes.
    pub fn new() -> Self {
        Payload::default()
    }

    /// `len` zero bytes, all backed by the same small block of memory.
    pub fn zeroes(len: usize) -> Self {
        const PIECE: usize = 256 << 10;
        thread_local!(static ZEROES: Slice = Buf::zeroed(PIECE).freeze());
        let mut payload = Payload::new();
        while payload.len < len {
            let piece = PIECE.min(len - payload.len);
            payload.push(ZEROES.with(|zeroes| zeroes.slice(0..piece)));
        }
        payload
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `slice`.
    pub fn push(&mut self, slice: Slice) {
        if !slice.is_empty() {
            self.len += slice.len();
            self.slices.push(slice);
        }
    }

    /// Appends all of `other`.
    pub fn append(&mut self, other: Payload) {
        self.len += other.len;
        self.slices.extend(other.slices);
    }

    /// The slices in order; none is empty.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// The part `range`. Panics if it reaches beyond the end.
    pub fn slice(&self, range: Range<usize>) -> Payload {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "slice {range:?} of {} bytes",
            self.len
        );
        let mut part = Payload::new();
        let mut at = 0;
        for slice in &self.slices {
            let from = range.start.max(at);
            let to = range.end.min(at + slice.len());
            if from < to {
                part.push(slice.slice(from - at..to - at));
            }
            at += slice.len();
        }
        part
    }

    /// Fills `to` with the bytes from `start` on. Panics if there are too few.
    pub fn copy_to(&self, start: usize, to: &mut [u8]) {
        assert!(
            start + to.len() <= self.len,
            "{} bytes at {start} of {}",
            to.len(),
            self.len
        );
        count_copied(to.len());
        let (mut skip, mut done) = (start, 0);
        for slice in &self.slices {
            if skip >= slice.len() {
                skip -= slice.len();
                continue;
            }
            let n = (slice.len() - skip).min(to.len() - done);
            to[done..done + n].copy_from_slice(&slice[skip..skip + n]);
            (skip, done) = (0, done + n);
            if done == to.len() {
                break;
            }
        }
    }

    /// All bytes, copied into a new vector.
    pub fn to_vec(&self) -> Vec<u8> {
        count_copied(self.len);
        let mut bytes = Vec::with_capacity(self.len);
        for slice in &self.slices {
            bytes.extend_from_slice(slice);
        }
        bytes
    }

    /// All bytes in one buffer: the same memory if it is a single unshared piece, else a copy.
    pub fn into_buf(mut self) -> Buf {
        if self.slices.len() == 1 {
            match self.slices.remove(0).try_unfreeze() {
                Ok(buf) => return buf,
                Err(slice) => self.slices.push(slice),
            }
        }
        let mut buf = Buf::new(self.len);
        self.copy_to(0, &mut buf);
        buf
    }

    /// Whether the address and length of every slice are multiples of `align` bytes.
    pub fn is_aligned(&self, align: usize) -> bool {
        self.slices
            .iter()
            .all(|s| s.as_ptr() as usize % align == 0 && s.len() % align == 0)
    }
}

impl From<Buf> for Payload {
    fn from(buf: Buf) -> Payload {
        buf.freeze().into()
    }
}

impl From<Slice> for Payload {
    fn from(slice: Slice) -> Payload {
        let mut payload = Payload::new();
        payload.push(slice);
        payload
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes in {})", self.len, self.slices.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 7 % 251) as u8).collect()
    }

    #[test]
    fn slices_share_and_the_last_one_frees() {
        let slice = Buf::copy_of(&bytes(9000)).freeze();
        let part = slice.slice(4000..5000);
        let slice = slice.try_unfreeze().expect_err("a part still looks at it");
        assert_eq!(part[..], bytes(9000)[4000..5000]);
        drop(part);
        let buf = slice.try_unfreeze().expect("nobody else looks");
        assert_eq!(buf.as_ptr() as usize % ALIGN_BYTES, 0);
    }

    #[test]
    fn lent_memory_goes_back_once_and_is_never_written() {
        struct Shelf(Cell<usize>, Cell<u32>);
        impl Lender for Shelf {
            fn give_back(&self, memory: NonNull<u8>, len: usize) {
                assert_eq!((memory.as_ptr() as usize, len), (self.0.get(), 5));
                self.1.set(self.1.get() + 1);
            }
        }
        let memory = *b"lent!";
        let at = NonNull::from(&memory).cast::<u8>();
        let shelf = Rc::new(Shelf(Cell::new(at.as_ptr() as usize), Cell::new(0)));
        for round in 0..3 {
            // SAFETY: the array outlives its slices and does not change.
            let slice = unsafe { Slice::lent(at, memory.len(), shelf.clone()) };
            let part = slice.slice(1..3);
            assert_eq!(part[..], *b"en");
            drop(part);
            let mut copy = Payload::from(slice).into_buf();
            assert_eq!(shelf.1.get(), round + 1, "the copy is nobody's loan");
            copy[0] = b'b';
        }
        assert_eq!(memory, *b"lent!");
        // Blocks that referred to lent memory are reused, also as blocks with memory of their own.
        assert_eq!(Buf::zeroed(5000)[..], vec![0; 5000][..]);
    }

    #[test]
    fn a_payload_cuts_and_copies_across_its_slices() {
        let all = bytes(10_000);
        let mut payload = Payload::new();
        for piece in all.chunks(777) {
            payload.push(Buf::copy_of(piece).freeze());
        }
        for (from, to) in [(0, 10_000), (0, 0), (776, 778), (5000, 9999), (777, 1554)] {
            assert_eq!(payload.slice(from..to).to_vec(), all[from..to]);
            let mut out = vec![0; to - from];
            payload.copy_to(from, &mut out);
            assert_eq!(out, all[from..to]);
        }
        assert_eq!(Payload::zeroes(600_000).to_vec(), vec![0; 600_000]);
    }
}
