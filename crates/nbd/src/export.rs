//! The export: one disk, served under one name.

use crate::wire::transmission;

/// The size constraints of an export (`NBD_INFO_BLOCK_SIZE`), in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of this; a power of two, at most 65,536.
    pub minimum: u32,
    /// The preferred I/O size; a power of two, at least 512 and at least `minimum`.
    pub preferred: u32,
    /// The maximum length of a read or write.
    pub payload_max: u32,
}

/// An export. Clients may also reach it under the empty name, that of the default export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Its length, in bytes.
    pub len_bytes: u64,
    /// Its size constraints.
    pub block: BlockSizes,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Whether `NBD_CMD_TRIM` is offered.
    pub can_trim: bool,
}

impl Export {
    /// Whether a client that asks for `name` means this export.
    pub(crate) fn is_called(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The transmission flags, with NBD_FLAG_CAN_MULTI_CONN: a flush covers writes over all connections.
    pub(crate) fn flags(&self, is_structured: bool) -> u16 {
        let mut flags = transmission::HAS_FLAGS
            | transmission::SEND_FLUSH
            | transmission::SEND_FUA
            | transmission::CAN_MULTI_CONN
            | transmission::SEND_CACHE;
        if is_structured {
            flags |= transmission::SEND_DF;
        }
        if self.is_read_only {
            return flags | transmission::READ_ONLY;
        }
        if self.can_trim {
            flags |= transmission::SEND_TRIM;
        }
        flags | transmission::SEND_WRITE_ZEROES
    }
}
