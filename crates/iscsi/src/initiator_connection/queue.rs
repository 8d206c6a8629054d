//! The initiator's transmit queue. Commands and Data-Out PDUs are built only when they are sent, so a write of any
//! length takes one entry per burst. ExpStatSN is set last.

use super::{ABORT_TASK, InitiatorConnection, InitiatorPhase, TagEntry};
use crate::error::Error;
use crate::frame::Digests;
use crate::lun::LunField;
use crate::pdu::{self, FINAL, RESERVED_TAG, opcode};
use crate::task::{Direction, TaskId};
use crate::transmit::{Transmit, TransmitData};

/// An entry of the queue.
#[derive(Debug)]
pub(super) enum InitiatorEntry {
    /// A PDU that is complete except for ExpStatSN.
    Ready {
        header: [u8; 48],
        data: Vec<u8>,
        is_reply: bool,
        digests: Digests,
    },
    /// A command with its immediate data.
    Command { task: TaskId },
    /// A sequence of Data-Out PDUs from `offset` to `end`, for an R2T or unsolicited.
    DataOut {
        task: TaskId,
        tag: u32,
        lun: u64,
        offset: u32,
        end: u32,
        data_sn: u32,
    },
}

impl InitiatorEntry {
    fn task(&self) -> Option<TaskId> {
        match *self {
            InitiatorEntry::Ready { .. } => None,
            InitiatorEntry::Command { task } | InitiatorEntry::DataOut { task, .. } => Some(task),
        }
    }
}

impl InitiatorConnection {
    /// Drops the queued PDUs of a command that has ended.
    pub(super) fn drop_queued(&mut self, task: TaskId) {
        self.outgoing.retain(|entry| entry.task() != Some(task));
    }

    pub(super) fn push_ready(&mut self, header: [u8; 48], data: Vec<u8>, is_reply: bool) {
        let digests = self.parameters.digests;
        if is_reply {
            self.queued_replies += 1;
        }
        self.outgoing.push_back(InitiatorEntry::Ready {
            header,
            data,
            is_reply,
            digests,
        });
    }

    pub(super) fn push_login(&mut self, flags: u8, text: Vec<u8>) {
        let header = pdu::LoginRequest {
            opcode: opcode::LOGIN_REQUEST | opcode::IMMEDIATE,
            flags,
            data_segment_length: pdu::u24(text.len()),
            isid: self.config.isid.0,
            cmd_sn: self.cmd_sn.into(),
            ..Default::default()
        };
        self.push_ready(header.to_bytes(), text, false);
    }

    pub(super) fn push_text(&mut self, task: TaskId, target_transfer_tag: u32, text: Vec<u8>) {
        let header = pdu::TextRequest {
            opcode: opcode::TEXT_REQUEST | opcode::IMMEDIATE,
            flags: FINAL,
            data_segment_length: pdu::u24(text.len()),
            initiator_task_tag: task.tag().into(),
            target_transfer_tag: target_transfer_tag.into(),
            cmd_sn: self.cmd_sn.into(),
            ..Default::default()
        };
        self.push_ready(header.to_bytes(), text, false);
    }

    pub(super) fn push_nop_out(
        &mut self,
        tag: u32,
        target_transfer_tag: u32,
        lun: u64,
        data: Vec<u8>,
        is_reply: bool,
    ) {
        let header = pdu::NopOut {
            opcode: opcode::NOP_OUT | opcode::IMMEDIATE,
            flags: FINAL,
            data_segment_length: pdu::u24(data.len()),
            lun: lun.into(),
            initiator_task_tag: tag.into(),
            target_transfer_tag: target_transfer_tag.into(),
            cmd_sn: self.cmd_sn.into(),
            ..Default::default()
        };
        self.push_ready(header.to_bytes(), data, is_reply);
    }

    pub(super) fn push_function(
        &mut self,
        function: u8,
        lun: LunField,
        referenced: Option<TaskId>,
        ref_cmd_sn: u32,
    ) -> Result<TaskId, Error> {
        if self.phase != InitiatorPhase::FullFeature {
            return Err(Error::WrongState(
                "the session is not in full feature phase",
            ));
        }
        let cmd_sn = self.cmd_sn;
        let entry = TagEntry::Function {
            function,
            lun,
            referenced,
            cmd_sn,
        };
        let task = self.tasks.insert(entry).ok_or(Error::WindowClosed)?;
        let referenced_tag = match referenced {
            Some(referenced) if function == ABORT_TASK => referenced.tag(),
            _ => RESERVED_TAG,
        };
        let header = pdu::TaskManagementRequest {
            opcode: opcode::TASK_MANAGEMENT_REQUEST | opcode::IMMEDIATE,
            function: FINAL | function,
            lun: lun.0.into(),
            initiator_task_tag: task.tag().into(),
            referenced_task_tag: referenced_tag.into(),
            cmd_sn: cmd_sn.into(),
            ref_cmd_sn: ref_cmd_sn.into(),
            ..Default::default()
        };
        self.push_ready(header.to_bytes(), Vec::new(), false);
        Ok(task)
    }

