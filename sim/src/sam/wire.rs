//! The PDUs of an initiator that says exactly what its script tells it, in bytes.

use iscsi::{
    SessionParameters,
    pdu::{self, opcode},
};

use super::{
    leaf::bytes,
    script::{Command, Function, Op},
};

const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2A;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
const PERSISTENT_RESERVE_OUT: u8 = 0x5F;
const COMPARE_AND_WRITE: u8 = 0x89;
/// WRITE EXCLUSIVE, REGISTRANTS ONLY.
const KIND: u8 = 5;

/// What a session says about itself in a PDU.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub(super) tag: u32,
    pub(super) cmd_sn: u32,
    pub(super) exp_stat_sn: u32,
}

/// A command that can be sent.
pub(super) struct Prepared {
    pub(super) lun: u32,
    pub(super) attribute: u8,
    pub(super) is_immediate: bool,
    pub(super) cdb: [u8; 16],
    pub(super) data_out: Vec<u8>,
    pub(super) data_in_len: u32,
    /// Bytes with the command itself.
    pub(super) immediate_len: usize,
    /// Where the unsolicited data ends.
    pub(super) unsolicited_end: usize,
}

impl Prepared {
    /// A command outside the script.
    pub(super) fn plain(lun: u32, cdb: &[u8], data_out: &[u8]) -> Prepared {
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        Prepared {
            lun,
            attribute: 1,
            is_immediate: false,
            cdb: padded,
            data_out: data_out.to_vec(),
            data_in_len: 0,
            immediate_len: 0,
            unsolicited_end: 0,
        }
    }

    /// TEST UNIT READY.
    pub(super) fn test_unit_ready(lun: u32) -> Prepared {
        Prepared::plain(lun, &[0; 6], &[])
    }

    /// PERSISTENT RESERVE OUT for disk 0.
    pub(super) fn reserve_out(action: u8, key: u8, action_key: u8) -> Prepared {
        let mut list = [0; 24];
        (list[7], list[15]) = (key, action_key);
        let cdb = [PERSISTENT_RESERVE_OUT, action, KIND, 0, 0, 0, 0, 0, 24, 0];
        Prepared::plain(0, &cdb, &list)
    }

    /// A command of the script; its writes carry the version `tag`.
    pub(super) fn of(
        command: &Command,
        tag: u32,
        who: usize,
        session: &SessionParameters,
    ) -> Prepared {
        let lun = command.lun;
        let version = u64::from(tag);
        let io = |code: u8, flags: u8, lba: u32, blocks: u16| {
            let ([a, b, c, d], [e, f]) = (lba.to_be_bytes(), blocks.to_be_bytes());
            [code, flags, a, b, c, d, 0, e, f, 0]
        };
        let all_at_once = usize::MAX;
        let (mut prepared, immediate, is_unsolicited) = match command.op {
            Op::Read { lba, blocks } => {
                let mut read = Prepared::plain(lun, &io(READ_10, 0, lba as u32, blocks), &[]);
                read.data_in_len = 512 * u32::from(blocks);
                (read, 0, false)
            }
            Op::Write {
                lba,
                blocks,
                is_fua,
                immediate,
                is_unsolicited,
            } => {
                let cdb = io(WRITE_10, u8::from(is_fua) << 3, lba as u32, blocks);
                let data = bytes(lun, lba, blocks.into(), version);
                let write = Prepared::plain(lun, &cdb, &data);
                (write, immediate as usize, is_unsolicited)
            }
            Op::CompareAndWrite { lba, expected } => {
                let mut cdb = [0; 16];
                (cdb[0], cdb[9], cdb[13]) = (COMPARE_AND_WRITE, lba as u8, 1);
                let mut data = bytes(lun, lba, 1, expected);
                data.extend(bytes(lun, lba, 1, version));
                (Prepared::plain(lun, &cdb, &data), all_at_once, false)
            }
            Op::SynchronizeCache => {
                let cdb = io(SYNCHRONIZE_CACHE_10, 0, 0, 0);
                (Prepared::plain(lun, &cdb, &[]), 0, false)
            }
            Op::TestUnitReady => (Prepared::test_unit_ready(lun), 0, false),
            Op::Nothing => (Prepared::plain(lun, &io(READ_10, 0, 0, 0), &[]), 0, false),
            Op::Beyond => {
                let mut read = Prepared::plain(lun, &io(READ_10, 0, 1 << 30, 1), &[]);
                read.data_in_len = 512;
                (read, 0, false)
            }
            Op::Preempt { victim } => {
                const PREEMPT_AND_ABORT: u8 = 5;
                let (own, victim) = (who as u8 + 1, victim as u8 + 1);
                let out = Prepared::reserve_out(PREEMPT_AND_ABORT, own, victim);
                (out, all_at_once, false)
            }
        };
        let len = prepared.data_out.len();
        let first = len.min(session.first_burst_length as usize);
        if session.immediate_data {
            let segment = session.max_send_data_segment_length as usize;
            let most = immediate.min(first).min(segment);
            // Data split over several PDUs may only be cut at word boundaries.
            prepared.immediate_len = if most == len { most } else { most / 4 * 4 };
        }
        let asks = !session.initial_r2t && is_unsolicited;
        prepared.unsolicited_end = match asks {
            true => first.max(prepared.immediate_len),
            false => prepared.immediate_len,
        };
        prepared.attribute = command.attribute;
        prepared.is_immediate = command.is_immediate;
        prepared
    }

