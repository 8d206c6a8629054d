//! Detects sequential readers and decides what to read ahead for them. No I/O here: the cache asks for the next piece
//! and reports what it has requested from the child.
//!
//! Three reads that follow each other exactly form a stream. Its window, the amount to keep ahead of the reader, is
//! twice what the reader has read so far, from 128 KiB up to the configured maximum; a run that ends early thus
//! wastes at most twice its length. The window is requested in pieces of a quarter of it, up to about 1 MiB, that end
//! on multiples of the child's optimal I/O length (a stripe's full width), so that each piece keeps every child busy
//! and several are in flight. The next piece is due as soon as the window has room for it, which keeps at least three
//! quarters of the window ahead of the reader, and the children never run dry.

use std::ops::Range;

use super::blocks::Blocks;
use crate::Len;

/// The most streams tracked at a time; the least recently used one is replaced.
const STREAMS_MAX: usize = 16;
/// Reads tracked as potential starts of a stream; random reads pass through here.
const BEGINNINGS_MAX: usize = 32;
/// Consecutive reads that make a stream.
const READS_MIN: u32 = 3;
/// The initial window, in bytes.
const WINDOW_MIN_BYTES: u64 = 128 << 10;
/// The longest piece, in bytes: a longer one uses the children no better, but takes longer to arrive.
const PIECE_MAX_BYTES: u64 = 1 << 20;
/// How far a reader may skip forwards and remain in its stream, in bytes: a table scan skips its tree's inner pages.
const SKIP_MAX_BYTES: u64 = 256 << 10;
/// How far a stream's reads may lag behind the foremost one, in bytes: reads in flight may overtake each other.
const LAG_MAX_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct ReadAhead {
    blocks: Blocks,
    len: Len,
    align_bytes: u64,
    piece_max_bytes: u64,
    window_max_bytes: u64,
    /// The most recently used first.
    streams: Vec<ReadStream>,
    beginnings: Vec<Beginning>,
}

#[derive(Clone, Debug)]
struct ReadStream {
    /// The end of the foremost read, in bytes.
    next: u64,
    /// What the reader has read so far, in bytes.
    run_bytes: u64,
    /// The end of what has been requested from the child, in bytes; whole blocks.
    ahead_to: u64,
}

#[derive(Debug)]
struct Beginning {
    next: u64,
    run_bytes: u64,
    reads: u32,
}

/// How a read relates to the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamRelation {
    /// It belongs to a stream, the one that [`ReadAhead::next_piece`] now serves.
    pub(super) in_stream: bool,
    /// It only continues within the block where the previous read ended.
    pub(super) same_block: bool,
}

impl ReadAhead {
    /// For a child of this length whose preferred I/O length is `optimal_io_bytes`; a `window_max_bytes` of zero
    /// disables read-ahead.
    pub(super) fn new(
        blocks: Blocks,
        len: Len,
        optimal_io_bytes: u32,
        window_max_bytes: u64,
    ) -> Self {
        let align_bytes = u64::from(optimal_io_bytes)
            .next_multiple_of(blocks.block_bytes())
            .max(blocks.block_bytes());
        ReadAhead {
            blocks,
            len,
            align_bytes,
            piece_max_bytes: PIECE_MAX_BYTES.next_multiple_of(align_bytes),
            window_max_bytes,
            streams: Vec::with_capacity(STREAMS_MAX),
            beginnings: Vec::with_capacity(BEGINNINGS_MAX),
        }
    }

    /// From now on it reads ahead so far at most, in bytes; zero: not at all.
    pub(super) fn set_window_max(&mut self, window_max_bytes: u64) {
        self.window_max_bytes = window_max_bytes;
    }

