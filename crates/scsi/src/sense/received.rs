//! Sense data received by an initiator from any target: parsed from both formats, and described in words.

use super::{Asc, SenseKey};

/// The reason for a CHECK CONDITION, as reported by a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The class of the error.
    pub key: SenseKey,
    /// The specific error.
    pub asc: Asc,
    /// Whether it belongs to an earlier, completed command; the current one was not performed (SPC-4 4.5.7).
    pub is_deferred: bool,
}

impl Received {
    /// Parses sense data; missing bytes count as zero (NO SENSE).
    pub fn parse(data: &[u8]) -> Received {
        let byte = |index: usize| data.get(index).copied().unwrap_or(0);
        let response_code = byte(0) & 0x7F;
        let (key, code, qualifier) = match response_code {
            0x70 | 0x71 => (byte(2), byte(12), byte(13)),
            0x72 | 0x73 => (byte(1), byte(2), byte(3)),
            _ => (0, 0, 0),
        };
        Received {
            key: SenseKey::ALL[usize::from(key & 0xF)],
            asc: Asc { code, qualifier },
            is_deferred: matches!(response_code, 0x71 | 0x73),
        }
    }
}

/// The INFORMATION field of received sense data, where it is valid: for a miscompare, the offset of the first byte that
/// differs (SPC-4 4.5.2.2, SBC-3 5.2).
pub fn information(data: &[u8]) -> Option<u64> {
    const VALID: u8 = 0x80;
    let response_code = data.first()? & 0x7f;
    if matches!(response_code, 0x70 | 0x71) {
        let field = u32::from_be_bytes(*data.get(3..)?.first_chunk()?);
        return (data[0] & VALID != 0).then(|| field.into());
    }
    if !matches!(response_code, 0x72 | 0x73) {
        return None;
    }
    let mut rest = data.get(8..)?;
    while let [kind, len, ..] = *rest {
        if kind == 0 && rest.get(2)? & VALID != 0 {
            return Some(u64::from_be_bytes(*rest.get(4..)?.first_chunk()?));
        }
        rest = rest.get(2 + usize::from(len)..)?;
    }
    None
}

impl std::fmt::Display for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Received { key, asc, .. } = *self;
        let Asc { code, qualifier } = asc;
        f.write_str(key.name())?;
        if let Some(words) = asc.words() {
            write!(f, ", {words}")?;
        }
        let key = key as u8;
        write!(f, " (sense {key:x}h/{code:02x}h/{qualifier:02x}h)")
    }
}

impl SenseKey {
    /// All sense keys, indexed by number.
    const ALL: [SenseKey; 16] = [
        SenseKey::NoSense,
        SenseKey::RecoveredError,
        SenseKey::NotReady,
        SenseKey::MediumError,
        SenseKey::HardwareError,
        SenseKey::IllegalRequest,
        SenseKey::UnitAttention,
        SenseKey::DataProtect,
        SenseKey::BlankCheck,
        SenseKey::VendorSpecific,
        SenseKey::CopyAborted,
        SenseKey::AbortedCommand,
        SenseKey::Reserved,
        SenseKey::VolumeOverflow,
        SenseKey::Miscompare,
        SenseKey::Completed,
    ];

    /// The name in SPC-4 table 43.
    fn name(self) -> &'static str {
        match self {
            SenseKey::NoSense => "NO SENSE",
            SenseKey::RecoveredError => "RECOVERED ERROR",
            SenseKey::NotReady => "NOT READY",
            SenseKey::MediumError => "MEDIUM ERROR",
            SenseKey::HardwareError => "HARDWARE ERROR",
            SenseKey::IllegalRequest => "ILLEGAL REQUEST",
            SenseKey::UnitAttention => "UNIT ATTENTION",
            SenseKey::DataProtect => "DATA PROTECT",
            SenseKey::BlankCheck => "BLANK CHECK",
            SenseKey::VendorSpecific => "VENDOR SPECIFIC",
            SenseKey::CopyAborted => "COPY ABORTED",
            SenseKey::AbortedCommand => "ABORTED COMMAND",
            SenseKey::Reserved => "RESERVED",
            SenseKey::VolumeOverflow => "VOLUME OVERFLOW",
            SenseKey::Miscompare => "MISCOMPARE",
            SenseKey::Completed => "COMPLETED",
        }
    }
}

impl Asc {
    /// The code's meaning, if disks commonly send it.
    fn words(self) -> Option<&'static str> {
        let is_meant = |of: &Option<u8>| of.is_none_or(|of| of == self.qualifier);
        CODES
            .iter()
            .find(|(code, of, _)| *code == self.code && is_meant(of))
            .map(|(.., words)| *words)
    }
}

