//! What a machine wants sent: a header, where its data lies, and which digests go with it.
//! The driver gathers these parts, adds padding and digests, and sends them in order.

use crate::frame::{Digests, digest_bytes, padding};
use crate::pdu::Numbers;
use crate::stage_times::StageTimes;
use crate::task::TaskId;
use zerocopy::transmute_ref;

/// One PDU to send. Order on the wire: `header`, header digest, data, padding, data digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The Basic Header Segment; its DataSegmentLength is already that of `data`.
    pub header: [u8; 48],
    /// The data segment.
    pub data: TransmitData,
    /// The digests that this PDU carries.
    pub digests: Digests,
    /// Target only: this PDU ends the task. The machine has forgotten it and may give its slot
    /// to the next command; its buffers are free once the PDU is sent.
    pub ends: Option<TaskId>,
}

/// Where a data segment comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransmitData {
    /// There is none.
    None,
    /// These bytes, at most a few KiB.
    Inline(Vec<u8>),
    /// A part of the task's data, which the driver holds.
    Task {
        /// Whose data.
        task: TaskId,
        /// First byte, from the start of the command's data.
        offset: u32,
        /// How many bytes, more than 0.
        len: u32,
    },
}

impl Transmit {
    /// The StatSN in the header; of no meaning in a Data-In PDU without status.
    pub fn stat_sn(&self) -> u32 {
        let numbers: &Numbers = transmute_ref!(&self.header);
        numbers.stat_sn.get()
    }

    /// Sends these along, if it carries the status of a command. Only for one that
    /// [asks](crate::CommandRequest::asks_stage_times).
    pub fn tell_stage_times(&mut self, times: &StageTimes) {
        times.put(&mut self.header);
    }

    /// Length of the data segment in bytes, without padding.
    pub fn data_len(&self) -> usize {
        match &self.data {
            TransmitData::None => 0,
            TransmitData::Inline(bytes) => bytes.len(),
            TransmitData::Task { len, .. } => *len as usize,
        }
    }

    /// Zero bytes that follow the data segment, 0 to 3.
    pub fn padding(&self) -> usize {
        padding(self.data_len())
    }

    /// The four bytes that follow the header, if header digests are on.
    pub fn header_digest(&self) -> Option<[u8; 4]> {
        self.digests
            .header
            .then(|| digest_bytes(crc32c::crc32c(&self.header)))
    }

    /// Whether a data digest ([`DataDigest`](crate::frame::DataDigest)) follows data and padding.
    pub fn has_data_digest(&self) -> bool {
        self.digests.data && self.data_len() > 0
    }

    /// Bytes on the wire, all parts together.
    pub fn wire_len(&self) -> usize {
        let header_digest = if self.digests.header { 4 } else { 0 };
        let data_digest = if self.has_data_digest() { 4 } else { 0 };
        48 + header_digest + self.data_len() + self.padding() + data_digest
    }
}
