//! The glue between SQLite's C interface and `files`: registers a VFS under a unique name, turns pointers
//! into slices and errors into SQLite's codes, and keeps panics from crossing into C. This is the only module
//! of the lab with unsafe code. Interface: <https://sqlite.org/vfs.html>.
//!
//! Locks are trivial because a database has only one connection: a second open of the main file fails.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
};

use libsqlite3_sys as ffi;

use super::{
    disk::BLOCK_BYTES,
    file::FileError,
    files::{FileKind, Files, OpenError},
};
use crate::{LabError, LabResult};

/// The main database's name in the VFS; the journal appends "-journal".
pub(crate) const MAIN_NAME: &str = "main.db";

/// A registered VFS; dropping it unregisters it.
pub(crate) struct RegisteredVfs {
    vfs: *mut Vfs,
    files: Rc<Files>,
}

/// The VFS object. SQLite links it into its list, so its address must not change while it is registered.
#[repr(C)]
struct Vfs {
    base: ffi::sqlite3_vfs,
    files: Rc<Files>,
    name: CString,
}

/// An open file as SQLite holds it, in memory that SQLite allocates.
#[repr(C)]
struct Handle {
    base: ffi::sqlite3_file,
    /// Valid while the [`Vfs`] exists, which is until no file is open.
    files: *const Files,
    index: usize,
}

impl RegisteredVfs {
    /// Registers `files` as a VFS.
    pub(crate) fn new(files: Rc<Files>) -> LabResult<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("sanstone-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let name = CString::new(name).expect("digits hold no NUL");
        let base = ffi::sqlite3_vfs {
            iVersion: 1,
            szOsFile: size_of::<Handle>() as c_int,
            mxPathname: 64,
            pNext: std::ptr::null_mut(),
            zName: name.as_ptr(),
            pAppData: std::ptr::null_mut(),
            xOpen: Some(open),
            xDelete: Some(delete),
            xAccess: Some(access),
            xFullPathname: Some(full_pathname),
            xDlOpen: None,
            xDlError: None,
            xDlSym: None,
            xDlClose: None,
            xRandomness: Some(randomness),
            xSleep: Some(sleep),
            xCurrentTime: Some(current_time),
            xGetLastError: None,
            xCurrentTimeInt64: None,
            xSetSystemCall: None,
            xGetSystemCall: None,
            xNextSystemCall: None,
        };
        let vfs = Box::into_raw(Box::new(Vfs {
            base,
            files: files.clone(),
            name,
        }));
        // SAFETY: `vfs` points to a valid sqlite3_vfs at its start (repr(C)), and its address does not change
        // until `drop` has unregistered it.
        let code = unsafe { ffi::sqlite3_vfs_register(vfs.cast(), 0) };
        if code == ffi::SQLITE_OK {
            return Ok(Self { vfs, files });
        }
        // SAFETY: SQLite did not register it, so this is the only pointer to the box created above.
        drop(unsafe { Box::from_raw(vfs) });
        let source = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        Err(LabError::Sqlite {
            doing: "registering the volume with SQLite".into(),
            source,
            disk: None,
        })
    }

    /// The VFS name to open a connection with.
    pub(crate) fn name(&self) -> &str {
        // SAFETY: `vfs` is the box created in `new`, freed only in `drop`.
        let name = unsafe { &(*self.vfs).name };
        name.to_str().unwrap_or_default()
    }
}

