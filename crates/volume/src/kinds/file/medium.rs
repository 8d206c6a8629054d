//! The seam beneath the file leaf: what it asks of the system, in a few verbs. The engine's files
//! are one medium; the power-cut recorder puts itself in between as another.

use std::{future::Future, io};

use engine::{
    Buf, Payload,
    extent::Extent,
    fs::{File, SharedFile},
    op::AllocateMode,
};

/// What a file leaf keeps its bytes on. Offsets, lengths and memory are aligned as the medium needs.
pub trait Medium: 'static {
    /// Fills `buf` from byte `at`.
    fn read(&self, at: u64, buf: Buf) -> impl Future<Output = (io::Result<()>, Buf)>;

    /// Writes all of `data` at byte `at`; with `durable` it is on persistent media at the end.
    fn write(&self, at: u64, data: Payload, durable: bool) -> impl Future<Output = io::Result<()>>;

    /// As `write`, all of it or nothing through a power cut; see
    /// [`SharedFile::atomic_write_bytes`](engine::fs::SharedFile::atomic_write_bytes).
    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durable: bool,
    ) -> impl Future<Output = io::Result<()>>;

    /// Whether byte `at` takes space, and where the run of such bytes ends.
    fn extent(&self, at: u64) -> impl Future<Output = io::Result<Extent>>;

    /// Makes every write and change of allocation that has ended durable.
    fn sync(&self) -> impl Future<Output = io::Result<()>>;

    /// Changes the allocation of `len` bytes at byte `at`; durable after a sync.
    fn allocate(
        &self,
        mode: AllocateMode,
        at: u64,
        len: u64,
    ) -> impl Future<Output = io::Result<()>>;
}

/// The open file of a leaf, for all lanes.
///
/// It is open twice. Linux reports an error of writing back once to each open file that asks, and
/// a durable write asks too: through one handle it could take the error that the next flush must
/// see. So flushes have a handle that nothing else uses.
#[derive(Clone, Debug)]
pub(super) struct SharedMedium {
    pub(super) io: SharedFile,
    pub(super) sync: SharedFile,
}

impl SharedMedium {
    pub(super) fn on_lane(&self) -> FileMedium {
        FileMedium {
            io: self.io.on_lane(),
            sync: self.sync.on_lane(),
        }
    }
}

/// A file or block device of the system, on one lane.
#[derive(Clone, Debug)]
pub struct FileMedium {
    io: File,
    sync: File,
}

impl Medium for FileMedium {
    async fn read(&self, at: u64, buf: Buf) -> (io::Result<()>, Buf) {
        self.io.read_exact_at(at, buf).await
    }

    async fn write(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        self.io.write_all_at(at, data, durable).await
    }

    async fn write_atomic(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        self.io.write_atomic_at(at, data, durable).await
    }

    async fn extent(&self, at: u64) -> io::Result<Extent> {
        self.io.extent(at).await
    }

    async fn sync(&self) -> io::Result<()> {
        self.sync.sync().await
    }

    async fn allocate(&self, mode: AllocateMode, at: u64, len: u64) -> io::Result<()> {
        self.io.allocate(mode, at, len).await
    }
}
