//! The table of commands: operation code, service action, the CDB bits that are evaluated, and the decoder. It
//! dispatches CDBs to decoders, rejects unknown commands and invalid bits, and is the source of REPORT SUPPORTED
//! OPERATION CODES.

use crate::cdb::Cdb;
use crate::commands::opcode_table::{OpcodeTable, SupportedCommand};
use crate::commands::{
    Command, compare_and_write, extended_copy, get_lba_status, inquiry, log_sense, mode_select,
    mode_sense, pre_fetch, read_capacity, read_defect_data, read_write, report_luns,
    report_opcodes, report_port_groups, report_task_management, request_sense, reserve_in,
    reserve_out, reserve_release, sanitize, start_stop, synchronize_cache, test_unit_ready, unmap,
    verify, write_atomic, write_same, write_verify,
};
use crate::opcode;
use crate::sense::Sense;

const fn row(
    opcode: u8,
    usage: &'static [u8],
    decode: fn(&Cdb) -> Result<Command, Sense>,
) -> SupportedCommand {
    SupportedCommand {
        opcode,
        service_action: None,
        usage,
        decode,
        supported: |_| true,
    }
}

const fn action(
    opcode: u8,
    service_action: u8,
    usage: &'static [u8],
    decode: fn(&Cdb) -> Result<Command, Sense>,
) -> SupportedCommand {
    SupportedCommand {
        opcode,
        service_action: Some(service_action),
        usage,
        decode,
        supported: |_| true,
    }
}

const fn discard(row: SupportedCommand) -> SupportedCommand {
    SupportedCommand {
        supported: |shape| shape.discard.is_some(),
        ..row
    }
}

