//! The numbers of blocks that were forgotten lately: one that is asked for again soon was forgotten too
//! early. A table with one place for each number, which the next number of that place takes, so that it
//! never grows and nothing in it has to be put in order.

use std::hash::Hasher;

use super::block_map::BlockHasher;

/// No block has this number.
const NOBODY: u64 = u64::MAX;

/// Numbers of forgotten blocks.
pub(super) struct Ghosts(Box<[u64]>);

impl Ghosts {
    /// For about as many as `blocks`, above zero.
    pub(super) fn new(blocks: usize) -> Self {
        Ghosts(vec![NOBODY; blocks.next_power_of_two()].into())
    }

    /// Notes that `block` was forgotten.
    pub(super) fn put(&mut self, block: u64) {
        *self.place_of(block) = block;
    }

    /// Whether `block` was forgotten lately; it is not asked twice.
    pub(super) fn take(&mut self, block: u64) -> bool {
        let place = self.place_of(block);
        let is_there = *place == block;
        if is_there {
            *place = NOBODY;
        }
        is_there
    }

    fn place_of(&mut self, block: u64) -> &mut u64 {
        let mut hasher = BlockHasher::default();
        hasher.write_u64(block);
        let place = hasher.finish() as usize & (self.0.len() - 1);
        &mut self.0[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_forgotten_lately_is_known_once_and_what_was_long_ago_is_not() {
        let mut ghosts = Ghosts::new(1000);
        (0..20_000).for_each(|block| ghosts.put(block));
        assert!(ghosts.take(19_999) && !ghosts.take(19_999));
        let known = |range: std::ops::Range<u64>, ghosts: &mut Ghosts| {
            range.filter(|&block| ghosts.take(block)).count()
        };
        let lately = known(19_800..20_000, &mut ghosts);
        assert!(lately > 150, "{lately} of the last 200");
        assert_eq!(known(0..10_000, &mut ghosts), 0);
    }
}