impl Drop for RegisteredVfs {
    fn drop(&mut self) {
        // SAFETY: `vfs` was registered in `new` and is unregistered only here.
        unsafe { ffi::sqlite3_vfs_unregister(self.vfs.cast()) };
        // A connection that could not be closed still points here, so leak rather than dangle.
        if !self.files.any_open() {
            // SAFETY: created by Box::into_raw in `new`; SQLite no longer knows it, and no file is open.
            drop(unsafe { Box::from_raw(self.vfs) });
        }
    }
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(lock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

/// Runs `body`; a panic in it is turned into `code`.
fn guarded(code: c_int, body: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(code)
}

/// SQLite's code for a result; a disk failure becomes `code`.
fn code_of(result: std::result::Result<(), FileError>, code: c_int) -> c_int {
    match result {
        Ok(()) => ffi::SQLITE_OK,
        Err(FileError::Full) => ffi::SQLITE_FULL,
        Err(FileError::Disk(_)) => code,
    }
}

/// # Safety
/// `vfs` must have been created by [`RegisteredVfs::new`] and still be alive.
unsafe fn files_of<'a>(vfs: *mut ffi::sqlite3_vfs) -> &'a Files {
    // SAFETY: sqlite3_vfs is the first field of Vfs (repr(C)); the caller guarantees that it is alive.
    unsafe { &(*vfs.cast::<Vfs>()).files }
}

/// # Safety
/// `file` must have been opened by [`open`] and not been closed.
unsafe fn handle_of<'a>(file: *mut ffi::sqlite3_file) -> (&'a Files, usize) {
    // SAFETY: sqlite3_file is the first field of Handle, which `open` initialised completely; the Files
    // outlive every open file (see Registration::drop).
    unsafe {
        let handle = file.cast::<Handle>();
        (&*(*handle).files, (*handle).index)
    }
}

/// Whether a name passed by SQLite is that of the journal.
///
/// # Safety
/// `name` must be null or a C string.
unsafe fn is_journal(name: *const c_char) -> bool {
    // SAFETY: the caller guarantees a C string.
    !name.is_null()
        && unsafe { CStr::from_ptr(name) }
            .to_bytes()
            .ends_with(b"-journal")
}

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    _name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes szOsFile writable bytes. Null methods say that there is nothing to close, which
    // must also hold after a failure.
    unsafe { (*file).pMethods = std::ptr::null() };
    // SAFETY: SQLite passes the VFS that it was asked to use.
    let files = unsafe { files_of(vfs) };
    guarded(ffi::SQLITE_CANTOPEN, || {
        let kind = match flags {
            _ if flags & ffi::SQLITE_OPEN_MAIN_DB != 0 => FileKind::Main,
            _ if flags & ffi::SQLITE_OPEN_MAIN_JOURNAL != 0 => FileKind::Journal,
            _ if flags & ffi::SQLITE_OPEN_TEMP_DB != 0 => FileKind::TempDatabase,
            _ if flags & (ffi::SQLITE_OPEN_SUPER_JOURNAL | ffi::SQLITE_OPEN_WAL) != 0 => {
                return ffi::SQLITE_CANTOPEN;
            }
            _ => FileKind::Temp,
        };
        let index = match files.open(kind, flags & ffi::SQLITE_OPEN_CREATE != 0) {
            Ok(index) => index,
            Err(OpenError::Missing) => return ffi::SQLITE_CANTOPEN,
            Err(OpenError::Busy) => return ffi::SQLITE_BUSY,
        };
        // SAFETY: `file` has room for a Handle (szOsFile); `out_flags` may be null.
        unsafe {
            file.cast::<Handle>().write(Handle {
                base: ffi::sqlite3_file { pMethods: &METHODS },
                files,
                index,
            });
            if !out_flags.is_null() {
                *out_flags = flags;
            }
        }
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn delete(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    _sync_directory: c_int,
) -> c_int {
    // SAFETY: the VFS of `open`, and a C string.
    let (files, journal) = unsafe { (files_of(vfs), is_journal(name)) };
    // With synchronous=FULL, SQLite does not ask for a sync of the directory, so a power cut soon after a
    // commit could undo it. Here every delete is durable, so every commit is.
    guarded(ffi::SQLITE_IOERR_DELETE, || {
        if !journal || !files.journal_exists() {
            return ffi::SQLITE_IOERR_DELETE_NOENT;
        }
        code_of(files.delete_journal(), ffi::SQLITE_IOERR_DELETE)
    })
}

unsafe extern "C" fn access(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    _flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: the VFS of `open`, and a C string.
    let (files, journal) = unsafe { (files_of(vfs), is_journal(name)) };
    let exists = if journal {
        files.journal_exists()
    } else {
        // SAFETY: a C string, as above.
        unsafe { CStr::from_ptr(name) }.to_bytes() == MAIN_NAME.as_bytes()
    };
    // SAFETY: SQLite passes a valid pointer for the result.
    unsafe { *out = c_int::from(exists) };
    ffi::SQLITE_OK
}

unsafe extern "C" fn full_pathname(
    _vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    out_bytes: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: a C string from SQLite.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
    if name.len() > out_bytes.max(0) as usize {
        return ffi::SQLITE_CANTOPEN;
    }
    // SAFETY: `out` has `out_bytes` bytes, which suffice; SQLite's two buffers do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(name.as_ptr().cast(), out, name.len()) };
    ffi::SQLITE_OK
}

/// The system's default VFS, for operations unrelated to files.
fn system_vfs() -> *mut ffi::sqlite3_vfs {
    // SAFETY: null asks for the default VFS.
    unsafe { ffi::sqlite3_vfs_find(std::ptr::null()) }
}

unsafe extern "C" fn randomness(_: *mut ffi::sqlite3_vfs, bytes: c_int, out: *mut c_char) -> c_int {
    let system = system_vfs();
    // SAFETY: a registered VFS, whose method is called the way SQLite called ours.
    unsafe {
        (*system)
            .xRandomness
            .map_or(0, |randomness| randomness(system, bytes, out))
    }
}

unsafe extern "C" fn sleep(_: *mut ffi::sqlite3_vfs, microseconds: c_int) -> c_int {
    let system = system_vfs();
    // SAFETY: as in `randomness`.
    unsafe {
        (*system)
            .xSleep
            .map_or(0, |sleep| sleep(system, microseconds))
    }
}

unsafe extern "C" fn current_time(_: *mut ffi::sqlite3_vfs, out: *mut f64) -> c_int {
    let system = system_vfs();
    // SAFETY: as in `randomness`.
    unsafe {
        (*system)
            .xCurrentTime
            .map_or(ffi::SQLITE_ERROR, |time| time(system, out))
    }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: SQLite closes a file opened by `open`, exactly once.
    let (files, index) = unsafe { handle_of(file) };
    guarded(ffi::SQLITE_IOERR_CLOSE, || {
        code_of(files.close(index), ffi::SQLITE_IOERR_CLOSE)
    })
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    out: *mut c_void,
    bytes: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: an open file.
    let (files, index) = unsafe { handle_of(file) };
    guarded(ffi::SQLITE_IOERR_READ, || {
        let (Ok(len), Ok(offset)) = (usize::try_from(bytes), u64::try_from(offset)) else {
            return ffi::SQLITE_IOERR_READ;
        };
        // SAFETY: SQLite passes `bytes` bytes to fill, allocated and therefore initialised as far as bytes go
        // (they are only written to before they are read).
        let buffer = unsafe { std::slice::from_raw_parts_mut(out.cast::<u8>(), len) };
        match files.read(index, offset, buffer) {
            Ok(read) if read == len => ffi::SQLITE_OK,
            Ok(_) => ffi::SQLITE_IOERR_SHORT_READ,
            Err(_) => ffi::SQLITE_IOERR_READ,
        }
    })
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    data: *const c_void,
    bytes: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: an open file.
    let (files, index) = unsafe { handle_of(file) };
    guarded(ffi::SQLITE_IOERR_WRITE, || {
        let (Ok(len), Ok(offset)) = (usize::try_from(bytes), u64::try_from(offset)) else {
            return ffi::SQLITE_IOERR_WRITE;
        };
        // SAFETY: SQLite passes `bytes` readable bytes.
        let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) };
        code_of(files.write(index, offset, data), ffi::SQLITE_IOERR_WRITE)
    })
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: ffi::sqlite3_int64) -> c_int {
    // SAFETY: an open file.
    let (files, index) = unsafe { handle_of(file) };
    guarded(ffi::SQLITE_IOERR_TRUNCATE, || match u64::try_from(size) {
        Ok(size) => code_of(files.truncate(index, size), ffi::SQLITE_IOERR_TRUNCATE),
        Err(_) => ffi::SQLITE_IOERR_TRUNCATE,
    })
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _flags: c_int) -> c_int {
    // SAFETY: an open file.
    let (files, index) = unsafe { handle_of(file) };
    guarded(ffi::SQLITE_IOERR_FSYNC, || {
        code_of(files.sync(index), ffi::SQLITE_IOERR_FSYNC)
    })
}

unsafe extern "C" fn file_size(
    file: *mut ffi::sqlite3_file,
    out: *mut ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: an open file.
    let (files, index) = unsafe { handle_of(file) };
    guarded(ffi::SQLITE_IOERR_FSTAT, || {
        // SAFETY: SQLite passes a valid pointer for the result.
        unsafe { *out = files.size(index) as ffi::sqlite3_int64 };
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn lock(_: *mut ffi::sqlite3_file, _level: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn check_reserved_lock(_: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: SQLite passes a valid pointer for the result. Nobody else holds a lock.
    unsafe { *out = 0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn file_control(_: *mut ffi::sqlite3_file, _op: c_int, _: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut ffi::sqlite3_file) -> c_int {
    BLOCK_BYTES as c_int
}

/// Claims only what the layout guarantees: a file's size becomes durable after the bytes it covers. (Not
/// POWERSAFE_OVERWRITE: an unaligned write rewrites its whole block, and we cannot promise what a block
/// device does to the rest of the block at a power cut.)
unsafe extern "C" fn device_characteristics(_: *mut ffi::sqlite3_file) -> c_int {
    ffi::SQLITE_IOCAP_SAFE_APPEND
}
