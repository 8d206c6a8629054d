//! Checks on a file that do not need to open it for writing.

use std::{
    io,
    path::{Path, PathBuf},
    process,
};

use engine::{
    mounts::mounts,
    store::{self, AccessRequest, FileSystem, PathInfo, PathKind},
};

use super::{FileOptions, blocks::check_blocks, loops::check_no_loop, open::read_only};

/// The identity of what a path leads to, independent of the path.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Leads {
    /// A block device, by its numbers.
    Device(u32, u32),
    /// A file, by its file system and inode number.
    File(u64, u64),
    /// Nothing yet; the resolved path.
    Nowhere(PathBuf),
}

impl Leads {
    pub(super) fn of(path: &Path) -> Leads {
        match store::look(path) {
            Ok(PathInfo {
                kind: PathKind::BlockDevice { major, minor },
                ..
            }) => Leads::Device(major, minor),
            Ok(PathInfo {
                id: (system, inode),
                ..
            }) => Leads::File(system, inode),
            Err(_) => Leads::Nowhere(store::resolve(path).unwrap_or(path.to_owned())),
        }
    }
}

/// Refuses what cannot be opened with these options, and says what to write instead; `configured` is the path as
/// written in the configuration. A file that `may_grow` to its size is extended if this process serves it.
pub(super) fn check_openable(
    options: &FileOptions,
    configured: &Path,
    may_grow: bool,
) -> Result<(), String> {
    let path = &*options.path;
    let shown = path.display();
    let size = options.len_bytes;
    let wrong = Err::<(), String>;
    let found = match store::look(path) {
        Ok(found) => found,
        Err(error) => {
            return match size.filter(|_| !options.read_only) {
                Some(size) => check_creatable(path, size, configured, &error),
                None => wrong(format!(
                    "{shown} cannot be opened: {}",
                    blame(options, &error)
                )),
            };
        }
    };
    if found.kind != PathKind::File {
        return check_other(found.kind, options);
    }
    let system = store::file_system(path).ok();
    if let Some(name) = system.as_ref().and_then(of_kernel) {
        return wrong(format!(
            "{shown} is in {name}, where the kernel shows its own state: it is no disk; name a regular \
             file or a block device"
        ));
    }
    let needed = AccessRequest {
        read: true,
        write: !options.read_only,
        execute: false,
    };
    if let Err(error) = store::may(path, needed) {
        return wrong(format!(
            "{shown} cannot be opened: {}",
            blame(options, &error)
        ));
    }
    check_no_loop(path, options.read_only)?;
    check_len(found.len_bytes, options, system.as_ref(), may_grow)
}

/// Refuses what is no regular file, except a block device that may be used. Its length is known only once it is opened.
fn check_other(kind: PathKind, options: &FileOptions) -> Result<(), String> {
    let shown = options.path.display();
    let what = match kind {
        PathKind::BlockDevice { major, minor } => {
            return match mounted_at(major, minor).filter(|_| !options.read_only) {
                Some(directory) => Err(format!(
                    "{shown} is mounted at {}; unmount it, or name another device",
                    directory.display()
                )),
                None if !options.read_only && is_read_only(major, minor) => {
                    Err(read_only(&options.path))
                }
                None => Ok(()),
            };
        }
        PathKind::Directory => "a directory",
        PathKind::CharacterDevice => "a character device",
        PathKind::Pipe => "a pipe",
        PathKind::Socket => "a socket",
        PathKind::File | PathKind::Other => "of an unknown kind",
    };
    Err(format!(
        "{shown} is {what}; name a regular file or a block device"
    ))
}

/// Refuses a file of `len_bytes` that is shorter than its configured size, or has one that no file there can have.
fn check_len(
    len_bytes: u64,
    options: &FileOptions,
    system: Option<&FileSystem>,
    may_grow: bool,
) -> Result<(), String> {
    let path = &*options.path;
    let shown = path.display();
    let wrong = Err::<(), String>;
    let grows = || may_grow && store::lock_holder(path) == Some(process::id());
    match options.len_bytes {
        None if len_bytes == 0 => wrong(format!(
            "{shown} is empty; give it a size, such as size = \"20GiB\""
        )),
        None if len_bytes < options.block_size_bytes.into() => wrong(format!(
            "{shown} has {} bytes, less than one block of {} bytes; name a larger file, or extend \
             this one (truncate -s 1G)",
            len_bytes, options.block_size_bytes
        )),
        Some(size) if len_bytes > 0 && len_bytes < size && !grows() => wrong(format!(
            "{shown} has {} bytes, less than its configured size of {size}; configure a smaller \
             size, or extend the file (truncate -s {size}), which `sanstone apply` does with one that is served",
            len_bytes
        )),
        None => check_blocks(path, len_bytes, options.block_size_bytes),
        Some(size) if len_bytes == 0 => check_fits(path, size, system),
        Some(_) => Ok(()),
    }
}

