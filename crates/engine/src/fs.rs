//! Files and devices as a lane sees them. A [`SharedFile`] is opened once and may move to any lane;
//! [`SharedFile::on_lane`] gives the handle through which a lane does I/O.

use std::{io, ops::RangeInclusive, path::Path, rc::Rc};

use crate::{
    blocking,
    buf::{Buf, Payload},
    extent::{self, Extent},
    handle::{Handle, Keeper},
    lane::{submit, with},
    op::{AllocateMode, Op, to_result},
    reactor::{FileMark, OpenedFile, Reactor},
    store, task, time,
};

pub use crate::reactor::{FileState, OpenOptions};

/// Removes the file at `path`; open descriptors of it stay valid. Blocks briefly.
///
/// # Errors
/// Any error the system reports.
pub fn remove(path: &Path) -> io::Result<()> {
    store::with(|store| store.remove(path))
}

/// An open file that can be passed between lanes.
#[derive(Clone, Debug)]
pub struct SharedFile {
    keeper: Keeper,
    raw: i32,
    len_bytes: u64,
    is_regular: bool,
    io_align_bytes: u32,
    atomic_write_bytes: Option<RangeInclusive<u32>>,
    write_max_bytes: Option<usize>,
    waits: bool,
    sector_bytes: u32,
    physical_bytes: u32,
    state: FileState,
}

impl SharedFile {
    /// Opens `path`. Blocks for as long as its file system takes: a lane that serves others opens by [`blocking::run`].
    pub fn open(path: &Path, options: &OpenOptions) -> io::Result<Self> {
        let opened = store::with(|store| store.open(path, options))?;
        Ok(SharedFile::new(opened))
    }

    fn new(opened: OpenedFile) -> Self {
        SharedFile {
            keeper: opened.keeper,
            raw: opened.raw,
            len_bytes: opened.len_bytes,
            is_regular: opened.is_regular,
            io_align_bytes: opened.io_align_bytes,
            atomic_write_bytes: opened.atomic_write_bytes,
            write_max_bytes: opened.write_max_bytes,
            waits: opened.waits,
            sector_bytes: opened.sector_bytes,
            physical_bytes: opened.physical_bytes,
            state: opened.state,
        }
    }

    /// Opens the same file again, even if its path leads elsewhere now. Blocks as [`SharedFile::open`] does.
    pub fn reopen(&self, options: &OpenOptions) -> io::Result<Self> {
        let opened = store::with(|store| store.reopen(&self.handle(), options))?;
        Ok(SharedFile::new(opened))
    }

    /// Whether `path` leads to this file; false if it leads nowhere. Blocks briefly.
    pub fn is_at(&self, path: &Path) -> bool {
        store::with(|store| store.is_at(&self.handle(), path))
    }

    /// The length when the file was opened, in bytes; for a device, its size.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The current length in bytes; for a device, its size. Blocks briefly, as [`SharedFile::open`] does.
    pub fn len_bytes_now(&self) -> io::Result<u64> {
        store::with(|store| store.len_bytes(&self.handle()))
    }

    /// Gives a regular file that is open for writing this length, durably. Zeroes are added at its end, or the bytes there
    /// are lost. Blocks as [`SharedFile::open`] does.
    pub fn set_len_bytes(&self, len_bytes: u64) -> io::Result<()> {
        store::with(|store| store.set_len_bytes(&self.handle(), len_bytes))
    }

    /// Allocates all blocks of a regular file that is open for writing, up to this length, durably: what is written there
    /// later needs no more space. Its content stays. Blocks as [`SharedFile::open`] does.
    ///
    /// # Errors
    /// `Unsupported` if the file system cannot, `StorageFull`, else any error the system reports.
    pub fn allocate(&self, len_bytes: u64) -> io::Result<()> {
        store::with(|store| store.allocate(&self.handle(), len_bytes))
    }

    /// Removes the mark that [`store::set_opener`] gives a regular file, if it has one. That outlives the process, but
    /// not yet a power cut. Blocks as [`SharedFile::open`] does.
    ///
    /// # Errors
    /// `Unsupported` if the file system does not support marks, else any error the system reports.
    pub fn remove_opener(&self) -> io::Result<()> {
        store::with(|store| store.remove_mark(&self.handle(), FileMark::Opener))
    }

    /// Whether it is a regular file. A lock on one excludes everybody else on this machine. A lock on
    /// a device node does not, because the device may have other nodes.
    pub fn is_regular(&self) -> bool {
        self.is_regular
    }

    /// The number of bytes of which an I/O's offset, length and memory address must be multiples; 1 for buffered
    /// files.
    pub fn io_align_bytes(&self) -> u32 {
        self.io_align_bytes
    }

