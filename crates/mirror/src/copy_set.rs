//! The copies of a mirror, and sets of them.

use std::fmt;

/// The most copies that the formats leave room for.
pub const COPIES_MAX: usize = 8;

/// One copy, by its place in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CopyId(u8);

impl CopyId {
    /// The copy at `place`.
    ///
    /// # Panics
    /// If no mirror has so many.
    pub fn new(place: usize) -> CopyId {
        assert!(
            place < COPIES_MAX,
            "a mirror has at most {COPIES_MAX} copies"
        );
        CopyId(place as u8)
    }

    /// Its place in the configuration.
    pub fn place(self) -> usize {
        self.0.into()
    }
}

/// A set of copies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CopySet(u8);

impl CopySet {
    /// None.
    pub const EMPTY: CopySet = CopySet(0);

    /// The first `count` copies.
    ///
    /// # Panics
    /// If no mirror has so many.
    pub fn first(count: usize) -> CopySet {
        assert!(
            count <= COPIES_MAX,
            "a mirror has at most {COPIES_MAX} copies"
        );
        CopySet(((1_u16 << count) - 1) as u8)
    }

    /// The set as it is stored: bit 0 is the first copy.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// The set that is stored as `bits`.
    pub fn from_bits(bits: u8) -> CopySet {
        CopySet(bits)
    }

    /// Whether there is none in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many there are.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether `copy` is in it.
    pub fn contains(self, copy: CopyId) -> bool {
        self.0 & (1 << copy.0) != 0
    }

    /// Whether all of it is in `other`.
    pub fn is_within(self, other: CopySet) -> bool {
        self.0 & !other.0 == 0
    }

    /// Those in either.
    pub fn union(self, other: CopySet) -> CopySet {
        CopySet(self.0 | other.0)
    }

    /// Those of it that are not in `other`.
    pub fn without(self, other: CopySet) -> CopySet {
        CopySet(self.0 & !other.0)
    }

    /// Those in both.
    pub fn common(self, other: CopySet) -> CopySet {
        CopySet(self.0 & other.0)
    }

    /// Adds `copy`.
    pub fn insert(&mut self, copy: CopyId) {
        self.0 |= 1 << copy.0;
    }

    /// Takes `copy` out.
    pub fn remove(&mut self, copy: CopyId) {
        self.0 &= !(1 << copy.0);
    }

    /// Its copies, in the order of the configuration.
    pub fn iter(self) -> impl Iterator<Item = CopyId> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let first = (left != 0).then(|| CopyId(left.trailing_zeros() as u8))?;
            left &= left - 1;
            Some(first)
        })
    }
}

impl From<CopyId> for CopySet {
    fn from(copy: CopyId) -> CopySet {
        CopySet(1 << copy.0)
    }
}

impl fmt::Debug for CopySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.iter().map(CopyId::place))
            .finish()
    }
}
