//! One SCSI task at the target: the data it expects, the progress of its transfers, and the rules for its Data-Out
//! PDUs (RFC 7143 §4.2.5, §11.7, §11.8). Data arrives in order (DataPDUInOrder and DataSequenceInOrder are Yes), so a
//! single offset describes the progress.

use smallvec::SmallVec;

use super::event::Outcome;
use crate::error::Error;
use crate::pdu::{DataOut, FINAL, RESERVED_TAG};
use crate::task::Direction;

/// Longest sense data in a response (SPC-4 4.5.1).
pub(super) const SENSE_LEN_MAX: usize = 252;

/// An outcome waiting to be sent.
#[derive(Debug)]
pub(super) struct PendingOutcome {
    pub(super) status: u8,
    pub(super) sense: Vec<u8>,
    pub(super) transfer_len: u64,
}

impl PendingOutcome {
    pub(super) fn new(outcome: Outcome<'_>) -> PendingOutcome {
        let len = outcome.sense.len().min(SENSE_LEN_MAX);
        PendingOutcome {
            status: outcome.status,
            sense: outcome.sense[..len].to_vec(),
            transfer_len: outcome.transfer_len,
        }
    }
}

/// An R2T whose data is outstanding.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenR2t {
    pub(super) tag: u32,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) sn: u32,
    received: u32,
    data_sn: u32,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) initiator_task_tag: u32,
    pub(super) lun: u64,
    pub(super) immediate: bool,
    pub(super) direction: Direction,
    pub(super) read_len: u32,
    pub(super) write_len: u32,
    /// Read data supplied by the driver so far, before truncation to `read_len`.
    pub(super) read_given: u64,
    /// Read data sent so far.
    pub(super) read_sent: u32,
    /// The part of it sent in the current sequence.
    pub(super) burst_sent: u32,
    pub(super) data_sn: u32,
    /// Write data received so far.
    received: u32,
    /// Set while unsolicited Data-Out PDUs are expected: the offset up to which they reach.
    unsolicited_end: Option<u32>,
    unsolicited_sn: u32,
    /// The offset up to which the driver has granted room.
    granted: Option<u32>,
    /// The offset at which `DataComplete` is due.
    complete_at: Option<u32>,
    /// The offset up to which R2Ts have solicited data.
    solicited: u32,
    pub(super) r2t_sn: u32,
    /// Inline room for one, because most initiators accept only one at a time.
    open: SmallVec<[OpenR2t; 1]>,
    pub(super) ending: Option<PendingOutcome>,
    /// A Data-Out was lost; data that still arrives is dropped.
    pub(super) failed: bool,
}

/// Sense data for lost write data, fixed format: ABORTED COMMAND, PROTOCOL SERVICE CRC ERROR
/// (RFC 7143 §11.4.7.2).
const DATA_LOST: [u8; 18] = [
    0x70, 0, 0x0b, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x47, 0x05, 0, 0, 0, 0,
];

/// Where the payload of a Data-Out is to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) offset: u32,
    /// 0 means that the payload is dropped.
    pub(super) len: u32,
}

