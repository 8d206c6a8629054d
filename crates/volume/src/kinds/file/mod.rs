//! The `file` leaf: a file or block device of the system, in one of four caching modes.
//!
//! The shape depends on the mode only: `direct` and `write-back` have a volatile cache that a flush (fdatasync)
//! empties; `direct-sync` and `write-through` have none, and a flush has nothing to do. A durable write carries its
//! own barrier (RWF_DSYNC).
//!
//! [`OpenFile`] is opened once per process; each lane has its own [`FileVolume`] over a [`Backing`]. The lanes share
//! which writes are unflushed and whether a flush has failed (`flushes.rs`). In two cases requests also lock
//! their ranges: in the page cache, where a read that overlaps a write sees parts of both, so every write excludes
//! the others, and wherever the system does not confirm that direct I/O bypasses it; and where direct I/O needs units larger than a block, so that writing a block is a read-modify-write of
//! its unit, which would undo a concurrent write.

mod backing;
mod blocks;
mod caching;
mod check;
#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod fault_tests;
mod flushes;
mod growth;
mod loops;
mod lost;
mod made;
mod open;
mod open_files;
#[cfg(any(test, feature = "testing"))]
pub mod recorder;
pub mod settings;
mod state;
#[cfg(test)]
mod tests;

use std::{io, ops::Range, sync::Arc};

use engine::{Buf, LaneFuture, Payload, op::AllocateMode, spend};

use crate::{
    Allocation, AtomicWrites, CompareOutcome, Durability, Error, ErrorKind, Result, Shape, Volume,
    fallback,
    flush_epochs::Epoch,
    local_claim,
    member::{Order, Report},
};

pub use backing::{Backing, BackingFile};
pub use caching::Caching;
pub use growth::Grown;
pub use open::{FileOptions, OpenFile};
pub(crate) use open_files::OpenFiles;

/// The most zeroes written at once where zeroes have to be written explicitly, in bytes.
const ZEROES_BYTES: u64 = 1 << 20;

/// A file leaf on one lane.
#[derive(Debug)]
pub struct FileVolume<B> {
    file: Arc<OpenFile>,
    backing: B,
}

impl<B: Backing> FileVolume<B> {
    fn new(file: Arc<OpenFile>, backing: B) -> Self {
        FileVolume { file, backing }
    }

    fn align(&self) -> u64 {
        self.file.align_bytes.into()
    }

    /// The whole units around `len` bytes at `at`.
    fn units(&self, at: u64, len: u64) -> Range<u64> {
        at / self.align() * self.align()..(at + len).next_multiple_of(self.align())
    }

    fn failed(&self, what: &str, at: u64, len: u64, error: &io::Error) -> Error {
        let path = self.file.path.display();
        if error.kind() == io::ErrorKind::UnexpectedEof {
            tracing::error!(
                file = %path,
                at,
                "the file ends before this byte of its disk: it was truncated while it was served. \
                 Data beyond its end is lost; stop serving it and restore it"
            );
        }
        let mend = match error.kind() {
            io::ErrorKind::FileTooLarge => {
                " (raise the limit on file sizes: `ulimit -f`, or LimitFSIZE= in systemd)"
            }
            _ => "",
        };
        Error::io(
            format_args!("{what} of {len} bytes at {at} of {path}{mend}"),
            error,
        )
    }

    /// Charges for the copy between the page cache and our memory, which happens on this thread.
    async fn pay(&self, len: u64) {
        if self.file.excludes() {
            spend(len as usize).await;
        }
    }

    async fn read_units(&self, range: Range<u64>) -> Result<Buf> {
        let len = range.end - range.start;
        self.pay(len).await;
        let (result, buf) = self.backing.read(range.start, Buf::new(len as usize)).await;
        match result {
            Ok(()) => Ok(buf),
            Err(error) => Err(self.failed("read", range.start, len, &error)),
        }
    }

    /// Writes whole units from aligned memory.
    async fn write_units(&self, at: u64, data: Payload, durability: Durability) -> Result<()> {
        let len = data.len() as u64;
        let durable = self.file.synchronous || durability == Durability::Fua;
        self.pay(len).await;
        let data = if self.align() == 1 || data.is_aligned(self.align() as usize) {
            data
        } else {
            data.into_buf().into()
        };
        let again = self.kept_for_doubt(&data, durable);
        let result = self.backing.write(at, data, durable).await;
        if let (Err(error), Some((data, covered))) = (&result, again) {
            let again = self.backing.write(at, data, false);
            self.judge(error, covered, again).await;
        }
        self.written(at, len, durable, result)
    }

    /// Records the end of a write.
    fn written(&self, at: u64, len: u64, durable: bool, result: io::Result<()>) -> Result<()> {
        if !durable {
            self.file.flushes.volatile_write_ended();
        }
        result.map_err(|error| self.failed("write", at, len, &error))
    }

