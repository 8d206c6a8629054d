//! The digests that CHAP may use (RFC 7143 §12.1.3 and IANA's "PPP Authentication Algorithms").

use md5::Md5;
use sha1::Sha1;
use sha2::Sha256;
use sha3::Sha3_256;
use smallvec::SmallVec;

/// A digest value: 16 to 32 bytes.
pub(super) type Digest = SmallVec<[u8; 32]>;

/// An algorithm of CHAP_A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChapAlgorithm {
    /// 5. Supported by every implementation.
    Md5,
    /// 6.
    Sha1,
    /// 7.
    Sha256,
    /// 8.
    Sha3_256,
}

impl ChapAlgorithm {
    /// All algorithms, in the order in which an initiator offers them. SHA-256 is last because tgt and its relatives
    /// take its number for SHA-1, choose it, and then reject the digest as too long.
    pub const ALL: [ChapAlgorithm; 4] = [
        ChapAlgorithm::Sha3_256,
        ChapAlgorithm::Sha1,
        ChapAlgorithm::Md5,
        ChapAlgorithm::Sha256,
    ];

    /// Its number in CHAP_A.
    pub fn number(self) -> u32 {
        match self {
            ChapAlgorithm::Md5 => 5,
            ChapAlgorithm::Sha1 => 6,
            ChapAlgorithm::Sha256 => 7,
            ChapAlgorithm::Sha3_256 => 8,
        }
    }

    pub(super) fn digest_len(self) -> usize {
        match self {
            ChapAlgorithm::Md5 => 16,
            ChapAlgorithm::Sha1 => 20,
            ChapAlgorithm::Sha256 | ChapAlgorithm::Sha3_256 => 32,
        }
    }

    /// The response to a challenge: digest(identifier, secret, challenge) (RFC 1994 §4.1).
    pub(super) fn respond(self, identifier: u8, secret: &[u8], challenge: &[u8]) -> Digest {
        fn digest<D: md5::Digest>(parts: [&[u8]; 3]) -> Digest {
            let mut digest = D::new();
            parts.iter().for_each(|part| digest.update(part));
            Digest::from_slice(&digest.finalize())
        }
        let parts = [&[identifier], secret, challenge];
        match self {
            ChapAlgorithm::Md5 => digest::<Md5>(parts),
            ChapAlgorithm::Sha1 => digest::<Sha1>(parts),
            ChapAlgorithm::Sha256 => digest::<Sha256>(parts),
            ChapAlgorithm::Sha3_256 => digest::<Sha3_256>(parts),
        }
    }
}
