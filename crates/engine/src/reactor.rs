//! The interface between a lane and whatever performs its operations: io_uring ([`crate::ring`]) or
//! the simulated world. Everything above knows only this trait. A build without the simulator has a
//! single reactor, and its lanes call it directly.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    extent,
    handle::{Handle, Keeper},
    instant::Instant,
    loops::LoopDevice,
    op::Op,
};

/// Names an operation in flight. The lane chooses it; the completion carries it back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(crate) struct OpId(pub(crate) u32);

/// A finished operation.
pub(crate) struct Completion {
    pub(crate) id: OpId,
    pub(crate) op: Op,
    /// A byte count or a handle, or a negated errno.
    pub(crate) result: i32,
}

/// How long [`Reactor::poll`] may wait when nothing has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// Until something completes, the inbox is rung, or the instant comes.
    Until(Option<Instant>),
}

/// Performs operations for one lane; the contract is [`crate::op`]'s.
pub(crate) trait Reactor {
    fn now(&self) -> Instant;
    /// The time of day, as the time since 1970-01-01 00:00 UTC.
    fn since_unix_epoch(&self) -> Duration;
    /// The CPU time that the lane's thread has used so far, in nanoseconds.
    fn thread_cpu_ns(&self) -> u64;
    /// Fills `bytes` with unpredictable random data.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;
    /// Takes ownership of an operation. It may start at once or with the next poll.
    fn submit(&mut self, id: OpId, op: Op);
    /// Asks `id` to end early. Unknown or finished ids are ignored.
    fn cancel(&mut self, id: OpId);
    /// Starts what was submitted, waits as `wait` says, and appends what has completed.
    fn poll(&mut self, wait: Wait, completed: &mut Vec<Completion>);

    /// How long a piece of blocking work takes in a simulated world. `None`: it runs on a real
    /// thread and takes as long as it takes.
    fn blocking_delay(&mut self) -> Option<Duration>;
    /// The address of the simulated machine called `name`, if there is one. `None`: ask the
    /// system's resolver.
    fn machine(&self, name: &str) -> Option<Option<IpAddr>>;
    /// Asks where the run of allocated (or unallocated) bytes that contains byte `at` of a file ends.
    fn extent(&self, file: &Handle, at: u64) -> extent::Answer;
    /// The files of the machine that the lane runs on.
    fn store(&self) -> &dyn Store;
    /// A socket listening on `addr` (port 0: any free port), and the address it was given.
    fn listen(&self, addr: SocketAddr) -> io::Result<(Handle, SocketAddr)>;
    /// Creates a Unix socket listening at `path`. Replaces a socket file that nobody listens on any
    /// more.
    fn listen_unix(&self, path: &Path) -> io::Result<Handle>;
    /// A fresh socket to connect to an address like `addr`.
    fn socket(&self, addr: SocketAddr, options: &ConnectOptions) -> io::Result<Handle>;
    /// Wraps the raw handle that an `Accept` returned.
    fn adopt(&self, raw: i32) -> Handle;
    /// Turns on keepalive: probes the peer of a connection once it has been silent for `idle`.
    fn keep_alive(&self, socket: &Handle, idle: Duration);
    /// How many bytes of what a connection has sent the peer's system has not acknowledged.
    fn unacknowledged_bytes(&self, socket: &Handle) -> u64;
    /// Closes both directions of a connection; operations waiting on it complete. What was sent is still delivered.
    fn shutdown(&self, socket: &Handle);
    /// Aborts a connection: unsent data is discarded, and the peer gets a reset if it can be
    /// reached. Operations waiting on the socket complete.
    fn abort(&self, socket: &Handle);
    /// The local and the peer address of a connection.
    fn addresses(&self, socket: &Handle) -> io::Result<(SocketAddr, SocketAddr)>;
    /// Who has connected a Unix socket.
    fn credentials(&self, socket: &Handle) -> io::Result<Credentials>;
}

/// The process at the other end of a Unix socket, as it was when it connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Its process ID; 0 if it is in another PID namespace.
    pub pid: i32,
    /// Its effective user ID.
    pub uid: u32,
}

