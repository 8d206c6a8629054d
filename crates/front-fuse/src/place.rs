//! The path where the file appears. The path is locked for this process, a mount left over from a
//! dead process is removed after what lies above it, and a file created for the purpose is deleted at the end.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use engine::{
    blocking,
    mounts::{Mount, mount_at},
    time,
};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::mount::{self, TYPE};

/// A mount that does not answer within this time does not belong to a healthy process.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long to retry a path that is still attached.
const ATTACHED_LIMIT: Duration = Duration::from_secs(2);
/// The pause between two such attempts.
const ATTACHED_PAUSE: Duration = Duration::from_millis(20);

/// Why a path cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// A system error.
    #[error("{}: {cause}{}", path.display(), mend(cause))]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// It is not a regular file.
    #[error("{} is not a regular file; name an empty file, or a path that does not exist yet", .0.display())]
    NoFile(PathBuf),
    /// It has content.
    #[error(
        "{} is not empty, and the mount would hide its contents; name an empty file, or a path \
         that does not exist yet",
        .0.display()
    )]
    NotEmpty(PathBuf),
    /// A running process serves a volume there.
    #[error("{} is already attached by a running `sanstone attach`; stop it, or name another path", .0.display())]
    Attached(PathBuf),
    /// Something else is mounted there.
    #[error("something else is mounted on {}: {kind}; unmount it, or name another path", path.display())]
    Mounted {
        /// The path.
        path: PathBuf,
        /// The type of the file system.
        kind: String,
    },
    /// A mount left over from a dead process cannot be removed.
    #[error("{} is still mounted by a `sanstone attach` that has died, and cannot be unmounted: {cause}", path.display())]
    Dead {
        /// The path.
        path: PathBuf,
        /// The reason.
        cause: String,
    },
}

fn mend(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::NotFound => "; create the directory first",
        io::ErrorKind::PermissionDenied => "; grant this user access, or name another path",
        _ => "",
    }
}

/// A path that this process has taken.
#[derive(Debug)]
pub struct MountPath {
    path: PathBuf,
    /// Holds the lock. While the volume is mounted over it, this file cannot be reached by its path.
    file: File,
    /// Whether we created the file.
    is_made: bool,
}

impl MountPath {
    /// Takes `path`: an empty file, or one created now. Retries for a while if it is attached, because the
    /// kernel releases it only a moment after its process was killed. Before a mount left over from a dead
    /// process is removed, `clear_above` removes what the dead process has left above it; it is given the path,
    /// absolute and without symbolic links, and the mount.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub async fn take(
        path: &Path,
        clear_above: &impl AsyncFn(&Path, &Mount) -> Result<(), String>,
    ) -> Result<MountPath, PlaceError> {
        let begun = time::now();
        loop {
            match MountPath::take_now(path, clear_above).await {
                Err(PlaceError::Attached(_)) if time::now() - begun < ATTACHED_LIMIT => {
                    time::sleep(ATTACHED_PAUSE).await;
                }
                taken => return taken,
            }
        }
    }

    async fn take_now(
        path: &Path,
        clear_above: &impl AsyncFn(&Path, &Mount) -> Result<(), String>,
    ) -> Result<MountPath, PlaceError> {
        let path = absolute(path).map_err(failed(path))?;
        clear(&path, clear_above).await?;
        let place = MountPath::open(&path)?;
        // Somebody may have mounted there in the meantime.
        match mount_at(&path).map_err(failed(&path))? {
            None => Ok(place),
            Some(_) => Err(PlaceError::Attached(path)),
        }
    }

    fn open(path: &Path) -> Result<MountPath, PlaceError> {
        let failed = failed(path);
        let mut options = OpenOptions::new();
        options
            .write(true)
            .mode(0o600)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
        let (file, is_made) = match options.clone().create_new(true).open(path) {
            Ok(file) => (file, true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let look = fs::symlink_metadata(path).map_err(&failed)?;
                if !look.is_file() {
                    return Err(PlaceError::NoFile(path.to_owned()));
                }
                (options.open(path).map_err(&failed)?, false)
            }
            Err(error) => return Err(failed(error)),
        };
        let place = MountPath {
            path: path.to_owned(),
            file,
            is_made,
        };
        flock(&place.file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| PlaceError::Attached(path.to_owned()))?;
        match place.file.metadata().map_err(&failed)?.len() {
            0 => Ok(place),
            _ => Err(PlaceError::NotEmpty(path.to_owned())),
        }
    }

    /// The path, absolute and without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Owner, group and permissions of the file at the path, which the volume's file takes over.
    pub(crate) fn owner(&self) -> io::Result<(u32, u32, u32)> {
        let metadata = self.file.metadata()?;
        // A disk is no program that would run as its owner.
        let permissions = metadata.mode() & 0o777;
        Ok((metadata.uid(), metadata.gid(), permissions))
    }
}

impl Drop for MountPath {
    fn drop(&mut self) {
        if !self.is_made {
            return;
        }
        // Delete only the file we created, not what is mounted over it.
        let is_ours = |look: &fs::Metadata| {
            let own = self.file.metadata();
            own.is_ok_and(|own| (own.dev(), own.ino()) == (look.dev(), look.ino()))
        };
        if fs::symlink_metadata(&self.path).is_ok_and(|look| is_ours(&look)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> PlaceError {
    let path = path.to_owned();
    move |cause| PlaceError::Io {
        path: path.clone(),
        cause,
    }
}

/// `path`, absolute and without symbolic links, whether or not it exists.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(error)?;
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            Ok(parent.unwrap_or(Path::new(".")).canonicalize()?.join(name))
        }
        found => found,
    }
}

/// Makes sure that nothing is mounted at `path`: removes mounts left over from dead processes of ours.
async fn clear(
    path: &Path,
    clear_above: &impl AsyncFn(&Path, &Mount) -> Result<(), String>,
) -> Result<(), PlaceError> {
    /// The most stacked mounts to remove; even more than one would be strange.
    const MOUNTS_MAX: usize = 16;
    for _ in 0..MOUNTS_MAX {
        let dead = match mount_at(path).map_err(failed(path))? {
            None => return Ok(()),
            Some(other) if other.kind != TYPE => {
                let (path, kind) = (path.to_owned(), other.kind);
                return Err(PlaceError::Mounted { path, kind });
            }
            Some(ours) => ours,
        };
        let here = path.to_owned();
        let look = move || fs::metadata(here).map(drop);
        match blocking::run_within(ANSWER_MAX, blocking::WorkKind::Files, look).await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotConnected => {}
            _ => return Err(PlaceError::Attached(path.to_owned())),
        }
        let failed = |cause| PlaceError::Dead {
            path: path.to_owned(),
            cause,
        };
        clear_above(path, &dead).await.map_err(failed)?;
        // Meanwhile somebody else may have removed it, and mounted a live one there.
        if mount_at(path).map_err(self::failed(path))?.as_ref() != Some(&dead) {
            continue;
        }
        mount::unmount(path, true).map_err(failed)?;
        tracing::warn!(
            path = %path.display(),
            "unmounted the file: a `sanstone attach` that died had left it mounted"
        );
    }
    Err(PlaceError::Attached(path.to_owned()))
}
