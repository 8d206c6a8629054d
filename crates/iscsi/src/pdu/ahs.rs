//! Additional Header Segments (RFC 7143 §11.2.2): the rest of a CDB longer than 16 bytes and the
//! read length of a bidirectional command.

use crate::error::Error;

const EXTENDED_CDB: u8 = 1;
const BIDIRECTIONAL_READ_LENGTH: u8 = 2;

/// The parsed additional headers of a SCSI Command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdditionalHeaders<'a> {
    /// The CDB from its 17th byte on.
    pub(crate) extended_cdb: &'a [u8],
    /// Expected length of the data from the target, for a bidirectional command.
    pub(crate) read_length: Option<u32>,
}

impl<'a> AdditionalHeaders<'a> {
    /// Parses all segments: two bytes AHSLength (of what follows the type), one byte AHSType,
    /// one type-specific byte, the rest, padding to four bytes. Unknown types are an error.
    pub(crate) fn parse(mut ahs: &'a [u8]) -> Result<AdditionalHeaders<'a>, Error> {
        let mut parsed = AdditionalHeaders::default();
        while let [high, low, kind, rest @ ..] = ahs {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            let field = |field, value, why| Error::Field {
                pdu: "SCSI Command",
                field,
                value,
                why,
            };
            let Some([_, body @ ..]) = rest.get(..len) else {
                return Err(field(
                    "AHSLength",
                    len as u64,
                    "it does not fit TotalAHSLength",
                ));
            };
            match (*kind & 0x3f, body) {
                (EXTENDED_CDB, _) => parsed.extended_cdb = body,
                (BIDIRECTIONAL_READ_LENGTH, &[a, b, c, d]) => {
                    parsed.read_length = Some(u32::from_be_bytes([a, b, c, d]));
                }
                (kind, _) => {
                    return Err(field(
                        "AHSType",
                        kind.into(),
                        "it must be 1 or 2, with the length of that type",
                    ));
                }
            }
            ahs = ahs.get((3 + len).next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(parsed)
    }
}
