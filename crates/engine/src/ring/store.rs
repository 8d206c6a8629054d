//! The verbs of [`crate::store`] and [`crate::fs`] on the real system: files to open, directories, whole files and marks.

use std::{
    ffi::{CStr, CString},
    fs,
    io::{self, Read, Write},
    os::{
        fd::AsRawFd,
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
};

use super::{facts, files};
use crate::{
    extent,
    handle::{Handle, Keeper},
    loops::{self, LoopDevice},
    reactor::{
        AccessRequest, FileMark, FileState, FileSystem, OpenOptions, OpenedFile, PathInfo,
        PathKind, Store, TAIL_BYTES_MAX, must_be_file, too_long,
    },
};

/// How many times the table of all locks is read before nobody holds one. It is handed out a page at a time, and where others unlock
/// between two pages, some of the next are left out: about one reading of 300 with a machine that does little else.
const LOCK_LOOKS: usize = 8;

/// The extended attribute that holds the mark.
const MARK: &CStr = c"user.sanstone.disk";
/// The same of the daemon that has opened the file last.
const OPENER: &CStr = c"user.sanstone.opener";
/// The longest mark, in bytes.
const MARK_BYTES_MAX: usize = 256;
/// Limit for reading a whole file, in bytes: more than any configuration or state file has. A device may be endless.
const READ_BYTES_MAX: u64 = 64 << 20;
/// The file systems of this machine.
pub(crate) struct System;

impl Store for System {
    fn open(&self, path: &Path, options: &OpenOptions) -> io::Result<OpenedFile> {
        files::open(path, options)
    }

    fn reopen(&self, file: &Handle, options: &OpenOptions) -> io::Result<OpenedFile> {
        files::reopen(file.raw, options)
    }

    fn is_at(&self, file: &Handle, path: &Path) -> bool {
        matches!((files::identity_of(file), files::identity_at(path)), (Ok(a), Ok(b)) if a == b)
    }

    fn len_bytes(&self, file: &Handle) -> io::Result<u64> {
        match &file.keeper {
            Keeper::Fd(fd) => files::length(&fs::File::from(fd.try_clone()?)),
            Keeper::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn state(&self, file: &Handle) -> io::Result<FileState> {
        match &file.keeper {
            Keeper::Fd(fd) => facts::state(&fs::File::from(fd.try_clone()?)),
            Keeper::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn set_len_bytes(&self, file: &Handle, len_bytes: u64) -> io::Result<()> {
        match &file.keeper {
            Keeper::Fd(fd) => {
                let file = fs::File::from(fd.try_clone()?);
                file.set_len(len_bytes)?;
                file.sync_all()
            }
            Keeper::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn allocate(&self, file: &Handle, len_bytes: u64) -> io::Result<()> {
        match &file.keeper {
            Keeper::Fd(fd) => {
                let len = i64::try_from(len_bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
                // SAFETY: passes an open descriptor and numbers.
                if unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, len) } < 0 {
                    return Err(io::Error::last_os_error());
                }
                fs::File::from(fd.try_clone()?).sync_all()
            }
            Keeper::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn look(&self, path: &Path) -> io::Result<PathInfo> {
        fs::metadata(path).map(|found| look_of(&found))
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn link(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        match fs::read_link(path) {
            Ok(to) => Ok(Some(to)),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => Ok(None),
                _ => Err(error),
            },
        }
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = open_to_look(path)?;
        must_be_file(look_of(&file.metadata()?))?;
        file.take(READ_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > READ_BYTES_MAX {
            return Err(too_long(READ_BYTES_MAX));
        }
        Ok(bytes)
    }

    fn may(&self, path: &Path, access: AccessRequest) -> io::Result<()> {
        let wanted = [
            (access.read, libc::R_OK),
            (access.write, libc::W_OK),
            (access.execute, libc::X_OK),
        ];
        let wanted = wanted.iter().filter(|(is_wanted, _)| *is_wanted);
        let mode = wanted.fold(libc::F_OK, |mode, (_, bit)| mode | bit);
        let path = c_path(path)?;
        // SAFETY: a NUL-terminated path that lives through the call.
        match unsafe { libc::access(path.as_ptr(), mode) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn file_system(&self, path: &Path) -> io::Result<FileSystem> {
        let path = c_path(path)?;
        // SAFETY: statfs is plain data for which zero is valid.
        let mut found: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: a NUL-terminated path; both live through the call.
        match unsafe { libc::statfs(path.as_ptr(), &raw mut found) } {
            0 => Ok(FileSystem {
                kind: found.f_type as u32,
                block_bytes: u64::try_from(found.f_bsize).unwrap_or(0),
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn read_start(&self, path: &Path, len: usize) -> io::Result<(PathInfo, Vec<u8>)> {
        let file = open_to_look(path)?;
        let look = look_of(&file.metadata()?);
        let mut bytes = Vec::new();
        if matches!(look.kind, PathKind::File | PathKind::BlockDevice { .. }) {
            file.take(len as u64).read_to_end(&mut bytes)?;
        }
        Ok((look, bytes))
    }

    fn lock_holder(&self, path: &Path) -> Option<u32> {
        let file = fs::metadata(path).ok()?;
        let (first, second) = facts::file_system_of(path).ok()?;
        let place = format!("{first:02x}:{second:02x}:{}", file.ino());
        let mut looks = (0..LOCK_LOOKS).map_while(|_| fs::read_to_string("/proc/locks").ok());
        looks.find_map(|locks| holder_of(&place, &locks))
    }

    fn loop_of(&self, path: &Path) -> Option<LoopDevice> {
        loops::loop_of(path).ok().flatten()
    }

    fn is_blank(&self, path: &Path) -> io::Result<bool> {
        let file = fs::File::open(path)?;
        let Some(first) = extent::first_data(file.as_raw_fd())? else {
            return Ok(true);
        };
        let len = file.metadata()?.len().saturating_sub(first);
        if len > TAIL_BYTES_MAX {
            return Ok(false);
        }
        let mut tail = vec![0; len as usize];
        file.read_exact_at(&mut tail, first)?;
        Ok(tail.iter().all(|&byte| byte == 0))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(directory)?;
        entries.map(|entry| Ok(entry?.path())).collect()
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // O_EXCL follows no link.
        let mut options = fs::File::options();
        let options = options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(path)?;
        file.write_all(bytes)?;
        // Of the same open file: the error of another one's write-back may be lost.
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        // Whatever the umask, only its user may change it.
        fs::DirBuilder::new().mode(0o755).create(path)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }

    fn mark(&self, path: &Path, which: FileMark) -> io::Result<Option<Vec<u8>>> {
        let path = c_path(path)?;
        let mut mark = vec![0; MARK_BYTES_MAX];
        // SAFETY: two NUL-terminated texts, and a buffer of the length given; all live through the call.
        let found = unsafe {
            libc::getxattr(
                path.as_ptr(),
                name_of(which).as_ptr(),
                mark.as_mut_ptr().cast(),
                mark.len(),
            )
        };
        if found >= 0 {
            mark.truncate(found as usize);
            return Ok(Some(mark));
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENODATA) => Ok(None),
            error => Err(explain(error)),
        }
    }

    fn set_mark(&self, path: &Path, which: FileMark, mark: &[u8]) -> io::Result<()> {
        let file = fs::File::open(path)?;
        // SAFETY: a NUL-terminated text, and as many bytes as the length says; both live through the call.
        let failed = unsafe {
            libc::fsetxattr(
                file.as_raw_fd(),
                name_of(which).as_ptr(),
                mark.as_ptr().cast(),
                mark.len(),
                0,
            )
        };
        match failed {
            0 => Ok(()),
            _ => Err(explain(io::Error::last_os_error())),
        }
    }

    fn remove_mark(&self, file: &Handle, which: FileMark) -> io::Result<()> {
        // SAFETY: a NUL-terminated text that lives through the call; `file` keeps the descriptor open.
        match unsafe { libc::fremovexattr(file.raw, name_of(which).as_ptr()) } {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ENODATA) => Ok(()),
                error => Err(explain(error)),
            },
        }
    }
}

/// The extended attribute that has the mark.
fn name_of(mark: FileMark) -> &'static CStr {
    match mark {
        FileMark::Disk => MARK,
        FileMark::Opener => OPENER,
    }
}

fn look_of(found: &fs::Metadata) -> PathInfo {
    let kind = found.file_type();
    let kind = match () {
        () if kind.is_file() => PathKind::File,
        () if kind.is_dir() => PathKind::Directory,
        () if kind.is_block_device() => PathKind::BlockDevice {
            major: libc::major(found.rdev()),
            minor: libc::minor(found.rdev()),
        },
        () if kind.is_char_device() => PathKind::CharacterDevice,
        () if kind.is_fifo() => PathKind::Pipe,
        () if kind.is_socket() => PathKind::Socket,
        () => PathKind::Other,
    };
    PathInfo {
        kind,
        len_bytes: found.len(),
        id: (found.dev(), found.ino()),
        mode: found.mode() & 0o7777,
        owner: found.uid(),
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the path contains a NUL byte"))
}

/// Maps ENOTSUP explicitly, because standard library releases differ in its error kind.
fn explain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOTSUP) => io::ErrorKind::Unsupported.into(),
        Some(libc::ERANGE) => {
            let what = format!("longer than {MARK_BYTES_MAX} bytes");
            io::Error::new(io::ErrorKind::InvalidData, what)
        }
        _ => error,
    }
}

/// The process that holds the lock on the file at `place`, by the table `locks` (proc_locks(5)).
fn holder_of(place: &str, locks: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        // A process that waits for the lock has an arrow before this word.
        let is_held = words.next() == Some("FLOCK");
        let (pid, of) = (words.nth(2)?, words.next()?);
        (is_held && of == place).then(|| pid.parse().ok()).flatten()
    })
}

/// Opens what is at `path` to find out what it is. Opening a pipe would wait for a writer.
fn open_to_look(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::File::options();
    let options = options.read(true).custom_flags(libc::O_NONBLOCK);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;
    use crate::store;

    #[test]
    fn who_holds_the_lock_is_found_among_others() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 08:01:42 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 8 08:01:43 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 9 08:01:42 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 10 08:01:44 0 EOF\n";
        for (place, pid) in [
            ("08:01:42", Some(9)),
            ("08:01:43", Some(8)),
            ("08:01:44", None),
            ("08:02:42", None),
        ] {
            assert_eq!(holder_of(place, locks), pid, "{place}");
        }
    }

    #[test]
    fn who_holds_a_lock_is_found_while_others_come_and_go() {
        let base = std::env::temp_dir().join(format!("sanstone-locks-{}", std::process::id()));
        fs::create_dir(&base).expect("room");
        let locked = |name: String| {
            let file = fs::File::create(base.join(name)).expect("room");
            file.try_lock().expect("nobody has it");
            file
        };
        let kept: Vec<_> = (0..150).map(|it| locked(format!("kept {it}"))).collect();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let _others: Vec<_> = (0..150).map(|it| locked(it.to_string())).collect();
                }
            });
            let lost = (0..1500).filter(|it| {
                let path = base.join(format!("kept {}", it % kept.len()));
                store::lock_holder(&path) != Some(std::process::id())
            });
            let lost = lost.count();
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(lost, 0);
        });
        drop(kept);
        fs::remove_dir_all(&base).expect("ours");
    }

    /// Outside a lane it is the real system's store that is used.
    #[test]
    fn a_link_under_the_name_of_the_new_file_is_not_written_through() {
        let directory = std::env::temp_dir().join(format!("sanstone-store-{}", std::process::id()));
        fs::create_dir(&directory).expect("room");
        let (file, other) = (directory.join("ports.toml"), directory.join("other"));
        fs::write(&other, "precious").expect("room");
        std::os::unix::fs::symlink(&other, directory.join("ports.new")).expect("room");
        store::replace(&file, b"new").expect("room");
        assert_eq!(fs::read(&other).expect("it is there"), b"precious");
        let found = store::look(&file).expect("it is there");
        assert_eq!((found.len_bytes, found.mode), (3, 0o600));
        assert!(!store::is_link(&file).expect("it is there"));
        // What cannot be replaced leaves nothing behind.
        let inside = directory.join("directory");
        fs::create_dir(&inside).expect("room");
        store::replace(&inside, b"new").expect_err("a directory is in the way");
        assert!(!directory.join("directory.new").exists());
        let pipe = directory.join("pipe");
        let path = c_path(&pipe).expect("no NUL byte");
        // SAFETY: a NUL-terminated path that lives through the call.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        for (path, part) in [
            (&*pipe, "a named pipe"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            let reads = [
                store::read_file(path, 10),
                store::read_input(path, 10),
                store::read(path),
            ];
            for read in reads {
                let error = read.expect_err(part).to_string();
                assert!(error.contains("not a file"), "{part}: {error}");
            }
        }
        assert_eq!(store::read_file(&file, 3).expect("it is short"), b"new");
        let long = store::read_file(&file, 2).expect_err("it is longer");
        assert_eq!(long.kind(), io::ErrorKind::FileTooLarge);
        fs::remove_dir_all(&directory).expect("it is there");
    }
}
