//! One SCSI task at the initiator: what was asked for, and how far the transfer has got. Detects a target that
//! exceeds the request or skips data (RFC 7143 §4.2.5, §11.7, §11.8).

use super::event::{OutgoingCommand, Residual};
use crate::error::Error;
use crate::lun::LunField;
use crate::params::SessionParameters;
use crate::pdu::{self, RESERVED_TAG};
use crate::task::Direction;

#[derive(Debug)]
pub(super) struct InitiatorTask {
    pub(super) lun: LunField,
    pub(super) cmd_sn: u32,
    pub(super) cdb: [u8; 16],
    pub(super) attribute: u8,
    pub(super) direction: Direction,
    pub(super) data_len: u32,
    pub(super) asks_stage_times: bool,
    /// Whether its PDU has been handed out for sending.
    pub(super) sent: bool,
    /// Length of the data in the command PDU.
    pub(super) immediate_len: u32,
    /// The offset where unsolicited data ends, immediate data included.
    pub(super) unsolicited_end: u32,
    /// Bytes of read data received, or of write data handed out for sending.
    pub(super) moved: u32,
    data_sn: u32,
    r2t_sn: u32,
    /// The offset where the next R2T must start.
    r2t_offset: u32,
    pub(super) r2ts_open: u16,
}

impl InitiatorTask {
    pub(super) fn new(
        command: &OutgoingCommand<'_>,
        cmd_sn: u32,
        parameters: &SessionParameters,
    ) -> InitiatorTask {
        let mut cdb = [0; 16];
        cdb[..command.cdb.len()].copy_from_slice(command.cdb);
        let writes = command.direction == Direction::Write;
        let write_len = if writes { command.data_len } else { 0 };
        let unsolicited_max = write_len.min(parameters.first_burst_length);
        let immediate_max = unsolicited_max.min(parameters.max_send_data_segment_length);
        let immediate_len = if parameters.immediate_data {
            immediate_max
        } else {
            0
        };
        let unsolicited_end = if parameters.initial_r2t {
            immediate_len
        } else {
            unsolicited_max
        };
        debug_assert!(immediate_len <= unsolicited_end && unsolicited_end <= write_len);
        InitiatorTask {
            lun: command.lun,
            cmd_sn,
            cdb,
            attribute: command.attribute,
            direction: command.direction,
            data_len: command.data_len,
            asks_stage_times: command.asks_stage_times && parameters.stage_times,
            sent: false,
            immediate_len,
            unsolicited_end,
            moved: 0,
            data_sn: 0,
            r2t_sn: 0,
            r2t_offset: unsolicited_end,
            r2ts_open: 0,
        }
    }

    /// Handles a Data-In of `len` bytes; returns the offset of its payload.
    pub(super) fn data_in(&mut self, pdu: &pdu::DataIn, len: u32) -> Result<u32, Error> {
        let due = |field, received, expected| match received == expected {
            true => Ok(()),
            false => Err(Error::Sequence {
                pdu: "Data-In",
                field,
                received,
                expected,
            }),
        };
        if len > 0 || pdu.flags & pdu::STATUS == 0 {
            due("DataSN", pdu.data_sn.get(), self.data_sn)?;
            due("Buffer Offset", pdu.buffer_offset.get(), self.moved)?;
        }
        let room = if self.direction == Direction::Read {
            self.data_len - self.moved
        } else {
            0
        };
        if len > room {
            let (pdu, field) = ("Data-In", "DataSegmentLength");
            let why = "it exceeds what the command asked for";
            return Err(Error::Field {
                pdu,
                field,
                value: len.into(),
                why,
            });
        }
        let offset = self.moved;
        self.data_sn += 1;
        self.moved += len;
        assert!(
            self.moved <= self.data_len || self.direction != Direction::Read,
            "more received than asked for"
        );
        Ok(offset)
    }

    /// Handles an R2T; returns the end offset of the data it asks for.
    pub(super) fn r2t(
        &mut self,
        r2t: &pdu::R2t,
        parameters: &SessionParameters,
    ) -> Result<u32, Error> {
        let due = |field, received, expected| match received == expected {
            true => Ok(()),
            false => Err(Error::Sequence {
                pdu: "R2T",
                field,
                received,
                expected,
            }),
        };
        let refuse = |field, value: u32, why| Error::Field {
            pdu: "R2T",
            field,
            value: value.into(),
            why,
        };
        due("R2TSN", r2t.r2t_sn.get(), self.r2t_sn)?;
        due("Buffer Offset", r2t.buffer_offset.get(), self.r2t_offset)?;
        let len = r2t.desired_data_transfer_length.get();
        let left = match self.direction {
            Direction::Write => self.data_len - self.r2t_offset,
            _ => 0,
        };
        if len == 0 || len > left.min(parameters.max_burst_length) {
            let why = "it must stay within the command's data and MaxBurstLength";
            return Err(refuse("Desired Data Transfer Length", len, why));
        }
        if r2t.target_transfer_tag.get() == RESERVED_TAG {
            return Err(refuse(
                "Target Transfer Tag",
                RESERVED_TAG,
                "it is reserved",
            ));
        }
        if self.r2ts_open >= parameters.max_outstanding_r2t {
            let open = u32::from(self.r2ts_open);
            return Err(refuse("R2Ts open", open, "MaxOutstandingR2T is reached"));
        }
        self.r2t_sn += 1;
        self.r2t_offset += len;
        self.r2ts_open += 1;
        assert!(self.r2t_offset <= self.data_len, "no R2T beyond the data");
        Ok(self.r2t_offset)
    }

    /// Whether there may still be Data-Out to send.
    pub(super) fn owes_data(&self) -> bool {
        self.r2ts_open > 0
            || (self.direction == Direction::Write && self.moved < self.unsolicited_end)
    }

    /// The residual in the flags and count of a final PDU, and the bytes transferred after accounting for it: never
    /// more than were moved.
    pub(super) fn transferred(&self, flags: u8, count: u32) -> (Residual, u32) {
        let (residual, used) = match flags & (pdu::OVERFLOW | pdu::UNDERFLOW) {
            pdu::UNDERFLOW => (
                Residual::Underflow(count),
                self.data_len.saturating_sub(count),
            ),
            pdu::OVERFLOW => (Residual::Overflow(count), self.data_len),
            // Both at once is an error of the target (§11.4.1); the data that was moved still counts.
            _ => (Residual::None, self.data_len),
        };
        (residual, used.min(self.moved))
    }
}
