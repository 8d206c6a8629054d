//! Logical unit numbers (SAM-5 4.7): converts between the 8-byte field of a PDU and plain numbers.
//!
//! Only single-level LUNs are supported: a number below 256 is encoded in the peripheral device method (which every
//! initiator understands), below 16384 in the flat space method, and below 2^24 in the extended flat method. All
//! three are decoded, and the long extended flat method as well; a longer form of a small number is the same LUN.
//!
//! Linux's target (LIO) and libiscsi write the plain number into the first two bytes. Above 255 that looks like the
//! peripheral device method with a bus number, which no iSCSI target has otherwise: it is decoded as that number.

/// A logical unit number: 0 ..= [`Lun::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lun(u32);

/// A LUN field or number that cannot address a logical unit here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LunError {
    /// The number does not fit the extended flat method.
    #[error("LUN {0} is too large: use a number up to 16777215")]
    TooLarge(u32),
    /// A well-known, hierarchical or vendor-specific LUN.
    #[error("LUN field {0:016x} uses an addressing method that is not supported")]
    Method(u64),
}

impl From<u16> for Lun {
    fn from(number: u16) -> Lun {
        Lun(number.into())
    }
}

impl Lun {
    /// The largest number: 24 bits, extended flat addressing.
    pub const MAX: u32 = 0xFF_FFFF;

    /// The LUN with this number.
    ///
    /// # Errors
    /// [`LunError::TooLarge`] above [`Lun::MAX`].
    pub fn new(number: u32) -> Result<Lun, LunError> {
        if number > Lun::MAX {
            Err(LunError::TooLarge(number))
        } else {
            Ok(Lun(number))
        }
    }

    /// The LUN as a number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Decodes the LUN field of a PDU (RFC 7143 §11.2.1.7, SAM-5 4.7).
    ///
    /// # Errors
    /// [`LunError::Method`] if the field addresses a second level, a well-known logical unit, or anything else
    /// that is not a plain logical unit of this device.
    pub fn decode(field: [u8; 8]) -> Result<Lun, LunError> {
        let [a, b, c, d, rest @ ..] = field;
        let number = match (a >> 6, a & 0x3F) {
            // A bus number (00b) is the upper part of a plain number.
            (0b00 | 0b01, high) => u32::from(high) << 8 | u32::from(b),
            // Method 11b, length 01b (one more pair of bytes), extended method 2h: flat.
            (0b11, 0b01_0010) if rest == [0; 4] => {
                return Ok(Lun(u32::from_be_bytes([0, b, c, d])));
            }
            // The same with five bytes.
            (0b11, 0b10_0010) if [b, c] == [0; 2] && rest[2..] == [0; 2] => {
                return Ok(Lun(u32::from_be_bytes([0, d, rest[0], rest[1]])));
            }
            _ => return Err(LunError::Method(u64::from_be_bytes(field))),
        };
        if [c, d] == [0; 2] && rest == [0; 4] {
            Ok(Lun(number))
        } else {
            Err(LunError::Method(u64::from_be_bytes(field)))
        }
    }

    /// Encodes the LUN for a PDU or REPORT LUNS, in the shortest method that holds the number.
    pub fn encode(self) -> [u8; 8] {
        let [_, a, b, c] = self.0.to_be_bytes();
        match self.0 {
            0..=0xFF => [0, c, 0, 0, 0, 0, 0, 0],
            0x100..=0x3FFF => [0x40 | b, c, 0, 0, 0, 0, 0, 0],
            _ => [0b1101_0010, a, b, c, 0, 0, 0, 0],
        }
    }

    /// The field of this LUN at a target that writes plain numbers; `None`: the number does not fit.
    pub fn encode_plain(self) -> Option<[u8; 8]> {
        let [high, low] = u16::try_from(self.0).ok()?.to_be_bytes();
        Some([high, low, 0, 0, 0, 0, 0, 0])
    }
}

#[cfg(test)]
mod tests;