    /// The SCSI Command PDU with its immediate data.
    pub(super) fn pdu(&self, numbers: Numbers) -> Vec<u8> {
        let has_more = self.unsolicited_end > self.immediate_len;
        let reads = if self.data_in_len > 0 {
            pdu::ScsiCommand::READ
        } else {
            0
        };
        let writes = match self.data_out.is_empty() {
            true => 0,
            false => pdu::ScsiCommand::WRITE,
        };
        let header = pdu::ScsiCommand {
            opcode: opcode::SCSI_COMMAND | immediate(self.is_immediate),
            flags: if has_more { 0 } else { pdu::FINAL } | reads | writes | self.attribute,
            data_segment_length: u24(self.immediate_len),
            lun: lun(self.lun).into(),
            initiator_task_tag: numbers.tag.into(),
            expected_data_transfer_length: (self.data_out.len() as u32 + self.data_in_len).into(),
            cmd_sn: numbers.cmd_sn.into(),
            exp_stat_sn: numbers.exp_stat_sn.into(),
            cdb: self.cdb,
            ..Default::default()
        };
        with_data(header.to_bytes(), &self.data_out[..self.immediate_len])
    }
}

/// A Task Management Function Request PDU.
pub(super) fn function(function: &Function, ref_cmd_sn: u32, numbers: Numbers) -> Vec<u8> {
    let referenced = match function.code {
        super::script::ABORT_TASK if function.referenced == 0 => 0x7777,
        super::script::ABORT_TASK => function.referenced,
        _ => pdu::RESERVED_TAG,
    };
    let header = pdu::TaskManagementRequest {
        opcode: opcode::TASK_MANAGEMENT_REQUEST | immediate(function.is_immediate),
        function: 0x80 | function.code,
        lun: lun(function.lun).into(),
        initiator_task_tag: numbers.tag.into(),
        referenced_task_tag: referenced.into(),
        cmd_sn: numbers.cmd_sn.into(),
        exp_stat_sn: numbers.exp_stat_sn.into(),
        ref_cmd_sn: ref_cmd_sn.into(),
        ..Default::default()
    };
    header.to_bytes().to_vec()
}

/// A Logout Request PDU that closes the session.
pub(super) fn logout(numbers: Numbers) -> Vec<u8> {
    let header = pdu::LogoutRequest {
        opcode: opcode::LOGOUT_REQUEST | opcode::IMMEDIATE,
        reason: 0x80,
        initiator_task_tag: numbers.tag.into(),
        cmd_sn: numbers.cmd_sn.into(),
        exp_stat_sn: numbers.exp_stat_sn.into(),
        ..Default::default()
    };
    header.to_bytes().to_vec()
}

/// The Data-Out PDUs of one sequence: `data` from `offset` on, of which each takes `segment` bytes.
pub(super) fn data_out(
    (lun_number, transfer_tag): (u32, u32),
    data: &[u8],
    offset: usize,
    segment: usize,
    numbers: Numbers,
) -> Vec<Vec<u8>> {
    let mut pdus = Vec::new();
    let last = data.len().div_ceil(segment) - 1;
    for (sn, part) in data.chunks(segment).enumerate() {
        let header = pdu::DataOut {
            opcode: opcode::SCSI_DATA_OUT,
            flags: if sn == last { pdu::FINAL } else { 0 },
            data_segment_length: u24(part.len()),
            lun: match transfer_tag {
                pdu::RESERVED_TAG => 0,
                _ => lun(lun_number),
            }
            .into(),
            initiator_task_tag: numbers.tag.into(),
            target_transfer_tag: transfer_tag.into(),
            exp_stat_sn: numbers.exp_stat_sn.into(),
            data_sn: (sn as u32).into(),
            buffer_offset: ((offset + sn * segment) as u32).into(),
            ..Default::default()
        };
        pdus.push(with_data(header.to_bytes(), part));
    }
    pdus
}

fn with_data(header: [u8; 48], data: &[u8]) -> Vec<u8> {
    let mut pdu = header.to_vec();
    pdu.extend(data);
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    pdu
}

fn immediate(is_immediate: bool) -> u8 {
    if is_immediate { opcode::IMMEDIATE } else { 0 }
}

/// Peripheral device addressing (SAM-5 4.7.7.2).
fn lun(number: u32) -> u64 {
    u64::from(number) << 48
}

fn u24(len: usize) -> [u8; 3] {
    let [_, a, b, c] = (len as u32).to_be_bytes();
    [a, b, c]
}
