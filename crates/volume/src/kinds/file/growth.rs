//! A file that grows while it is open. The leaf then has its new length on every lane, and so have the layers above it.
//! Either the file has grown by itself, and the user says when to check (SIGHUP), or the user configures a larger size
//! (`apply`), and the leaf extends the file. In the latter case nobody can use the new length, and the file may be cut
//! again, until all of the new configuration is served.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
};

use engine::{
    LaneFuture, blocking,
    fs::{OpenOptions, SharedFile},
};

use super::{OpenFile, open::configuration};
use crate::{Error, Len, Result, kinds::change::Step, values::Size};

/// A file whose new length the leaf has adopted.
#[derive(Clone, Debug)]
pub struct Grown {
    /// The file's path.
    pub path: PathBuf,
    /// The leaf's previous length, in bytes.
    pub from_bytes: u64,
    /// Its current length, shared with the volumes that follow it.
    pub len: Len,
}

impl OpenFile {
    /// The file's current length, in bytes. Blocks for as long as its file system takes.
    ///
    /// # Errors
    /// Any error the system reports.
    pub fn len_bytes_now(&self) -> io::Result<u64> {
        self.backing.io.len_bytes_now()
    }

    /// The bytes in whose multiples its length is extended.
    fn unit_bytes(&self) -> u64 {
        u64::from(self.align_bytes.max(self.shape.block_size_bytes))
    }

    /// Refuses a file that was `found` to be shorter than the volume.
    fn check_whole(&self, found: u64) -> Result<()> {
        let (shown, len) = (self.path.display(), self.shape.len_bytes());
        if found < len {
            return Err(configuration(format!(
                "{shown} was truncated: it has {found} bytes, but {len} are served. Data beyond \
                 its end is lost, and I/O to it fails. A disk cannot shrink: restore the file's \
                 length (truncate -s {len}) and check the data"
            )));
        }
        Ok(())
    }

    /// Adopts the length that was `found` if the file has grown; `None`: it has not.
    ///
    /// # Errors
    /// Why the length is not followed, and what to do: it is unknown, the file is shorter than the volume, a configured
    /// size limits it, or its end lies within a block.
    pub fn follow_length(&self, found: io::Result<u64>) -> Result<Option<Grown>> {
        let shown = self.path.display();
        let found =
            found.map_err(|error| Error::io(format_args!("the length of {shown}"), &error))?;
        let len = self.shape.len_bytes();
        let opened = self.opened_bytes.load(Relaxed);
        let unit = self.unit_bytes();
        self.check_whole(found)?;
        if self.has_size && found > opened {
            return Err(configuration(format!(
                "{shown} has grown from {opened} to {found} bytes, but its configured size keeps \
                 the volume at {len}; set size = \"{}B\" or remove size, then restart",
                found / unit * unit
            )));
        }
        if self.has_size || found == len {
            return Ok(None);
        }
        if found % unit != 0 {
            return Err(configuration(format!(
                "{shown} has grown from {len} to {found} bytes, which is not a multiple of {unit}; \
                 extend it (truncate -s {}) and try again",
                found.next_multiple_of(unit)
            )));
        }
        self.shape.len.grow(found);
        Ok(Some(Grown {
            path: self.path.clone(),
            from_bytes: len,
            len: self.shape.len.clone(),
        }))
    }
}

/// A larger size for an open file.
#[derive(Clone, Debug)]
pub(super) struct Growth {
    file: Arc<OpenFile>,
    size: Size,
    /// Locked by whoever changes the file's length.
    extension: Arc<Mutex<Extension>>,
}

/// What was done to the length of the file.
#[derive(Debug)]
enum Extension {
    /// Nothing.
    None,
    /// It had this many bytes before.
    Of(u64),
    /// It has its old length again, and keeps it.
    Undone,
}

impl Growth {
    pub(super) fn new(file: Arc<OpenFile>, size: Size) -> Growth {
        Growth {
            file,
            size,
            extension: Arc::new(Mutex::new(Extension::None)),
        }
    }

    /// The length that the file must have.
    fn wanted_bytes(&self) -> u64 {
        self.size.bytes().next_multiple_of(self.file.unit_bytes())
    }

