//! The part of a reply that precedes its payload. With structured replies negotiated, reads and errors are sent as
//! chunks; all other replies stay simple, which is shorter.

use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::{
    error::ErrorCode,
    wire::{
        ChunkHeader, SIMPLE_REPLY_MAGIC, STRING_MAX_BYTES, STRUCTURED_REPLY_MAGIC,
        SimpleReplyHeader, chunk, context,
    },
};

/// The bytes of a reply, without its payload.
pub type ReplyBytes = SmallVec<[u8; 32]>;

/// The allocation status of a range of the export (`base:allocation`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationExtent {
    /// Length in bytes, above zero.
    pub len_bytes: u32,
    /// Whether the range takes no space.
    pub is_hole: bool,
    /// Whether the range reads as zeroes.
    pub is_zero: bool,
}

impl AllocationExtent {
    fn flags(self) -> u32 {
        let hole = if self.is_hole { context::HOLE } else { 0 };
        let zero = if self.is_zero { context::ZERO } else { 0 };
        hole | zero
    }
}

/// A simple reply; `error` is `None` for success.
pub(crate) fn simple(cookie: u64, error: Option<ErrorCode>) -> ReplyBytes {
    let header = SimpleReplyHeader {
        magic: SIMPLE_REPLY_MAGIC.into(),
        error: error.map_or(0, |error| error as u32).into(),
        cookie: cookie.into(),
    };
    ReplyBytes::from_slice(header.as_bytes())
}

/// The start of a reply's only chunk, of type `kind`; `len` bytes of chunk payload follow.
fn chunk(cookie: u64, kind: u16, len: u32) -> ReplyBytes {
    let header = ChunkHeader {
        magic: STRUCTURED_REPLY_MAGIC.into(),
        flags: chunk::DONE.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        len: len.into(),
    };
    ReplyBytes::from_slice(header.as_bytes())
}

/// A data chunk, which `len` bytes from offset `at` of the export follow.
pub(crate) fn data(cookie: u64, at: u64, len: u32) -> ReplyBytes {
    let offset = at.to_be_bytes();
    let mut reply = chunk(cookie, chunk::OFFSET_DATA, len + offset.len() as u32);
    reply.extend_from_slice(&offset);
    reply
}

/// An error chunk; `message` explains the error to people.
pub(crate) fn error(cookie: u64, error: ErrorCode, message: &str) -> ReplyBytes {
    let message = shortened(message).as_bytes();
    let mut reply = chunk(cookie, chunk::ERROR, 6 + message.len() as u32);
    reply.extend_from_slice(&(error as u32).to_be_bytes());
    reply.extend_from_slice(&(message.len() as u16).to_be_bytes());
    reply.extend_from_slice(message);
    reply
}

/// A block status chunk, one descriptor per extent.
pub(crate) fn block_status(cookie: u64, extents: &[AllocationExtent]) -> ReplyBytes {
    let mut reply = chunk(cookie, chunk::BLOCK_STATUS, 4 + 8 * extents.len() as u32);
    reply.extend_from_slice(&context::ALLOCATION_ID.to_be_bytes());
    for extent in extents {
        reply.extend_from_slice(&extent.len_bytes.to_be_bytes());
        reply.extend_from_slice(&extent.flags().to_be_bytes());
    }
    reply
}

/// `message`, cut to the maximum length of a string.
pub(crate) fn shortened(message: &str) -> &str {
    let mut end = message.len().min(STRING_MAX_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}
