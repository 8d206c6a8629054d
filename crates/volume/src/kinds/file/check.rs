//! Checks on a file that do not need to open it for writing.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    process,
};

use engine::{mounts::mounts, store};
use libc::{major, minor};

use super::FileOptions;

/// The identity of what a path leads to, independent of the path.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Leads {
    /// A block device, by its number.
    Device(u64),
    /// A file, by its file system and inode number.
    File(u64, u64),
    /// Nothing yet; the resolved path.
    Nowhere(PathBuf),
}

impl Leads {
    pub(super) fn of(path: &Path) -> Leads {
        match fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => Leads::Device(found.rdev()),
            Ok(found) => Leads::File(found.dev(), found.ino()),
            Err(_) => {
                let directory = path
                    .parent()
                    .and_then(|parent| fs::canonicalize(parent).ok());
                let whole = directory.zip(path.file_name());
                Leads::Nowhere(whole.map_or(path.into(), |(parent, name)| parent.join(name)))
            }
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
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(_) if size.is_some() && !options.read_only => {
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            return match parent.map(fs::metadata) {
                None | Some(Ok(_)) => Ok(()),
                // These would have been expanded by a shell, but not here.
                Some(Err(_)) if configured.to_string_lossy().starts_with(['~', '$']) => {
                    wrong(format!(
                        "{shown} cannot be created: ~ and variables are not expanded; write the \
                         full path"
                    ))
                }
                Some(Err(error)) => wrong(format!(
                    "{shown} cannot be created: its directory cannot be accessed ({error}); create \
                     it with mkdir -p, or mount its file system"
                )),
            };
        }
        Err(error) if options.read_only => {
            return wrong(format!(
                "{shown} cannot be opened: {error}; restore it, or correct the path: with \
                 read_only = true, no file is created"
            ));
        }
        Err(error) => {
            return wrong(format!(
                "{shown} cannot be opened: {error}; restore it, or correct the path; to create a \
                 new, blank disk, give it a size, such as size = \"20GiB\""
            ));
        }
    };
    if found.is_dir() {
        return wrong(format!(
            "{shown} is a directory; name a regular file or a block device"
        ));
    }
    let kind = found.file_type();
    let other = [
        (kind.is_char_device(), "a character device"),
        (kind.is_fifo(), "a pipe"),
        (kind.is_socket(), "a socket"),
    ];
    if let Some((_, kind)) = other.into_iter().find(|(is, _)| *is) {
        return wrong(format!(
            "{shown} is {kind}; name a regular file or a block device"
        ));
    }
    if !found.is_file() {
        // A device's length is known only once it is opened.
        return match mounted_at(found.rdev()).filter(|_| !options.read_only) {
            Some(directory) => wrong(format!(
                "{shown} is mounted at {}; unmount it, or name another device",
                directory.display()
            )),
            None => Ok(()),
        };
    }
    let grows = || may_grow && store::lock_holder(path) == Some(process::id());
    match size {
        None if found.len() == 0 => wrong(format!(
            "{shown} is empty; give it a size, such as size = \"20GiB\""
        )),
        None if found.len() < options.block_size_bytes.into() => wrong(format!(
            "{shown} has {} bytes, less than one block of {} bytes; name a larger file, or extend \
             this one (truncate -s 1G)",
            found.len(),
            options.block_size_bytes
        )),
        Some(size) if found.len() > 0 && found.len() < size && !grows() => wrong(format!(
            "{shown} has {} bytes, less than its configured size of {size}; configure a smaller \
             size, or extend the file (truncate -s {size})",
            found.len()
        )),
        _ => Ok(()),
    }
}

/// Where the block device with this number is mounted.
fn mounted_at(device: u64) -> Option<PathBuf> {
    let number = format!("{}:{}", major(device), minor(device));
    let mounted = mounts().ok()?.into_iter();
    let mut mounted = mounted.filter(|mount| mount.device == number);
    mounted.next().map(|mount| mount.point)
}
