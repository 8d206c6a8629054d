//! Opens the file of a leaf, and checks at the start everything that could otherwise surprise later.

use std::{
    io,
    ops::{Range, RangeInclusive},
    path::{Path, PathBuf},
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use engine::{
    Duration, Payload, blocking,
    fs::{OpenOptions, SharedFile},
    op::AllocateMode,
    range_lock::{RangeLock, RangeLocks},
    store, time,
};

use super::{
    Backing, BackingFile, Caching, FileVolume, backing::SharedBackingFile, blocks::check_blocks,
    flushes::Flushes, loops::check_no_loop, lost::LastLook, made::Made,
};
use crate::{
    AtomicWrites, Claim, Discard, Error, ErrorKind, Len, ReadOnly, Result, Shape,
    announcer::Announcer,
};

/// The physical block size that is reported: the size of a page in the page cache, and of the sectors of today's
/// disks.
const PHYSICAL_BYTES: u32 = 4096;

/// The longest physical block that is reported, in bytes: devices that report more mean something else by it.
const PHYSICAL_BYTES_MAX: u32 = 64 << 10;

/// How long to wait for a locked file before reporting an error.
const LOCKED_LIMIT: Duration = Duration::from_secs(2);

/// What to open.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The file or block device.
    pub path: PathBuf,
    /// The volume's length in bytes, in whole blocks. A missing or empty file is created with this length; the excess
    /// of a longer file is not visible. `None`: the file must exist and is served whole.
    pub len_bytes: Option<u64>,
    /// How the page cache is used, and when a write is durable.
    pub caching: Caching,
    /// 512 or 4096.
    pub block_size_bytes: u32,
    /// Refuses writes, and opens the file read-only.
    pub read_only: bool,
}

/// An open file leaf, for all lanes of the process.
#[derive(Debug)]
pub struct OpenFile {
    pub(super) path: PathBuf,
    pub(super) shape: Shape,
    /// The alignment that I/O must have, in bytes.
    pub(super) align_bytes: u32,
    /// Every write is durable when it completes.
    pub(super) synchronous: bool,
    /// A change of allocation takes whole multiples of this, in bytes.
    pub(super) sector_bytes: u64,
    /// Reads must not overlap writes: some file systems (ext4) copy from and to the page cache without mutual
    /// exclusion, so a reader would see half a block. So it is unless the system confirms that I/O bypasses the cache.
    pub(super) excluding: AtomicBool,
    /// It is configured as read-only, whatever the system says.
    pub(super) is_read_only: bool,
    /// Whom to tell when the system says something else.
    pub(super) announcer: Announcer,
    /// Where requests have to exclude each other.
    locks: RangeLocks,
    pub(super) flushes: Flushes,
    pub(super) atomic_writes: Option<AtomicWrites>,
    /// The file's own length when it was opened, or when its configured size was last changed.
    pub(super) opened_bytes: AtomicU64,
    /// The volume's length is configured, whatever the file's length.
    pub(super) has_size: bool,
    /// Space is set aside for all of the file.
    is_set_aside: AtomicBool,
    pub(super) backing: SharedBackingFile,
    /// The claim whose mark the file carries.
    claim: Mutex<Option<Claim>>,
    look: Arc<LastLook>,
}