    /// What is needed to judge a durable write if it fails while others may be volatile: its data, and what flushes
    /// have covered when it begins.
    fn kept_for_doubt(&self, data: &Payload, durable: bool) -> Option<(Payload, Epoch)> {
        let is_kept = durable && self.file.shape.volatile_cache;
        is_kept.then(|| (data.clone(), self.file.flushes.covered()))
    }

    /// A durable write failed. Was it the write itself, or the sync that it carries? A loss in the page cache is
    /// reported to each open file description, so flushes on all of them will fail. But a disk's failure to empty its
    /// cache is reported only once, to this call. Only in that case are volatile writes lost, and then the same write
    /// succeeds when repeated without the sync. A flush since the write began, when flushes had `covered` this much,
    /// proves nothing: it may have found the disk's cache empty after the loss.
    ///
    /// The mark of the opener goes in any case: a later process opens the file anew, and is told of neither.
    async fn judge(
        &self,
        error: &io::Error,
        covered: Epoch,
        again: impl Future<Output = io::Result<()>>,
    ) {
        if !self.file.flushes.has_volatile_beyond(covered) {
            return;
        }
        let is_full = error.kind() == io::ErrorKind::StorageFull;
        let _judging = (!is_full).then(|| self.file.flushes.judging());
        self.file.remove_opener().await;
        if !is_full && again.await.is_ok() {
            self.file.flushes.doubt();
        }
    }

    /// Writes blocks that are not whole units: reads the units at both ends, modifies them, and writes everything.
    async fn write_in_units(&self, at: u64, data: Payload, durability: Durability) -> Result<()> {
        let units = self.units(at, data.len() as u64);
        let _alone = self.file.lock_range(units.clone(), true).await;
        let mut buf = Buf::new((units.end - units.start) as usize);
        let (start, end) = (
            (at - units.start) as usize,
            (at - units.start) as usize + data.len(),
        );
        let unit = self.align() as usize;
        let is_one_unit = buf.len() == unit;
        if start > 0 || is_one_unit {
            let head = self
                .read_units(units.start..units.start + self.align())
                .await?;
            buf[..unit].copy_from_slice(&head);
        }
        if end < buf.len() && !is_one_unit {
            let tail = self.read_units(units.end - self.align()..units.end).await?;
            let tail_start = buf.len() - unit;
            buf[tail_start..].copy_from_slice(&tail);
        }
        data.copy_to(0, &mut buf[start..end]);
        self.write_units(units.start, buf.into(), durability).await
    }

    async fn write_blocks(&self, at: u64, data: Payload, durability: Durability) -> Result<()> {
        if !self.file.is_ordered() {
            return self.write_units(at, data, durability).await;
        }
        let units = self.units(at, data.len() as u64);
        if units != (at..at + data.len() as u64) {
            return self.write_in_units(at, data, durability).await;
        }
        let _locked = self.file.lock_range(units, self.file.excludes()).await;
        self.write_units(at, data, durability).await
    }

    /// Zeroes a range by changing its allocation. What is not whole sectors of a device is written.
    async fn zero(
        &self,
        mode: AllocateMode,
        at: u64,
        len: u64,
        durability: Durability,
    ) -> Result<()> {
        let (end, sector) = (at + len, self.file.sector_bytes);
        let from = at.next_multiple_of(sector).min(end);
        let to = (end / sector * sector).max(from);
        self.write_zeroes_at(at, from - at, durability).await?;
        if from < to {
            self.zero_sectors(mode, from, to - from, durability).await?;
        }
        self.write_zeroes_at(to, end - to, durability).await
    }

    /// Zeroes whole sectors by changing their allocation, or by writing if the file cannot do that.
    async fn zero_sectors(
        &self,
        mode: AllocateMode,
        at: u64,
        len: u64,
        durability: Durability,
    ) -> Result<()> {
        let result = {
            let _alone = if self.file.is_ordered() {
                Some(self.file.lock_range(self.units(at, len), true).await)
            } else {
                None
            };
            let result = self.backing.allocate(mode, at, len).await;
            self.file.flushes.volatile_write_ended();
            result
        };
        match result {
            Ok(()) if self.file.synchronous || durability == Durability::Fua => {
                self.flush_volatile().await
            }
            Ok(()) => Ok(()),
            Err(error) if is_unable(&error) => self.write_zeroes_at(at, len, durability).await,
            Err(error) => Err(self.failed("zeroing", at, len, &error)),
        }
    }

    async fn write_zeroes_at(&self, at: u64, len: u64, durability: Durability) -> Result<()> {
        let mut done = 0;
        while done < len {
            let piece = ZEROES_BYTES.min(len - done);
            let zeroes = Payload::zeroes(piece as usize);
            self.write_blocks(at + done, zeroes, durability).await?;
            done += piece;
        }
        Ok(())
    }

    async fn flush_volatile(&self) -> Result<()> {
        self.file
            .flushes
            .flush(|| self.sync())
            .await
            .map_err(|error| error.context(self.file.path.display()))
    }

