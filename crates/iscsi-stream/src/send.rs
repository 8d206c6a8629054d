//! Adds PDUs to a gathered send.

use std::ops::Deref;

use engine::{Gather, Payload, share};
use iscsi::{TaskId, Transmit, TransmitData, frame::DataDigest};

/// Limit below the 1,024 pieces of one gathered send, because a single PDU may need several.
const PIECES_MAX: usize = 960;
const PADDING: [u8; 3] = [0; 3];

/// A machine wants to send data of a command whose data is gone: it was not told that the command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("data of a command that has ended: a bug in the protocol machine")]
pub struct Forgotten;

/// Whether another PDU fits into a send that should not exceed about `bytes_max` bytes.
pub fn has_room(gather: &Gather, bytes_max: usize) -> bool {
    gather.len() < bytes_max && gather.pieces() < PIECES_MAX
}

/// Adds a PDU with its digests and padding. `data_of` returns the complete data of a command.
///
/// # Errors
/// If `data_of` has none. The header is already in `gather` then, so the connection must be closed.
pub fn push<P: Deref<Target = Payload>>(
    gather: &mut Gather,
    pdu: &Transmit,
    data_of: impl FnOnce(TaskId) -> Option<P>,
) -> Result<(), Forgotten> {
    gather.push_bytes(&pdu.header);
    if let Some(digest) = pdu.header_digest() {
        gather.push_bytes(&digest);
    }
    let mut digest = pdu.has_data_digest().then(DataDigest::default);
    let promised = u32::from_be_bytes([0, pdu.header[5], pdu.header[6], pdu.header[7]]);
    let before = gather.len();
    match &pdu.data {
        TransmitData::None => {}
        TransmitData::Inline(bytes) => {
            gather.push_bytes(bytes);
            if let Some(digest) = &mut digest {
                digest.update(bytes);
            }
        }
        TransmitData::Task { task, offset, len } => {
            let data = data_of(*task).ok_or(Forgotten)?;
            let range = *offset as usize..*offset as usize + *len as usize;
            if let Some(digest) = &mut digest {
                // This cannot wait, as the machine has already handed the PDU over. But a send is short.
                share::charge(range.len());
                for slice in data.slice(range.clone()).slices() {
                    digest.update(slice);
                }
            }
            gather.push_payload(&data, range);
        }
    }
    // The receiver takes what follows for data, and data for what follows, if it is any other length.
    assert_eq!(
        gather.len() - before,
        promised as usize,
        "a PDU promises another DataSegmentLength"
    );
    gather.push_bytes(&PADDING[..pdu.padding()]);
    if let Some(digest) = digest {
        gather.push_bytes(&digest.finish());
    }
    Ok(())
}
