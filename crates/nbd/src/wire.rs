//! The constants and headers of the protocol, as defined by the specification. All numbers are big-endian.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::big_endian::{U16, U32, U64},
};

/// Magic number of the server's greeting: "NBDMAGIC".
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Magic number of options, which also marks the handshake as newstyle: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Magic number of replies to options.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic number of requests.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic number of simple replies.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic number of structured reply chunks.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// The maximum length of a string, in bytes.
pub const STRING_MAX_BYTES: usize = 4096;

/// Handshake flags of the server; the client's flags have the same values.
pub mod handshake {
    /// `NBD_FLAG_FIXED_NEWSTYLE`: options other than NBD_OPT_EXPORT_NAME get replies.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// `NBD_FLAG_NO_ZEROES`: the reply to NBD_OPT_EXPORT_NAME omits 124 bytes of padding.
    pub const NO_ZEROES: u16 = 2;
}

/// Options.
pub mod option {
    /// `NBD_OPT_EXPORT_NAME`
    pub const EXPORT_NAME: u32 = 1;
    /// `NBD_OPT_ABORT`
    pub const ABORT: u32 = 2;
    /// `NBD_OPT_LIST`
    pub const LIST: u32 = 3;
    /// `NBD_OPT_STARTTLS`
    pub const STARTTLS: u32 = 5;
    /// `NBD_OPT_INFO`
    pub const INFO: u32 = 6;
    /// `NBD_OPT_GO`
    pub const GO: u32 = 7;
    /// `NBD_OPT_STRUCTURED_REPLY`
    pub const STRUCTURED_REPLY: u32 = 8;
    /// `NBD_OPT_LIST_META_CONTEXT`
    pub const LIST_META_CONTEXT: u32 = 9;
    /// `NBD_OPT_SET_META_CONTEXT`
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod option_reply {
    /// `NBD_REP_ACK`
    pub const ACK: u32 = 1;
    /// `NBD_REP_SERVER`
    pub const SERVER: u32 = 2;
    /// `NBD_REP_INFO`
    pub const INFO: u32 = 3;
    /// `NBD_REP_META_CONTEXT`
    pub const META_CONTEXT: u32 = 4;
    /// `NBD_REP_ERR_UNSUP`
    pub const UNSUPPORTED: u32 = 1 << 31 | 1;
    /// `NBD_REP_ERR_POLICY`
    pub const POLICY: u32 = 1 << 31 | 2;
    /// `NBD_REP_ERR_INVALID`
    pub const INVALID: u32 = 1 << 31 | 3;
    /// `NBD_REP_ERR_TLS_REQD`
    pub const TLS_REQUIRED: u32 = 1 << 31 | 5;
    /// `NBD_REP_ERR_UNKNOWN`
    pub const UNKNOWN: u32 = 1 << 31 | 6;
    /// `NBD_REP_ERR_TOO_BIG`
    pub const TOO_BIG: u32 = 1 << 31 | 9;
}

/// Kinds of information about an export.
pub mod info {
    /// `NBD_INFO_EXPORT`
    pub const EXPORT: u16 = 0;
    /// `NBD_INFO_NAME`
    pub const NAME: u16 = 1;
    /// `NBD_INFO_BLOCK_SIZE`
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: the capabilities of an export.
pub mod transmission {
    /// `NBD_FLAG_HAS_FLAGS`
    pub const HAS_FLAGS: u16 = 1;
    /// `NBD_FLAG_READ_ONLY`
    pub const READ_ONLY: u16 = 1 << 1;
    /// `NBD_FLAG_SEND_FLUSH`
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `NBD_FLAG_SEND_FUA`
    pub const SEND_FUA: u16 = 1 << 3;
    /// `NBD_FLAG_SEND_TRIM`
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `NBD_FLAG_SEND_WRITE_ZEROES`
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `NBD_FLAG_SEND_DF`
    pub const SEND_DF: u16 = 1 << 7;
    /// `NBD_FLAG_CAN_MULTI_CONN`
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `NBD_FLAG_SEND_CACHE`
    pub const SEND_CACHE: u16 = 1 << 10;
}

/// Types of requests.
pub mod command {
    /// `NBD_CMD_READ`
    pub const READ: u16 = 0;
    /// `NBD_CMD_WRITE`
    pub const WRITE: u16 = 1;
    /// `NBD_CMD_DISC`
    pub const DISC: u16 = 2;
    /// `NBD_CMD_FLUSH`
    pub const FLUSH: u16 = 3;
    /// `NBD_CMD_TRIM`
    pub const TRIM: u16 = 4;
    /// `NBD_CMD_CACHE`
    pub const CACHE: u16 = 5;
    /// `NBD_CMD_WRITE_ZEROES`
    pub const WRITE_ZEROES: u16 = 6;
    /// `NBD_CMD_BLOCK_STATUS`
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// `NBD_CMD_FLAG_FUA`
    pub const FUA: u16 = 1;
    /// `NBD_CMD_FLAG_NO_HOLE`
    pub const NO_HOLE: u16 = 1 << 1;
    /// `NBD_CMD_FLAG_DF`
    pub const DF: u16 = 1 << 2;
    /// `NBD_CMD_FLAG_REQ_ONE`
    pub const REQ_ONE: u16 = 1 << 3;
}

/// Flags and types of the chunks of structured replies.
pub mod chunk {
    /// `NBD_REPLY_FLAG_DONE`: the last chunk.
    pub const DONE: u16 = 1;
    /// `NBD_REPLY_TYPE_OFFSET_DATA`
    pub const OFFSET_DATA: u16 = 1;
    /// `NBD_REPLY_TYPE_BLOCK_STATUS`
    pub const BLOCK_STATUS: u16 = 5;
    /// `NBD_REPLY_TYPE_ERROR`
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// The only metadata context supported.
pub mod context {
    /// Reports whether blocks take space.
    pub const ALLOCATION: &str = "base:allocation";
    /// The namespace alone, which selects nothing and lists everything.
    pub const BASE: &str = "base:";
    /// The ID this server assigns to it.
    pub const ALLOCATION_ID: u32 = 1;
    /// `NBD_STATE_HOLE`
    pub const HOLE: u32 = 1;
    /// `NBD_STATE_ZERO`
    pub const ZERO: u32 = 2;
}

/// The header of an option; its data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    /// [`OPTION_MAGIC`]
    pub magic: U64,
    /// Option number: [`option`].
    pub option: U32,
    /// Length of the data, in bytes.
    pub len: U32,
}

/// The header of a reply to an option; its data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionReplyHeader {
    /// [`OPTION_REPLY_MAGIC`]
    pub magic: U64,
    /// The option it answers.
    pub option: U32,
    /// Reply type: [`option_reply`].
    pub kind: U32,
    /// Length of the data, in bytes.
    pub len: U32,
}

/// The header of a request; the data of a write follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// [`REQUEST_MAGIC`]
    pub magic: U32,
    /// [`command_flag`]
    pub flags: U16,
    /// [`command`]
    pub kind: U16,
    /// The client's identifier for the request, echoed in its replies.
    pub cookie: U64,
    /// Offset, in bytes.
    pub offset: U64,
    /// Length, in bytes.
    pub len: U32,
}

/// The header of a simple reply; the data of a read follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SimpleReplyHeader {
    /// [`SIMPLE_REPLY_MAGIC`]
    pub magic: U32,
    /// An [`ErrorCode`](crate::ErrorCode), or 0.
    pub error: U32,
    /// The request's cookie.
    pub cookie: U64,
}

/// The header of a structured reply chunk; its payload follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChunkHeader {
    /// [`STRUCTURED_REPLY_MAGIC`]
    pub magic: U32,
    /// [`chunk::DONE`], or 0.
    pub flags: U16,
    /// [`chunk`]
    pub kind: U16,
    /// The request's cookie.
    pub cookie: U64,
    /// Length of the payload, in bytes.
    pub len: U32,
}
