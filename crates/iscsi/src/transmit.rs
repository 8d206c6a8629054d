//! A PDU to be sent: its header, the location of its data, and the digests it carries. The driver gathers these
//! parts, adds padding and digests, and sends PDUs in order.

use crate::frame::{Digests, digest_bytes, padding};
use crate::pdu::Numbers;
use crate::stage_times::StageTimes;
use crate::task::TaskId;
use zerocopy::transmute_ref;

/// One PDU to send. Order on the wire: `header`, header digest, data, padding, data digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The Basic Header Segment; DataSegmentLength is already set.
    pub header: [u8; 48],
    /// The data segment.
    pub data: TransmitData,
    /// The digests that this PDU carries.
    pub digests: Digests,
    /// Target only: this PDU ends the task. The machine has forgotten the task and may reuse its slot for the next
    /// command; the task's buffers are free once the PDU has been sent.
    pub ends: Option<TaskId>,
}

/// The location of a data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransmitData {
    /// There is no data.
    None,
    /// These bytes, at most a few KiB.
    Inline(Vec<u8>),
    /// A part of the task's data, which the driver holds.
    Task {
        /// The task.
        task: TaskId,
        /// Offset from the start of the command's data, in bytes.
        offset: u32,
        /// Length in bytes, above 0.
        len: u32,
    },
}

impl Transmit {
    /// The StatSN in the header; meaningless in a Data-In PDU without status.
    pub fn stat_sn(&self) -> u32 {
        let numbers: &Numbers = transmute_ref!(&self.header);
        numbers.stat_sn.get()
    }

    /// Adds the stage times if the PDU carries a command's status. Only for commands that
    /// [ask for them](crate::CommandRequest::asks_stage_times).
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

    /// The number of zero bytes after the data segment, 0 to 3.
    pub fn padding(&self) -> usize {
        padding(self.data_len())
    }

    /// The four bytes that follow the header, if header digests are on.
    pub fn header_digest(&self) -> Option<[u8; 4]> {
        self.digests
            .header
            .then(|| digest_bytes(crc32c::crc32c(&self.header)))
    }

    /// Whether a data digest ([`DataDigest`](crate::frame::DataDigest)) follows the data and its padding.
    pub fn has_data_digest(&self) -> bool {
        self.digests.data && self.data_len() > 0
    }

    /// Total length on the wire, in bytes.
    pub fn wire_len(&self) -> usize {
        let header_digest = if self.digests.header { 4 } else { 0 };
        let data_digest = if self.has_data_digest() { 4 } else { 0 };
        48 + header_digest + self.data_len() + self.padding() + data_digest
    }
}
