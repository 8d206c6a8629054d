//! The target's transmit queue. Small PDUs are queued ready-made; the Data-In PDUs of a read are built only when they
//! are sent, so a read of any length takes a single entry. Sequence numbers are set last, when a PDU is sent (RFC
//! 7143 §4.2.2).

use zerocopy::transmute_mut;

use super::{Entry, TargetConnection};
use crate::error::CloseReason;
use crate::frame::Digests;
use crate::pdu::{self, FINAL, RESERVED_TAG, opcode};
use crate::task::{Direction, TaskId};
use crate::transmit::{Transmit, TransmitData};

/// The longest data segment of a Data-In for an initiator that accepts up to [`DATA_IN_USUAL`], as libiscsi and
/// open-iscsi do. libiscsi, and with it QEMU, allocates memory for each segment; from 128 KiB on, malloc takes it from
/// the kernel and gives it back every time, and a read of 128 KiB costs that client 3.6 times the CPU time. Who accepts
/// more, as our initiator does, has asked for long segments.
const DATA_IN_MAX: u32 = 64 << 10;
const DATA_IN_USUAL: u32 = 256 << 10;

/// An entry of the queue.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// A PDU that is complete except for its sequence numbers.
    Ready(Ready),
    /// Data-In up to offset `end`; `status` says that the last PDU carries the outcome.
    DataIn {
        task: TaskId,
        end: u32,
        status: bool,
    },
    /// A task's SCSI Response.
    Response { task: TaskId },
    /// An R2T.
    R2t { task: TaskId, header: [u8; 48] },
}

impl Outgoing {
    /// The command to which the entry belongs.
    pub(super) fn task(&self) -> Option<TaskId> {
        match *self {
            Outgoing::Ready(_) => None,
            Outgoing::DataIn { task, .. }
            | Outgoing::Response { task }
            | Outgoing::R2t { task, .. } => Some(task),
        }
    }
}

#[derive(Debug)]
pub(super) struct Ready {
    pub(super) header: [u8; 48],
    pub(super) data: Vec<u8>,
    pub(super) stat_sn: StatSn,
    /// Whether it counts against the limit on replies to unsolicited requests.
    pub(super) is_reply: bool,
    pub(super) digests: Digests,
    /// The task management function that this PDU answers.
    pub(super) ends: Option<TaskId>,
}

impl Ready {
    /// The bytes that it occupies.
    fn len(&self) -> usize {
        self.header.len() + self.data.len()
    }
}

/// How a PDU uses StatSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatSn {
    /// It carries status and consumes a number.
    Taken,
    /// It only reports the next number.
    Shown,
}

impl TargetConnection {
    pub(super) fn push_ready(&mut self, header: [u8; 48], data: Vec<u8>, stat_sn: StatSn) {
        let digests = self.parameters.digests;
        let ready = Ready {
            header,
            data,
            stat_sn,
            is_reply: false,
            digests,
            ends: None,
        };
        self.outgoing.push_back(Outgoing::Ready(ready));
    }

    /// Queues a reply to a request that the initiator may send without limit.
    pub(super) fn push_reply(&mut self, header: [u8; 48], data: Vec<u8>, stat_sn: StatSn) {
        let digests = self.parameters.digests;
        let ready = Ready {
            header,
            data,
            stat_sn,
            is_reply: true,
            digests,
            ends: None,
        };
        self.queued_replies += 1;
        self.queued_bytes += ready.len();
        self.outgoing.push_back(Outgoing::Ready(ready));
    }

    pub(super) fn push_reject(&mut self, reason: u8, refused: &[u8; 48]) {
        let reject = pdu::Reject {
            opcode: opcode::REJECT,
            flags: FINAL,
            reason,
            data_segment_length: pdu::u24(refused.len()),
            tag: RESERVED_TAG.into(),
            ..Default::default()
        };
        self.push_reply(reject.to_bytes(), refused.to_vec(), StatSn::Taken);
    }

    pub(super) fn next_transmit(&mut self) -> Option<Transmit> {
        loop {
            match self.outgoing.front()? {
                Outgoing::Ready(_) => {
                    if let Some(Outgoing::Ready(ready)) = self.outgoing.pop_front() {
                        return Some(self.send_ready(ready));
                    }
                }
                &Outgoing::DataIn { task, end, status } => {
                    let transmit = self.send_data_in(task, end, status);
                    if transmit.is_some() {
                        return transmit;
                    }
                    self.outgoing.pop_front();
                }
                &Outgoing::Response { task } => {
                    self.outgoing.pop_front();
                    let transmit = self.send_response(task);
                    if transmit.is_some() {
                        return transmit;
                    }
                }
                &Outgoing::R2t { task, header } => {
                    self.outgoing.pop_front();
                    if self.tasks.get(task).is_some() {
                        let digests = self.parameters.digests;
                        return Some(self.stamp(
                            header,
                            TransmitData::None,
                            StatSn::Shown,
                            digests,
                            None,
                        ));
                    }
                }
            }
        }
    }