    pub(super) fn next_transmit(&mut self) -> Option<Transmit> {
        loop {
            match *self.outgoing.front_mut()? {
                InitiatorEntry::Ready { .. } => {
                    if let Some(InitiatorEntry::Ready {
                        header,
                        data,
                        is_reply,
                        digests,
                    }) = self.outgoing.pop_front()
                    {
                        if is_reply {
                            self.queued_replies -= 1;
                        }
                        let data = match data.is_empty() {
                            true => TransmitData::None,
                            false => TransmitData::Inline(data),
                        };
                        return Some(self.stamp(header, data, digests));
                    }
                }
                InitiatorEntry::Command { task } => {
                    self.outgoing.pop_front();
                    let transmit = self.send_command(task);
                    if transmit.is_some() {
                        return transmit;
                    }
                }
                InitiatorEntry::DataOut { .. } => {
                    let transmit = self.send_data_out();
                    if transmit.is_some() {
                        return transmit;
                    }
                    self.outgoing.pop_front();
                }
            }
        }
    }

    fn send_command(&mut self, id: TaskId) -> Option<Transmit> {
        let Some(TagEntry::Command(task)) = self.tasks.get_mut(id) else {
            return None;
        };
        task.sent = true;
        let more = task.unsolicited_end > task.immediate_len;
        let direction = match task.direction {
            Direction::Read => pdu::ScsiCommand::READ,
            Direction::Write => pdu::ScsiCommand::WRITE,
            _ => 0,
        };
        let header = pdu::ScsiCommand {
            opcode: opcode::SCSI_COMMAND,
            flags: direction | task.attribute | if more { 0 } else { FINAL },
            asks: match task.asks_stage_times {
                true => pdu::ScsiCommand::STAGE_TIMES,
                false => 0,
            },
            data_segment_length: pdu::u24(task.immediate_len as usize),
            lun: task.lun.0.into(),
            initiator_task_tag: id.tag().into(),
            expected_data_transfer_length: task.data_len.into(),
            cmd_sn: task.cmd_sn.into(),
            cdb: task.cdb,
            ..Default::default()
        };
        let len = task.immediate_len;
        if task.direction == Direction::Write {
            task.moved = len;
        }
        if more {
            // Ahead of everything queued later, because the target may be waiting for it.
            self.outgoing.push_front(InitiatorEntry::DataOut {
                task: id,
                tag: RESERVED_TAG,
                lun: task.lun.0,
                offset: len,
                end: task.unsolicited_end,
                data_sn: 0,
            });
        }
        let data = match len {
            0 => TransmitData::None,
            len => TransmitData::Task {
                task: id,
                offset: 0,
                len,
            },
        };
        let digests = self.parameters.digests;
        Some(self.stamp(header.to_bytes(), data, digests))
    }

    /// The next Data-Out of the first entry; `None` if it has none left or its task has ended.
    fn send_data_out(&mut self) -> Option<Transmit> {
        let Some(InitiatorEntry::DataOut {
            task: id,
            tag,
            lun,
            offset,
            end,
            data_sn,
        }) = self.outgoing.front_mut()
        else {
            return None;
        };
        let Some(TagEntry::Command(task)) = self.tasks.get_mut(*id) else {
            return None;
        };
        let len = (*end - *offset).min(self.parameters.max_send_data_segment_length);
        if len == 0 {
            return None;
        }
        let is_last = *offset + len == *end;
        let header = pdu::DataOut {
            opcode: opcode::SCSI_DATA_OUT,
            flags: if is_last { FINAL } else { 0 },
            data_segment_length: pdu::u24(len as usize),
            lun: (*lun).into(),
            initiator_task_tag: id.tag().into(),
            target_transfer_tag: (*tag).into(),
            data_sn: (*data_sn).into(),
            buffer_offset: (*offset).into(),
            ..Default::default()
        };
        let data = TransmitData::Task {
            task: *id,
            offset: *offset,
            len,
        };
        task.moved += len;
        assert!(task.moved <= task.data_len, "more sent than there is");
        if is_last && *tag != RESERVED_TAG {
            task.r2ts_open -= 1;
        }
        *offset += len;
        *data_sn += 1;
        let digests = self.parameters.digests;
        Some(self.stamp(header.to_bytes(), data, digests))
    }

    fn stamp(&self, mut header: [u8; 48], data: TransmitData, digests: Digests) -> Transmit {
        // ExpStatSN is at the same offset in every request (§11.3, §11.5, §11.7, ...).
        let exp_stat_sn = self.exp_stat_sn.unwrap_or(0);
        header[28..32].copy_from_slice(&exp_stat_sn.to_be_bytes());
        Transmit {
            header,
            data,
            digests,
            ends: None,
        }
    }
}
