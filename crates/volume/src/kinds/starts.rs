//! What files and devices hold at their starts, before anything is opened: each is read once, however many volumes
//! and questions need it.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    rc::Rc,
};

use engine::store;

use crate::envelope::BLOCK_BYTES;

/// The starts that were read so far. To ask for another one waits for its disk.
#[derive(Debug, Default)]
pub struct Starts(RefCell<HashMap<PathBuf, Start>>);

/// What is at a path.
#[derive(Clone, Debug)]
pub(crate) enum Start {
    /// No file, or an empty one.
    Nothing,
    /// What cannot be read, or is no file and no device.
    Unknown,
    Block {
        /// The first one, or as much of it as there is.
        block: Rc<[u8]>,
        /// Of a file.
        file_len_bytes: Option<u64>,
    },
}

impl Starts {
    /// What is at `path`, now or when it was asked for first.
    pub(crate) fn of(&self, path: &Path) -> Start {
        let mut known = self.0.borrow_mut();
        let start = known.entry(path.to_owned());
        start.or_insert_with(|| Start::read(path)).clone()
    }
}

impl Start {
    fn read(path: &Path) -> Start {
        let file_len_bytes = match store::look(path).map(|look| (look.kind, look.len_bytes)) {
            Ok((store::Kind::File, 0)) => return Start::Nothing,
            Ok((store::Kind::File, len_bytes)) => Some(len_bytes),
            Ok((store::Kind::BlockDevice { .. }, _)) => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Start::Nothing,
            _ => return Start::Unknown,
        };
        match store::read_start(path, BLOCK_BYTES) {
            Ok(block) => Start::Block {
                block: block.into(),
                file_len_bytes,
            },
            Err(_) => Start::Unknown,
        }
    }
}
