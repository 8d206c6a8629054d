//! `fsx FILE SEED OPERATIONS`: performs random operations on a file and on a copy in memory, and compares what it
//! reads. At the first difference it exits with 1 and lists the operations that touched that place.
//!
//! The idea is Apple's fsx of 1991: to find what a file system or the disk below it loses, read often and in every
//! possible way: `read`, direct I/O, a mapping, `copy_file_range`.

use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;

/// The file is never longer.
const LEN_MAX: usize = 4 << 20;
/// No operation is longer.
const OPERATION_MAX: usize = 256 << 10;
/// What direct I/O is aligned to.
const ALIGNMENT: usize = 4096;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, seed, operations] = &arguments[..] else {
        eprintln!("usage: fsx FILE SEED OPERATIONS");
        return ExitCode::from(2);
    };
    let (Ok(seed), Ok(operations)) = (seed.parse(), operations.parse()) else {
        eprintln!("fsx: SEED and OPERATIONS are numbers");
        return ExitCode::from(2);
    };
    match exercise(Path::new(file), seed, operations) {
        Ok(done) => {
            println!("seed {seed}: {done}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("fsx: seed {seed}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Pseudo-random numbers, determined by the seed (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end.max(1)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(len).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    ReadDirect,
    ReadMapped,
    Write,
    WriteDirect,
    WriteMapped,
    Append,
    Truncate,
    Punch,
    Zero,
    Copy,
    Sync,
    Drop,
    Reopen,
}

const OPERATIONS: [Operation; 14] = [
    Operation::Read,
    Operation::ReadDirect,
    Operation::ReadMapped,
    Operation::Write,
    Operation::WriteDirect,
    Operation::WriteMapped,
    Operation::Append,
    Operation::Truncate,
    Operation::Punch,
    Operation::Zero,
    Operation::Copy,
    Operation::Sync,
    Operation::Drop,
    Operation::Reopen,
];

/// The file, its expected content, and the operations so far.
struct Exercise<'a> {
    path: &'a Path,
    file: File,
    direct: File,
    expected: Vec<u8>,
    random: Random,
    done: Vec<(Operation, usize, usize)>,
}

fn exercise(path: &Path, seed: u64, operations: usize) -> Result<String> {
    File::create(path)?;
    let mut exercise = Exercise {
        path,
        file: open(path, OFlags::empty())?,
        direct: open(path, OFlags::DIRECT)?,
        expected: Vec::new(),
        random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
        done: Vec::new(),
    };
    for _ in 0..operations {
        exercise.step()?;
    }
    exercise.forget_pages()?;
    let whole = exercise.expected.len();
    exercise.read(Operation::Read, 0, whole)?;
    Ok(exercise.summary())
}

fn open(path: &Path, flags: OFlags) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(flags.bits() as i32).open(path)
}

impl Exercise<'_> {
    fn step(&mut self) -> Result<()> {
        let operation = OPERATIONS[self.random.below(OPERATIONS.len())];
        let (at, len) = self.range(operation);
        self.done.push((operation, at, len));
        let end = at + len;
        match operation {
            Operation::Read | Operation::ReadDirect | Operation::ReadMapped => {
                self.read(operation, at, len)?;
            }
            Operation::Write | Operation::Append | Operation::WriteDirect => {
                let data = self.random.bytes(len);
                match operation {
                    Operation::WriteDirect => {
                        let aligned = Aligned::of(&data);
                        self.direct.write_all_at(aligned.bytes(), at as u64)?;
                    }
                    _ => self.file.write_all_at(&data, at as u64)?,
                }
                self.grow_to(end);
                self.expected[at..end].copy_from_slice(&data);
            }
            Operation::WriteMapped => {
                let data = self.random.bytes(len);
                with_mapping(&self.file, end, |mapped| {
                    mapped[at..end].copy_from_slice(&data);
                })?;
                self.expected[at..end].copy_from_slice(&data);
            }
            Operation::Truncate => {
                self.file.set_len(at as u64)?;
                self.expected.resize(at, 0);
            }
            Operation::Punch | Operation::Zero => {
                let flags = match operation {
                    Operation::Punch => FallocateFlags::PUNCH_HOLE,
                    _ => FallocateFlags::ZERO_RANGE,
                };
                let flags = flags | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, flags, at as u64, len.max(1) as u64)?;
                let end = end.min(self.expected.len());
                self.expected[at.min(end)..end].fill(0);
            }
            Operation::Copy => self.copy(at, len)?,
            Operation::Sync => self.file.sync_data()?,
            Operation::Drop => self.forget_pages()?,
            Operation::Reopen => {
                self.file = open(self.path, OFlags::empty())?;
                self.direct = open(self.path, OFlags::DIRECT)?;
            }
        }
        let len = self.file.metadata()?.len();
        if len != self.expected.len() as u64 {
            let message = format!(
                "{len} bytes long after {:?}, not {}",
                self.done.last(),
                self.expected.len()
            );
            return Err(Error::new(ErrorKind::InvalidData, message));
        }
        Ok(())
    }

    /// Picks the place and length of an operation, within its limits.
    fn range(&mut self, operation: Operation) -> (usize, usize) {
        let now = self.expected.len();
        let len = 1 + self.random.below(OPERATION_MAX);
        match operation {
            Operation::Append => (now, len.min(LEN_MAX - now)),
            Operation::Write => {
                let at = self.random.below(LEN_MAX);
                (at, len.min(LEN_MAX - at))
            }
            Operation::WriteDirect => {
                let at = self.random.below(LEN_MAX) / ALIGNMENT * ALIGNMENT;
                let len = len.next_multiple_of(ALIGNMENT);
                (at, len.min(LEN_MAX - at))
            }
            Operation::ReadDirect => {
                let at = self.random.below(now) / ALIGNMENT * ALIGNMENT;
                (at, len.next_multiple_of(ALIGNMENT))
            }
            Operation::Truncate => (self.random.below(LEN_MAX), 0),
            _ => {
                let at = self.random.below(now);
                (at, len.min(now - at))
            }
        }
    }

    fn grow_to(&mut self, end: usize) {
        if end > self.expected.len() {
            self.expected.resize(end, 0);
        }
    }

    /// Copies a range to a place in the file that does not overlap it.
    fn copy(&mut self, from: usize, len: usize) -> Result<()> {
        let to = self.random.below(LEN_MAX);
        let len = len.min(LEN_MAX - to).min(from.abs_diff(to));
        let mut copied = 0;
        while copied < len {
            let (mut from, mut to) = ((from + copied) as u64, (to + copied) as u64);
            let some = rustix::fs::copy_file_range(
                &self.file,
                Some(&mut from),
                &self.file,
                Some(&mut to),
                len - copied,
            )?;
            if some == 0 {
                return Err(Error::new(ErrorKind::UnexpectedEof, "nothing was copied"));
            }
            copied += some;
        }
        if len > 0 {
            self.grow_to(to + len);
            self.expected.copy_within(from..from + len, to);
        }
        Ok(())
    }

    /// Drops the file's cached pages, so that the next reads come from the disk.
    fn forget_pages(&self) -> Result<()> {
        self.file.sync_all()?;
        Ok(fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }

    fn read(&self, operation: Operation, at: usize, len: usize) -> Result<()> {
        let end = (at + len).min(self.expected.len());
        let expected = &self.expected[at.min(end)..end];
        let found = match operation {
            Operation::ReadDirect => {
                let mut aligned = Aligned::zeroes(len);
                let mut read = 0;
                while read < expected.len() {
                    let into = &mut aligned.bytes_mut()[read..];
                    let some = self.direct.read_at(into, (at + read) as u64)?;
                    if some == 0 {
                        break;
                    }
                    read += some;
                }
                aligned.bytes()[..read.min(expected.len())].to_vec()
            }
            Operation::ReadMapped => {
                let mut found = Vec::new();
                with_mapping(&self.file, end, |mapped| {
                    found.extend(&mapped[at.min(end)..])
                })?;
                found
            }
            _ => {
                let mut found = vec![0; expected.len()];
                self.file.read_exact_at(&mut found, at as u64)?;
                found
            }
        };
        if found == expected {
            return Ok(());
        }
        let differs = found.iter().zip(expected).position(|(a, b)| a != b);
        let wrong = at + differs.unwrap_or(found.len().min(expected.len()));
        let touches = |(operation, at, len): &&(Operation, usize, usize)| {
            *operation == Operation::Truncate || (*at..at + len).contains(&wrong)
        };
        let mut message = format!(
            "{operation:?} of {len} bytes at {at}: wrong from byte {wrong} on, after {} operations, of \
             which these touched it:",
            self.done.len()
        );
        let touched: Vec<_> = self.done.iter().filter(touches).collect();
        for (operation, at, len) in touched.iter().rev().take(20).rev() {
            let _ = write!(message, "\n  {operation:?} {at} {len}");
        }
        Err(Error::new(ErrorKind::InvalidData, message))
    }

    fn summary(&self) -> String {
        let count = |operation| {
            let done = self.done.iter().filter(|done| done.0 == operation);
            format!("{} {operation:?}", done.count())
        };
        OPERATIONS.map(count).join(", ")
    }
}