    /// The sectors of a block device, in bytes, of which a change of allocation needs whole ones; 1: it is no device.
    pub fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// The unit that a block device writes without reading, in bytes; 1: it is no device, or does not say.
    pub fn physical_bytes(&self) -> u32 {
        self.physical_bytes
    }

    /// What the system said when it was opened, and may say otherwise later.
    pub fn state(&self) -> FileState {
        self.state
    }

    /// What the system says now. Blocks briefly, as [`SharedFile::open`] does.
    pub fn state_now(&self) -> io::Result<FileState> {
        store::with(|store| store.state(&self.handle()))
    }

    /// The range of lengths in bytes within which [`File::write_atomic_at`] takes the powers of two.
    pub fn atomic_write_bytes(&self) -> Option<RangeInclusive<u32>> {
        self.atomic_write_bytes.clone()
    }

    /// The file for I/O on the current lane.
    pub fn on_lane(&self) -> File {
        File {
            file: Rc::new(self.handle()),
            write_max_bytes: self.write_max_bytes,
        }
    }

    fn handle(&self) -> Handle {
        Handle::of_file(self.raw, self.keeper.clone(), self.waits)
    }
}

/// An open file on one lane.
#[derive(Clone, Debug)]
pub struct File {
    file: Rc<Handle>,
    write_max_bytes: Option<usize>,
}

impl File {
    /// Reads from byte `at` until `buf` is full. Reaching the end of the file first is an error (UnexpectedEof).
    pub async fn read_exact_at(&self, at: u64, mut buf: Buf) -> (io::Result<()>, Buf) {
        let mut start = 0;
        while start < buf.len() {
            let op = Op::Read {
                file: self.file.clone(),
                at: at + start as u64,
                buf,
                start,
            };
            let (Op::Read { buf: back, .. }, result) = submit(op).await else {
                unreachable!("a reactor gives back the operation that it took");
            };
            buf = back;
            match to_result(result) {
                Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), buf),
                Ok(n) => start += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Writes all of `data` at byte `at`. With `durable`, it is on persistent media on return.
    pub async fn write_all_at(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        // A durable write stays in one piece, so that it costs one barrier.
        let piece = self.write_max_bytes.filter(|_| !durable);
        let piece = piece.unwrap_or(usize::MAX);
        if data.len() <= piece {
            return self.write_piece(at, data, durable).await;
        }
        let pieces = (0..data.len()).step_by(piece).map(|start| {
            let end = data.len().min(start + piece);
            Box::pin(self.write_piece(at + start as u64, data.slice(start..end), durable))
        });
        // All pieces run to their end, even if one fails.
        task::join_all(pieces).await.into_iter().collect()
    }

    async fn write_piece(&self, at: u64, mut data: Payload, durable: bool) -> io::Result<()> {
        let mut start = 0;
        while start < data.len() {
            let op = Op::Write {
                file: self.file.clone(),
                at: at + start as u64,
                data,
                start,
                durable,
                atomic: false,
            };
            let (Op::Write { data: back, .. }, result) = submit(op).await else {
                unreachable!("a reactor gives back the operation that it took");
            };
            data = back;
            match to_result(result) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => start += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes `data` at byte `at` atomically, even across a power cut. [`SharedFile::atomic_write_bytes`] must allow
    /// its length, and `at` must be a multiple of that length.
    pub async fn write_atomic_at(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        let len = data.len();
        let op = Op::Write {
            file: self.file.clone(),
            at,
            data,
            start: 0,
            durable,
            atomic: true,
        };
        let (_, result) = submit(op).await;
        match to_result(result) {
            Ok(n) if n == len => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => Err(error),
        }
    }

    /// Whether byte `at` is allocated, and where the run of such bytes ends. An `at` beyond the end
    /// of the file is an error (UnexpectedEof).
    pub async fn extent(&self, at: u64) -> io::Result<Extent> {
        if let Some(delay) = blocking::simulated_delay() {
            time::sleep(delay).await;
        }
        match with(|lane| lane.reactor().extent(&self.file, at)) {
            extent::Answer::Now(answer) => answer,
            extent::Answer::Ask(question) => {
                blocking::run(blocking::WorkKind::Extents, || question.ask()).await?
            }
        }
    }

    /// Makes all completed writes durable (fdatasync).
    pub async fn sync(&self) -> io::Result<()> {
        let (_, result) = submit(Op::Sync {
            file: self.file.clone(),
        })
        .await;
        to_result(result).map(drop)
    }

    /// Changes the allocation of `len` bytes at `at`.
    pub async fn allocate(&self, mode: AllocateMode, at: u64, len: u64) -> io::Result<()> {
        let op = Op::Allocate {
            file: self.file.clone(),
            mode,
            at,
            len,
        };
        let (_, result) = submit(op).await;
        to_result(result).map(drop)
    }
}