/// How to make a connection, apart from its destination. The default leaves everything to the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Where it leaves this machine.
    pub source: Option<LocalEnd>,
    /// The congestion control algorithm, by its kernel name (TCP_CONGESTION).
    pub congestion: Option<String>,
    /// How long sent data may stay unacknowledged before the connection counts as lost
    /// (TCP_USER_TIMEOUT), in whole milliseconds.
    pub user_timeout: Option<Duration>,
    /// The sizes of its buffers in the kernel.
    pub buffers: SocketBuffers,
    /// Whether closing it, other than by a [shutdown](Reactor::shutdown), resets it and discards its unsent data (SO_LINGER
    /// without a time). The system closes it so, too, when the process dies: it then sends nothing on its own account.
    pub resets_when_closed: bool,
}

/// The sizes of a connection's buffers in the kernel, which otherwise sizes them itself as it sees fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketBuffers {
    /// For data that the peer has not acknowledged, or that is still to be sent (SO_SNDBUF).
    pub send_bytes: Option<u32>,
    /// For data that has not been received from it yet, which also limits the TCP window (SO_RCVBUF).
    pub receive_bytes: Option<u32>,
}

/// Where a connection leaves this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalEnd {
    /// From this local address.
    Address(IpAddr),
    /// Through the network interface of this name (SO_BINDTODEVICE), whatever the routes say.
    Interface(String),
}

/// How to open a file.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Open for writing as well as reading.
    pub write: bool,
    /// Bypass the page cache (O_DIRECT).
    pub direct: bool,
    /// Make every write durable before it completes (O_DSYNC).
    pub durable: bool,
    /// Create the file if it does not exist.
    pub create: bool,
    /// Create the file; fail if it exists.
    pub create_new: bool,
    /// Lock the file against every other process that locks it too (flock; exclusive for writing).
    /// If the lock is held elsewhere, the error has kind `WouldBlock`.
    pub lock: bool,
}

/// An open file and what its file system says about it.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    pub(crate) keeper: Keeper,
    pub(crate) raw: i32,
    pub(crate) len_bytes: u64,
    /// A regular file, not a device.
    pub(crate) is_regular: bool,
    /// Alignment that I/O on this handle needs for offsets and lengths, in bytes (1: none).
    pub(crate) io_align_bytes: u32,
    /// Lengths that can be written atomically; `None`: atomic writes are not supported.
    pub(crate) atomic_write_bytes: Option<RangeInclusive<u32>>,
    /// Longer writes are better split into pieces of this size; `None`: no such limit.
    pub(crate) write_max_bytes: Option<usize>,
    /// Its file system depends on another process or machine, so an operation may take any time.
    pub(crate) waits: bool,
    /// The sectors of a block device, in bytes; 1: it is none.
    pub(crate) sector_bytes: u32,
    /// The physical sectors of a block device, in bytes; 1: it is none, or does not say.
    pub(crate) physical_bytes: u32,
    /// What may change while it is open.
    pub(crate) state: FileState,
}

/// What the system says about an open file and may say otherwise later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileState {
    /// Its I/O surely bypasses the page cache. Some file systems accept direct I/O and use the page cache all the same.
    pub is_direct: bool,
    /// Its device, its file system or the file itself is read-only, however it was opened.
    pub is_read_only: bool,
}

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A block device.
    BlockDevice {
        /// The major number, which names its driver.
        major: u32,
        /// The minor number within that driver.
        minor: u32,
    },
    /// A character device.
    CharacterDevice,
    /// A pipe (FIFO).
    Pipe,
    /// A Unix socket.
    Socket,
    /// Something else.
    Other,
}

impl PathKind {
    /// What it is, in words.
    pub fn name(self) -> &'static str {
        match self {
            PathKind::File => "a file",
            PathKind::Directory => "a directory",
            PathKind::BlockDevice { .. } => "a block device",
            PathKind::CharacterDevice => "a character device",
            PathKind::Pipe => "a named pipe",
            PathKind::Socket => "a socket",
            PathKind::Other => "something unknown",
        }
    }
}

/// What is at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathInfo {
    /// What it is.
    pub kind: PathKind,
    /// Its length in bytes; 0 for devices.
    pub len_bytes: u64,
    /// Its identity, file system and inode number: the same under each of its names.
    pub id: (u64, u64),
    /// Who may do what with it: the permission bits, `0o7777` at most (chmod(2)).
    pub mode: u32,
    /// The user that it belongs to, by number.
    pub owner: u32,
}

