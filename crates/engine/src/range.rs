//! Arithmetic of ranges: of bytes, of blocks.

use std::ops::Range;

/// Whether two ranges, neither of them empty, have anything in common.
#[inline]
pub fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_have_nothing_in_common() {
        for (other, expected) in [
            (0..4, false),
            (0..5, true),
            (5..6, true),
            (0..100, true),
            (7..9, true),
            (8..9, false),
        ] {
            assert_eq!(overlap(&(4..8), &other), expected, "{other:?}");
            assert_eq!(overlap(&other, &(4..8)), expected, "{other:?}");
        }
    }
}
