//! A fuzzer's bytes, read as choices from the first to the last: a byte for a small choice, two or
//! four for a number. When they are used up every choice is 0, so that each input means something
//! and longer inputs do more. [`Seed`] writes what [`Input`] reads.

use arbitrary::Unstructured;

pub(crate) struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(Unstructured::new(bytes))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        // What is missing at the end is zero.
        let _ = self.0.fill_buffer(&mut array);
        array
    }

    pub(crate) fn u8(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// A number below `bound`, which is 1 to 256.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::from(self.u8()) % bound
    }

    pub(crate) fn pick<'b, T>(&mut self, among: &'b [T]) -> Option<&'b T> {
        match among.len() {
            0 => None,
            len => Some(&among[usize::from(self.u8()) % len]),
        }
    }

    /// A length in bytes: small ones exactly, and a few that lie at the edges of fields.
    pub(crate) fn length(&mut self) -> u32 {
        match self.u8() {
            byte @ 0..=0x7f => u32::from(byte) * 8,
            0x80..=0xdf => u32::from(self.u16()),
            0xe0..=0xe7 => u32::MAX,
            0xe8..=0xef => 0x00ff_ffff,
            _ => self.u32(),
        }
    }

    /// The next `len` bytes, or as many as are left.
    pub(crate) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let len = len.min(self.0.len());
        self.0.bytes(len).expect("so many are left")
    }

    /// Changes some of `bytes`: up to three times a place and a value.
    pub(crate) fn harm(&mut self, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        for _ in 0..=self.below(3) {
            let at = usize::from(self.u8()) % bytes.len();
            bytes[at] = self.u8();
        }
    }
}

/// Writes an input, choice by choice.
#[derive(Clone, Debug, Default)]
pub struct Seed(pub Vec<u8>);

impl Seed {
    /// Choices of a byte each, or bytes as they are.
    #[must_use]
    pub fn choose(mut self, choices: &[u8]) -> Seed {
        self.0.extend_from_slice(choices);
        self
    }
}

/// A source of sizes for cutting streams (xorshift): the same seed gives the same sizes.
pub(crate) struct Sizes(u64);

impl Sizes {
    pub(crate) fn new(seed: u64) -> Sizes {
        Sizes(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 1 to `most`.
    pub(crate) fn next(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        1 + (self.0 >> 11) as usize % most.max(1)
    }
}