impl OpenFile {
    /// Opens the file, locks it against other processes, and creates it if necessary.
    ///
    /// A new file is sparse: only its last block is written. That takes no time and works everywhere, and reserved
    /// space would not stay reserved anyway, because discards punch holes. A full medium is reported by the write
    /// that hits it ([`ErrorKind::NoSpace`]).
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`] when the file is missing, too small, in use or unsuitable.
    pub async fn open(options: &FileOptions) -> Result<Arc<Self>> {
        OpenFile::open_aligned(options, 1).await
    }

    /// As [`OpenFile::open`], with I/O aligned to at least `align_bytes` (a power of two).
    pub(super) async fn open_aligned(options: &FileOptions, align_bytes: u32) -> Result<Arc<Self>> {
        let opened = async |made: &Arc<Made>| {
            OpenFile::open_making(options, align_bytes, made, Announcer::default()).await
        };
        OpenFile::or_undone(None, opened).await
    }

    /// What `opened` opens. If it fails, what it has created is removed: here, or as a part of `trial` by whoever tries.
    pub(super) async fn or_undone(
        trial: Option<&Arc<Made>>,
        opened: impl AsyncFnOnce(&Arc<Made>) -> Result<Arc<Self>>,
    ) -> Result<Arc<Self>> {
        if let Some(made) = trial {
            return opened(made).await;
        }
        let made = Arc::<Made>::default();
        let opened = opened(&made).await;
        if opened.is_err() {
            // The first error is the one to report.
            let _ = blocking::run(blocking::WorkKind::Files, move || made.undo()).await;
        }
        opened
    }

    /// As [`OpenFile::open_aligned`]; if it creates the file, it records that in `made` and leaves it to the caller to
    /// undo that. Tells `announcer` when it becomes read-only or writable.
    pub(super) async fn open_making(
        options: &FileOptions,
        align_bytes: u32,
        made: &Arc<Made>,
        announcer: Announcer,
    ) -> Result<Arc<Self>> {
        let shown = options.path.display();
        let backing = open_aside(options, made).await?;
        let state = backing.io.state();
        if state.is_read_only && !options.read_only {
            return Err(configuration(read_only(&options.path)));
        }
        let align_bytes = backing.io.io_align_bytes().max(align_bytes);
        let file_bytes = match (backing.io.len_bytes(), options.len_bytes) {
            (0, Some(len)) if !options.read_only => {
                let unit = u64::from(align_bytes.max(options.block_size_bytes));
                let len = len.next_multiple_of(unit);
                make(&backing.on_lane(), &options.path, len, unit).await?
            }
            (0, _) => {
                return Err(configuration(format!(
                    "{shown} is empty; give it a size, such as size = \"20GiB\""
                )));
            }
            (found, _) => found,
        };
        let len_bytes = volume_len(options, file_bytes, align_bytes)?;
        let unseen_bytes = file_bytes - len_bytes;
        if unseen_bytes >= u64::from(align_bytes.max(options.block_size_bytes)) {
            tracing::warn!(
                file = %shown,
                file_bytes,
                size_bytes = len_bytes,
                "the file is longer than its configured size: the rest is not served"
            );
        }
        let is_file = backing.io.is_regular() && !options.read_only;
        let can_discard = is_file && can_punch(&backing.on_lane(), file_bytes).await;
        let synchronous = options.caching.is_synchronous();
        let physical_block_bytes = physical(&backing.io).max(align_bytes);
        let atomic_writes = backing.io.atomic_write_bytes();
        let atomic_writes = atomic_writes
            .filter(|_| !options.read_only && align_bytes <= options.block_size_bytes)
            .and_then(|lengths| atomic_unit(&lengths, options.block_size_bytes));
        Ok(Arc::new(OpenFile {
            path: options.path.clone(),
            shape: Shape {
                block_size_bytes: options.block_size_bytes,
                physical_block_bytes,
                len: Len::new(len_bytes),
                volatile_cache: !synchronous && !options.read_only,
                read_only: ReadOnly::new(options.read_only),
                discard: can_discard.then_some(Discard {
                    granularity_bytes: physical_block_bytes,
                    reads_zeroes: true,
                }),
                optimal_io_bytes: physical_block_bytes,
                compare_and_write_max_bytes: 0,
            },
            align_bytes,
            synchronous,
            sector_bytes: u64::from(backing.io.sector_bytes()),
            excluding: AtomicBool::new(!state.is_direct && !options.read_only),
            is_read_only: options.read_only,
            announcer,
            locks: RangeLocks::default(),
            flushes: Flushes::default(),
            atomic_writes,
            opened_bytes: AtomicU64::new(file_bytes),
            has_size: options.len_bytes.is_some(),
            is_set_aside: AtomicBool::new(false),
            backing,
            claim: Mutex::default(),
            look: Arc::default(),
        }))
    }

    /// Whether space is set aside for all of the file, also when it grows.
    pub(crate) fn is_set_aside(&self) -> bool {
        self.is_set_aside.load(Relaxed)
    }

    /// Has the file system set aside the space for all of the file, which may take as long as writing it, where it has no
    /// better way. Files that have it already cost nothing.
    ///
    /// # Errors
    /// The file system is full, or cannot do it.
    pub(crate) async fn set_aside(&self) -> Result<()> {
        if !self.is_regular() || self.is_read_only {
            return Ok(());
        }
        self.is_set_aside.store(true, Relaxed);
        let (file, len_bytes) = (self.backing.sync.clone(), self.shape.len_bytes());
        let allocating = move || file.allocate(len_bytes);
        let allocated = blocking::run(blocking::WorkKind::Files, allocating).await;
        allocated.and_then(|allocated| allocated).map_err(|error| {
            let mend = match error.kind() {
                io::ErrorKind::StorageFull => "; free space there, or write a smaller size",
                io::ErrorKind::Unsupported => "; remove `preallocate`",
                _ => "",
            };
            Error::io(
                format_args!(
                    "{}: no space for all of its {len_bytes} bytes could be set aside{mend}",
                    self.path.display()
                ),
                &error,
            )
        })
    }

    /// Records that the file now carries the mark of this claim.
    pub(super) fn keep_claim(&self, claim: Claim) {
        *self.claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(claim);
    }

    /// Takes the claim whose mark the file carries.
    pub(super) fn take_claim(&self) -> Option<Claim> {
        let mut claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        claim.take()
    }

    /// Removes the mark of the daemon that has opened the file. The system has reported to this process alone that what
    /// the file has acknowledged may be lost: without its mark, whoever opens it next holds this to be a power cut.
    pub(super) async fn remove_opener(&self) {
        if !self.is_regular() || self.is_read_only {
            return;
        }
        let file = self.backing.sync.clone();
        let removed = blocking::run(blocking::WorkKind::Files, move || file.remove_opener()).await;
        match removed.and_then(|removed| removed) {
            // Then it has none.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(error) => {
                let file = self.path.display();
                tracing::error!(%file, %error, "a restart of the daemon will hide that written data may be lost");
            }
            Ok(()) => {}
        }
    }

    /// Whether it is a regular file rather than a device.
    pub(super) fn is_regular(&self) -> bool {
        self.backing.io.is_regular()
    }

    /// Whether the path that it was opened by still leads to it. Blocks for as long as its file system takes.
    pub fn is_at_its_path(&self) -> bool {
        self.is_at(&self.path)
    }

    /// Whether its path leads elsewhere by now, as far as is known. Returns soon, even if the file system hangs.
    pub async fn is_lost(self: &Arc<Self>) -> bool {
        let file = self.clone();
        self.look.again(move || !file.is_at_its_path()).await
    }

    /// Whether `path` leads to it. Blocks as well.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        self.backing.io.is_at(path)
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The volume's shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Whether writing a block is a read-modify-write of a larger unit.
    pub(super) fn writes_in_units(&self) -> bool {
        self.align_bytes > self.shape.block_size_bytes
    }

    /// Whether overlapping requests must exclude each other: in the page cache, and where direct I/O needs units
    /// larger than a block.
    pub(super) fn is_ordered(&self) -> bool {
        self.excludes() || self.writes_in_units()
    }

    /// Waits for all earlier requests that conflict on `range`, in bytes.
    pub(super) async fn lock_range(
        &self,
        range: Range<u64>,
        is_exclusive: bool,
    ) -> RangeLock<&RangeLocks> {
        RangeLocks::lock(&self.locks, range, is_exclusive).await
    }

    /// The volume for the current lane.
    pub fn on_lane(self: &Arc<Self>) -> FileVolume<BackingFile> {
        self.on_lane_over(|backing| backing)
    }

    /// As [`OpenFile::on_lane`], over what `wrap` returns.
    pub fn on_lane_over<B: Backing>(
        self: &Arc<Self>,
        wrap: impl FnOnce(BackingFile) -> B,
    ) -> FileVolume<B> {
        FileVolume::new(self.clone(), wrap(self.backing.on_lane()))
    }
}

/// Why a file or device that is read-only is refused.
pub(super) fn read_only(path: &Path) -> String {
    format!(
        "{} is read-only: make it writable (`blockdev --setrw` for a device, `chattr -i` for an immutable file, or \
         mount its file system for writing), or set read_only = true",
        path.display()
    )
}

/// The physical block size to report for a file or device.
fn physical(file: &SharedFile) -> u32 {
    let told = Some(file.physical_bytes());
    let told = told.filter(|bytes| bytes.is_power_of_two() && *bytes <= PHYSICAL_BYTES_MAX);
    told.unwrap_or(0).max(PHYSICAL_BYTES)
}

pub(super) fn configuration(message: String) -> Error {
    Error::new(ErrorKind::Configuration, message)
}

/// Opens the file, where it holds up no lane. While another process has it locked, tries again for a while: a process
/// killed with I/O in flight keeps its lock until the kernel has torn down its ring.
async fn open_aside(options: &FileOptions, made: &Arc<Made>) -> Result<SharedBackingFile> {
    let begun = time::now();
    loop {
        let (options, made) = (options.clone(), made.clone());
        let is_last = time::now() - begun >= LOCKED_LIMIT;
        let open = move || {
            if let Err(used) = check_no_loop(&options.path, options.read_only) {
                return Some(Err(configuration(used)));
            }
            match open_now(&options, &made) {
                Err(error) if !is_last && is_locked(&error) => None,
                Err(error) => Some(Err(explain_open(&options, &error))),
                Ok(backing) => Some(Ok(backing)),
            }
        };
        let opened = blocking::run(blocking::WorkKind::Files, open).await;
        match opened.map_err(|error| Error::io("opening a file", &error))? {
            Some(opened) => return opened,
            None => time::sleep(Duration::from_millis(20)).await,
        }
    }
}

fn is_locked(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}

/// Opens the file for I/O and for flushes, and creates it if necessary. Blocks.
fn open_now(options: &FileOptions, made: &Made) -> io::Result<SharedBackingFile> {
    let path = &options.path;
    let locked = OpenOptions {
        write: !options.read_only,
        direct: options.caching.is_direct(),
        durable: options.caching.is_synchronous() && !options.read_only,
        lock: true,
        ..OpenOptions::default()
    };
    let may_make = options.len_bytes.is_some() && !options.read_only;
    let io = match SharedFile::open(path, &locked) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && may_make => {
            // In a step of its own: to open it for direct I/O, or to lock it, may fail once it is created.
            let create = OpenOptions {
                write: true,
                create_new: true,
                ..OpenOptions::default()
            };
            let place = store::follow_links(path)?;
            match SharedFile::open(&place, &create) {
                Ok(new) => {
                    made.add(path, &place, new.clone(), None)?;
                    let io = SharedFile::open(path, &locked)?;
                    made.add(path, &place, new, Some(io.clone()))?;
                    io
                }
                // Someone else has just created it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    SharedFile::open(path, &locked)?
                }
                Err(error) => return Err(error),
            }
        }
        opened => opened?,
    };
    let flushing = OpenOptions {
        write: !options.read_only,
        ..OpenOptions::default()
    };
    // Not by its path, which may already lead to another file, whose flushes would cover nothing.
    let sync = io.reopen(&flushing)?;
    Ok(SharedBackingFile { io, sync })
}

fn explain_open(options: &FileOptions, error: &io::Error) -> Error {
    let shown = options.path.display();
    let why = match error.kind() {
        io::ErrorKind::NotFound if options.len_bytes.is_some() && !options.read_only => {
            "its directory does not exist; create it first".to_owned()
        }
        io::ErrorKind::NotFound if options.read_only => {
            "it does not exist; restore it, or correct the path: with read_only = true, no file is \
             created"
                .to_owned()
        }
        io::ErrorKind::NotFound => {
            "it does not exist; restore it, or correct the path; to create a new, blank disk, give \
             it a size, such as size = \"20GiB\""
                .to_owned()
        }
        io::ErrorKind::WouldBlock => match store::lock_holder(&options.path) {
            Some(pid) if pid == process::id() => {
                format!("it is in use by process {pid}, which is this one; name it only once")
            }
            Some(pid) => {
                format!("it is in use by process {pid}; stop that process, or serve another file")
            }
            None => {
                "another process has it locked; stop that process, or serve another file".to_owned()
            }
        },
        io::ErrorKind::ResourceBusy => {
            "it is in use: mounted, part of another device (LVM, RAID), or opened exclusively by \
             another program; unmount or release it, or name another device"
                .to_owned()
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            return configuration(read_only(&options.path));
        }
        io::ErrorKind::PermissionDenied if error.raw_os_error() == Some(libc::EPERM) => format!(
            "{error}; it may be immutable or append-only, which `lsattr` shows and `chattr -i -a` ends; or \
             set read_only = true"
        ),
        io::ErrorKind::PermissionDenied => {
            format!("{error}; grant this user access, or set read_only = true")
        }
        io::ErrorKind::InvalidInput if options.caching.is_direct() => format!(
            "{error}: its file system may not support direct I/O; set cache = \"write-back\" or \
             \"write-through\""
        ),
        _ => error.to_string(),
    };
    configuration(format!("{shown} cannot be opened: {why}"))
}

/// The atomic writes to promise where the system accepts these lengths. The system wants naturally aligned powers of
/// two, which a disk can promise for one length only: the longest accepted one, up to InnoDB's page size.
pub(super) fn atomic_unit(
    lengths: &RangeInclusive<u32>,
    block_size_bytes: u32,
) -> Option<AtomicWrites> {
    let longest = crate::volume::DATABASE_PAGE_BYTES
        .min(*lengths.end())
        .max(*lengths.start());
    let fits = longest.is_power_of_two() && longest >= block_size_bytes;
    (fits && lengths.contains(&longest)).then_some(AtomicWrites {
        unit_bytes: longest,
        max_bytes: Some(longest),
    })
}

/// Makes the empty file `len_bytes` long, in whole units, durably including its name.
async fn make(backing: &BackingFile, path: &Path, len_bytes: u64, unit: u64) -> Result<u64> {
    let failed = |error: io::Error| {
        let mend = match error.kind() {
            io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidInput => "; write a smaller size",
            _ => "",
        };
        Error::io(
            format_args!(
                "{} could not be extended to {len_bytes} bytes{mend}",
                path.display()
            ),
            &error,
        )
    };
    let zeroes = Payload::from(engine::Buf::zeroed(unit as usize));
    backing
        .write(len_bytes - unit, zeroes, true)
        .await
        .map_err(failed)?;
    backing.sync().await.map_err(failed)?;
    tracing::info!(file = %path.display(), len_bytes, "created a new, blank file");
    let path = path.to_owned();
    // A link may lead to another directory.
    let sync = move || store::sync(&store::parent_of(&store::resolve(&path)?));
    let synced = blocking::run(blocking::WorkKind::Files, sync);
    synced.await.and_then(|synced| synced).map_err(failed)?;
    Ok(len_bytes)
}

fn volume_len(options: &FileOptions, file_bytes: u64, align_bytes: u32) -> Result<u64> {
    let shown = options.path.display();
    let block = u64::from(options.block_size_bytes);
    let len = options.len_bytes.unwrap_or(file_bytes);
    if file_bytes < len {
        return Err(configuration(format!(
            "{shown} has {file_bytes} bytes, less than its configured size of {len}; configure a \
             smaller size, or extend the file (truncate -s {len})"
        )));
    }
    if len < block {
        return Err(configuration(format!(
            "{shown} has {len} bytes, less than one block of {block} bytes; name a larger file, or \
             extend this one (truncate -s 1G)"
        )));
    }
    check_blocks(&options.path, len, options.block_size_bytes).map_err(configuration)?;
    if len.next_multiple_of(align_bytes.into()) > file_bytes {
        return Err(configuration(format!(
            "the end of {shown} at {len} is not a multiple of the {align_bytes} bytes that direct \
             I/O requires there; set cache = \"write-back\", or extend the file (truncate -s {})",
            len.next_multiple_of(align_bytes.into())
        )));
    }
    Ok(len)
}

/// Whether holes can be punched, tried beyond the end, where there is nothing to lose. A device has no room for the
/// trial, and often does not guarantee that a discarded range reads as zeroes.
async fn can_punch(backing: &BackingFile, file_bytes: u64) -> bool {
    let behind = file_bytes.next_multiple_of(PHYSICAL_BYTES.into());
    backing
        .allocate(AllocateMode::PunchHole, behind, PHYSICAL_BYTES.into())
        .await
        .is_ok()
}
