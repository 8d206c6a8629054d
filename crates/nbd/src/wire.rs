//! The numbers and headers of the protocol, as the specification has them. All numbers are big-endian.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::big_endian::{U16, U32, U64},
};

/// How a server begins: "NBDMAGIC".
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// How options begin, and what makes the handshake a newstyle one: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// How replies to options begin.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// How requests begin.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// How simple replies begin.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// How the chunks of a structured reply begin.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// The longest string, in bytes.
pub const STRING_MAX_BYTES: usize = 4096;

/// Handshake flags of the server; those of the client have the same numbers.
pub mod handshake {
    /// `NBD_FLAG_FIXED_NEWSTYLE`: options other than the export's name have replies.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// `NBD_FLAG_NO_ZEROES`: the reply to the export's name goes without 124 bytes of padding.
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

/// Transmission flags: what an export can do.
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
    /// `NBD_REPLY_FLAG_DONE`: the last one.
    pub const DONE: u16 = 1;
    /// `NBD_REPLY_TYPE_OFFSET_DATA`
    pub const OFFSET_DATA: u16 = 1;
    /// `NBD_REPLY_TYPE_BLOCK_STATUS`
    pub const BLOCK_STATUS: u16 = 5;
    /// `NBD_REPLY_TYPE_ERROR`
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// The one metadata context that there is.
pub mod context {
    /// Whether blocks take space.
    pub const ALLOCATION: &str = "base:allocation";
    /// Its namespace alone, which selects nothing and lists all.
    pub const BASE: &str = "base:";
    /// Its number here.
    pub const ALLOCATION_ID: u32 = 1;
    /// `NBD_STATE_HOLE`
    pub const HOLE: u32 = 1;
    /// `NBD_STATE_ZERO`
    pub const ZERO: u32 = 2;
}

/// What comes before the data of an option.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    /// [`OPTION_MAGIC`]
    pub magic: U64,
    /// Which: [`option`].
    pub option: U32,
    /// Bytes of data.
    pub len: U32,
}

/// What comes before the data of a reply to an option.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionReplyHeader {
    /// [`OPTION_REPLY_MAGIC`]
    pub magic: U64,
    /// The option that it is for.
    pub option: U32,
    /// Its type: [`option_reply`].
    pub kind: U32,
    /// Bytes of data.
    pub len: U32,
}

/// A request; the data of a write follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// [`REQUEST_MAGIC`]
    pub magic: U32,
    /// [`command_flag`]
    pub flags: U16,
    /// [`command`]
    pub kind: U16,
    /// What the client knows it by.
    pub cookie: U64,
    /// Where, in bytes.
    pub offset: U64,
    /// How long, in bytes.
    pub len: U32,
}

/// A simple reply; the data of a read follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SimpleReplyHeader {
    /// [`SIMPLE_REPLY_MAGIC`]
    pub magic: U32,
    /// An [`ErrorCode`](crate::ErrorCode), or 0.
    pub error: U32,
    /// The request's.
    pub cookie: U64,
}

/// A chunk of a structured reply; what it has follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChunkHeader {
    /// [`STRUCTURED_REPLY_MAGIC`]
    pub magic: U32,
    /// [`chunk::DONE`], or 0.
    pub flags: U16,
    /// [`chunk`]
    pub kind: U16,
    /// The request's.
    pub cookie: U64,
    /// Bytes that follow.
    pub len: U32,
}
