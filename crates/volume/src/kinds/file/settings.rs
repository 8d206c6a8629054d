//! The configuration section `file = { path = "disk.img", size = "20GiB", cache = "direct" }`: where the file is, how
//! long, and when data written to it is durable.

use std::{
    cmp::Ordering,
    ops::Range,
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, Weak},
};

use engine::{LaneFuture, blocking, store};
use serde::Deserialize;
use toml::Spanned;

use super::{
    Caching, FileOptions, OpenFile, OpenFiles,
    check::{Leads, check_openable},
    growth::Growth,
    made::Made,
};
use crate::{
    Error, ErrorKind, Result,
    announcer::Announcer,
    kinds::{
        FileIdentity, Look, Settings, VolumeIdentity,
        change::{Change, Changing, Step},
    },
    part::{Opening, Part},
    values::{BlockSize, ConfigError, Size},
};

/// `file = { path = "disk.img", size = "20GiB", cache = "direct" }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Relative to the directory of the configuration file.
    pub path: Spanned<PathBuf>,
    /// Its length; a missing file is created with it. If omitted, the file must exist.
    pub size: Option<Spanned<Size>>,
    /// When a write is durable.
    #[serde(default)]
    pub cache: Caching,
    /// The unit of its addresses.
    #[serde(default)]
    pub block_size: BlockSize,
    /// Refuses writes.
    #[serde(default)]
    pub read_only: bool,
    /// Has its file system set aside the space for all of it, when it is opened and when it grows.
    #[serde(default)]
    pub preallocate: bool,
}

impl File {
    fn options(&self, base: &Path) -> FileOptions {
        FileOptions {
            path: base.join(self.path.get_ref()),
            len_bytes: self.size.as_ref().map(|size| size.get_ref().bytes()),
            caching: self.cache,
            block_size_bytes: self.block_size.bytes(),
            read_only: self.read_only,
        }
    }

    /// Two leaves on one file would overwrite each other; the second could not lock it anyway.
    fn check_used_once(
        &self,
        path: &Path,
        look: &mut Look<'_>,
    ) -> std::result::Result<(), ConfigError> {
        let shown = path.display().to_string();
        let Some((other, its_path)) = look.use_once(Leads::of(path), shown.clone()) else {
            return Ok(());
        };
        let file = match its_path == shown {
            true => shown,
            false => format!("{shown} and {its_path} are the same file, which"),
        };
        Err(ConfigError::at(&self.path, look.used_twice(&file, &other)))
    }
}

/// The error to report when `path` could not be opened because of `error`: the graph may still have the file open, for a
/// volume that is being removed.
async fn blame_open(open_files: &OpenFiles, path: PathBuf, error: Error) -> Error {
    let mut open = open_files.open().collect::<Vec<_>>().into_iter();
    let shown = path.display().to_string();
    let is_open = move || open.any(|file| file.is_at(&path));
    let is_open = blocking::run(blocking::WorkKind::Files, is_open).await;
    if !is_open.unwrap_or(false) {
        return error;
    }
    let message = format!(
        "{shown} is still open for a volume that is being removed: to rename its disk, remove the old \
         volume and apply, then add the new one"
    );
    Error::new(ErrorKind::Configuration, message)
}

/// Whether nothing is at `path`, or a file without content.
async fn is_missing(path: &Path) -> bool {
    let path = path.to_owned();
    let looked = blocking::run(blocking::WorkKind::Files, move || store::look(&path)).await;
    let is_empty =
        |found: &store::PathInfo| found.kind == store::PathKind::File && found.len_bytes == 0;
    looked
        .and_then(|looked| looked)
        .map_or(true, |found| is_empty(&found))
}