/// Every command, by operation code; the service actions of an opcode are adjacent.
pub(crate) static TABLE: OpcodeTable = OpcodeTable::new(&[
    row(
        opcode::TEST_UNIT_READY,
        usage::NONE_6,
        test_unit_ready::decode,
    ),
    row(
        opcode::REQUEST_SENSE,
        &[0x01, 0, 0, 0xFF, 0],
        request_sense::decode,
    ),
    row(
        opcode::READ_6,
        &[0x1F, 0xFF, 0xFF, 0xFF, 0],
        read_write::decode_read_6,
    ),
    row(
        opcode::WRITE_6,
        &[0x1F, 0xFF, 0xFF, 0xFF, 0],
        read_write::decode_write_6,
    ),
    row(
        opcode::INQUIRY,
        &[0x01, 0xFF, 0xFF, 0xFF, 0],
        inquiry::decode,
    ),
    row(
        opcode::MODE_SELECT_6,
        &[0x11, 0, 0, 0xFF, 0],
        mode_select::decode_6,
    ),
    row(
        opcode::RESERVE_6,
        usage::NONE_6,
        reserve_release::decode_reserve,
    ),
    row(
        opcode::RELEASE_6,
        usage::NONE_6,
        reserve_release::decode_release,
    ),
    row(
        opcode::MODE_SENSE_6,
        &[0x08, 0xFF, 0xFF, 0xFF, 0],
        mode_sense::decode_6,
    ),
    row(
        opcode::START_STOP_UNIT,
        &[0x01, 0, 0, 0xF7, 0],
        start_stop::decode,
    ),
    row(
        opcode::PREVENT_ALLOW_MEDIUM_REMOVAL,
        &[0, 0, 0, 0x01, 0],
        start_stop::decode_prevent,
    ),
    row(
        opcode::READ_CAPACITY_10,
        &[0, 0, 0, 0, 0, 0, 0, 0, 0],
        read_capacity::decode_10,
    ),
    row(
        opcode::READ_10,
        &usage::io_10(0x18),
        read_write::decode_read_10,
    ),
    row(
        opcode::WRITE_10,
        &usage::io_10(0x18),
        read_write::decode_write_10,
    ),
    row(
        opcode::WRITE_AND_VERIFY_10,
        &usage::io_10(0x12),
        write_verify::decode_10,
    ),
    row(opcode::VERIFY_10, &usage::io_10(0x16), verify::decode_10),
    row(
        opcode::PRE_FETCH_10,
        &usage::io_10(0x02),
        pre_fetch::decode_10,
    ),
    row(
        opcode::SYNCHRONIZE_CACHE_10,
        &usage::io_10(0x02),
        synchronize_cache::decode_10,
    ),
    row(
        opcode::READ_DEFECT_DATA_10,
        &[0, 0x1F, 0, 0, 0, 0, 0xFF, 0xFF, 0],
        read_defect_data::decode_10,
    ),
    row(
        opcode::WRITE_SAME_10,
        &usage::io_10(0x08),
        write_same::decode_10,
    ),
    discard(row(
        opcode::UNMAP,
        &[0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0],
        unmap::decode,
    )),
    action(
        opcode::SANITIZE,
        0x01,
        &usage::SANITIZE,
        sanitize::decode_overwrite,
    ),
    SupportedCommand {
        supported: sanitize::can_erase,
        ..action(
            opcode::SANITIZE,
            0x02,
            &usage::SANITIZE,
            sanitize::decode_block_erase,
        )
    },
    action(
        opcode::SANITIZE,
        0x1F,
        &usage::SANITIZE,
        sanitize::decode_exit,
    ),
    row(
        opcode::LOG_SENSE,
        &[0, 0x3F, 0xFF, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0],
        log_sense::decode,
    ),
    row(
        opcode::MODE_SELECT_10,
        &[0x11, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0],
        mode_select::decode_10,
    ),
    row(
        opcode::MODE_SENSE_10,
        &[0x18, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0],
        mode_sense::decode_10,
    ),
    action(
        opcode::PERSISTENT_RESERVE_IN,
        opcode::reserve_in::READ_KEYS,
        &usage::RESERVE_IN,
        reserve_in::decode_keys,
    ),
    action(
        opcode::PERSISTENT_RESERVE_IN,
        opcode::reserve_in::READ_RESERVATION,
        &usage::RESERVE_IN,
        reserve_in::decode_reservation,
    ),
    action(
        opcode::PERSISTENT_RESERVE_IN,
        opcode::reserve_in::REPORT_CAPABILITIES,
        &usage::RESERVE_IN,
        reserve_in::decode_capabilities,
    ),
    action(
        opcode::PERSISTENT_RESERVE_IN,
        opcode::reserve_in::READ_FULL_STATUS,
        &usage::RESERVE_IN,
        reserve_in::decode_full_status,
    ),
    action(
        opcode::PERSISTENT_RESERVE_OUT,
        opcode::reserve_out::REGISTER,
        &usage::RESERVE_OUT,
        reserve_out::decode,
    ),
    action(
        opcode::PERSISTENT_RESERVE_OUT,
        opcode::reserve_out::RESERVE,
        &usage::RESERVE_OUT,
        reserve_out::decode,
    ),
    action(
        opcode::PERSISTENT_RESERVE_OUT,
        opcode::reserve_out::RELEASE,
        &usage::RESERVE_OUT,
        reserve_out::decode,
    ),
    action(
        opcode::PERSISTENT_RESERVE_OUT,
        opcode::reserve_out::CLEAR,
        &usage::RESERVE_OUT,
        reserve_out::decode,
    ),
    action(
        opcode::PERSISTENT_RESERVE_OUT,
        opcode::reserve_out::PREEMPT,
        &usage::RESERVE_OUT,
        reserve_out::decode,
    ),
    action(
        opcode::PERSISTENT_RESERVE_OUT,
        opcode::reserve_out::PREEMPT_AND_ABORT,
        &usage::RESERVE_OUT,
        reserve_out::decode,
    ),
    action(
        opcode::PERSISTENT_RESERVE_OUT,
        opcode::reserve_out::REGISTER_AND_IGNORE_EXISTING_KEY,
        &usage::RESERVE_OUT,
        reserve_out::decode,
    ),
    action(
        opcode::PERSISTENT_RESERVE_OUT,
        opcode::reserve_out::REGISTER_AND_MOVE,
        &usage::RESERVE_OUT,
        reserve_out::decode,
    ),
    action(
        opcode::THIRD_PARTY_COPY_OUT,
        0x00,
        &usage::COPY,
        extended_copy::decode_lid1,
    ),
    action(
        opcode::THIRD_PARTY_COPY_OUT,
        0x01,
        &usage::COPY,
        extended_copy::decode_lid4,
    ),
    action(
        opcode::THIRD_PARTY_COPY_IN,
        0x00,
        &usage::COPY_RESULTS,
        extended_copy::decode_status,
    ),
    action(
        opcode::THIRD_PARTY_COPY_IN,
        0x03,
        &usage::COPY_RESULTS,
        extended_copy::decode_operating_parameters,
    ),
    action(
        opcode::THIRD_PARTY_COPY_IN,
        0x04,
        &usage::COPY_RESULTS,
        extended_copy::decode_failed_segment,
    ),
    action(
        opcode::THIRD_PARTY_COPY_IN,
        0x05,
        &usage::COPY_RESULTS_LONG,
        extended_copy::decode_status_long,
    ),
    row(
        opcode::READ_16,
        &usage::io_16(0x18),
        read_write::decode_read_16,
    ),
    SupportedCommand {
        supported: |shape| shape.compare_write_blocks_max > 0,
        ..row(
            opcode::COMPARE_AND_WRITE,
            &usage::COMPARE_AND_WRITE,
            compare_and_write::decode,
        )
    },
    row(
        opcode::WRITE_16,
        &usage::io_16(0x18),
        read_write::decode_write_16,
    ),
    row(
        opcode::OR_WRITE_16,
        &usage::io_16(0x18),
        read_write::decode_or_write_16,
    ),
    row(
        opcode::WRITE_AND_VERIFY_16,
        &usage::io_16(0x12),
        write_verify::decode_16,
    ),
    row(opcode::VERIFY_16, &usage::io_16(0x16), verify::decode_16),
    row(
        opcode::PRE_FETCH_16,
        &usage::io_16(0x02),
        pre_fetch::decode_16,
    ),
    row(
        opcode::SYNCHRONIZE_CACHE_16,
        &usage::io_16(0x02),
        synchronize_cache::decode_16,
    ),
    row(
        opcode::WRITE_SAME_16,
        &usage::io_16(0x09),
        write_same::decode_16,
    ),
    SupportedCommand {
        supported: |shape| shape.atomic_blocks_max > 0,
        ..row(
            opcode::WRITE_ATOMIC_16,
            &usage::WRITE_ATOMIC,
            write_atomic::decode_16,
        )
    },
    action(
        opcode::SERVICE_ACTION_IN_16,
        opcode::service_action_in_16::READ_CAPACITY,
        &[0x1F, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        read_capacity::decode_16,
    ),
    discard(action(
        opcode::SERVICE_ACTION_IN_16,
        opcode::service_action_in_16::GET_LBA_STATUS,
        &usage::GET_LBA_STATUS,
        get_lba_status::decode,
    )),
    row(
        opcode::REPORT_LUNS,
        &[0, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        report_luns::decode,
    ),
    action(
        opcode::MAINTENANCE_IN,
        0x0A,
        &[0x3F, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        report_port_groups::decode,
    ),
    action(
        opcode::MAINTENANCE_IN,
        0x0C,
        &[0x1F, 0x87, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        report_opcodes::decode,
    ),
    action(
        opcode::MAINTENANCE_IN,
        0x0D,
        &[0x1F, 0x80, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        report_task_management::decode,
    ),
    row(
        opcode::READ_12,
        &usage::io_12(0x18),
        read_write::decode_read_12,
    ),
    row(
        opcode::WRITE_12,
        &usage::io_12(0x18),
        read_write::decode_write_12,
    ),
    row(
        opcode::WRITE_AND_VERIFY_12,
        &usage::io_12(0x12),
        write_verify::decode_12,
    ),
    row(opcode::VERIFY_12, &usage::io_12(0x16), verify::decode_12),
    row(
        opcode::READ_DEFECT_DATA_12,
        &[0x1F, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        read_defect_data::decode_12,
    ),
]);

/// CDB layouts that many commands share.
mod usage {
    pub(super) const NONE_6: &[u8] = &[0, 0, 0, 0, 0];

    pub(super) const RESERVE_IN: [u8; 9] = [0x1F, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0];
    pub(super) const RESERVE_OUT: [u8; 9] = [0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0];

    pub(super) const SANITIZE: [u8; 9] = [0xBF, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0];
    pub(super) const COPY: [u8; 15] = [0x1F, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0];
    pub(super) const COPY_RESULTS: [u8; 15] = [
        0x1F, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0,
    ];
    pub(super) const COPY_RESULTS_LONG: [u8; 15] = [
        0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0,
    ];
    pub(super) const GET_LBA_STATUS: [u8; 15] = [
        0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0,
    ];

    pub(super) const COMPARE_AND_WRITE: [u8; 15] = [
        0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0, 0,
    ];

    pub(super) const WRITE_ATOMIC: [u8; 15] = [
        0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0xFF, 0xFF, 0, 0,
    ];

    /// Flags, a 4-byte LBA, a group number (ignored), a 2-byte length.
    pub(super) const fn io_10(flags: u8) -> [u8; 9] {
        [flags, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0]
    }

    /// Flags, a 4-byte LBA, a 4-byte length.
    pub(super) const fn io_12(flags: u8) -> [u8; 11] {
        [flags, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0]
    }

    /// Flags, an 8-byte LBA, a 4-byte length.
    pub(super) const fn io_16(flags: u8) -> [u8; 15] {
        [
            flags, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0,
        ]
    }
}

impl Command {
    /// Decodes a CDB. Trailing bytes (iSCSI always carries 16) are ignored.
    ///
    /// # Errors
    /// ILLEGAL REQUEST: the command or service action is unknown, the CDB is too short for it, a field has an
    /// unsupported value, or NACA is set (SAM-5 5.2: only devices that report NORMACA accept it).
    pub(crate) fn decode(bytes: &[u8]) -> Result<Command, Sense> {
        let cdb = Cdb::new(bytes);
        let rows = TABLE.of(cdb.u8(0));
        let row = match rows {
            [] => return Err(Sense::INVALID_OPCODE),
            [row] if row.service_action.is_none() => row,
            rows => rows
                .iter()
                .find(|row| row.service_action == Some(cdb.u8(1) & 0x1F))
                .ok_or(Sense::invalid_cdb_field(1, Some(4)))?,
        };
        let len = row.usage.len() + 1;
        if bytes.len() < len {
            return Err(Sense::invalid_cdb_field(bytes.len() as u16, None));
        }
        const NACA: u8 = 0x04;
        cdb.must_be_zero(len - 1, NACA)?;
        (row.decode)(&cdb)
    }
}

#[cfg(test)]
mod tests;
