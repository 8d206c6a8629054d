//! The verbs of [`crate::store`] and [`crate::fs`] on a simulated machine's disk: files to open, directories, whole files
//! and marks. Changes are durable after a sync; before that the seed decides what survives. They take no time, unless
//! the disk stalls: then a lane that asks it for anything is blocked.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    disk::{
        FaultKind, OWNER, SimDisk,
        names::{NameChange, normal},
    },
    reactor::SimReactor,
};
use crate::{
    blocking,
    handle::Handle,
    loops::LoopDevice,
    reactor::{
        AccessRequest, FileMark, FileState, FileSystem, OpenOptions, OpenedFile, PathInfo,
        PathKind, Store, TAIL_BYTES_MAX,
    },
};

impl SimReactor {
    /// Runs `f` on the disk, if it has power.
    fn disk<T>(&self, f: impl FnOnce(&mut SimDisk) -> io::Result<T>) -> io::Result<T> {
        self.waits_for_disk();
        let mut state = self.state.borrow_mut();
        let disk = &mut state.host(self.host).disk;
        disk.has_power()?;
        f(disk)
    }

    /// Fails if a fault of this kind hits what has the name `path`.
    fn fail_at(&self, kind: FaultKind, path: &Path) -> io::Result<()> {
        let state = &mut *self.state.borrow_mut();
        let (disk, occurred) = (&mut state.hosts[self.host.0].disk, &mut state.occurred);
        match disk.fault_at(kind, path, occurred) {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }

    /// The caller asks the disk for something that a lane must not wait for.
    fn waits_for_disk(&self) {
        let mut state = self.state.borrow_mut();
        let stall = state.host(self.host).disk.stall;
        if !blocking::hold_up(stall) {
            self.held_until
                .set(self.held_until.get().max(state.now + stall));
        }
    }
}

impl Store for SimReactor {
    fn open(&self, path: &Path, options: &OpenOptions) -> io::Result<OpenedFile> {
        self.waits_for_disk();
        self.state.borrow_mut().open(self.host, path, options)
    }

    fn reopen(&self, file: &Handle, options: &OpenOptions) -> io::Result<OpenedFile> {
        self.waits_for_disk();
        self.state.borrow_mut().reopen(file.raw, options)
    }

    fn is_at(&self, file: &Handle, path: &Path) -> bool {
        self.waits_for_disk();
        self.state.borrow().is_at(file.raw, path)
    }

    fn len_bytes(&self, file: &Handle) -> io::Result<u64> {
        self.waits_for_disk();
        self.state.borrow().len_bytes(file.raw)
    }

    fn state(&self, file: &Handle) -> io::Result<FileState> {
        self.waits_for_disk();
        self.state.borrow().state(file.raw)
    }

    fn set_len_bytes(&self, file: &Handle, len_bytes: u64) -> io::Result<()> {
        self.waits_for_disk();
        self.state.borrow_mut().set_len_bytes(file.raw, len_bytes)
    }

