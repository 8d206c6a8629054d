//! [`Volume`], the trait that everything that stores blocks implements, and its contract.

use std::rc::Rc;

use engine::{LaneFuture, Payload};

use crate::{
    Error, ErrorKind, Len, ReadOnly, Result,
    member::{Looks, Order, Report},
};

/// A volume, as held by its users on one lane.
pub type SharedVolume = Rc<dyn Volume>;

/// The properties of a volume. While the volume is open its length may grow, and it may become read-only or writable;
/// nothing else changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The unit of offsets and lengths, in bytes: 512 or 4096.
    pub block_size_bytes: u32,
    /// The unit that can be written without read-modify-write, in bytes; a multiple of the block size.
    pub physical_block_bytes: u32,
    /// Length; a multiple of the block size.
    pub len: Len,
    /// Whether a completed write may be lost in a power cut unless it was `Fua` or a flush has completed since
    /// (SCSI's WCE).
    pub volatile_cache: bool,
    /// Whether writes are refused.
    pub read_only: ReadOnly,
    /// What discarding does; `None`: nothing, so it need not be offered.
    pub discard: Option<Discard>,
    /// The I/O length that uses all of the volume at once, in bytes (a stripe's full width).
    pub optimal_io_bytes: u32,
    /// The longest [`Volume::compare_and_write`], in bytes; 0: there is none, and who needs one compares and writes while
    /// it keeps its other users away.
    pub compare_and_write_max_bytes: u32,
}

/// What [`Volume::discard`] does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discard {
    /// The unit in which space is freed, in bytes.
    pub granularity_bytes: u32,
    /// Whether a discarded range is guaranteed to read as zeroes.
    pub reads_zeroes: bool,
}

/// When a write counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// According to the volume's cache: see [`Shape::volatile_cache`].
    Cached,
    /// When it is on persistent media, in every copy that the volume promises (SCSI's FUA).
    Fua,
}

/// Whether a range occupies space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Whether it does, or may.
    pub is_mapped: bool,
    /// The number of bytes to which this applies, at least a block.
    pub len_bytes: u64,
}

/// Which writes are atomic: all or nothing, even in a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicWrites {
    /// Offsets and lengths must be multiples of this, in bytes.
    pub unit_bytes: u32,
    /// The longest, in bytes; a multiple of the unit. `None`: no limit.
    pub max_bytes: Option<u32>,
}

/// The outcome of [`Volume::compare_and_write`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompareOutcome {
    /// The expected data was there, and the new data is.
    Written,
    /// Something else was there, and is.
    Differs {
        /// The first byte that differs, from the start of the range.
        offset_bytes: u64,
    },
}

/// The preferred length where only one length can be written atomically: the page size of most databases.
pub(crate) const DATABASE_PAGE_BYTES: u32 = 16 << 10;

/// A random-access array of blocks.
///
/// # Contract
///
/// For callers:
/// - Offsets and lengths are multiples of the block size, lengths are above zero, and ranges lie within
///   [`Shape::len_bytes`]; otherwise the call fails and changes nothing.
/// - Any number of calls may be in flight and may complete in any order. Two calls in flight on the same block are
///   unordered: a read sees the block before or after the write, and always a whole block.
/// - A future from `write`, `discard`, `write_zeroes` or `flush` must be driven to its end: a caller that may be
///   cancelled runs it in a task of its own and drops only the wait for it.
///
/// For implementers:
/// - Every call completes exactly once, in bounded time, even when a lower volume fails.
/// - A write that has succeeded is seen by every read that begins afterwards. A write that failed may have changed
///   any of its blocks.
/// - `Fua` and `flush` keep their promise through a power cut. `flush` covers every write that completed before it
///   began, whoever issued it, in every child that received one. An error of one child is an error of the flush, and
///   it is sticky: [`ErrorKind::FlushFailed`] until the volume is reopened.
/// - No request has a default implementation: a layer passes each one on to its child or states why not, and only a
///   leaf that has nothing better uses a fallback ([`fallback`](crate::fallback)).
pub trait Volume {
    /// The volume's shape.
    fn shape(&self) -> &Shape;

    /// Reads `len` bytes at byte `at`.
    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>>;

    /// Writes `data` at byte `at`.
    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>>;

    /// Makes all completed writes durable.
    fn flush(&self) -> LaneFuture<'_, Result<()>>;

    /// Follows an order of the set that this volume is a member of: see [`crate::member`]. A layer passes it on.
    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>>;

