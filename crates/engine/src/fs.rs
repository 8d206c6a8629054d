//! Files and devices as a lane sees them. A [`SharedFile`] is opened once and may go to any lane;
//! [`SharedFile::on_lane`] gives what a lane does I/O with.

use std::{io, ops::RangeInclusive, path::Path, rc::Rc};

use crate::{
    blocking,
    buf::{Buf, Payload},
    extent::{self, Extent},
    handle::{Handle, Keeper},
    lane::{submit, with},
    op::{AllocateMode, Op, to_result},
    reactor::{Opened, Reactor},
    task, time,
};

pub use crate::reactor::OpenOptions;

/// Removes the file at `path`; open descriptors of it stay valid. Blocks briefly.
///
/// # Errors
/// What the system says.
pub fn remove(path: &Path) -> io::Result<()> {
    with(|lane| lane.reactor().remove(path))
}

/// An open file that may go from lane to lane.
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
}

impl SharedFile {
    /// Opens `path`. Blocks briefly: for start and configuration, not for the data path.
    pub fn open(path: &Path, options: &OpenOptions) -> io::Result<Self> {
        let opened = with(|lane| lane.reactor().open(path, options))?;
        Ok(SharedFile::new(opened))
    }

    fn new(opened: Opened) -> Self {
        SharedFile {
            keeper: opened.keeper,
            raw: opened.raw,
            len_bytes: opened.len_bytes,
            is_regular: opened.is_regular,
            io_align_bytes: opened.io_align_bytes,
            atomic_write_bytes: opened.atomic_write_bytes,
            write_max_bytes: opened.write_max_bytes,
            waits: opened.waits,
        }
    }

    /// Opens the same file once more, even if its path leads elsewhere now. Blocks briefly.
    pub fn reopen(&self, options: &OpenOptions) -> io::Result<Self> {
        let opened = with(|lane| lane.reactor().reopen(&self.handle(), options))?;
        Ok(SharedFile::new(opened))
    }

    /// Whether `path` leads to this file; not when it leads nowhere. Blocks briefly.
    pub fn is_at(&self, path: &Path) -> bool {
        with(|lane| lane.reactor().is_at(&self.handle(), path))
    }

    /// Length when it was opened, in bytes; of a device, its size.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Length now, in bytes; of a device, its size. Blocks briefly, as [`SharedFile::open`] does.
    pub fn len_bytes_now(&self) -> io::Result<u64> {
        with(|lane| lane.reactor().len_bytes(&self.handle()))
    }

    /// Whether it is a regular file: a lock on one keeps everybody else on this machine out. One on a
    /// device's node does not, for the device may have other nodes.
    pub fn is_regular(&self) -> bool {
        self.is_regular
    }

    /// What offsets, lengths and memory of an I/O must be multiples of, in bytes; 1 for buffered files.
    pub fn io_align_bytes(&self) -> u32 {
        self.io_align_bytes
    }

    /// Lengths, in bytes, that [`File::write_atomic_at`] takes: the powers of two within.
    pub fn atomic_write_bytes(&self) -> Option<RangeInclusive<u32>> {
        self.atomic_write_bytes.clone()
    }

    /// For I/O on the current lane.
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
    /// Reads at byte `at` until `buf` is full. A file that ends before is an error (UnexpectedEof).
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

    /// Writes all of `data` at byte `at`; with `durable`, it is on persistent media at the end.
    pub async fn write_all_at(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        // One barrier for all of what is to be durable.
        let piece = self.write_max_bytes.filter(|_| !durable);
        let piece = piece.unwrap_or(usize::MAX);
        if data.len() <= piece {
            return self.write_piece(at, data, durable).await;
        }
        let pieces = (0..data.len()).step_by(piece).map(|start| {
            let end = data.len().min(start + piece);
            Box::pin(self.write_piece(at + start as u64, data.slice(start..end), durable))
        });
        // All of them end, whatever becomes of one.
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

    /// Writes `data` at byte `at`, all of it or nothing, also through a power cut. Its length is one
    /// that [`SharedFile::atomic_write_bytes`] allows, and `at` a multiple of it.
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

    /// Whether byte `at` takes space, and where the run of such bytes ends. A file that ends before
    /// `at` is an error (UnexpectedEof).
    pub async fn extent(&self, at: u64) -> io::Result<Extent> {
        if let Some(delay) = blocking::simulated_delay() {
            time::sleep(delay).await;
        }
        match with(|lane| lane.reactor().extent(&self.file, at)) {
            extent::Answer::Now(answer) => answer,
            extent::Answer::Ask(question) => {
                blocking::run(blocking::Kind::Extents, || question.ask()).await?
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