    fn send_ready(&mut self, ready: Ready) -> Transmit {
        if ready.is_reply {
            self.queued_replies -= 1;
            self.queued_bytes -= ready.len();
        }
        if let Some(task) = ready.ends {
            self.remove(task);
        }
        let data = match ready.data.is_empty() {
            true => TransmitData::None,
            false => TransmitData::Inline(ready.data),
        };
        let is_last = ready.header[0] == opcode::LOGOUT_RESPONSE;
        let transmit = self.stamp(ready.header, data, ready.stat_sn, ready.digests, ready.ends);
        if is_last && self.logout.is_some_and(|l| l.answered) {
            self.close(CloseReason::Logout);
        }
        transmit
    }

    /// The next Data-In of an entry; `None` if there are no more.
    fn send_data_in(&mut self, id: TaskId, end: u32, status: bool) -> Option<Transmit> {
        let Some(Entry::Command(task)) = self.tasks.get_mut(id) else {
            return None;
        };
        let left = end.checked_sub(task.read_sent).filter(|left| *left > 0)?;
        let burst_left = self.parameters.max_burst_length - task.burst_sent;
        let len = left
            .min(burst_left)
            .min(match self.parameters.max_send_data_segment_length {
                usual @ ..=DATA_IN_USUAL => usual.min(DATA_IN_MAX),
                long => long,
            });
        let offset = task.read_sent;
        task.read_sent += len;
        task.burst_sent += len;
        assert!(
            task.read_sent <= end && end <= task.read_len,
            "{} of {end} sent, of {} asked for",
            task.read_sent,
            task.read_len
        );
        assert!(
            task.burst_sent <= self.parameters.max_burst_length,
            "a sequence exceeds MaxBurstLength"
        );
        let is_last = len == left;
        let mut header = pdu::DataIn {
            opcode: opcode::SCSI_DATA_IN,
            data_segment_length: pdu::u24(len as usize),
            initiator_task_tag: task.initiator_task_tag.into(),
            target_transfer_tag: RESERVED_TAG.into(),
            data_sn: task.data_sn.into(),
            buffer_offset: offset.into(),
            ..Default::default()
        };
        task.data_sn += 1;
        if is_last || len == burst_left {
            header.flags = FINAL;
            task.burst_sent = 0;
        }
        let data = TransmitData::Task {
            task: id,
            offset,
            len,
        };
        let digests = self.parameters.digests;
        let Some(ending) = task.ending.as_ref().filter(|_| status && is_last) else {
            let mut transmit = self.stamp(header.to_bytes(), data, StatSn::Shown, digests, None);
            // Without the S bit the field is reserved (§11.7.4).
            let numbers: &mut pdu::Numbers = transmute_mut!(&mut transmit.header);
            numbers.stat_sn = 0.into();
            return Some(transmit);
        };
        let (flags, residual, _) = task.residuals(ending);
        header.flags |= pdu::STATUS | flags;
        header.status = ending.status;
        header.residual_count = residual.into();
        self.remove(id);
        Some(self.stamp(header.to_bytes(), data, StatSn::Taken, digests, Some(id)))
    }

    fn send_response(&mut self, id: TaskId) -> Option<Transmit> {
        let Some(Entry::Command(task)) = self.tasks.get_mut(id) else {
            return None;
        };
        let ending = task.ending.take()?;
        let (flags, residual, read_residual) = task.residuals(&ending);
        let mut data = Vec::new();
        if !ending.sense.is_empty() {
            // SenseLength precedes the sense data (§11.4.7.2).
            data.extend_from_slice(&(ending.sense.len() as u16).to_be_bytes());
            data.extend_from_slice(&ending.sense);
        }
        let header = pdu::ScsiResponse {
            opcode: opcode::SCSI_RESPONSE,
            flags: FINAL | flags,
            status: ending.status,
            data_segment_length: pdu::u24(data.len()),
            initiator_task_tag: task.initiator_task_tag.into(),
            exp_data_sn: match task.direction {
                Direction::Write | Direction::None => 0.into(),
                _ => (task.data_sn + task.r2t_sn).into(),
            },
            bidirectional_read_residual_count: read_residual.into(),
            residual_count: residual.into(),
            ..Default::default()
        };
        self.remove(id);
        let data = match data.is_empty() {
            true => TransmitData::None,
            false => TransmitData::Inline(data),
        };
        let digests = self.parameters.digests;
        Some(self.stamp(header.to_bytes(), data, StatSn::Taken, digests, Some(id)))
    }

    fn stamp(
        &mut self,
        mut header: [u8; 48],
        data: TransmitData,
        stat_sn: StatSn,
        digests: Digests,
        ends: Option<TaskId>,
    ) -> Transmit {
        let numbers: &mut pdu::Numbers = transmute_mut!(&mut header);
        numbers.stat_sn = self.stat_sn.into();
        numbers.exp_cmd_sn = self.window.expected().into();
        numbers.max_cmd_sn = self.window.show().into();
        if stat_sn == StatSn::Taken {
            self.stat_sn = self.stat_sn.wrapping_add(1);
        }
        Transmit {
            header,
            data,
            digests,
            ends,
        }
    }
}