/// Additional sense codes that disks commonly send; the qualifier is `None` if the meaning does not depend on it
/// (SPC-4, ASC and ASCQ assignments).
const CODES: [(u8, Option<u8>, &str); 45] = [
    (0x04, Some(0x01), "in process of becoming ready"),
    (0x04, Some(0x02), "initializing command required"),
    (0x04, Some(0x03), "manual intervention required"),
    (0x04, Some(0x04), "format in progress"),
    (0x04, Some(0x0a), "asymmetric access state transition"),
    (0x04, Some(0x0b), "target port in standby state"),
    (0x04, Some(0x0c), "target port in unavailable state"),
    (0x04, Some(0x1b), "sanitize in progress"),
    (0x04, None, "logical unit not ready"),
    (0x08, None, "logical unit communication failure"),
    (0x0c, None, "write error"),
    (0x10, None, "protection information check failed"),
    (0x11, None, "unrecovered read error"),
    (0x1a, None, "parameter list length error"),
    (0x1d, None, "miscompare during verify operation"),
    (0x20, None, "invalid command operation code"),
    (0x21, None, "logical block address out of range"),
    (0x24, None, "invalid field in CDB"),
    (0x25, None, "logical unit not supported"),
    (0x26, None, "invalid field in parameter list"),
    (0x27, Some(0x07), "space allocation failed"),
    (0x27, None, "write protected"),
    (0x28, None, "not ready to ready change"),
    (0x29, Some(0x07), "I_T nexus loss occurred"),
    (0x29, None, "power on, reset, or bus device reset occurred"),
    (0x2a, Some(0x01), "mode parameters changed"),
    (0x2a, Some(0x03), "reservations preempted"),
    (0x2a, Some(0x04), "reservations released"),
    (0x2a, Some(0x05), "registrations preempted"),
    (0x2a, Some(0x06), "asymmetric access state changed"),
    (0x2a, Some(0x09), "capacity data has changed"),
    (0x2c, None, "command sequence error"),
    (0x2f, None, "commands cleared by another initiator"),
    (0x31, Some(0x03), "sanitize command failed"),
    (0x31, None, "medium format corrupted"),
    (0x38, Some(0x07), "thin provisioning soft threshold reached"),
    (0x3a, None, "medium not present"),
    (
        0x3e,
        None,
        "logical unit has not self-configured, failed, or timed out",
    ),
    (0x3f, Some(0x0e), "reported LUNs data has changed"),
    (0x3f, None, "target operating conditions have changed"),
    (0x44, None, "internal target failure"),
    (0x47, None, "SCSI parity or protocol error"),
    (0x4b, None, "data phase error"),
    (0x4e, None, "overlapped commands attempted"),
    (0x55, None, "insufficient resources"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sense::{Sense, SenseFormat};

    #[test]
    fn what_this_disk_sends_reads_the_same_in_both_formats() {
        for (number, key) in SenseKey::ALL.into_iter().enumerate() {
            assert_eq!(key as usize, number);
            let sent = Sense::new(key, Asc::WRITE_ERROR).with_information(7);
            for format in [SenseFormat::Fixed, SenseFormat::Descriptor] {
                let mut data = sent.encode(format);
                let mut expected = Received {
                    key,
                    asc: Asc::WRITE_ERROR,
                    is_deferred: false,
                };
                assert_eq!(Received::parse(&data), expected);
                assert_eq!(information(&data), Some(7));
                for len in 0..data.len() {
                    assert!(matches!(information(&data[..len]), None | Some(7)));
                }
                let without = Sense::new(key, Asc::WRITE_ERROR).encode(format);
                assert_eq!(information(&without), None);
                // A deferred error: a cached write that failed later, reported with the next command.
                data[0] |= 1;
                expected.is_deferred = true;
                assert_eq!(Received::parse(&data), expected);
            }
        }
    }

    #[test]
    fn what_is_missing_is_no_sense() {
        let nothing = Received {
            key: SenseKey::NoSense,
            asc: Asc::NO_ADDITIONAL_SENSE,
            is_deferred: false,
        };
        assert_eq!(Received::parse(&[]), nothing);
        assert_eq!(Received::parse(&[0x70, 0]), nothing);
        assert_eq!(Received::parse(&[0x7F, 3, 3, 3, 3]), nothing);
        let cut = Received::parse(&[0x70, 0, 3, 0]);
        assert_eq!((cut.key, cut.asc), (SenseKey::MediumError, nothing.asc));
    }

    #[test]
    fn it_is_said_in_words_with_its_codes_behind_them() {
        for ((key, code, qualifier), said) in [
            (
                (3, 0x11, 0),
                "MEDIUM ERROR, unrecovered read error (sense 3h/11h/00h)",
            ),
            (
                (2, 0x04, 0x1b),
                "NOT READY, sanitize in progress (sense 2h/04h/1bh)",
            ),
            (
                (2, 0x04, 0x77),
                "NOT READY, logical unit not ready (sense 2h/04h/77h)",
            ),
            (
                (7, 0x27, 7),
                "DATA PROTECT, space allocation failed (sense 7h/27h/07h)",
            ),
            ((4, 0x80, 1), "HARDWARE ERROR (sense 4h/80h/01h)"),
            ((0xf, 0xff, 0xff), "COMPLETED (sense fh/ffh/ffh)"),
        ] {
            let received = Received::parse(&[0x72, key, code, qualifier]);
            assert_eq!(received.to_string(), said);
        }
    }
}
