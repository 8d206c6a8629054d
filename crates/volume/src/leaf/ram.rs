//! The `ram` leaf: a region of this process's memory that all lanes read and write in place.
//!
//! The region is mapped at once and filled by the kernel page by page as it is touched, so a large
//! volume costs what is used of it; discarding gives pages back. Copies run under a lock of the
//! page that they touch, one of some hundreds (few enough to stay in a cache), each in a line of
//! its own: without it two lanes at the same block would race, and a reader could see half of a
//! write where the contract promises whole blocks. It is held for the copy of one page and almost
//! never contended.

use std::{
    io,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use engine::{Buf, LaneFuture, Payload, cost};

use crate::{
    Allocation, AtomicWrites, Discard, Durability, Error, ErrorKind, Result, Shape, Volume,
};

const PAGE_BYTES: usize = 4096;
const LOCKS_MAX: usize = 512;
/// Pages freed under one set of locks; divides every number of locks that is larger.
const DISCARD_PAGES: usize = 512;

/// The memory of a `ram` volume, for all lanes.
#[derive(Debug)]
pub struct Region {
    memory: NonNull<u8>,
    mapped_bytes: usize,
    locks: Box<[PageLock]>,
    /// For each page whether it was written since it was last given back. Changed under the
    /// page's lock; who asks takes none and learns what was so at some time while it asked.
    written: Box<[AtomicBool]>,
    shape: Shape,
}

// SAFETY: the memory is only touched by `with_page` and `discard_pages`, under the locks of the
// pages that they touch; nobody keeps a reference into it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `len_bytes` zero bytes (whole blocks, above zero), addressed in blocks of `block_size_bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] when the system maps no region of this length.
    pub fn new(len_bytes: u64, block_size_bytes: u32) -> Result<Arc<Self>> {
        let too_large = |why: String| {
            Error::new(
                ErrorKind::NoSpace,
                format!("{len_bytes} bytes of memory cannot be had ({why}); write a smaller size"),
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
        // Large pages save the CPU most of its page-table walks. Where there are none it does
        // without, so a failure is no error.
        // SAFETY: the mapping just made, in its whole length.
        let _ = unsafe { libc::madvise(memory, mapped_bytes, libc::MADV_HUGEPAGE) };
        let pages = mapped_bytes / PAGE_BYTES;
        let locks = pages.next_power_of_two().min(LOCKS_MAX);
        Ok(Arc::new(Region {
            memory: NonNull::new(memory.cast()).expect("a mapping that worked is not at zero"),
            mapped_bytes,
            written: (0..pages).map(|_| AtomicBool::new(false)).collect(),
            locks: (0..locks).map(|_| PageLock::default()).collect(),
            shape: Shape {
                block_size_bytes,
                physical_block_bytes: PAGE_BYTES as u32,
                len_bytes,
                volatile_cache: true,
                read_only: false,
                discard: Some(Discard {
                    granularity_bytes: PAGE_BYTES as u32,
                    reads_zeroes: true,
                }),
                optimal_io_bytes: PAGE_BYTES as u32,
            },
        }))
    }

    /// What the volume looks like.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The volume for the current lane.
    pub fn on_lane(self: &Arc<Self>) -> Ram {
        Ram {
            region: self.clone(),
        }
    }

    fn lock(&self, page: usize) -> Locked<'_> {
        self.locks[page & (self.locks.len() - 1)].lock()
    }

    /// Runs `f` on each page's part of the `len` bytes at `at`, in order; its first argument is
    /// where in the range the part begins.
    fn for_pages(&self, at: usize, len: usize, mut f: impl FnMut(usize, &mut [u8])) {
        assert!(
            at.checked_add(len)
                .is_some_and(|end| end <= self.mapped_bytes)
        );
        let mut done = 0;
        while done < len {
            let start = at + done;
            let n = (PAGE_BYTES - start % PAGE_BYTES).min(len - done);
            let _locked = self.lock(start / PAGE_BYTES);
            // SAFETY: within the mapping (asserted above), in one page, and the page's lock is
            // held, so that no other reference to it exists.
            let part =
                unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().add(start), n) };
            f(done, part);
            done += n;
        }
    }

    fn zero(&self, at: usize, len: usize) {
        let end = at + len;
        let first_whole = at.next_multiple_of(PAGE_BYTES).min(end);
        let end_whole = (end / PAGE_BYTES * PAGE_BYTES).max(first_whole);
        self.for_pages(at, first_whole - at, |_, part| part.fill(0));
        let mut page = first_whole / PAGE_BYTES;
        while page < end_whole / PAGE_BYTES {
            // Up to the next multiple, so that the locks of one go are distinct and ascending.
            let next = (page / DISCARD_PAGES + 1) * DISCARD_PAGES;
            let next = next.min(end_whole / PAGE_BYTES);
            self.discard_pages(page, next);
            page = next;
        }
        self.for_pages(end_whole, end - end_whole, |_, part| part.fill(0));
    }

    fn discard_pages(&self, first: usize, end: usize) {
        // Distinct locks in ascending order, so that two discards cannot wait for each other: at
        // most 512 pages of one aligned group, or of a region with a lock for every page.
        let _locked: Vec<Locked<'_>> = (first..end).map(|page| self.lock(page)).collect();
        let len = (end - first) * PAGE_BYTES;
        for written in &self.written[first..end] {
            written.store(false, Ordering::Relaxed);
        }
        // SAFETY: whole pages of the mapping, all locked: nobody looks at them meanwhile.
        let start = unsafe { self.memory.as_ptr().add(first * PAGE_BYTES) };
        // SAFETY: as above.
        let failed = unsafe { libc::madvise(start.cast(), len, libc::MADV_DONTNEED) };
        if failed != 0 {
            // Locked memory (mlockall) is not given back; it can still be cleared.
            // SAFETY: as above.
            unsafe { std::ptr::write_bytes(start, 0, len) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's own and nobody can reach it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.mapped_bytes) };
    }
}

#[derive(Default, Debug)]
#[repr(align(64))]
struct PageLock(AtomicBool);

impl PageLock {
    fn lock(&self) -> Locked<'_> {
        let mut spins = 0;
        while self.0.swap(true, Ordering::Acquire) {
            spins += 1;
            if spins % 64 == 0 {
                // The holder was taken off its CPU: let it run.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        Locked(self)
    }
}

struct Locked<'a>(&'a PageLock);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

/// A `ram` volume on one lane.
#[derive(Debug)]
pub struct Ram {
    region: Arc<Region>,
}

impl Volume for Ram {
    fn shape(&self) -> &Shape {
        &self.region.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            self.region.shape.check(at, len as u64)?;
            let mut buf = Buf::new(len);
            cost::count_copied(len);
            self.region.for_pages(at as usize, len, |done, part| {
                buf[done..done + part.len()].copy_from_slice(part);
            });
            Ok(buf.into())
        })
    }

    fn write(&self, at: u64, data: Payload, _durability: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.region.shape.check_write(at, data.len() as u64)?;
            cost::count_copied(data.len());
            let mut slices = data.slices().iter();
            let mut left: &[u8] = &[];
            self.region
                .for_pages(at as usize, data.len(), |done, part| {
                    let page = (at as usize + done) / PAGE_BYTES;
                    self.region.written[page].store(true, Ordering::Relaxed);
                    // One walk over the slices, whatever their boundaries are.
                    let mut done = 0;
                    while done < part.len() {
                        if left.is_empty() {
                            left = slices
                                .next()
                                .expect("the slices are as long as the payload");
                        }
                        let n = left.len().min(part.len() - done);
                        part[done..done + n].copy_from_slice(&left[..n]);
                        (left, done) = (&left[n..], done + n);
                    }
                });
            Ok(())
        })
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { Ok(()) })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.region.shape.check_write(at, len)?;
            self.region.zero(at as usize, len as usize);
            Ok(())
        })
    }

    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        LaneFuture::new(async move {
            self.region.shape.check(at, len)?;
            let is_written = |page: u64| self.region.written[page as usize].load(Ordering::Relaxed);
            let page_bytes = PAGE_BYTES as u64;
            let is_mapped = is_written(at / page_bytes);
            let mut end = (at / page_bytes + 1) * page_bytes;
            while end < at + len && is_written(end / page_bytes) == is_mapped {
                end += page_bytes;
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
            unit_bytes: self.region.shape.block_size_bytes,
            max_bytes: None,
        })
    }

    /// A power cut leaves nothing of anything.
    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        self.write(at, data, durability)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract;

    #[test]
    fn keeps_the_contract() {
        for (len, block) in [(1 << 20, 512), (3 << 20, 4096), (5 * 512, 512), (512, 512)] {
            contract::run(move |_| {
                LaneFuture::new(async move {
                    Ok(std::rc::Rc::new(Region::new(len, block)?.on_lane()) as _)
                })
            });
        }
    }

    #[test]
    fn lanes_see_whole_blocks_of_each_other() {
        let region = Region::new(4096, 4096).expect("4 KiB");
        let config = engine::LaneConfig::default();
        std::thread::scope(|scope| {
            for writer in 0..2u8 {
                let region = &region;
                let config = &config;
                scope.spawn(move || {
                    let lane = engine::Lane::new(config).expect("a ring");
                    let ram = region.on_lane();
                    lane.block_on(async {
                        for round in 0..100_000u32 {
                            let mut buf = Buf::new(4096);
                            buf.fill((2 * round) as u8 + writer);
                            ram.write(0, buf.into(), Durability::Cached)
                                .await
                                .expect("it fits");
                            let seen = ram.read(0, 4096).await.expect("it fits").into_buf();
                            assert!(seen[..] == [seen[0]; 4096], "a torn block");
                        }
                    });
                });
            }
        });
    }

    #[test]
    fn discard_gives_memory_back() {
        let lane = engine::Lane::new(&engine::LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let region = Region::new(64 << 20, 512).expect("64 MiB");
            let ram = region.on_lane();
            let ones = Payload::from({
                let mut buf = Buf::new(1 << 20);
                buf.fill(1);
                buf
            });
            for mib in 0..64 {
                ram.write(mib << 20, ones.clone(), Durability::Cached)
                    .await
                    .expect("it fits");
            }
            assert_eq!(resident_pages(&region), 64 << 8);
            ram.discard(512, (64 << 20) - 1024).await.expect("it fits");
            assert_eq!(
                resident_pages(&region),
                2,
                "the first and last page are not whole"
            );
            let first = ram.read(0, 4096).await.expect("it fits").to_vec();
            assert!(first[..512].iter().all(|&b| b == 1) && first[512..].iter().all(|&b| b == 0));
        });
    }

    fn resident_pages(region: &Region) -> usize {
        let mut present = vec![0u8; region.mapped_bytes / PAGE_BYTES];
        // SAFETY: one byte for each page of a live mapping.
        let failed = unsafe {
            libc::mincore(
                region.memory.as_ptr().cast(),
                region.mapped_bytes,
                present.as_mut_ptr(),
            )
        };
        assert_eq!(failed, 0);
        present.iter().filter(|&&byte| byte & 1 == 1).count()
    }
}