    /// A simulated disk has room for all its files.
    fn allocate(&self, file: &Handle, len_bytes: u64) -> io::Result<()> {
        match self.len_bytes(file)? >= len_bytes {
            true => Ok(()),
            false => self.set_len_bytes(file, len_bytes),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk(|disk| {
            disk.names.file(path).ok_or(io::ErrorKind::NotFound)?;
            disk.take_step()?;
            disk.names.change(NameChange::Unlink(normal(path)));
            Ok(())
        })
    }

    fn look(&self, path: &Path) -> io::Result<PathInfo> {
        self.disk(|disk| match disk.names.file(path) {
            Some(file) => Ok(disk.look(file)),
            None if disk.names.is_directory(path) => Ok(PathInfo {
                kind: PathKind::Directory,
                len_bytes: 0,
                id: (0, u64::MAX),
                mode: 0o755,
                owner: OWNER,
            }),
            None => Err(io::ErrorKind::NotFound.into()),
        })
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.look(path).map(|_| normal(path))
    }

    fn link(&self, _: &Path) -> io::Result<Option<PathBuf>> {
        self.disk(|_| Ok(None))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk(|disk| {
            Ok(disk
                .read(path, 0, u64::MAX)
                .ok_or(io::ErrorKind::NotFound)?)
        })
    }

    fn may(&self, path: &Path, access: AccessRequest) -> io::Result<()> {
        self.disk(|disk| match disk.names.file(path) {
            Some(file) => disk.files[file].check_access(access),
            None if disk.names.is_directory(path) => Ok(()),
            None => Err(io::ErrorKind::NotFound.into()),
        })
    }

    fn file_system(&self, path: &Path) -> io::Result<FileSystem> {
        self.look(path)?;
        // As XFS, which has no limit that matters.
        Ok(FileSystem {
            kind: 0x5846_5342,
            block_bytes: 4096,
        })
    }

    fn read_start(&self, path: &Path, len: usize) -> io::Result<(PathInfo, Vec<u8>)> {
        self.disk(|disk| {
            let file = disk.names.file(path).ok_or(io::ErrorKind::NotFound)?;
            let state = &disk.files[file];
            state.check_access(AccessRequest {
                read: true,
                ..AccessRequest::default()
            })?;
            let mut bytes = vec![0; len.min(state.current.len() as usize)];
            state.current.read(0, &mut bytes);
            Ok((disk.look(file), bytes))
        })
    }

    fn loop_of(&self, _: &Path) -> Option<LoopDevice> {
        None
    }

    fn lock_holder(&self, path: &Path) -> Option<u32> {
        let mut state = self.state.borrow_mut();
        state.settle();
        let file = state.hosts[self.host.0].disk.names.file(path)?;
        let mut open = state.files.values();
        let is_locked =
            open.any(|open| (open.host, open.file) == (self.host, file) && open.options.lock);
        // All software of a machine is one process.
        is_locked.then(std::process::id)
    }

    fn is_blank(&self, path: &Path) -> io::Result<bool> {
        self.disk(|disk| {
            let file = disk.names.file(path).ok_or(io::ErrorKind::NotFound)?;
            let content = &disk.files[file].current;
            let hole = content.extent(0);
            let first = if hole.is_allocated { 0 } else { hole.end };
            let len = content.len().saturating_sub(first);
            let mut tail = vec![0; len.min(TAIL_BYTES_MAX) as usize];
            content.read(first, &mut tail);
            Ok(len <= TAIL_BYTES_MAX && tail.iter().all(|&byte| byte == 0))
        })
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        self.disk(|disk| match disk.names.is_directory(directory) {
            true => Ok(disk.names.list(directory)),
            false => Err(io::ErrorKind::NotFound.into()),
        })
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.fail_at(FaultKind::Create, path)?;
        self.disk(|disk| {
            if disk.names.file(path).is_some() {
                disk.take_step()?;
                disk.names.change(NameChange::Unlink(normal(path)));
            }
            if !disk.names.has_place_for(path) {
                return Err(io::ErrorKind::NotFound.into());
            }
            disk.take_step()?;
            let file = disk.create(path);
            disk.take_step()?;
            disk.rewrite(file, bytes);
            disk.take_step()?;
            disk.sync_file(file);
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk(|disk| {
            let (from, to) = (normal(from), normal(to));
            disk.names.file(&from).ok_or(io::ErrorKind::NotFound)?;
            if from.parent() != to.parent() {
                return Err(io::ErrorKind::Unsupported.into());
            }
            disk.take_step()?;
            disk.names.change(NameChange::Rename(from, to));
            Ok(())
        })
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.disk(|disk| {
            if disk.names.is_directory(path) || disk.names.file(path).is_some() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            if !disk.names.has_place_for(path) {
                return Err(io::ErrorKind::NotFound.into());
            }
            disk.take_step()?;
            disk.names.change(NameChange::MakeDirectory(normal(path)));
            Ok(())
        })
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.fail_at(FaultKind::Settle, path)?;
        self.disk(|disk| {
            let file = disk.names.file(path);
            if file.is_none() && !disk.names.is_directory(path) {
                return Err(io::ErrorKind::NotFound.into());
            }
            disk.take_step()?;
            match file {
                Some(file) => disk.sync_file(file),
                None => disk.names.sync_directory(path),
            }
            Ok(())
        })
    }

    fn mark(&self, path: &Path, which: FileMark) -> io::Result<Option<Vec<u8>>> {
        self.disk(|disk| match disk.names.file(path) {
            Some(file) => Ok(disk.files[file].marks[which as usize].clone()),
            None => Err(io::ErrorKind::NotFound.into()),
        })
    }

    fn set_mark(&self, path: &Path, which: FileMark, mark: &[u8]) -> io::Result<()> {
        self.waits_for_disk();
        let state = &mut *self.state.borrow_mut();
        let (disk, occurred) = (&mut state.hosts[self.host.0].disk, &mut state.occurred);
        disk.has_power()?;
        let file = disk.names.file(path).ok_or(io::ErrorKind::NotFound)?;
        disk.take_step()?;
        if let Some(errno) = disk.fault(FaultKind::Mark, file, &(0..u64::MAX), occurred) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        disk.files[file].marks[which as usize] = Some(mark.to_vec());
        Ok(())
    }

    fn remove_mark(&self, file: &Handle, which: FileMark) -> io::Result<()> {
        self.waits_for_disk();
        self.state.borrow_mut().remove_mark(file.raw, which)
    }
}