    /// Records a read of the bytes `range`.
    pub(super) fn observe(&mut self, range: &Range<u64>) -> StreamRelation {
        if let Some(found) = self.streams.iter().position(|stream| stream.takes(range)) {
            self.streams[..=found].rotate_right(1);
            let stream = &mut self.streams[0];
            let before = stream.next;
            if range.end > before {
                stream.run_bytes += range.end - range.start.max(before);
                stream.next = range.end;
            }
            return self.seen(true, before, range);
        }
        let begun = self
            .beginnings
            .iter()
            .position(|beginning| beginning.next == range.start);
        let Some(begun) = begun else {
            self.beginnings.truncate(BEGINNINGS_MAX - 1);
            self.beginnings.insert(
                0,
                Beginning {
                    next: range.end,
                    run_bytes: range.end - range.start,
                    reads: 1,
                },
            );
            return StreamRelation {
                in_stream: false,
                same_block: false,
            };
        };
        self.beginnings[..=begun].rotate_right(1);
        let beginning = &mut self.beginnings[0];
        beginning.next = range.end;
        beginning.run_bytes += range.end - range.start;
        beginning.reads += 1;
        let in_stream = beginning.reads >= READS_MIN;
        if in_stream {
            let stream = ReadStream {
                next: beginning.next,
                run_bytes: beginning.run_bytes,
                ahead_to: beginning.next.next_multiple_of(self.blocks.block_bytes()),
            };
            self.beginnings.remove(0);
            self.streams.truncate(STREAMS_MAX - 1);
            self.streams.insert(0, stream);
        }
        self.seen(in_stream, range.start, range)
    }

    fn seen(&self, in_stream: bool, before: u64, range: &Range<u64>) -> StreamRelation {
        StreamRelation {
            in_stream,
            same_block: self.blocks.of(before - 1) == self.blocks.of(range.start),
        }
    }

    /// The next piece to read for the stream of the last read, in whole blocks. `None` while its window is full.
    pub(super) fn next_piece(&self) -> Option<Range<u64>> {
        let stream = self.streams.first()?;
        let block = self.blocks.block_bytes();
        let window = (2 * stream.run_bytes)
            .max(WINDOW_MIN_BYTES)
            .min(self.window_max_bytes);
        let piece = (window / 4).min(self.piece_max_bytes).max(block);
        let start = stream.ahead_to.max(stream.next.next_multiple_of(block));
        let end = if piece >= self.align_bytes {
            (start + piece) / self.align_bytes * self.align_bytes
        } else {
            (start + piece) / block * block
        };
        let end = end.min(self.blocks.whole(self.len.bytes()));
        (start < end && end <= stream.next + window).then_some(start..end)
    }

    /// Records that the stream of the last read has been served up to `to`.
    pub(super) fn advance(&mut self, to: u64) {
        if let Some(stream) = self.streams.first_mut() {
            stream.ahead_to = to.next_multiple_of(self.blocks.block_bytes());
        }
    }
}

