//! Headers sent by targets. Fields are big-endian on the wire and named as in RFC 7143.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_ref};

use super::request::header;
use super::{BHS_LEN, Bhs, opcode};
use crate::error::Error;

header! {
    /// SCSI Response (RFC 7143 §11.4). `flags`: 0x80 and the residual bits.
    ScsiResponse {
        opcode: u8, flags: u8, response: u8, status: u8, total_ahs_length: u8,
        data_segment_length: [u8; 3], reserved: [u8; 8], initiator_task_tag: U32,
        snack_tag: U32, stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, exp_data_sn: U32,
        bidirectional_read_residual_count: U32, residual_count: U32,
    }
}

/// O bit of a SCSI Response or Data-In: more data than expected would have been transferred.
pub(crate) const OVERFLOW: u8 = 0x04;
/// U bit of a SCSI Response or Data-In: less data than expected was transferred.
pub(crate) const UNDERFLOW: u8 = 0x02;
/// O bit for the read part of a bidirectional command.
pub(crate) const BIDIRECTIONAL_OVERFLOW: u8 = 0x10;
/// U bit for the read part of a bidirectional command.
pub(crate) const BIDIRECTIONAL_UNDERFLOW: u8 = 0x08;
/// S bit of a Data-In: it carries the command's status.
pub(crate) const STATUS: u8 = 0x01;

header! {
    /// Task Management Function Response (RFC 7143 §11.6).
    TaskManagementResponse {
        opcode: u8, flags: u8, response: u8, reserved: u8, total_ahs_length: u8,
        data_segment_length: [u8; 3], reserved2: [u8; 8], initiator_task_tag: U32,
        reserved3: [u8; 4], stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, reserved4: [u8; 12],
    }
}

header! {
    /// SCSI Data-In (RFC 7143 §11.7). `flags`: F 0x80, A 0x40, O 0x04, U 0x02, S 0x01.
    DataIn {
        opcode: u8, flags: u8, reserved: u8, status: u8, total_ahs_length: u8,
        data_segment_length: [u8; 3], lun: U64, initiator_task_tag: U32,
        target_transfer_tag: U32, stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, data_sn: U32,
        buffer_offset: U32, residual_count: U32,
    }
}

header! {
    /// Ready To Transfer (RFC 7143 §11.8).
    R2t {
        opcode: u8, flags: u8, reserved: [u8; 2], total_ahs_length: u8,
        data_segment_length: [u8; 3], lun: U64, initiator_task_tag: U32,
        target_transfer_tag: U32, stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, r2t_sn: U32,
        buffer_offset: U32, desired_data_transfer_length: U32,
    }
}

header! {
    /// Asynchronous Message (RFC 7143 §11.9).
    AsyncMessage {
        opcode: u8, flags: u8, reserved: [u8; 2], total_ahs_length: u8,
        data_segment_length: [u8; 3], lun: U64, tag: U32, reserved2: [u8; 4],
        stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, event: u8, vendor_code: u8,
        parameter1: U16, parameter2: U16, parameter3: U16, reserved3: [u8; 4],
    }
}

header! {
    /// Text Response (RFC 7143 §11.11). `flags`: F 0x80, C 0x40.
    TextResponse {
        opcode: u8, flags: u8, reserved: [u8; 2], total_ahs_length: u8,
        data_segment_length: [u8; 3], lun: U64, initiator_task_tag: U32,
        target_transfer_tag: U32, stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32,
        reserved2: [u8; 12],
    }
}

header! {
    /// Login Response (RFC 7143 §11.13). `flags` as in the request.
    LoginResponse {
        opcode: u8, flags: u8, version_max: u8, version_active: u8, total_ahs_length: u8,
        data_segment_length: [u8; 3], isid: [u8; 6], tsih: U16, initiator_task_tag: U32,
        reserved: [u8; 4], stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, status: U16,
        reserved2: [u8; 10],
    }
}

header! {
    /// Logout Response (RFC 7143 §11.15).
    LogoutResponse {
        opcode: u8, flags: u8, response: u8, reserved: u8, total_ahs_length: u8,
        data_segment_length: [u8; 3], reserved2: [u8; 8], initiator_task_tag: U32,
        reserved3: [u8; 4], stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, reserved4: [u8; 4],
        time2wait: U16, time2retain: U16, reserved5: [u8; 4],
    }
}

header! {
    /// Reject (RFC 7143 §11.17); the refused header follows as data.
    Reject {
        opcode: u8, flags: u8, reason: u8, reserved: u8, total_ahs_length: u8,
        data_segment_length: [u8; 3], reserved2: [u8; 8], tag: U32, reserved3: [u8; 4],
        stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, data_sn: U32, reserved4: [u8; 8],
    }
}

header! {
    /// NOP-In (RFC 7143 §11.19).
    NopIn {
        opcode: u8, flags: u8, reserved: [u8; 2], total_ahs_length: u8,
        data_segment_length: [u8; 3], lun: U64, initiator_task_tag: U32,
        target_transfer_tag: U32, stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32,
        reserved2: [u8; 12],
    }
}

/// StatSN, ExpCmdSN and MaxCmdSN are at the same offsets in every header from a target; this view reads and sets them
/// (Figure of §11.2 and each PDU's own).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Numbers {
    head: [u8; 24],
    pub(crate) stat_sn: U32,
    pub(crate) exp_cmd_sn: U32,
    pub(crate) max_cmd_sn: U32,
    tail: [u8; 12],
}

/// A parsed header from a target.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "each variant is the structure it holds")]
pub enum ResponsePdu<'a> {
    NopIn(&'a NopIn),
    ScsiResponse(&'a ScsiResponse),
    TaskManagement(&'a TaskManagementResponse),
    Login(&'a LoginResponse),
    Text(&'a TextResponse),
    DataIn(&'a DataIn),
    Logout(&'a LogoutResponse),
    R2t(&'a R2t),
    Async(&'a AsyncMessage),
    Reject(&'a Reject),
}

impl<'a> ResponsePdu<'a> {
    /// Parses a header by its opcode; reserved bits are ignored, as §11.2 asks of receivers.
    ///
    /// # Errors
    /// [`Error::UnexpectedOpcode`] if no target sends such a PDU.
    pub fn parse(bytes: &'a [u8; BHS_LEN]) -> Result<ResponsePdu<'a>, Error> {
        Ok(match Bhs::of(bytes).opcode() {
            opcode::NOP_IN => ResponsePdu::NopIn(transmute_ref!(bytes)),
            opcode::SCSI_RESPONSE => ResponsePdu::ScsiResponse(transmute_ref!(bytes)),
            opcode::TASK_MANAGEMENT_RESPONSE => ResponsePdu::TaskManagement(transmute_ref!(bytes)),
            opcode::LOGIN_RESPONSE => ResponsePdu::Login(transmute_ref!(bytes)),
            opcode::TEXT_RESPONSE => ResponsePdu::Text(transmute_ref!(bytes)),
            opcode::SCSI_DATA_IN => ResponsePdu::DataIn(transmute_ref!(bytes)),
            opcode::LOGOUT_RESPONSE => ResponsePdu::Logout(transmute_ref!(bytes)),
            opcode::R2T => ResponsePdu::R2t(transmute_ref!(bytes)),
            opcode::ASYNC_MESSAGE => ResponsePdu::Async(transmute_ref!(bytes)),
            opcode::REJECT => ResponsePdu::Reject(transmute_ref!(bytes)),
            opcode => {
                return Err(Error::UnexpectedOpcode {
                    opcode,
                    phase: "to an initiator",
                });
            }
        })
    }
}
