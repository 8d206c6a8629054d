//! The LUN field of a header: eight bytes that the protocol carries unchanged. The SCSI layer decides what they
//! address, if anything (SAM-5 4.7).

/// The LUN field of a PDU (RFC 7143 §11.2.1.7), its eight bytes as a big-endian number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LunField(pub u64);

impl From<[u8; 8]> for LunField {
    fn from(bytes: [u8; 8]) -> LunField {
        LunField(u64::from_be_bytes(bytes))
    }
}