/// Refuses a file that has to be created and cannot be. `error`: what looking at it has returned.
fn check_creatable(
    path: &Path,
    size: u64,
    configured: &Path,
    error: &io::Error,
) -> Result<(), String> {
    let shown = path.display();
    let cannot = |why: String| Err(format!("{shown} cannot be created: {why}"));
    match error.kind() {
        io::ErrorKind::NotFound => {}
        io::ErrorKind::InvalidFilename => {
            return cannot(format!("{error}; write a shorter name"));
        }
        _ => return cannot(format!("{error}; correct the path")),
    }
    let place = store::follow_links(path).unwrap_or_else(|_| path.to_owned());
    let parent = store::parent_of(&place);
    match store::look(&parent) {
        Ok(_) => {}
        // These would have been expanded by a shell, but not here.
        Err(_) if configured.to_string_lossy().starts_with(['~', '$']) => {
            return cannot("~ and variables are not expanded; write the full path".to_owned());
        }
        Err(error) => {
            return cannot(format!(
                "its directory cannot be accessed ({error}); create it with mkdir -p, or mount its \
                 file system"
            ));
        }
    }
    let needed = AccessRequest {
        read: false,
        write: true,
        execute: true,
    };
    if let Err(error) = store::may(&parent, needed) {
        return cannot(format!(
            "nothing can be created in its directory ({error}); choose another directory, or grant \
             this user the permission"
        ));
    }
    check_fits(path, size, store::file_system(&parent).ok().as_ref())
}

/// Refuses a file that is longer than its file system allows.
fn check_fits(path: &Path, size: u64, system: Option<&FileSystem>) -> Result<(), String> {
    let most = system.map_or(i64::MAX as u64, file_bytes_max);
    match size <= most {
        true => Ok(()),
        false => Err(format!(
            "{} cannot be created with {size} bytes: a file there has at most {most}; write a smaller \
             size",
            path.display()
        )),
    }
}

/// What to say after a file could not be opened.
fn blame(options: &FileOptions, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("{error}; mount its file system for writing, or set read_only = true")
        }
        io::ErrorKind::PermissionDenied
            if !options.read_only && error.raw_os_error() == Some(libc::EPERM) =>
        {
            format!(
                "{error}; it may be immutable, which `lsattr` shows and `chattr -i` ends; or set read_only = true"
            )
        }
        io::ErrorKind::PermissionDenied if options.read_only => {
            format!("{error}; grant this user read access")
        }
        io::ErrorKind::PermissionDenied => {
            format!("{error}; grant this user access, or set read_only = true")
        }
        io::ErrorKind::NotFound if options.read_only => format!(
            "{error}; restore it, or correct the path: with read_only = true, no file is created"
        ),
        io::ErrorKind::NotFound => format!(
            "{error}; restore it, or correct the path; to create a new, blank disk, give it a size, \
             such as size = \"20GiB\""
        ),
        _ => format!("{error}; correct the path"),
    }
}

/// The name of a file system whose files are views of the kernel's state (statfs(2)).
fn of_kernel(system: &FileSystem) -> Option<&'static str> {
    const OF_KERNEL: [(u32, &str); 9] = [
        (0x0000_9fa0, "procfs"),
        (0x6265_6572, "sysfs"),
        (0x6462_6720, "debugfs"),
        (0x7472_6163, "tracefs"),
        (0x6267_7270, "a cgroup file system"),
        (0x6367_7270, "a cgroup file system"),
        (0x6265_6570, "configfs"),
        (0x7363_6673, "securityfs"),
        (0xde5e_81e4, "efivarfs"),
    ];
    let found = OF_KERNEL.iter().find(|(kind, _)| *kind == system.kind);
    found.map(|(_, name)| *name)
}

/// How long a file on this file system may be, as far as its type tells. XFS, btrfs and tmpfs allow what a file offset can express.
/// Of others nothing is known here; they refuse by themselves what is too long.
fn file_bytes_max(system: &FileSystem) -> u64 {
    const EXT: u32 = 0xef53;
    const FAT: u32 = 0x4d44;
    match system.kind {
        // ext4; its forerunners allow less.
        EXT => u64::from(u32::MAX).saturating_mul(system.block_bytes),
        FAT => u32::MAX.into(),
        _ => i64::MAX as u64,
    }
}

/// Whether the system says that the block device with these numbers is read-only.
fn is_read_only(major: u32, minor: u32) -> bool {
    let told = store::read(Path::new(&format!("/sys/dev/block/{major}:{minor}/ro")));
    told.is_ok_and(|told| told.trim_ascii() == b"1")
}

/// Where the block device with these numbers is mounted.
fn mounted_at(major: u32, minor: u32) -> Option<PathBuf> {
    let number = format!("{major}:{minor}");
    let mounted = mounts().ok()?.into_iter();
    let mut mounted = mounted.filter(|mount| mount.device == number);
    mounted.next().map(|mount| mount.point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_longer_than_its_file_system_allows() {
        let on = |kind, size| {
            let system = FileSystem {
                kind,
                block_bytes: 4096,
            };
            check_fits(Path::new("d.img"), size, Some(&system))
        };
        let (ext4, fat) = (0xef53, 0x4d44);
        on(ext4, 15 << 40).expect("it fits");
        let error = on(ext4, 1000 << 40).expect_err("more than 16 TiB");
        assert!(
            error.contains("d.img cannot be created with 1099511627776000 bytes")
                && error.ends_with("write a smaller size"),
            "{error}"
        );
        on(fat, 4 << 30).expect_err("more than 4 GiB");
        let (xfs, btrfs, tmpfs, unknown) = (0x5846_5342, 0x9123_683e, 0x0102_1994, 0x1234_5678);
        for kind in [xfs, btrfs, tmpfs, unknown] {
            on(kind, i64::MAX as u64).expect("it fits");
            let error = on(kind, 1 << 63).expect_err("no offset reaches its end");
            assert!(error.contains("at most 9223372036854775807"), "{error}");
        }
    }
}
