//! Framing: lengths, limits that apply with only 48 bytes received, and digests.

use super::*;
use proptest::prelude::*;

const LIMITS: FrameLimits = FrameLimits {
    digests: Digests {
        header: false,
        data: false,
    },
    data_segment_len_max: 1 << 18,
    inline_len_max: 8192,
};

fn header(opcode: u8, ahs_words: u8, len: u32) -> [u8; 48] {
    let mut header = [0; 48];
    header[0] = opcode;
    header[4] = ahs_words;
    header[5..8].copy_from_slice(&len.to_be_bytes()[1..]);
    header
}

#[test]
fn the_header_alone_says_where_everything_lies() {
    let bytes = header(opcode::SCSI_DATA_OUT, 2, 5);
    assert_eq!(frame(&bytes[..47], &LIMITS), Ok(None));
    let found = frame(&bytes, &LIMITS).unwrap().unwrap();
    assert_eq!(
        (found.ahs(), found.data(), found.total_len),
        (48..56, 56..61, 64)
    );
    assert!(found.payload && found.data_digest_offset.is_none());
    let both = FrameLimits {
        digests: Digests {
            header: true,
            data: true,
        },
        ..LIMITS
    };
    let found = frame(&bytes, &both).unwrap().unwrap();
    assert_eq!(
        (found.data_offset, found.data_digest_offset, found.total_len),
        (60, Some(68), 72)
    );
    let empty = frame(&header(opcode::NOP_OUT, 0, 0), &both)
        .unwrap()
        .unwrap();
    assert_eq!((empty.total_len, empty.data_digest_offset), (52, None));
}

#[test]
fn what_is_too_long_is_refused_before_it_comes() {
    let long = header(opcode::SCSI_DATA_OUT, 0, (1 << 18) + 1);
    let error = Error::DataSegmentTooLong {
        opcode: 5,
        len: (1 << 18) + 1,
        max: 1 << 18,
    };
    assert_eq!(frame(&long, &LIMITS), Err(error));
    assert!(frame(&header(opcode::SCSI_DATA_OUT, 0, 1 << 18), &LIMITS).is_ok());
    assert!(frame(&header(opcode::TEXT_REQUEST, 0, 8193), &LIMITS).is_err());
    assert!(frame(&header(opcode::SCSI_COMMAND, 69, 0), &LIMITS).is_err());
}

#[test]
fn the_crc_is_that_of_the_standard() {
    // RFC 7143 Appendix A.4 (as RFC 3720 B.4): 32 bytes of zeroes, of ones, counting up.
    let digest = |bytes: &[u8]| {
        let mut digest = DataDigest::default();
        digest.update(bytes);
        digest.finish()
    };
    assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    assert_eq!(digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
    let counting: Vec<u8> = (0..32).collect();
    assert_eq!(digest(&counting), [0x4e, 0x79, 0xdd, 0x46]);
    // The digest covers the padding.
    assert_eq!(digest(&[1, 2, 3]), digest(&[1, 2, 3, 0]));
}

#[test]
fn a_damaged_header_is_noticed() {
    let limits = FrameLimits {
        digests: Digests {
            header: true,
            data: false,
        },
        ..LIMITS
    };
    let mut bytes = header(opcode::NOP_OUT, 0, 0).to_vec();
    bytes.extend(digest_bytes(crc32c::crc32c(&bytes)));
    let found = frame(&bytes, &limits).unwrap().unwrap();
    assert_eq!(found.verify_header(&bytes), Ok(()));
    bytes[20] ^= 1;
    assert!(matches!(
        found.verify_header(&bytes),
        Err(Error::HeaderDigest { .. })
    ));
}

proptest! {
    #[test]
    fn any_header_is_framed_within_the_bounds_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..64),
        header in any::<bool>(),
        data in any::<bool>(),
    ) {
        let limits = FrameLimits { digests: Digests { header, data }, ..LIMITS };
        if let Ok(Some(found)) = frame(&bytes, &limits) {
            prop_assert!(found.data_len <= 1 << 18);
            prop_assert!(found.total_len <= 48 + 272 + 4 + (1 << 18) + 4);
            let _ = found.verify_header(&bytes);
        }
    }
}
