//! The data of one gathered send, consumed from the front as the system accepts it.

use std::{collections::VecDeque, fmt, ops::Range};

use crate::{
    buf::{Payload, Slice},
    cost::count_copied,
};

/// A list of pieces: small ones copied into one arena, payload held by reference.
#[derive(Default)]
pub struct Gather {
    arena: Vec<u8>,
    pieces: VecDeque<Piece>,
    len: usize,
}

enum Piece {
    Small { start: usize, len: usize },
    Slice { slice: Slice, start: usize },
}

impl Gather {
    /// An empty list.
    pub fn new() -> Self {
        Gather::default()
    }

    /// Bytes not yet sent.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether everything is sent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of pieces not yet sent; the system takes at most 1,024 in one send.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Appends a copy of `bytes`: for headers and other small data.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.pieces.is_empty() {
            self.arena.clear();
        }
        count_copied(bytes.len());
        let start = self.arena.len();
        self.arena.extend_from_slice(bytes);
        self.len += bytes.len();
        if let Some(Piece::Small {
            start: last_start,
            len,
        }) = self.pieces.back_mut()
        {
            if *last_start + *len == start {
                *len += bytes.len();
                return;
            }
        }
        self.pieces.push_back(Piece::Small {
            start,
            len: bytes.len(),
        });
    }

    /// Appends `slice` without copying it.
    pub fn push_slice(&mut self, slice: Slice) {
        if !slice.is_empty() {
            self.len += slice.len();
            self.pieces.push_back(Piece::Slice { slice, start: 0 });
        }
    }

    /// Appends the part `range` of `payload` without copying it.
    pub fn push_payload(&mut self, payload: &Payload, range: Range<usize>) {
        let mut at = 0;
        for slice in payload.slices() {
            let from = range.start.max(at);
            let to = range.end.min(at + slice.len());
            if from < to {
                self.push_slice(slice.slice(from - at..to - at));
            }
            at += slice.len();
        }
    }

    /// The pieces not yet sent, in order.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| match piece {
            Piece::Small { start, len } => &self.arena[*start..*start + *len],
            Piece::Slice { slice, start } => &slice[*start..],
        })
    }

    /// Removes the first `sent` bytes. Panics if there are fewer.
    pub fn advance(&mut self, mut sent: usize) {
        assert!(sent <= self.len, "{sent} bytes sent of {}", self.len);
        self.len -= sent;
        while sent > 0 {
            let front = self
                .pieces
                .front_mut()
                .expect("the length counts the pieces");
            let (start, len) = match front {
                Piece::Small { start, len } => {
                    let n = sent.min(*len);
                    (*start, *len) = (*start + n, *len - n);
                    (n, *len)
                }
                Piece::Slice { slice, start } => {
                    let n = sent.min(slice.len() - *start);
                    *start += n;
                    (n, slice.len() - *start)
                }
            };
            sent -= start;
            if len == 0 {
                self.pieces.pop_front();
            }
        }
        if self.pieces.is_empty() {
            assert_eq!(self.len, 0, "the length counts the pieces");
            self.arena.clear();
        }
    }
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gather({} bytes in {})", self.len, self.pieces.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buf;

    fn bytes(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 7 % 251) as u8).collect()
    }

    #[test]
    fn a_gather_gives_its_bytes_in_order_however_it_is_sent() {
        let mut gather = Gather::new();
        let mut expected = Vec::new();
        for i in 0..20 {
            let piece = bytes(100 + i * 13);
            gather.push_bytes(&piece[..48]);
            gather.push_bytes(&piece[48..60]);
            gather.push_slice(Buf::copy_of(&piece[60..]).freeze());
            expected.extend_from_slice(&piece);
        }
        assert_eq!(gather.pieces(), 40, "small pieces in a row are one");
        let mut sent = Vec::new();
        while !gather.is_empty() {
            let now: Vec<u8> = gather.chunks().flatten().copied().take(97).collect();
            gather.advance(now.len());
            sent.extend(now);
        }
        assert_eq!(sent, expected);
    }
}