impl PathInfo {
    /// Its owner, if that is neither this process's user nor root: somebody who may change it.
    pub fn stranger(&self) -> Option<u32> {
        // SAFETY: it cannot fail and has no arguments.
        self.stranger_to(unsafe { libc::geteuid() })
    }

    /// Its owner, if that is neither `user` nor root.
    pub fn stranger_to(&self, user: u32) -> Option<u32> {
        (self.owner != user && self.owner != 0).then_some(self.owner)
    }
}

/// What somebody wants to do with what is at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AccessRequest {
    /// Read it.
    pub read: bool,
    /// Write it; for a directory: create files in it.
    pub write: bool,
    /// Execute it; for a directory: use what lies in it.
    pub execute: bool,
}

/// The file system that holds what is at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileSystem {
    /// Its type, by its number in statfs(2).
    pub kind: u32,
    /// The size of its blocks in bytes.
    pub block_bytes: u64,
}

/// What a file can be marked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileMark {
    /// The disk that it is.
    Disk,
    /// The daemon that has opened it last.
    Opener,
}

/// The operations beneath [`crate::store`] and [`crate::fs`], which block.
pub(crate) trait Store {
    fn open(&self, path: &Path, options: &OpenOptions) -> io::Result<OpenedFile>;
    /// Opens the file behind an open handle again, wherever its path leads now.
    fn reopen(&self, file: &Handle, options: &OpenOptions) -> io::Result<OpenedFile>;
    /// Whether `path` leads to this open file.
    fn is_at(&self, file: &Handle, path: &Path) -> bool;
    /// The current length of an open file in bytes; for a device, its size.
    fn len_bytes(&self, file: &Handle) -> io::Result<u64>;
    /// What the system says now about an open file.
    fn state(&self, file: &Handle) -> io::Result<FileState>;
    /// Gives an open file this length, durably.
    fn set_len_bytes(&self, file: &Handle, len_bytes: u64) -> io::Result<()>;
    /// Allocates all blocks of an open file up to this length, durably.
    fn allocate(&self, file: &Handle, len_bytes: u64) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn look(&self, path: &Path) -> io::Result<PathInfo>;
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;
    /// What the symbolic link at `path` contains; `None`: there is no link.
    fn link(&self, path: &Path) -> io::Result<Option<PathBuf>>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    fn may(&self, path: &Path, access: AccessRequest) -> io::Result<()>;
    fn file_system(&self, path: &Path) -> io::Result<FileSystem>;
    fn read_start(&self, path: &Path, len: usize) -> io::Result<(PathInfo, Vec<u8>)>;
    fn lock_holder(&self, path: &Path) -> Option<u32>;
    fn loop_of(&self, path: &Path) -> Option<LoopDevice>;
    fn is_blank(&self, path: &Path) -> io::Result<bool>;
    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;
    /// Creates the file `path` with `bytes`, and syncs it. What had this name is removed, not written to.
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn make_directory(&self, path: &Path) -> io::Result<()>;
    fn sync(&self, path: &Path) -> io::Result<()>;
    fn mark(&self, path: &Path, which: FileMark) -> io::Result<Option<Vec<u8>>>;
    fn set_mark(&self, path: &Path, which: FileMark, mark: &[u8]) -> io::Result<()>;
    /// Removes the mark of an open file, if it has one.
    fn remove_mark(&self, file: &Handle, which: FileMark) -> io::Result<()>;
}

/// The most space that the last block of a new file takes when it is written to set the length.
pub(crate) const TAIL_BYTES_MAX: u64 = 64 << 10;

/// Whether `found` is a regular file.
///
/// # Errors
/// What it is instead.
pub(crate) fn must_be_file(found: PathInfo) -> io::Result<()> {
    match found.kind {
        PathKind::File => Ok(()),
        PathKind::Directory => Err(io::ErrorKind::IsADirectory.into()),
        kind => {
            let message = format!("it is {}, not a file", kind.name());
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    }
}

/// The error for a file that is longer than what is read of it, `max` bytes.
pub(crate) fn too_long(max: u64) -> io::Error {
    let message = format!("it holds more than {max} bytes; check that it is the right file");
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}