impl Settings for File {
    fn open<'a>(&'a self, mut opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        LaneFuture::new(async move {
            let options = self.options(opening.base());
            if !opening.may_make() && is_missing(&options.path).await {
                let why = "it is missing or empty, and would be created blank: mount its file system, \
                           or restore it";
                let path = options.path.display();
                return Err(Error::new(
                    ErrorKind::Configuration,
                    format!("{path}: {why}"),
                ));
            }
            let open_files = opening.kept::<OpenFiles>();
            let trial = open_files.trial().cloned();
            let announcer = opening.kept::<Announcer>().clone();
            let opened = async |made: &Arc<Made>| {
                let file = OpenFile::open_making(&options, 1, made, announcer).await?;
                if self.preallocate {
                    file.set_aside().await?;
                }
                Ok(file)
            };
            let file = OpenFile::or_undone(trial.as_ref(), opened).await;
            let open_files = opening.kept::<OpenFiles>();
            let file = match file {
                Ok(file) => file,
                Err(error) => return Err(blame_open(open_files, options.path, error).await),
            };
            open_files.add(&file);
            opening.put(Arc::downgrade(&file));
            #[cfg(any(test, feature = "testing"))]
            if let Some(recording) = opening.existing_handle::<super::recorder::Recording>() {
                let recorded = move |backing| super::recorder::Recorder::new(backing, recording);
                return opening
                    .at_home(move |_| {
                        LaneFuture::new(
                            async move { Ok(Rc::new(file.on_lane_over(recorded)) as _) },
                        )
                    })
                    .await;
            }
            let shape = file.shape().clone();
            Ok(opening.leaf_on_every_lane(shape, move || Rc::new(file.on_lane())))
        })
    }

    fn identity(&self) -> VolumeIdentity<'_> {
        VolumeIdentity::File(FileIdentity {
            path: &self.path,
            read_only: self.read_only,
            is_made: self.size.is_some() && !self.read_only,
        })
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn check(&self) -> std::result::Result<(), ConfigError> {
        let path = self.path.get_ref().to_string_lossy();
        let why = match path.is_empty() {
            true => "is empty",
            false if path.contains('\0') => "contains a NUL character",
            false => "",
        };
        if !why.is_empty() {
            let message = format!("the path {why}; write the file's path");
            return Err(ConfigError::at(&self.path, message));
        }
        if self.preallocate && self.read_only {
            let message = "nothing is written to a file with read_only = true, so it needs no space; remove preallocate";
            return Err(ConfigError::at(&self.path, message));
        }
        match &self.size {
            Some(size) => self.block_size.check(size),
            None => Ok(()),
        }
    }

    fn look(&self, look: &mut Look<'_>) {
        let options = self.options(look.base());
        let checked = check_openable(&options, self.path.get_ref(), look.may_grow())
            .map_err(|message| ConfigError::at(&self.path, message))
            .and_then(|()| self.check_used_once(&options.path, look));
        let is_right = checked.is_ok();
        look.errors(checked.err());
        if is_right && !self.cache.is_direct() && !self.read_only {
            look.note(format!(
                "{} goes through this machine's page cache, which suits many small clients that \
                 read the same blocks; a database with its own cache is better served without it, \
                 with cache = \"{}\"",
                options.path.display(),
                match self.cache.is_synchronous() {
                    true => "direct-sync",
                    false => "direct",
                }
            ));
        }
    }

    fn change(&self, new: &File) -> Change {
        let (Some(was), Some(is)) = (&self.size, &new.size) else {
            return Change::between(self, new);
        };
        let (from, to) = (*was.get_ref(), *is.get_ref());
        let resized = File {
            size: new.size.clone(),
            ..self.clone()
        };
        match from.cmp(&to) {
            _ if resized != *new => Change::between(self, new),
            Ordering::Equal => Change::None,
            Ordering::Less => Change::Growth { from, to },
            Ordering::Greater => Change::Refused(format!(
                "its size cannot become {to} while it is served with {from}: initiators do not expect \
                 a disk to shrink; write size = \"{from}\""
            )),
        }
    }

    fn step<'a>(&'a self, changing: Changing<'a>) -> LaneFuture<'a, Result<Box<dyn Step>>> {
        let file = changing.handle::<Weak<OpenFile>>().and_then(Weak::upgrade);
        let size = self.size.as_ref().map(|size| *size.get_ref());
        let step = file.zip(size);
        let step = step.map(|(file, size)| Growth::new(file, size));
        let step = step.map(|step| Box::new(step) as _);
        let error = || Error::new(ErrorKind::Unreachable, "it is not open");
        LaneFuture::new(async move { step.ok_or_else(error) })
    }

    fn describe(&self) -> Option<String> {
        Some(self.path.get_ref().display().to_string())
    }

    fn span(&self) -> Option<Range<usize>> {
        Some(self.path.span())
    }
}
