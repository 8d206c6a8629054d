//! The interface below the file leaf: what it asks of the system, in a few operations. The engine's files are one
//! implementation; the power-cut recorder wraps another around them.

use std::{future::Future, io};

use engine::{
    Buf, Payload,
    extent::Extent,
    fs::{File, SharedFile},
    op::AllocateMode,
};

/// What a file leaf stores its bytes on. Offsets, lengths and memory are aligned as it requires.
pub trait Backing: 'static {
    /// Fills `buf` from byte `at`.
    fn read(&self, at: u64, buf: Buf) -> impl Future<Output = (io::Result<()>, Buf)>;

    /// Writes all of `data` at byte `at`; with `durable` it is on persistent media when this completes.
    fn write(&self, at: u64, data: Payload, durable: bool) -> impl Future<Output = io::Result<()>>;

    /// As `write`, but a power cut leaves all of it or nothing; see
    /// [`SharedFile::atomic_write_bytes`](engine::fs::SharedFile::atomic_write_bytes).
    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durable: bool,
    ) -> impl Future<Output = io::Result<()>>;

    /// Whether byte `at` occupies space, and where the run of such bytes ends.
    fn extent(&self, at: u64) -> impl Future<Output = io::Result<Extent>>;

    /// Makes every completed write and change of allocation durable.
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
/// It is open twice. Linux reports a writeback error once per open file description, and a durable write queries it
/// too: through a shared description it could consume the error that the next flush must see. So flushes have a
/// description of their own that nothing else uses.
#[derive(Clone, Debug)]
pub(super) struct SharedBackingFile {
    pub(super) io: SharedFile,
    pub(super) sync: SharedFile,
}

impl SharedBackingFile {
    pub(super) fn on_lane(&self) -> BackingFile {
        BackingFile {
            io: self.io.on_lane(),
            sync: self.sync.on_lane(),
        }
    }
}

/// A file or block device of the system, on one lane.
#[derive(Clone, Debug)]
pub struct BackingFile {
    io: File,
    sync: File,
}

impl Backing for BackingFile {
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