impl ReadStream {
    fn takes(&self, range: &Range<u64>) -> bool {
        // Never further than the run is long: a young stream must not absorb its neighbours.
        range.start <= self.next + self.run_bytes.min(SKIP_MAX_BYTES)
            && range.start + self.run_bytes.min(LAG_MAX_BYTES) >= self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn read_ahead(volume_bytes: u64) -> ReadAhead {
        let blocks = Blocks::new(16 << 10, 512);
        ReadAhead::new(blocks, Len::new(volume_bytes), 128 << 10, 8 * MIB)
    }

    /// Observes a read of `range` and takes all pieces that are due.
    fn read(state: &mut ReadAhead, range: Range<u64>) -> Vec<Range<u64>> {
        let mut pieces = Vec::new();
        if state.observe(&range).in_stream {
            while let Some(piece) = state.next_piece() {
                state.advance(piece.end);
                pieces.push(piece);
            }
        }
        pieces
    }

    #[test]
    fn a_stream_is_read_ahead_without_gaps_up_to_a_full_window() {
        let mut state = read_ahead(1 << 40);
        let mut ahead_to = 0;
        let mut largest = 0;
        for page in 0..8192 {
            let at = page * 4096;
            for piece in read(&mut state, at..at + 4096) {
                if ahead_to > 0 {
                    assert_eq!(piece.start, ahead_to, "no gap and nothing twice");
                }
                let len = piece.end - piece.start;
                largest = largest.max(len);
                if len >= 256 * KIB {
                    assert_eq!(piece.end % (128 * KIB), 0, "{piece:?} ends at a stripe");
                }
                assert!(piece.end <= at + 4096 + 8 * MIB);
                ahead_to = piece.end;
            }
            if page * 4096 > 8 * MIB {
                assert!(ahead_to >= at + 6 * MIB, "at {at} only up to {ahead_to}");
            }
        }
        assert_eq!(largest, MIB);
    }

    #[test]
    fn a_short_run_wastes_at_most_twice_its_length() {
        for pages in [3, 10, 100, 1000] {
            let mut state = read_ahead(1 << 40);
            let ahead: u64 = (0..pages)
                .flat_map(|page| read(&mut state, page * 4096..(page + 1) * 4096))
                .map(|piece| piece.end - piece.start)
                .sum();
            let run = pages * 4096;
            assert!(
                ahead <= run + (2 * run).max(WINDOW_MIN_BYTES),
                "{ahead} for {run}"
            );
        }
    }

    #[test]
    fn neither_backward_nor_random_nor_strided_reads_are_a_stream() {
        let mut state = read_ahead(1 << 40);
        for page in (0..1000u64).rev() {
            assert_eq!(read(&mut state, page * 4096..(page + 1) * 4096), []);
        }
        let mut x = 7u64;
        for _ in 0..10_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (x >> 40) * 4096;
            assert_eq!(read(&mut state, at..at + 4096), []);
        }
        for step in 0..1000 {
            let at = step * 64 * KIB;
            assert_eq!(read(&mut state, at..at + 4096), []);
        }
        for _ in 0..100 {
            assert_eq!(read(&mut state, 0..4096), [], "the same page again");
        }
    }

    #[test]
    fn streams_do_not_disturb_each_other_and_random_reads_do_not_end_them() {
        let mut state = read_ahead(1 << 50);
        let mut ahead = [0u64; 10];
        let mut x = 7u64;
        for page in 0..1000 {
            for (i, ahead) in ahead.iter_mut().enumerate() {
                let at = i as u64 * (1 << 40) + page * 8192;
                *ahead += read(&mut state, at..at + 8192)
                    .iter()
                    .map(|piece| piece.end - piece.start)
                    .sum::<u64>();
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (20 << 40) + (x >> 30) * 4096;
                assert_eq!(read(&mut state, at..at + 4096), []);
            }
        }
        for ahead in ahead {
            assert!(ahead > 12 * MIB, "{ahead}");
        }
    }

    #[test]
    fn a_stream_survives_skips_and_reads_that_overtake_each_other() {
        let mut state = read_ahead(1 << 40);
        let mut pieces = 0;
        for group in 0..500 {
            for page in [1, 0, 3, 2] {
                // Every tenth group is skipped.
                let at = (group + group / 10) * 64 * KIB + page * 16 * KIB;
                pieces += read(&mut state, at..at + 16 * KIB).len();
            }
            if group == 0 {
                for page in 0..4 {
                    pieces += read(&mut state, page * 16 * KIB..(page + 1) * 16 * KIB).len();
                }
            }
        }
        assert_eq!(state.streams.len(), 1);
        assert!(pieces > 20);
    }

    #[test]
    fn it_ends_with_the_last_whole_block() {
        let mut state = read_ahead(MIB + 512);
        let pieces: Vec<_> = (0..16)
            .flat_map(|i| read(&mut state, i * 64 * KIB..(i + 1) * 64 * KIB))
            .collect();
        assert_eq!(pieces.last().map(|piece| piece.end), Some(MIB));
        assert_eq!(read(&mut state, MIB..MIB + 512), []);
        assert_eq!(state.next_piece(), None);
    }

    #[test]
    fn going_on_within_a_block_is_told_from_coming_back_to_it() {
        let mut state = read_ahead(1 << 40);
        let same = |state: &mut ReadAhead, at| state.observe(&(at..at + 4096)).same_block;
        let seen: Vec<bool> = (0..6).map(|page| same(&mut state, page * 4096)).collect();
        assert_eq!(seen, [false, true, true, true, false, true]);
        assert!(!same(&mut state, MIB * 7));
    }
}
