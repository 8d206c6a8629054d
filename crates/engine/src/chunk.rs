//! Memory for large buffers, cut from chunks that the system can each back with one huge page. A disk
//! takes a buffer in as many segments as it has runs of contiguous physical memory: 128 KiB of 4 KiB
//! pages are up to 32 segments, within a huge page only one.

use std::{cell::RefCell, ptr::NonNull, sync::Arc};

/// The size and alignment of a chunk: a huge page on today's processors.
const CHUNK_BYTES: usize = 2 << 20;
/// Pieces from this length on are cut from chunks; shorter ones gain little.
const PIECE_MIN_BYTES: usize = 64 << 10;

/// A mapping of its own, unmapped when its last piece is dropped.
struct Chunk(NonNull<u8>);

// SAFETY: the mapping belongs to no thread; its bytes are accessed only through its pieces, which
// do not overlap.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new() -> Option<Arc<Chunk>> {
        // SAFETY: a fresh private mapping at an address of the kernel's choice, twice as long as
        // needed, so that an aligned chunk lies in it; the result is checked.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * CHUNK_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        let before = mapped.align_offset(CHUNK_BYTES);
        let after = CHUNK_BYTES - before;
        // SAFETY: both ends are whole pages of the mapping just made, and nothing uses them.
        let memory = unsafe {
            let memory = mapped.byte_add(before);
            if before > 0 {
                libc::munmap(mapped, before);
            }
            if after > 0 {
                libc::munmap(memory.byte_add(CHUNK_BYTES), after);
            }
            // The chunk also works without huge pages, so a failure is ignored.
            let _ = libc::madvise(memory, CHUNK_BYTES, libc::MADV_HUGEPAGE);
            memory
        };
        NonNull::new(memory.cast()).map(|memory| Arc::new(Chunk(memory)))
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: the mapping is this chunk's own and its last piece is gone.
        unsafe { libc::munmap(self.0.as_ptr().cast(), CHUNK_BYTES) };
    }
}

/// A part of a chunk, zero at first. Its memory returns to the system when it is dropped.
pub(crate) struct Piece {
    _chunk: Arc<Chunk>,
    memory: NonNull<u8>,
    len: usize,
}

impl Piece {
    /// A piece of `len` bytes, a power of two. `None` if `len` is not a valid piece length or there
    /// is no memory.
    pub(crate) fn new(len: usize) -> Option<Piece> {
        thread_local! {
            /// The chunk that this thread cuts from, and where its next piece begins.
            static CURRENT: RefCell<Option<(Arc<Chunk>, usize)>> = const { RefCell::new(None) };
        }
        if !(PIECE_MIN_BYTES..=CHUNK_BYTES).contains(&len) {
            return None;
        }
        let fits = |(_, at): &(Arc<Chunk>, usize)| at.next_multiple_of(len) + len <= CHUNK_BYTES;
        let cut = CURRENT.try_with(|current| {
            let mut current = current.borrow_mut();
            if !current.as_ref().is_some_and(fits) {
                *current = Some((Chunk::new()?, 0));
            }
            let (chunk, next) = current.as_mut()?;
            let at = next.next_multiple_of(len);
            *next = at + len;
            assert!(*next <= CHUNK_BYTES, "a piece lies within its chunk");
            Some(Piece {
                // SAFETY: the piece lies within the chunk, as checked above.
                memory: unsafe { chunk.0.add(at) },
                _chunk: chunk.clone(),
                len,
            })
        });
        cut.ok().flatten()
    }

    pub(crate) fn memory(&self) -> NonNull<u8> {
        self.memory
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // Other pieces may keep the chunk alive for long; unused parts of it must not take memory.
        // SAFETY: whole pages of the chunk that belonged to this piece alone.
        unsafe { libc::madvise(self.memory.as_ptr().cast(), self.len, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zero_and_aligned_and_do_not_overlap() {
        let mut pieces = Vec::new();
        for round in 0..40 {
            let len = PIECE_MIN_BYTES << (round % 6);
            let piece = Piece::new(len).expect("a length for pieces");
            // SAFETY: the piece is ours alone, `len` bytes long.
            let bytes = unsafe { std::slice::from_raw_parts_mut(piece.memory().as_ptr(), len) };
            assert!(bytes.iter().all(|&byte| byte == 0), "round {round}");
            assert_eq!(bytes.as_ptr() as usize % len, 0);
            bytes.fill(round as u8 + 1);
            pieces.push((piece, round as u8 + 1, len));
            if round % 3 == 0 {
                pieces.swap_remove(pieces.len() / 2);
            }
            for (piece, value, len) in &pieces {
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts(piece.memory().as_ptr(), *len) };
                assert!(bytes.iter().all(|byte| byte == value));
            }
        }
        assert!(Piece::new(4096).is_none() && Piece::new(2 * CHUNK_BYTES).is_none());
    }
}
