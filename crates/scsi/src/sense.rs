//! Sense data (SPC-4 4.5): why a command ended with CHECK CONDITION. Includes the two wire formats, for the target
//! that sends it and the initiator that [receives](Received) it.

mod codes;
mod received;

pub use codes::Asc;
pub use received::{Received, information};

/// Sense keys (SPC-4 4.5). The discriminant is the wire value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SenseKey {
    /// Nothing to report.
    NoSense = 0x0,
    /// The command succeeded after recovery.
    RecoveredError = 0x1,
    /// The logical unit cannot be accessed now.
    NotReady = 0x2,
    /// The medium or its data is defective.
    MediumError = 0x3,
    /// The device failed.
    HardwareError = 0x4,
    /// The CDB or its parameters are wrong or not supported.
    IllegalRequest = 0x5,
    /// Something happened that the initiator must know about first.
    UnitAttention = 0x6,
    /// The blocks are protected against this access.
    DataProtect = 0x7,
    /// Blank medium; with WRITE SAME on thin units, unmapped blocks.
    BlankCheck = 0x8,
    /// Defined by the vendor.
    VendorSpecific = 0x9,
    /// A copy command failed.
    CopyAborted = 0xA,
    /// The device aborted the command; the initiator may retry.
    AbortedCommand = 0xB,
    /// Not defined by SPC-4.
    Reserved = 0xC,
    /// Data was left in a buffer at the end of the medium.
    VolumeOverflow = 0xD,
    /// The data sent does not match the medium.
    Miscompare = 0xE,
    /// Completed, with additional information.
    Completed = 0xF,
}

/// The two formats of sense data (SPC-4 4.5); the control mode page's D_SENSE bit chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenseFormat {
    /// Response code 70h: understood by every initiator.
    Fixed,
    /// Response code 72h: holds 64-bit LBAs.
    Descriptor,
}

/// Sense-key specific data (SPC-4 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySpecific {
    /// The field in error (ILLEGAL REQUEST), in the CDB or in the parameter list.
    FieldPointer {
        /// Whether the field is in the CDB (C/D bit) or in the parameter list.
        in_cdb: bool,
        /// First byte of the field.
        byte: u16,
        /// The field's most significant bit in that byte, if it is smaller than a byte.
        bit: Option<u8>,
    },
    /// Progress of an operation, in 65536ths (NOT READY, NO SENSE).
    Progress(u16),
}

/// The reason for a CHECK CONDITION.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    /// The class of the error.
    pub key: SenseKey,
    /// The specific error.
    pub asc: Asc,
    /// Usually the LBA of the first block affected; for a miscompare, the byte offset.
    pub information: Option<u64>,
    /// Further details, as defined by the sense key.
    pub specific: Option<KeySpecific>,
}

impl Sense {
    /// Nothing to report: the answer of REQUEST SENSE when all is well.
    pub const NONE: Sense = Sense::new(SenseKey::NoSense, Asc::NO_ADDITIONAL_SENSE);

    /// ILLEGAL REQUEST, INVALID COMMAND OPERATION CODE.
    pub(crate) const INVALID_OPCODE: Sense = Sense::new(
        SenseKey::IllegalRequest,
        Asc::INVALID_COMMAND_OPERATION_CODE,
    );

    /// ILLEGAL REQUEST, PARAMETER LIST LENGTH ERROR.
    pub(crate) const LIST_LENGTH_ERROR: Sense =
        Sense::new(SenseKey::IllegalRequest, Asc::PARAMETER_LIST_LENGTH_ERROR);

    /// Sense data with a key and a code only.
    pub const fn new(key: SenseKey, asc: Asc) -> Sense {
        Sense {
            key,
            asc,
            information: None,
            specific: None,
        }
    }

    /// ILLEGAL REQUEST, INVALID FIELD IN CDB, pointing at `byte` and, for a field smaller than a
    /// byte, its most significant `bit`.
    pub const fn invalid_cdb_field(byte: u16, bit: Option<u8>) -> Sense {
        let mut sense = Sense::new(SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_CDB);
        sense.specific = Some(KeySpecific::FieldPointer {
            in_cdb: true,
            byte,
            bit,
        });
        sense
    }

    /// ILLEGAL REQUEST, INVALID FIELD IN PARAMETER LIST, pointing at `byte`.
    pub const fn invalid_parameter(byte: u16, bit: Option<u8>) -> Sense {
        let mut sense = Sense::new(
            SenseKey::IllegalRequest,
            Asc::INVALID_FIELD_IN_PARAMETER_LIST,
        );
        sense.specific = Some(KeySpecific::FieldPointer {
            in_cdb: false,
            byte,
            bit,
        });
        sense
    }

    /// This sense data with INFORMATION set.
    pub const fn with_information(mut self, information: u64) -> Sense {
        self.information = Some(information);
        self
    }

    /// Encodes current (not deferred) sense data in the given format: 18 bytes in fixed format, 8 bytes plus
    /// descriptors in descriptor format.
    pub fn encode(&self, format: SenseFormat) -> Vec<u8> {
        match format {
            SenseFormat::Fixed => self.encode_fixed().to_vec(),
            SenseFormat::Descriptor => self.encode_descriptor(),
        }
    }

    /// SPC-4, fixed format sense data. INFORMATION holds 32 bits; a larger value is omitted, and VALID stays 0.
    fn encode_fixed(&self) -> [u8; 18] {
        let mut data = [0; 18];
        data[0] = 0x70;
        data[2] = self.key as u8;
        data[7] = 10;
        data[12] = self.asc.code;
        data[13] = self.asc.qualifier;
        if let Some(information) = self.information.and_then(|value| u32::try_from(value).ok()) {
            data[0] |= 0x80;
            data[3..7].copy_from_slice(&information.to_be_bytes());
        }
        if let Some(specific) = self.specific {
            data[15..18].copy_from_slice(&specific.encode());
        }
        data
    }

    /// SPC-4, descriptor format sense data, with an information descriptor (00h) and a sense-key specific descriptor
    /// (02h) where they apply.
    fn encode_descriptor(&self) -> Vec<u8> {
        let mut data = vec![
            0x72,
            self.key as u8,
            self.asc.code,
            self.asc.qualifier,
            0,
            0,
            0,
            0,
        ];
        if let Some(information) = self.information {
            data.extend([0x00, 0x0A, 0x80, 0]);
            data.extend(information.to_be_bytes());
        }
        if let Some(specific) = self.specific {
            let [flags, high, low] = specific.encode();
            data.extend([0x02, 0x06, 0, 0, flags, high, low, 0]);
        }
        data[7] = (data.len() - 8) as u8;
        data
    }
}

impl KeySpecific {
    /// Bytes 15 to 17 of the fixed format: SKSV and the sense-key specific field.
    fn encode(self) -> [u8; 3] {
        match self {
            KeySpecific::FieldPointer { in_cdb, byte, bit } => {
                let place = if in_cdb { 0x40 } else { 0 };
                let bit = bit.map_or(0, |bit| 0x08 | (bit & 0x07));
                let [high, low] = byte.to_be_bytes();
                [0x80 | place | bit, high, low]
            }
            KeySpecific::Progress(done) => {
                let [high, low] = done.to_be_bytes();
                [0x80, high, low]
            }
        }
    }
}

#[cfg(test)]
mod tests;