    fn extension(&self) -> MutexGuard<'_, Extension> {
        let extension = self.extension.lock();
        extension.unwrap_or_else(PoisonError::into_inner)
    }

    /// Extends the file if it is shorter than the new size, and sets its space aside if that is wanted. Blocks.
    fn extend(&self) -> Result<()> {
        let mut extension = self.extension();
        let (file, wanted) = (&self.file, self.wanted_bytes());
        let (shown, size) = (file.path.display(), self.size);
        if !matches!(*extension, Extension::None) {
            return Ok(()); // nobody waits for it any more
        }
        let found = file.len_bytes_now();
        let found =
            found.map_err(|error| Error::io(format_args!("the length of {shown}"), &error))?;
        // A truncated file has lost data, which must not look like zeroes.
        file.check_whole(found)?;
        if found >= wanted {
            return self.set_aside(wanted).map_err(|error| {
                let what = format_args!(
                    "{shown}: no space for all of its {wanted} bytes could be set aside"
                );
                Error::io(what, &error)
            });
        }
        if !file.is_regular() {
            return Err(configuration(format!(
                "{shown} has {found} bytes, less than its new size of {size}: it is a device, which \
                 has to be extended first"
            )));
        }
        if file.shape.read_only.is_on() {
            return Err(configuration(format!(
                "{shown} has {found} bytes, less than its new size of {size}, and is read-only: \
                 extend it first (truncate -s {wanted})"
            )));
        }
        let lengthened = self.set_len_bytes(wanted);
        let allocated = lengthened.and_then(|()| self.set_aside(wanted));
        allocated.map_err(|error| {
            // It may be longer all the same, but not durably.
            let _ = self.set_len_bytes(found);
            let mend = match error.kind() {
                io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidInput => {
                    "; write a smaller size"
                }
                _ => "",
            };
            Error::io(
                format_args!("{shown} could not be extended to {wanted} bytes{mend}"),
                &error,
            )
        })?;
        *extension = Extension::Of(found);
        Ok(())
    }

    fn set_aside(&self, len_bytes: u64) -> io::Result<()> {
        match self.file.is_set_aside() && self.file.is_regular() {
            true => self.writable()?.allocate(len_bytes),
            false => Ok(()),
        }
    }

    /// A description of its own, as a sync would consume an error that the leaf's next flush must see.
    fn writable(&self) -> io::Result<SharedFile> {
        let writing = OpenOptions {
            write: true,
            ..OpenOptions::default()
        };
        self.file.backing.io.reopen(&writing)
    }

    fn set_len_bytes(&self, len_bytes: u64) -> io::Result<()> {
        self.writable()?.set_len_bytes(len_bytes)
    }

    /// Gives the file its old length back. Blocks.
    fn cut(&self) {
        let before = std::mem::replace(&mut *self.extension(), Extension::Undone);
        let Extension::Of(bytes) = before else {
            return;
        };
        if let Err(error) = self.set_len_bytes(bytes) {
            tracing::warn!(file = %self.file.path.display(), bytes, %error,
                "a file extended by a failed attempt could not be cut to its old length");
        }
    }
}

impl Step for Growth {
    fn prepare(&self) -> LaneFuture<'_, Result<()>> {
        let growth = self.clone();
        LaneFuture::new(async move {
            let extended = blocking::run(blocking::WorkKind::Files, move || growth.extend()).await;
            extended.map_err(|error| Error::io("extending a file", &error))?
        })
    }

    fn take_effect(&self) -> LaneFuture<'_, ()> {
        let (path, bytes) = (self.file.path.display(), self.size.bytes());
        self.file
            .opened_bytes
            .fetch_max(self.wanted_bytes(), Relaxed);
        self.file.shape.len.grow(bytes);
        tracing::info!(file = %path, to = bytes, "a file has grown with its configured size");
        LaneFuture::new(async {})
    }

    fn undo(&self) -> LaneFuture<'_, ()> {
        let growth = self.clone();
        LaneFuture::new(async move {
            let _ = blocking::run(blocking::WorkKind::Files, move || growth.cut()).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use engine::{Lane, LaneConfig};

    use super::*;
    use crate::{
        kinds::file::{Caching, FileOptions},
        scratch::Scratch,
    };

    const MIB: u64 = 1 << 20;

    fn options(scratch: &Scratch) -> FileOptions {
        FileOptions {
            path: scratch.file("disk"),
            len_bytes: Some(MIB),
            caching: Caching::WriteBack,
            block_size_bytes: 512,
            read_only: false,
        }
    }

    #[test]
    fn a_file_is_extended_before_its_disk_and_cut_again_if_that_was_in_vain() {
        let (scratch, lane) = (Scratch::new(), Lane::new(&LaneConfig::default()));
        lane.expect("a ring").block_on(async {
            let options = options(&scratch);
            let file = OpenFile::open(&options).await.expect("it opens");
            let lens = || {
                let found = fs::metadata(&options.path).expect("it is there");
                (found.len(), file.shape().len_bytes())
            };
            let growth = Growth::new(file.clone(), Size::from_bytes(3 * MIB));
            growth.prepare().await.expect("room");
            assert_eq!(lens(), (3 * MIB, MIB));
            growth.undo().await;
            assert_eq!(lens(), (MIB, MIB));
            // The call that extends it has hung until now.
            growth.prepare().await.expect("nobody waits for it");
            assert_eq!(lens(), (MIB, MIB));

            let growth = Growth::new(file.clone(), Size::from_bytes(3 * MIB));
            growth.prepare().await.expect("room");
            growth.take_effect().await;
            assert_eq!(lens(), (3 * MIB, 3 * MIB));
            // Its own length is not worth a word.
            let seen = file.follow_length(file.len_bytes_now());
            assert!(seen.expect("it is as long as it should be").is_none());

            // A file that is longer already keeps its content.
            let growth = Growth::new(file.clone(), Size::from_bytes(2 * MIB));
            growth.prepare().await.expect("there is nothing to do");
            growth.undo().await;
            assert_eq!(lens(), (3 * MIB, 3 * MIB));
        });
    }

    #[test]
    fn a_truncated_file_is_not_made_to_look_whole() {
        let (scratch, lane) = (Scratch::new(), Lane::new(&LaneConfig::default()));
        lane.expect("a ring").block_on(async {
            let options = options(&scratch);
            let file = OpenFile::open(&options).await.expect("it opens");
            let cut = fs::File::options().write(true).open(&options.path);
            cut.and_then(|file| file.set_len(MIB / 2))
                .expect("a file of ours");
            let growth = Growth::new(file.clone(), Size::from_bytes(3 * MIB));
            let refused = growth.prepare().await.expect_err("it has lost data");
            assert!(refused.to_string().contains("was truncated"), "{refused}");
            assert_eq!(file.len_bytes_now().expect("a look"), MIB / 2);
        });
    }
}
