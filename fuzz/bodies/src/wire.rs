//! PDUs as they stand on the wire: put together with padding and digests, and read field by field
//! without the product's own structures, so that the rules are checked against the standard's
//! figures and not against themselves.

use iscsi::Transmit;
use iscsi::frame::{DataDigest, Digests, padding};

/// One PDU in parts, before digests and padding.
#[derive(Clone, Debug)]
pub(crate) struct Pdu {
    pub(crate) bhs: [u8; 48],
    pub(crate) ahs: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Pdu {
    pub(crate) fn new(opcode: u8, flags: u8) -> Pdu {
        let mut bhs = [0; 48];
        (bhs[0], bhs[1]) = (opcode, flags);
        Pdu {
            bhs,
            ahs: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Sets the bytes from `at` on.
    pub(crate) fn put<const N: usize>(mut self, at: usize, bytes: [u8; N]) -> Pdu {
        self.bhs[at..at + N].copy_from_slice(&bytes);
        self
    }

    pub(crate) fn word(self, at: usize, word: u32) -> Pdu {
        self.put(at, word.to_be_bytes())
    }

    pub(crate) fn ahs(mut self, ahs: Vec<u8>) -> Pdu {
        self.bhs[4] = (ahs.len() / 4) as u8;
        self.ahs = ahs;
        self
    }

    pub(crate) fn data(mut self, data: Vec<u8>) -> Pdu {
        let [_, length @ ..] = (data.len() as u32).to_be_bytes();
        self.bhs[5..8].copy_from_slice(&length);
        self.data = data;
        self
    }

    /// The PDU on the wire.
    pub(crate) fn bytes(&self, digests: Digests) -> Vec<u8> {
        let mut wire = [&self.bhs[..], &self.ahs].concat();
        if digests.header {
            let mut digest = DataDigest::default();
            digest.update(&wire);
            wire.extend(digest.finish());
        }
        wire.extend_from_slice(&self.data);
        wire.resize(wire.len() + padding(self.data.len()), 0);
        if digests.data && !self.data.is_empty() {
            let mut digest = DataDigest::default();
            digest.update(&self.data);
            wire.extend(digest.finish());
        }
        wire
    }
}

/// A PDU that a machine wants sent, with its payload.
pub(crate) fn bytes(transmit: &Transmit, data: &[u8]) -> Vec<u8> {
    assert_eq!(data.len(), transmit.data_len(), "the data of {transmit:?}");
    assert_eq!(
        length(&transmit.header) as usize,
        data.len(),
        "DataSegmentLength"
    );
    let mut wire = transmit.header.to_vec();
    wire.extend(transmit.header_digest().into_iter().flatten());
    wire.extend_from_slice(data);
    wire.resize(wire.len() + transmit.padding(), 0);
    if transmit.has_data_digest() {
        let mut digest = DataDigest::default();
        digest.update(data);
        wire.extend(digest.finish());
    }
    assert_eq!(wire.len(), transmit.wire_len(), "wire_len of {transmit:?}");
    wire
}

/// The big-endian word at `at` of a header.
pub(crate) fn word(bhs: &[u8; 48], at: usize) -> u32 {
    u32::from_be_bytes([bhs[at], bhs[at + 1], bhs[at + 2], bhs[at + 3]])
}

pub(crate) fn opcode(bhs: &[u8; 48]) -> u8 {
    bhs[0] & 0x3f
}

/// DataSegmentLength.
pub(crate) fn length(bhs: &[u8; 48]) -> u32 {
    word(bhs, 4) & 0x00ff_ffff
}

/// Whether serial number `a` comes before `b` (RFC 1982).
pub(crate) fn before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

/// Payload that tells whose it is and where it belongs.
pub(crate) fn filler(seed: u32, offset: u32, len: u32) -> Vec<u8> {
    let byte = |at: u32| (at % 251) as u8 ^ (seed.wrapping_mul(0x9e37_79b9) >> 24) as u8;
    (offset..offset.saturating_add(len)).map(byte).collect()
}

/// A zero-terminated `key=value` list.
pub(crate) fn text(pairs: &[(&str, &str)]) -> Vec<u8> {
    let pair = |(key, value): &(&str, &str)| format!("{key}={value}\0").into_bytes();
    pairs.iter().flat_map(pair).collect()
}
