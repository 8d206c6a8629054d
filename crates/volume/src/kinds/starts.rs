//! The first block of each file or device, read before anything is opened. Each is read once, however many volumes
//! and checks need it.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    rc::Rc,
};

use engine::store;

use set::envelope::BLOCK_BYTES;

/// The first blocks read so far. Asking for a new one blocks on its disk.
#[derive(Debug, Default)]
pub struct Starts(RefCell<HashMap<PathBuf, Start>>);

/// What is at a path.
#[derive(Clone, Debug)]
pub(crate) enum Start {
    /// No file, or an empty one.
    Nothing,
    /// Something that cannot be read, or is neither a file nor a device.
    Unknown,
    Block {
        /// The first block, shorter if the file is.
        block: Rc<[u8]>,
        /// The length of a file; `None` for a device.
        file_len_bytes: Option<u64>,
    },
}

impl Starts {
    /// What is at `path`, as of the first call for it.
    pub(crate) fn of(&self, path: &Path) -> Start {
        let mut known = self.0.borrow_mut();
        let start = known.entry(path.to_owned());
        start.or_insert_with(|| Start::read(path)).clone()
    }
}

impl Start {
    fn read(path: &Path) -> Start {
        let file_len_bytes = match store::look(path).map(|look| (look.kind, look.len_bytes)) {
            Ok((store::PathKind::File, 0)) => return Start::Nothing,
            Ok((store::PathKind::File, len_bytes)) => Some(len_bytes),
            Ok((store::PathKind::BlockDevice { .. }, _)) => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Start::Nothing,
            _ => return Start::Unknown,
        };
        match store::read_start(path, BLOCK_BYTES) {
            Ok((_, block)) => Start::Block {
                block: block.into(),
                file_len_bytes,
            },
            Err(_) => Start::Unknown,
        }
    }
}