impl Task {
    /// A task that already has `immediate_len` bytes of write data and expects more unsolicited data up to
    /// `unsolicited_end`.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call, straight from the header's fields"
    )]
    pub(super) fn new(
        initiator_task_tag: u32,
        lun: u64,
        immediate: bool,
        direction: Direction,
        read_len: u32,
        write_len: u32,
        immediate_len: u32,
        unsolicited_end: Option<u32>,
    ) -> Task {
        debug_assert!(immediate_len <= unsolicited_end.unwrap_or(write_len));
        Task {
            initiator_task_tag,
            lun,
            immediate,
            direction,
            read_len,
            write_len,
            read_given: 0,
            read_sent: 0,
            burst_sent: 0,
            data_sn: 0,
            received: immediate_len,
            unsolicited_end,
            unsolicited_sn: 0,
            granted: None,
            complete_at: None,
            solicited: immediate_len,
            r2t_sn: 0,
            open: SmallVec::new(),
            ending: None,
            failed: false,
        }
    }

    /// Handles a Data-Out of `len` bytes.
    pub(super) fn data_out(&mut self, pdu: &DataOut, len: u32) -> Result<Placement, Error> {
        let tag = pdu.target_transfer_tag.get();
        let offset = pdu.buffer_offset.get();
        let is_final = pdu.flags & FINAL != 0;
        let due = |field, received, expected| match received == expected {
            true => Ok(()),
            false => Err(Error::Sequence {
                pdu: "Data-Out",
                field,
                received,
                expected,
            }),
        };
        let unsolicited = tag == RESERVED_TAG;
        let expected_sn = match (unsolicited, self.open.first()) {
            (true, _) => self.unsolicited_sn,
            (false, Some(open)) => open.data_sn,
            (false, None) => 0,
        };
        if self.failed || pdu.data_sn.get() != expected_sn {
            return self.drop_data_out(tag, is_final);
        }
        due("Buffer Offset", offset, self.received)?;
        match unsolicited {
            true => self.take_unsolicited(tag, len, is_final)?,
            false => self.take_solicited(tag, len, is_final)?,
        }
        let room = match (&self.ending, self.granted) {
            (Some(_), _) => 0,
            (None, Some(end)) => end.saturating_sub(offset),
            (None, None) => len,
        };
        self.received += len;
        assert!(
            self.received <= self.write_len && self.solicited <= self.write_len,
            "{} received and {} asked for of {}",
            self.received,
            self.solicited,
            self.write_len
        );
        Ok(Placement {
            offset,
            len: len.min(room),
        })
    }

    /// Counts unsolicited data, which ends at FirstBurstLength at the latest.
    fn take_unsolicited(&mut self, tag: u32, len: u32, is_final: bool) -> Result<(), Error> {
        let Some(end) = self.unsolicited_end else {
            let why = "no unsolicited data is expected";
            return Err(refused("Target Transfer Tag", tag, why));
        };
        if len > end - self.received {
            let why = "it exceeds FirstBurstLength";
            return Err(refused("DataSegmentLength", len, why));
        }
        self.unsolicited_sn += 1;
        // The sequence ends when it reaches its end offset, even without the F bit.
        if is_final || len == end - self.received {
            self.unsolicited_end = None;
            self.solicited = self.received + len;
        }
        Ok(())
    }

    /// Counts data that the oldest open R2T asked for.
    fn take_solicited(&mut self, tag: u32, len: u32, is_final: bool) -> Result<(), Error> {
        let Some(open) = self.open.first_mut().filter(|open| open.tag == tag) else {
            let why = "it must be that of the oldest open R2T";
            return Err(refused("Target Transfer Tag", tag, why));
        };
        if len > open.len - open.received {
            let why = "it exceeds what the R2T asked for";
            return Err(refused("DataSegmentLength", len, why));
        }
        open.received += len;
        open.data_sn += 1;
        match (open.received == open.len, is_final) {
            (true, _) => drop(self.open.remove(0)),
            (false, true) => {
                let why = "data that the R2T asked for is missing";
                return Err(refused("F bit", 1, why));
            }
            (false, false) => {}
        }
        Ok(())
    }

    /// Handles an unexpected DataSN, which means that a Data-Out was lost. The task fails, and its response waits for
    /// the end of all sequences (RFC 7143 §7.8, §7.9); other tasks continue.
    fn drop_data_out(&mut self, tag: u32, is_final: bool) -> Result<Placement, Error> {
        let open = self.open.iter().position(|open| open.tag == tag);
        match (tag, open) {
            (RESERVED_TAG, _) if self.unsolicited_end.is_some() => {
                self.unsolicited_end = self.unsolicited_end.filter(|_| !is_final);
            }
            (_, Some(index)) => {
                if is_final {
                    self.open.remove(index);
                }
            }
            _ => {
                let (pdu, field) = ("Data-Out", "Target Transfer Tag");
                let why = "no such data is expected";
                return Err(Error::Field {
                    pdu,
                    field,
                    value: tag.into(),
                    why,
                });
            }
        }
        if !self.failed {
            self.failed = true;
            let sense = DATA_LOST.to_vec();
            self.ending.get_or_insert(PendingOutcome {
                status: 2,
                sense,
                transfer_len: 0,
            });
        }
        Ok(Placement { offset: 0, len: 0 })
    }

    /// Grants room for write data up to `end`.
    pub(super) fn grant(&mut self, end: u32) -> Result<(), Error> {
        if self.ending.is_some() {
            return Err(Error::WrongState("solicit() after the task's outcome"));
        }
        let least = self.granted.unwrap_or(0);
        // Unsolicited data beyond the previous end has been dropped, and no R2T asks for it again.
        let lost = self
            .granted
            .is_some_and(|granted| self.received > granted && end > granted);
        if end > self.write_len || end < least || lost {
            let expected = "between what was solicited before and the command's write_len";
            return Err(Error::Argument {
                what: "end",
                value: u64::from(end),
                expected,
            });
        }
        self.granted = Some(end);
        self.complete_at = Some(end);
        Ok(())
    }

    /// The next R2T to send, if another one may be open.
    pub(super) fn next_r2t(
        &mut self,
        slot: usize,
        burst_max: u32,
        open_max: u16,
    ) -> Option<OpenR2t> {
        let end = self.granted.filter(|_| self.ending.is_none())?;
        let wanted = end.saturating_sub(self.solicited).min(burst_max);
        let full = self.open.len() >= usize::from(open_max);
        if wanted == 0 || full || self.unsolicited_end.is_some() {
            return None;
        }
        // Bit 31 stays 0, so this is never the reserved tag.
        let tag = (self.r2t_sn & 0x7fff) << 16 | slot as u32;
        let (offset, sn) = (self.solicited, self.r2t_sn);
        let open = OpenR2t {
            tag,
            offset,
            len: wanted,
            sn,
            received: 0,
            data_sn: 0,
        };
        self.open.push(open);
        self.solicited += wanted;
        assert!(
            self.solicited <= end && self.open.len() <= usize::from(open_max),
            "more asked for than there is to write, or than may be at a time"
        );
        self.r2t_sn += 1;
        Some(open)
    }

    /// Whether `DataComplete` is due; true only once per grant.
    pub(super) fn take_complete(&mut self) -> bool {
        let due = self.complete_at.is_some_and(|end| self.received >= end);
        let complete = due && self.unsolicited_end.is_none() && self.ending.is_none();
        if complete {
            self.complete_at = None;
        }
        complete
    }

    /// Whether more unsolicited Data-Out is expected.
    pub(super) fn expects_unsolicited(&self) -> bool {
        self.unsolicited_end.is_some()
    }

    /// Whether no more Data-Out is expected, so that a response may be sent.
    pub(super) fn is_quiet(&self) -> bool {
        self.unsolicited_end.is_none() && self.open.is_empty()
    }

    /// Residual flags and counts: `(flags, residual, bidirectional read residual)`
    /// (RFC 7143 §11.4.5).
    pub(super) fn residuals(&self, ending: &PendingOutcome) -> (u8, u32, u32) {
        let of = |expected: u32, actual: u64, overflow: u8, underflow: u8| {
            let expected = u64::from(expected);
            let count = u32::try_from(actual.abs_diff(expected)).unwrap_or(u32::MAX);
            match actual.cmp(&expected) {
                std::cmp::Ordering::Greater => (overflow, count),
                std::cmp::Ordering::Less => (underflow, count),
                std::cmp::Ordering::Equal => (0, 0),
            }
        };
        use crate::pdu::{BIDIRECTIONAL_OVERFLOW, BIDIRECTIONAL_UNDERFLOW, OVERFLOW, UNDERFLOW};
        let expected = if self.direction == Direction::Read {
            self.read_len
        } else {
            self.write_len
        };
        let (flags, residual) = of(expected, ending.transfer_len, OVERFLOW, UNDERFLOW);
        if self.direction != Direction::Bidirectional {
            return (flags, residual, 0);
        }
        let (read_flags, read) = of(
            self.read_len,
            self.read_given,
            BIDIRECTIONAL_OVERFLOW,
            BIDIRECTIONAL_UNDERFLOW,
        );
        (flags | read_flags, residual, read)
    }
}

/// The error for a field of a Data-Out.
fn refused(field: &'static str, value: u32, why: &'static str) -> Error {
    Error::Field {
        pdu: "Data-Out",
        field,
        value: u64::from(value),
        why,
    }
}
