//! The trait that everything that stores blocks keeps, and its contract.

use std::rc::Rc;

use engine::{LaneFuture, Payload};

use crate::{Claim, Error, ErrorKind, Len, Result};

/// A volume as its users on one lane hold it.
pub type SharedVolume = Rc<dyn Volume>;

/// What a volume looks like. While the volume is open it may become longer; nothing else changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The unit of offsets and lengths, in bytes: 512 or 4096.
    pub block_size_bytes: u32,
    /// The unit that is written without reading first, in bytes; a multiple of the block size.
    pub physical_block_bytes: u32,
    /// Length; a multiple of the block size.
    pub len: Len,
    /// Whether a completed write may be lost at a power cut unless it was `Fua` or a flush has
    /// completed since (SCSI's WCE).
    pub volatile_cache: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// What discarding does; `None`: nothing, and it need not be offered.
    pub discard: Option<Discard>,
    /// The length at which I/O uses all of the volume at once, in bytes (a stripe's full width).
    pub optimal_io_bytes: u32,
    /// On what all I/O stands: the claim on the children of the stripe in it. Once it is lost every
    /// request is refused, also by a layer that could answer from memory. `None`: there is none.
    pub claim: Option<Claim>,
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
    /// As the volume's cache has it: see [`Shape::volatile_cache`].
    Cached,
    /// When it is on persistent media, in every copy that the volume promises (SCSI's FUA).
    Fua,
}

/// Whether a range takes space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Whether it does, or may.
    pub is_mapped: bool,
    /// For how many bytes that holds, at least a block.
    pub len_bytes: u64,
}

/// Which writes are all or nothing, also through a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicWrites {
    /// Offsets and lengths are multiples of this, in bytes.
    pub unit_bytes: u32,
    /// The longest, in bytes; a multiple of the unit. `None`: as long as any write.
    pub max_bytes: Option<u32>,
}

/// Where only one length can be written all or nothing, this is the best: a page of most databases.
pub(crate) const DATABASE_PAGE_BYTES: u32 = 16 << 10;

/// A random-access array of blocks.
///
/// # Contract
///
/// For callers:
/// - Offsets and lengths are multiples of the block size, lengths are above zero, and ranges lie
///   within [`Shape::len_bytes`]; otherwise the call fails and changes nothing.
/// - Calls may overlap in any number and complete in any order. Two calls in flight on the same
///   block have no order: a read sees the block before or after the write, each block whole.
/// - A future from `write`, `discard`, `write_zeroes` or `flush` must be driven to its end: who
///   may be cancelled runs it in a task of its own and drops only the wait for it.
///
/// For implementers:
/// - Every call ends exactly once, in bounded time, also when what is below fails.
/// - A write that has ended well is seen by every read that begins afterwards. One that failed
///   may have changed any of its blocks.
/// - `Fua` and `flush` keep their promise through a power cut. `flush` covers every write that
///   ended before it began, whoever made it, in every child that took one; an error of one
///   child is an error of the flush, and it is sticky: [`ErrorKind::FlushFailed`] until the
///   volume is opened again.
/// - Every request has an answer of its own, none comes by default: a layer hands each on to its
///   child or says why not, and only a leaf that has nothing better falls back
///   ([`fallback`](crate::fallback)).
pub trait Volume {
    /// What the volume looks like.
    fn shape(&self) -> &Shape;

    /// Reads `len` bytes at byte `at`.
    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>>;

    /// Writes `data` at byte `at`.
    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>>;

    /// Makes all writes that have ended durable.
    fn flush(&self) -> LaneFuture<'_, Result<()>>;

    /// Makes the medium below this owner's alone until [`Volume::close`], or refuses with the name of
    /// the one who has it: see [`crate::claim`]. A layer hands it on.
    fn claim(&self, claim: &Claim) -> LaneFuture<'_, Result<()>>;

    /// Ends it in good order: what was claimed is given up, and sessions are logged out. To be called
    /// when nothing is in flight, and all is flushed that has to be; what comes later may be refused.
    /// A layer hands it on. Closing what is closed does nothing.
    fn close(&self) -> LaneFuture<'_, Result<()>>;

    /// Tells the volume that `len` bytes at byte `at` are not needed any more. Afterwards they
    /// read as zeroes if [`Discard::reads_zeroes`], else as zeroes or as they were, block by block.
    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>>;

    /// Whether byte `at` takes space, and for how much of the `len` bytes from there that holds. A
    /// volume that does not know says that all may: [`crate::fallback::allocation`].
    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>>;

    /// Which writes [`Volume::write_atomic`] takes; `None`: none. It stays as it is while the volume
    /// is open.
    fn atomic_writes(&self) -> Option<AtomicWrites>;

    /// As [`Volume::write`], and a power cut leaves all of the data or nothing. What a reader sees
    /// meanwhile is the caller's to exclude. A volume without atomic writes refuses:
    /// [`crate::fallback::write_atomic`].
    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>>;

    /// Makes `len` bytes at byte `at` read as zeroes; `may_discard` allows to free their space. A
    /// volume without a better way writes them: [`crate::fallback::write_zeroes`].
    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>>;
}

impl AtomicWrites {
    /// Refuses a write that is none of these.
    pub fn check(&self, at: u64, len: u64) -> Result<()> {
        let unit = u64::from(self.unit_bytes);
        let is_short = self.max_bytes.is_none_or(|max| len <= u64::from(max));
        if at % unit == 0 && len % unit == 0 && is_short {
            return Ok(());
        }
        let longest = self.max_bytes.map_or_else(
            || "any length".to_owned(),
            |max| format!("at most {max} bytes"),
        );
        Err(Error::new(
            ErrorKind::Misaligned,
            format!(
                "an atomic write of {len} bytes at {at}: it takes whole units of {unit} bytes, {longest}"
            ),
        ))
    }
}

impl Shape {
    /// The length now, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len.bytes()
    }

    /// Refuses everything once the claim is lost.
    pub fn check_claim(&self) -> Result<()> {
        match &self.claim {
            None => Ok(()),
            Some(claim) => claim.check(),
        }
    }

    /// Refuses a range that is not in whole blocks or reaches beyond the end, and everything once the
    /// claim is lost.
    pub fn check(&self, at: u64, len: u64) -> Result<()> {
        self.check_claim()?;
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

    /// As [`Shape::check`], and refuses if the volume is read-only.
    pub fn check_write(&self, at: u64, len: u64) -> Result<()> {
        if self.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the volume is read-only"));
        }
        self.check(at, len)
    }
}
