//! The seam between a lane and what performs its operations: io_uring ([`crate::ring`]) or the
//! simulated world. Everything above knows only this trait. A build without the simulator has one
//! reactor, and its lanes call it directly.

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
    op::Op,
};

/// Names an operation in flight; chosen by the lane, given back with the completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(crate) struct OpId(pub(crate) u32);

/// A finished operation.
pub(crate) struct Completion {
    pub(crate) id: OpId,
    pub(crate) op: Op,
    /// A count or handle, or minus an errno.
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
    /// Fills `bytes` with what nobody can foretell.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;
    /// Takes an operation over. It may start at once or with the next poll.
    fn submit(&mut self, id: OpId, op: Op);
    /// Asks `id` to end early. Unknown or finished ids are ignored.
    fn cancel(&mut self, id: OpId);
    /// Starts what was submitted, waits as told, and appends what has completed.
    fn poll(&mut self, wait: Wait, completed: &mut Vec<Completion>);

    /// How long a piece of work that blocks takes in a simulated world; `None`: on a thread, what it
    /// takes.
    fn blocking_delay(&mut self) -> Option<Duration>;
    /// The address of the simulated machine called `name`, if there is one; `None`: the system's
    /// resolver knows.
    fn machine(&self, name: &str) -> Option<Option<IpAddr>>;
    /// Asks where the run of allocated bytes, or of others, that holds byte `at` of a file ends.
    fn extent(&self, file: &Handle, at: u64) -> extent::Answer;
    fn open(&self, path: &Path, options: &OpenOptions) -> io::Result<Opened>;
    /// Opens the file behind an open one once more, whatever its path leads to now.
    fn reopen(&self, file: &Handle, options: &OpenOptions) -> io::Result<Opened>;
    /// Whether `path` leads to this open file.
    fn is_at(&self, file: &Handle, path: &Path) -> bool;
    /// How long an open file is now, in bytes; of a device, its size.
    fn len_bytes(&self, file: &Handle) -> io::Result<u64>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// The directories and marks of the machine that the lane is on.
    fn store(&self) -> &dyn Store;
    /// A socket that listens on `addr` (port 0: any free one), and the address it got.
    fn listen(&self, addr: SocketAddr) -> io::Result<(Handle, SocketAddr)>;
    /// A Unix socket that listens at `path`, whose file is made; a file whose socket nobody listens on
    /// any more makes way.
    fn listen_unix(&self, path: &Path) -> io::Result<Handle>;
    /// A fresh socket to connect to an address like `addr`.
    fn socket(&self, addr: SocketAddr, options: &ConnectOptions) -> io::Result<Handle>;
    /// Wraps the raw handle that an `Accept` gave.
    fn adopt(&self, raw: i32) -> Handle;
    /// Has the peer of a connection asked whether it is there once it has been silent for `idle`.
    fn keep_alive(&self, socket: &Handle, idle: Duration);
    /// Ends both directions of a connection; what waits on it completes.
    fn shutdown(&self, socket: &Handle);
    /// Ends a connection at once: what was not sent yet never is, and the peer is told by a reset if
    /// that reaches it. What waits on the socket completes.
    fn abort(&self, socket: &Handle);
    /// The addresses of this end and of the peer of a connection.
    fn addresses(&self, socket: &Handle) -> io::Result<(SocketAddr, SocketAddr)>;
}

/// How a connection is made, beside where to. The default leaves it all to the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Where it leaves this machine.
    pub source: Option<Source>,
    /// The congestion control, by the kernel's name (TCP_CONGESTION).
    pub congestion: Option<String>,
    /// For how long what was sent may go without an acknowledgement before the connection counts as
    /// lost (TCP_USER_TIMEOUT), in whole milliseconds.
    pub user_timeout: Option<Duration>,
}

/// Where a connection leaves this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// From this address of it.
    Address(IpAddr),
    /// Through the network interface of this name (SO_BINDTODEVICE), whatever the routes say.
    Interface(String),
}

/// How to open a file.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// For writing as well as reading.
    pub write: bool,
    /// Past the page cache (O_DIRECT).
    pub direct: bool,
    /// Every write durable before it completes (O_DSYNC).
    pub durable: bool,
    /// Made when it does not exist.
    pub create: bool,
    /// Made; an error when it exists.
    pub create_new: bool,
    /// Locked against every other process that locks it too (flock; exclusive for writing).
    /// A lock held elsewhere is an error of kind `WouldBlock`.
    pub lock: bool,
}

/// An open file and what its file system says about it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) keeper: Keeper,
    pub(crate) raw: i32,
    pub(crate) len_bytes: u64,
    /// A regular file, no device.
    pub(crate) is_regular: bool,
    /// Alignment of offsets and lengths that I/O on this handle needs, in bytes (1: none).
    pub(crate) io_align_bytes: u32,
    /// Lengths that can be written all or nothing; `None`: none can.
    pub(crate) atomic_write_bytes: Option<RangeInclusive<u32>>,
    /// More is better written in several goes; `None`: however much.
    pub(crate) write_max_bytes: Option<usize>,
    /// Its file system asks somebody else, who may take any time.
    pub(crate) waits: bool,
}

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A block device.
    BlockDevice {
        /// The number of its driver.
        major: u32,
        /// Its own number there.
        minor: u32,
    },
    /// Something else.
    Other,
}

/// What is at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// What it is.
    pub kind: Kind,
    /// Its length in bytes; 0 for devices.
    pub len_bytes: u64,
    /// Which one it is, by file system and number: the same under each of its names.
    pub id: (u64, u64),
}

/// The verbs beneath [`crate::store`].
pub(crate) trait Store {
    fn look(&self, path: &Path) -> io::Result<Look>;
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    fn read_start(&self, path: &Path, len: usize) -> io::Result<Vec<u8>>;
    fn lock_holder(&self, path: &Path) -> Option<u32>;
    fn is_blank(&self, path: &Path) -> io::Result<bool>;
    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn make_directory(&self, path: &Path) -> io::Result<()>;
    fn sync(&self, path: &Path) -> io::Result<()>;
    fn mark(&self, path: &Path) -> io::Result<Option<Vec<u8>>>;
    fn set_mark(&self, path: &Path, mark: &[u8]) -> io::Result<()>;
}

/// What a new file's last block, written to make it long, takes at most.
pub(crate) const TAIL_BYTES_MAX: u64 = 64 << 10;