/// A buffer aligned for direct I/O.
struct Aligned {
    whole: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn zeroes(len: usize) -> Aligned {
        let whole = vec![0; len + ALIGNMENT];
        let start = whole.as_ptr().align_offset(ALIGNMENT);
        Aligned { whole, start, len }
    }

    fn of(bytes: &[u8]) -> Aligned {
        let mut aligned = Aligned::zeroes(bytes.len());
        aligned.bytes_mut().copy_from_slice(bytes);
        aligned
    }

    fn bytes(&self) -> &[u8] {
        &self.whole[self.start..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.whole[self.start..][..self.len]
    }
}

/// Maps the first `len` bytes of the file, which must be that long, while `f` runs.
fn with_mapping(file: &File, len: usize, f: impl FnOnce(&mut [u8])) -> Result<()> {
    if len == 0 {
        f(&mut []);
        return Ok(());
    }
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, of a length above zero; the kernel chooses where.
    let mapped = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0)? };
    // SAFETY: `len` bytes are mapped there, for reading and writing, until `munmap` below. Nobody else
    // has this file, and this program has one thread: nothing else changes them meanwhile.
    f(unsafe { std::slice::from_raw_parts_mut(mapped.cast(), len) });
    // SAFETY: the mapping just made.
    let written = unsafe { msync(mapped, len, MsyncFlags::SYNC) };
    // SAFETY: the mapping just made, of which no reference is left.
    unsafe { munmap(mapped, len)? };
    Ok(written?)
}