    /// Closes the volume cleanly: releases the claim and logs sessions out. To be called when nothing is in flight
    /// and everything that has to be durable is flushed; later requests may be refused. A layer passes it on. Closing
    /// twice is harmless.
    fn close(&self) -> LaneFuture<'_, Result<()>>;

    /// Tells the volume that `len` bytes at byte `at` are no longer needed. Afterwards they read as zeroes if
    /// [`Discard::reads_zeroes`]; otherwise each block reads as zeroes or as before.
    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>>;

    /// Whether byte `at` occupies space, and for how much of the `len` bytes from there that holds. A volume that
    /// does not know answers that everything may: [`crate::fallback::allocation`].
    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>>;

    /// Which writes [`Volume::write_atomic`] accepts; `None`: none. Does not change while the volume is open.
    fn atomic_writes(&self) -> Option<AtomicWrites>;

    /// As [`Volume::write`], but a power cut leaves all of the data or nothing. Concurrent readers are the caller's
    /// responsibility. A volume without atomic writes refuses: [`crate::fallback::write_atomic`].
    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>>;

    /// Writes the second half of `data` at byte `at` if the first half, of the same length, is there, as one step of the
    /// disk below: nothing that others write to it, through whatever daemon, comes in between (SBC-3 5.2). It takes
    /// effect once or never: [`ErrorKind::OutcomeUnknown`] if that cannot be told. A volume without it refuses:
    /// [`crate::fallback::compare_and_write`].
    fn compare_and_write(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>>;

    /// Makes `len` bytes at byte `at` read as zeroes; `may_discard` permits freeing their space. A volume without a
    /// better way writes them: [`crate::fallback::write_zeroes`].
    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>>;
}

impl AtomicWrites {
    /// Refuses a write that does not satisfy these limits.
    pub fn check(&self, at: u64, len: u64) -> Result<()> {
        let unit = u64::from(self.unit_bytes);
        let is_short = self.max_bytes.is_none_or(|max| len <= u64::from(max));
        if at % unit == 0 && len % unit == 0 && is_short {
            return Ok(());
        }
        let longest = self.max_bytes.map_or_else(
            || "of any length".to_owned(),
            |max| format!("at most {max} bytes"),
        );
        Err(Error::new(
            ErrorKind::Misaligned,
            format!(
                "an atomic write of {len} bytes at {at} is not possible: it must be whole units of \
                 {unit} bytes, {longest}"
            ),
        ))
    }
}

impl Shape {
    /// The shape of a volume that is not there (yet): it has no length.
    pub(crate) fn absent(read_only: ReadOnly) -> Shape {
        Shape {
            block_size_bytes: 512,
            physical_block_bytes: 512,
            len: Len::new(0),
            volatile_cache: false,
            read_only,
            discard: None,
            optimal_io_bytes: 512,
            compare_and_write_max_bytes: 0,
        }
    }

    /// What a set sees of it.
    pub(crate) fn looks(&self) -> Looks {
        Looks {
            block_size_bytes: self.block_size_bytes,
            physical_block_bytes: self.physical_block_bytes,
            optimal_io_bytes: self.optimal_io_bytes,
            len_bytes: self.len_bytes(),
            volatile_cache: self.volatile_cache,
            read_only: self.read_only.is_on(),
            compare_and_write_max_bytes: self.compare_and_write_max_bytes,
        }
    }

    /// The current length, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len.bytes()
    }

    /// Refuses a range that is not whole blocks or reaches beyond the end.
    pub fn check(&self, at: u64, len: u64) -> Result<()> {
        let block = u64::from(self.block_size_bytes);
        if len == 0 || at % block != 0 || len % block != 0 {
            return Err(Error::new(
                ErrorKind::Misaligned,
                format!("{len} bytes at {at} are not whole blocks of {block} bytes"),
            ));
        }
        match at.checked_add(len) {
            Some(end) if end <= self.len_bytes() => Ok(()),
            _ => Err(Error::new(
                ErrorKind::OutOfRange,
                format!(
                    "{len} bytes at {at} reach beyond the end at {}",
                    self.len_bytes()
                ),
            )),
        }
    }

    /// As [`Shape::check`]; also fails if the volume is read-only. For leaves, which find out first whether it still is: a
    /// layer passes a write on all the same.
    pub fn check_write(&self, at: u64, len: u64) -> Result<()> {
        if self.read_only.is_on() {
            return Err(Error::new(ErrorKind::ReadOnly, "the volume is read-only"));
        }
        self.check(at, len)
    }
}