    /// Makes what was written durable. A failure outlives the process before anybody hears of it.
    async fn sync(&self) -> io::Result<()> {
        let synced = self.backing.sync().await;
        if synced.is_err() {
            self.file.remove_opener().await;
        }
        synced
    }

    /// The outcome of a write, after which it is known whether the file has become read-only.
    async fn told(&self, written: Result<()>) -> Result<()> {
        if let Err(error) = &written
            && error.kind() == ErrorKind::ReadOnly
        {
            // Boxed, to keep the future of a write small.
            LaneFuture::new(self.file.look_again()).await;
        }
        written
    }

    async fn check_write(&self, at: u64, len: u64) -> Result<()> {
        if self.file.may_be_writable_again() {
            // Boxed, so that only refused writes pay for the memory.
            LaneFuture::new(self.file.look_again()).await;
        }
        self.file.shape.check_write(at, len)?;
        self.file
            .flushes
            .check()
            .map_err(|error| error.context(self.file.path.display()))
    }
}

/// Whether this error of a change of allocation says that the file or device has no such thing, or not here, and not that
/// its medium has failed: then the zeroes are written, which says what is wrong if anything is.
fn is_unable(error: &io::Error) -> bool {
    const UNABLE: [i32; 9] = [
        libc::EOPNOTSUPP,
        libc::ENOSYS,
        libc::ENODEV,
        libc::ENOTTY,
        // An alignment that nobody told of.
        libc::EINVAL,
        libc::EPERM,
        libc::ETXTBSY,
        libc::EBUSY,
        // A device that has refused the command (BLK_STS_TARGET).
        libc::EREMOTEIO,
    ];
    let number = error.raw_os_error();
    error.kind() == io::ErrorKind::Unsupported || number.is_some_and(|it| UNABLE.contains(&it))
}

impl<B: Backing> Volume for FileVolume<B> {
    fn shape(&self) -> &Shape {
        &self.file.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            self.file.shape.check(at, len as u64)?;
            let units = self.units(at, len as u64);
            let _locked = if self.file.excludes() {
                Some(self.file.lock_range(units.clone(), false).await)
            } else {
                None
            };
            if !self.file.writes_in_units() {
                return Ok(self.read_units(units).await?.into());
            }
            let start = (at - units.start) as usize;
            let buf = self.read_units(units).await?;
            Ok(buf.freeze().slice(start..start + len).into())
        })
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.check_write(at, data.len() as u64).await?;
            let written = self.write_blocks(at, data, durability).await;
            self.told(written).await
        })
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.flush_volatile())
    }

    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>> {
        LaneFuture::new(async move {
            let report = local_claim::follow(self, &order, self.file.is_regular()).await?;
            if let Order::Take(claim) = order {
                self.file.keep_claim(claim);
            }
            Ok(report)
        })
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            match self.file.take_claim() {
                None => Ok(()),
                Some(claim) => {
                    claim.close();
                    local_claim::release(self, &claim).await
                }
            }
        })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.check_write(at, len).await?;
            if self.file.shape.discard.is_none() {
                return Ok(());
            }
            self.zero(AllocateMode::PunchHole, at, len, Durability::Cached)
                .await
        })
    }

    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        LaneFuture::new(async move {
            self.file.shape.check(at, len)?;
            let block = u64::from(self.file.shape.block_size_bytes);
            let extent = self.backing.extent(at).await;
            let extent =
                extent.map_err(|error| self.failed("allocation query", at, len, &error))?;
            // A block occupies space if any of its bytes does: a run of holes ends with its last whole block. A block
            // that is only partly a hole is reported as allocated.
            let end = match extent.is_allocated {
                true => extent.end.saturating_add(block - 1) / block * block,
                false => extent.end / block * block,
            };
            let is_mapped = extent.is_allocated || end <= at;
            Ok(Allocation {
                is_mapped,
                len_bytes: end.max(at + block).min(at + len) - at,
            })
        })
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        self.file.atomic_writes
    }

    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            let len = data.len() as u64;
            self.check_write(at, len).await?;
            let Some(atomic) = self.file.atomic_writes else {
                return Err(Error::new(
                    ErrorKind::Configuration,
                    "the file system does not support atomic writes",
                ));
            };
            atomic.check(at, len)?;
            let durable = self.file.synchronous || durability == Durability::Fua;
            // In one piece of memory, because the system accepts only one segment.
            let data: Payload = data.into_buf().into();
            let again = self.kept_for_doubt(&data, durable);
            let result = self.backing.write_atomic(at, data, durable).await;
            if let (Err(error), Some((data, covered))) = (&result, again) {
                let again = self.backing.write_atomic(at, data, false);
                self.judge(error, covered, again).await;
            }
            self.written(at, len, durable, result)
        })
    }

    /// The system has no such call.
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
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.check_write(at, len).await?;
            let mode = if may_discard && self.file.shape.discard.is_some() {
                AllocateMode::PunchHole
            } else {
                AllocateMode::Zero
            };
            let zeroed = self.zero(mode, at, len, durability).await;
            self.told(zeroed).await
        })
    }
}
