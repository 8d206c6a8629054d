//! Protocol data units: the Basic Header Segment of every PDU in RFC 7143 §11 as a 48-byte wire structure, read in
//! place. Each role parses headers into [`RequestPdu`] or [`ResponsePdu`]; a header is parsed once into the structure
//! of its opcode and read only through that.

mod ahs;
mod request;
mod response;

pub(crate) use ahs::AdditionalHeaders;
pub use request::{
    DataOut, LoginRequest, LogoutRequest, NopOut, RequestPdu, ScsiCommand, TaskManagementRequest,
    TextRequest,
};
pub use response::{
    AsyncMessage, DataIn, LoginResponse, LogoutResponse, NopIn, R2t, Reject, ResponsePdu,
    ScsiResponse, TaskManagementResponse, TextResponse,
};
pub(crate) use response::{
    BIDIRECTIONAL_OVERFLOW, BIDIRECTIONAL_UNDERFLOW, Numbers, OVERFLOW, STATUS, UNDERFLOW,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_ref};

/// Length of a Basic Header Segment in bytes.
pub const BHS_LEN: usize = 48;

/// The reserved tag: no task, no transfer (RFC 7143 §11.2.1.8).
pub const RESERVED_TAG: u32 = 0xffff_ffff;

/// The F bit, first of byte 1 in most PDUs; always 1 in PDUs that have no use for it.
pub const FINAL: u8 = 0x80;
/// The C bit of login and text PDUs: the text continues in the next PDU (RFC 7143 §11.10.2).
pub const CONTINUE: u8 = 0x40;

/// Opcodes (RFC 7143 §11.2.1.2), without the I bit.
pub mod opcode {
    #![expect(missing_docs, reason = "the names are those of the RFC's PDUs")]
    pub const NOP_OUT: u8 = 0x00;
    pub const SCSI_COMMAND: u8 = 0x01;
    pub const TASK_MANAGEMENT_REQUEST: u8 = 0x02;
    pub const LOGIN_REQUEST: u8 = 0x03;
    pub const TEXT_REQUEST: u8 = 0x04;
    pub const SCSI_DATA_OUT: u8 = 0x05;
    pub const LOGOUT_REQUEST: u8 = 0x06;
    pub const SNACK_REQUEST: u8 = 0x10;
    pub const NOP_IN: u8 = 0x20;
    pub const SCSI_RESPONSE: u8 = 0x21;
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const TEXT_RESPONSE: u8 = 0x24;
    pub const SCSI_DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const R2T: u8 = 0x31;
    pub const ASYNC_MESSAGE: u8 = 0x32;
    pub const REJECT: u8 = 0x3f;
    /// The I bit of requests: immediate delivery.
    pub const IMMEDIATE: u8 = 0x40;
}

/// Why a Reject was sent (RFC 7143 §11.17.1).
pub mod reject_reason {
    #![expect(missing_docs, reason = "the names are those of the RFC's table")]
    pub const DATA_DIGEST_ERROR: u8 = 0x02;
    pub const SNACK_REJECT: u8 = 0x03;
    pub const PROTOCOL_ERROR: u8 = 0x04;
    pub const COMMAND_NOT_SUPPORTED: u8 = 0x05;
    pub const IMMEDIATE_COMMAND_REJECT: u8 = 0x06;
    pub const TASK_IN_PROGRESS: u8 = 0x07;
    pub const INVALID_DATA_ACK: u8 = 0x08;
    pub const INVALID_PDU_FIELD: u8 = 0x09;
    pub const LONG_OPERATION_REJECT: u8 = 0x0a;
    pub const WAITING_FOR_LOGOUT: u8 = 0x0c;
}

/// The fields common to all headers (RFC 7143 §11.2.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Bhs {
    /// Opcode in the low six bits; bit 6 is the I bit of requests.
    pub opcode_byte: u8,
    /// The F bit, and opcode-specific flags.
    pub flags: u8,
    /// Opcode-specific.
    pub specific: [u8; 2],
    /// TotalAHSLength in units of four bytes.
    pub total_ahs_length_words: u8,
    data_segment_length: [u8; 3],
    /// A LUN, or opcode-specific.
    pub lun: [u8; 8],
    /// Initiator Task Tag.
    pub initiator_task_tag: [u8; 4],
    /// Opcode-specific.
    pub rest: [u8; 28],
}

impl Bhs {
    /// Reads the common fields of a header in place.
    pub fn of(bytes: &[u8; BHS_LEN]) -> &Bhs {
        transmute_ref!(bytes)
    }

    /// The opcode without the I bit.
    pub fn opcode(&self) -> u8 {
        self.opcode_byte & 0x3f
    }

    /// Length of the data segment in bytes, without padding, below 2^24.
    pub fn data_segment_length(&self) -> u32 {
        read_u24(self.data_segment_length)
    }
}

fn read_u24([a, b, c]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, a, b, c])
}

/// The DataSegmentLength field for `len` bytes; the machines never build more than 2^24 - 1.
pub(crate) fn u24(len: usize) -> [u8; 3] {
    let [_, a, b, c] = (len as u32).to_be_bytes();
    [a, b, c]
}

/// ExpStatSN, which is at the same offset in every request of full feature phase.
pub(crate) fn exp_stat_sn(bhs: &[u8; BHS_LEN]) -> u32 {
    let [.., a, b, c, d] = *bhs.first_chunk::<32>().expect("a header has 48 bytes");
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests;
