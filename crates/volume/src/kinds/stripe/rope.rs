//! Splits a payload among children, and interleaves the children's payloads into one. Only creates views; no byte is
//! copied.

use engine::{Payload, Slice};

use super::{map::Map, place::PerChild};

/// Interleaves the runs' data into volume order; the inverse of [`split`]. Each part has the length of its run.
pub(super) fn interleave(map: &Map, at: u64, len: usize, parts: &[Payload]) -> Payload {
    let mut cursors: PerChild<Cursor<'_>> = parts.iter().map(Cursor::new).collect();
    let mut whole = Payload::new();
    for (i, piece) in map.pieces(at, len).enumerate() {
        cursors[i % parts.len()].take(piece, &mut whole);
    }
    whole
}

/// Splits `data`, to be written at `at`, into the parts for each of the `runs` runs.
pub(super) fn split(map: &Map, at: u64, data: &Payload, runs: usize) -> PerChild<Payload> {
    let mut parts: PerChild<Payload> = (0..runs).map(|_| Payload::new()).collect();
    let mut cursor = Cursor::new(data);
    for (i, piece) in map.pieces(at, data.len()).enumerate() {
        cursor.take(piece, &mut parts[i % runs]);
    }
    parts
}

/// Walks through a payload from its beginning.
struct Cursor<'a> {
    slices: &'a [Slice],
    start: usize,
}

impl<'a> Cursor<'a> {
    fn new(payload: &'a Payload) -> Self {
        Cursor {
            slices: payload.slices(),
            start: 0,
        }
    }

    /// Appends the next `len` bytes to `into`. Panics when fewer are left.
    fn take(&mut self, mut len: usize, into: &mut Payload) {
        while len > 0 {
            let slice = &self.slices[0];
            let n = len.min(slice.len() - self.start);
            into.push(slice.slice(self.start..self.start + n));
            self.start += n;
            len -= n;
            if self.start == slice.len() {
                self.slices = &self.slices[1..];
                self.start = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::round_robin::RoundRobin;
    use super::*;
    use engine::Buf;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn splitting_and_weaving_give_back_the_same_bytes(
            children in 1usize..6, at in 0u64..40, len in 1usize..120, cut in 1usize..5000,
        ) {
            let (at, len) = (at * 512, len * 512);
            let map = Map::RoundRobin(RoundRobin::new(4096, children));
            let bytes: Vec<u8> = (0..len).map(|i| (i / 7 % 251) as u8).collect();
            let mut data = Payload::new();
            for piece in bytes.chunks(cut) {
                data.push(Buf::copy_of(piece).freeze());
            }
            let runs = map.runs(at, len as u64);
            let parts = split(&map, at, &data, runs.len());
            for (run, part) in runs.iter().zip(&parts) {
                prop_assert_eq!(run.len as usize, part.len());
            }
            prop_assert_eq!(interleave(&map, at, len, &parts).to_vec(), bytes);
        }
    }

    #[test]
    fn nothing_is_copied() {
        let data = Payload::from(Buf::zeroed(1 << 20));
        let map = Map::RoundRobin(RoundRobin::new(64 << 10, 2));
        let parts = split(&map, 0, &data, 2);
        let whole = interleave(&map, 0, data.len(), &parts);
        let mut expected = data.slices()[0].as_ptr();
        for slice in whole.slices() {
            assert_eq!(slice.as_ptr(), expected);
            expected = expected.wrapping_add(slice.len());
        }
        assert_eq!(whole.len(), 1 << 20);
    }
}
