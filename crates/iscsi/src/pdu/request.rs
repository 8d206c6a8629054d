//! Headers sent by initiators. Fields are big-endian on the wire and named as in RFC 7143.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_ref};

use super::{BHS_LEN, Bhs, opcode};
use crate::error::Error;

/// Defines a wire structure of one Basic Header Segment; the compiler checks its length.
macro_rules! header {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        #[expect(missing_docs, reason = "fields are named as in the figure cited above")]
        pub struct $name {
            $(pub $field: $type,)*
        }

        impl $name {
            /// The header as sent on the wire.
            pub fn to_bytes(self) -> [u8; BHS_LEN] {
                zerocopy::transmute!(self)
            }
        }
    };
}
pub(super) use header;

header! {
    /// SCSI Command (RFC 7143 §11.3). `flags`: F 0x80, R 0x40, W 0x20, task attribute 0x07.
    ScsiCommand {
        opcode: u8, flags: u8, asks: u8, reserved: u8, total_ahs_length: u8,
        data_segment_length: [u8; 3], lun: U64, initiator_task_tag: U32,
        expected_data_transfer_length: U32, cmd_sn: U32, exp_stat_sn: U32, cdb: [u8; 16],
    }
}

impl ScsiCommand {
    /// R bit: data is expected from the target.
    pub const READ: u8 = 0x40;
    /// W bit: data is sent to the target.
    pub const WRITE: u8 = 0x20;
    /// Mask of the task attribute: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
    pub const ATTRIBUTE: u8 = 0x07;
    /// A bit of `asks`, a byte that the RFC reserves, used only if both ends have agreed to it: the status must carry
    /// [`StageTimes`](crate::StageTimes).
    pub const STAGE_TIMES: u8 = 0x01;
}

header! {
    /// Task Management Function Request (RFC 7143 §11.5). `function`: 0x80 | function code.
    TaskManagementRequest {
        opcode: u8, function: u8, reserved: [u8; 2], total_ahs_length: u8,
        data_segment_length: [u8; 3], lun: U64, initiator_task_tag: U32,
        referenced_task_tag: U32, cmd_sn: U32, exp_stat_sn: U32, ref_cmd_sn: U32,
        exp_data_sn: U32, reserved2: [u8; 8],
    }
}

header! {
    /// SCSI Data-Out (RFC 7143 §11.7).
    DataOut {
        opcode: u8, flags: u8, reserved: [u8; 2], total_ahs_length: u8,
        data_segment_length: [u8; 3], lun: U64, initiator_task_tag: U32,
        target_transfer_tag: U32, reserved2: [u8; 4], exp_stat_sn: U32, reserved3: [u8; 4],
        data_sn: U32, buffer_offset: U32, reserved4: [u8; 4],
    }
}

header! {
    /// Text Request (RFC 7143 §11.10). `flags`: F 0x80, C 0x40.
    TextRequest {
        opcode: u8, flags: u8, reserved: [u8; 2], total_ahs_length: u8,
        data_segment_length: [u8; 3], lun: U64, initiator_task_tag: U32,
        target_transfer_tag: U32, cmd_sn: U32, exp_stat_sn: U32, reserved2: [u8; 16],
    }
}

header! {
    /// Login Request (RFC 7143 §11.12). `flags`: T 0x80, C 0x40, CSG 0x0c, NSG 0x03.
    LoginRequest {
        opcode: u8, flags: u8, version_max: u8, version_min: u8, total_ahs_length: u8,
        data_segment_length: [u8; 3], isid: [u8; 6], tsih: U16, initiator_task_tag: U32,
        cid: U16, reserved: [u8; 2], cmd_sn: U32, exp_stat_sn: U32, reserved2: [u8; 16],
    }
}

header! {
    /// Logout Request (RFC 7143 §11.14). `reason`: 0x80 | reason code.
    LogoutRequest {
        opcode: u8, reason: u8, reserved: [u8; 2], total_ahs_length: u8,
        data_segment_length: [u8; 3], reserved2: [u8; 8], initiator_task_tag: U32,
        cid: U16, reserved3: [u8; 2], cmd_sn: U32, exp_stat_sn: U32, reserved4: [u8; 16],
    }
}

header! {
    /// NOP-Out (RFC 7143 §11.18).
    NopOut {
        opcode: u8, flags: u8, reserved: [u8; 2], total_ahs_length: u8,
        data_segment_length: [u8; 3], lun: U64, initiator_task_tag: U32,
        target_transfer_tag: U32, cmd_sn: U32, exp_stat_sn: U32, reserved2: [u8; 16],
    }
}

/// A parsed header from an initiator.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "each variant is the structure it holds")]
pub enum RequestPdu<'a> {
    NopOut(&'a NopOut),
    ScsiCommand(&'a ScsiCommand),
    TaskManagement(&'a TaskManagementRequest),
    Login(&'a LoginRequest),
    Text(&'a TextRequest),
    DataOut(&'a DataOut),
    Logout(&'a LogoutRequest),
    /// SNACK Request (RFC 7143 §11.16); always rejected at ErrorRecoveryLevel 0.
    Snack,
}

impl<'a> RequestPdu<'a> {
    /// Parses a header by its opcode; reserved bits are ignored, as §11.2 asks of receivers.
    ///
    /// # Errors
    /// [`Error::UnexpectedOpcode`] if no initiator sends such a PDU.
    pub fn parse(bytes: &'a [u8; BHS_LEN]) -> Result<RequestPdu<'a>, Error> {
        Ok(match Bhs::of(bytes).opcode() {
            opcode::NOP_OUT => RequestPdu::NopOut(transmute_ref!(bytes)),
            opcode::SCSI_COMMAND => RequestPdu::ScsiCommand(transmute_ref!(bytes)),
            opcode::TASK_MANAGEMENT_REQUEST => RequestPdu::TaskManagement(transmute_ref!(bytes)),
            opcode::LOGIN_REQUEST => RequestPdu::Login(transmute_ref!(bytes)),
            opcode::TEXT_REQUEST => RequestPdu::Text(transmute_ref!(bytes)),
            opcode::SCSI_DATA_OUT => RequestPdu::DataOut(transmute_ref!(bytes)),
            opcode::LOGOUT_REQUEST => RequestPdu::Logout(transmute_ref!(bytes)),
            opcode::SNACK_REQUEST => RequestPdu::Snack,
            opcode => {
                return Err(Error::UnexpectedOpcode {
                    opcode,
                    phase: "to a target",
                });
            }
        })
    }
}
