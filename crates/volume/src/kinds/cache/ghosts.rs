//! The numbers of the blocks that were evicted last, up to a fixed count. A block that is needed again while its number
//! is still here was evicted too early.

use std::collections::VecDeque;

use super::block_map::BlockMap;

pub(super) struct Ghosts {
    count_max: usize,
    /// The evicted blocks, the first evicted first. Some have come back since.
    evicted: VecDeque<u64>,
    /// How many evictions there had been in all.
    evictions: u64,
    /// The last eviction of each block that has not come back.
    last_evictions: BlockMap<u64>,
}

impl Ghosts {
    /// For the last `count_max` evictions, above zero.
    pub(super) fn new(count_max: usize) -> Self {
        Ghosts {
            count_max,
            evicted: VecDeque::new(),
            evictions: 0,
            last_evictions: BlockMap::default(),
        }
    }

    /// From now on it knows the last `count_max` evictions, above zero.
    pub(super) fn set_count_max(&mut self, count_max: usize) {
        self.count_max = count_max;
        while self.evicted.len() > count_max {
            self.forget_first();
        }
    }

    /// Records that `block` was evicted.
    pub(super) fn put(&mut self, block: u64) {
        if self.evicted.len() == self.count_max {
            self.forget_first();
        }
        self.evicted.push_back(block);
        self.last_evictions.insert(block, self.evictions);
        self.evictions += 1;
    }

    /// Whether `block`, which comes back, is among the last evicted; it no longer is afterwards.
    pub(super) fn take(&mut self, block: u64) -> bool {
        self.last_evictions.remove(&block).is_some()
    }

    fn forget_first(&mut self) {
        let eviction = self.evictions - self.evicted.len() as u64;
        if let Some(block) = self.evicted.pop_front() {
            // It may have come back and been evicted again.
            if self.last_evictions.get(&block) == Some(&eviction) {
                self.last_evictions.remove(&block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_known_until_it_comes_back_or_others_were_evicted_since() {
        let mut ghosts = Ghosts::new(3);
        for block in 1..=4 {
            ghosts.put(block);
        }
        assert!(!ghosts.take(1), "three have been evicted since");
        assert!(ghosts.take(2) && !ghosts.take(2));
        ghosts.put(2);
        ghosts.put(5);
        assert!(ghosts.take(4) && ghosts.take(5));
        assert!(ghosts.take(2), "only its first eviction is forgotten");
        assert_eq!((ghosts.evicted.len(), ghosts.last_evictions.len()), (3, 0));
    }
}
