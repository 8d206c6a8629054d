//! The cached blocks: a table of slots with a hash index, and a sieve that says which block is evicted (SIEVE: Zhang and
//! others, NSDI 2024).
//!
//! The blocks stand in a queue in the order in which they came. A hand moves from the oldest to the newest, evicts
//! blocks that have no chance left and takes one from each of the others, which stay where they are. A block that is
//! read again gets a chance. What a scan reads gets none, so the hand follows the scan at the speed at which blocks are
//! added, and does not come round to what others use. It comes round when the blocks before it are used as well, or
//! when `ghosts` shows that blocks were evicted too early:
//!
//! - A block that is read again soon after its eviction starts with a chance.
//! - A block that is read ahead again soon after its eviction belongs to a table that is scanned repeatedly. The hand
//!   passes another block instead: if the table is larger than the memory, some of its blocks thus stay for the next
//!   scan, while with a chance for each one none would.
//!
//! A block that was read ahead has two chances until its reader comes, and none then.
//!
//! Blocks are shared and never changed under a reader: a write to a block that a reader still holds replaces it with
//! a modified copy; otherwise the block is modified in place.
//!
//! Memory is counted in blocks. Reads in flight reserve theirs before they begin, so that everything the cache holds
//! stays within its capacity.

use std::{ops::Range, sync::Arc};

use engine::{Buf, Payload, Slice};

use super::{
    block_map::BlockMap, blocks::Blocks, counters::Counters, ghosts::Ghosts, queue::EvictionQueue,
};

/// The most chances of a block. With three, what is no longer used stays for another round.
const CHANCES_MAX: u8 = 2;

pub(super) struct Store {
    blocks: Blocks,
    index: BlockMap<u32>,
    slots: Vec<CacheSlot>,
    free: Vec<u32>,
    queue: EvictionQueue,
    ghosts: Ghosts,
    capacity: usize,
    reserved: usize,
    counters: Arc<Counters>,
}

struct CacheSlot {
    block: u64,
    /// The whole block; `None` in a free slot.
    data: Option<Slice>,
    valid: u64,
    /// How often the hand still passes it over.
    chances: u8,
    /// Whether it was read ahead and nobody has read it yet.
    read_ahead: bool,
}

/// A cached part of a block.
pub(super) struct CachedPart {
    pub(super) data: Slice,
    /// Whether it was read ahead and this is its first use.
    pub(super) was_read_ahead: bool,
}

impl Store {
    /// A store for `capacity` blocks, above zero.
    pub(super) fn new(blocks: Blocks, capacity: usize, counters: Arc<Counters>) -> Self {
        Store {
            blocks,
            index: BlockMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            queue: EvictionQueue::new(),
            ghosts: Ghosts::new(capacity),
            capacity,
            reserved: 0,
            counters,
        }
    }

    /// The maximum number of blocks it may hold.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// From now on it holds so many blocks at most; returns how many have left. What is reserved stays so until it is
    /// released, even if it is more.
    pub(super) fn set_capacity(&mut self, capacity: usize) -> usize {
        self.capacity = capacity;
        self.ghosts.set_count_max(capacity);
        let before = self.held();
        while self.held() > 0 && self.held() + self.reserved > self.capacity {
            self.evict();
        }
        before - self.held()
    }

    /// The number of blocks it holds.
    pub(super) fn held(&self) -> usize {
        self.index.len()
    }

    /// The blocks reserved for reads in flight.
    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    /// The size of a block, in bytes.
    pub(super) fn block_bytes(&self) -> u64 {
        self.blocks.block_bytes()
    }

    /// Counts a block that leaves; `unused`: it was read ahead and nobody has read it.
    pub(super) fn count_waste(&self, unused: bool) {
        let bytes = u64::from(unused) * self.block_bytes();
        self.counters.read_ahead_wasted_bytes.add(bytes);
    }

    /// A part of `block`, if it is valid. `again` is false if this is just the next part of a block that the same
    /// reader is working through, which does not count as a reuse.
    pub(super) fn get(
        &mut self,
        block: u64,
        part: Range<usize>,
        again: bool,
    ) -> Option<CachedPart> {
        let slot = &mut self.slots[*self.index.get(&block)? as usize];
        let needed = self.blocks.needed(&part);
        if slot.valid & needed != needed {
            return None;
        }
        let data = slot.data.as_ref()?.slice(part);
        let was_read_ahead = std::mem::take(&mut slot.read_ahead);
        if was_read_ahead {
            slot.chances = 0;
        } else if again {
            slot.chances = CHANCES_MAX.min(slot.chances + 1);
        }
        Some(CachedPart {
            data,
            was_read_ahead,
        })
    }

    /// Whether `part` of `block` is valid.
    pub(super) fn has(&self, block: u64, part: &Range<usize>) -> bool {
        let needed = self.blocks.needed(part);
        let slot = self.index.get(&block);
        slot.is_some_and(|&slot| self.slots[slot as usize].valid & needed == needed)
    }

    /// Whether all of `block` is valid.
    pub(super) fn has_all(&self, block: u64) -> bool {
        self.has(block, &(0..self.blocks.block_bytes() as usize))
    }

    /// Caches all of `block`. Does nothing without room (everything is reserved).
    pub(super) fn insert(&mut self, block: u64, data: Slice, read_ahead: bool) {
        let valid = self.blocks.all();
        if let Some(slot) = self.slot_for(block, read_ahead) {
            let slot = &mut self.slots[slot as usize];
            slot.data = Some(data);
            slot.valid = valid;
            slot.read_ahead = read_ahead;
            if read_ahead {
                slot.chances = CHANCES_MAX;
            }
        } else {
            self.count_waste(read_ahead);
        }
    }

    /// Updates `part` of `block` after a write to the volume with the bytes of `data` from `start` on.
    pub(super) fn update(&mut self, block: u64, part: Range<usize>, data: &Payload, start: usize) {
        let covered = self.blocks.covered(&part);
        let known = self.index.get(&block).copied();
        let slot = match known {
            Some(slot) => slot,
            // Less than a granule makes nothing valid, so do not spend memory on it.
            None if covered == 0 => return,
            None => match self.slot_for(block, false) {
                Some(slot) => slot,
                None => return,
            },
        };
        let slot = &mut self.slots[slot as usize];
        let len = self.blocks.block_bytes() as usize;
        let mut buf = match slot.data.take().map(Slice::try_unfreeze) {
            Some(Ok(buf)) => buf,
            Some(Err(shared)) if part.len() < len => Buf::copy_of(&shared),
            _ => Buf::new(len),
        };
        data.copy_to(start, &mut buf[part]);
        slot.data = Some(buf.freeze());
        slot.valid |= covered;
    }

    /// Invalidates `part` of `block` because a write to it begins. Keeps the memory, for the write's end to fill.
    pub(super) fn invalidate(&mut self, block: u64, part: &Range<usize>) {
        if let Some(&slot) = self.index.get(&block) {
            let slot = &mut self.slots[slot as usize];
            slot.valid &= !self.blocks.needed(part);
            let unused = std::mem::take(&mut slot.read_ahead);
            self.count_waste(unused);
        }
    }

    /// Drops `block`.
    pub(super) fn remove(&mut self, block: u64) {
        if let Some(slot) = self.index.remove(&block) {
            self.empty(slot);
            self.tell_memory();
        }
    }

    /// Drops all of `blocks`; the range may be far larger than what is cached.
    pub(super) fn remove_all(&mut self, blocks: Range<u64>) {
        if blocks.end - blocks.start <= self.slots.len() as u64 {
            blocks.for_each(|block| self.remove(block));
            return;
        }
        let held = self.index.keys().copied();
        let among: Vec<u64> = held.filter(|block| blocks.contains(block)).collect();
        among.into_iter().for_each(|block| self.remove(block));
    }

    /// Reserves room for `count` blocks, evicting as needed; returns false if there cannot be that much.
    pub(super) fn reserve(&mut self, count: usize) -> bool {
        if self.reserved + count > self.capacity {
            return false;
        }
        self.reserved += count;
        self.tell_memory();
        while self.held() + self.reserved > self.capacity {
            self.evict();
        }
        true
    }

    /// Releases reserved room.
    pub(super) fn release(&mut self, count: usize) {
        self.reserved -= count;
        self.tell_memory();
    }

    fn tell_memory(&self) {
        let bytes = |blocks: usize| blocks as u64 * self.block_bytes();
        self.counters.held_bytes.set(bytes(self.held()));
        self.counters.reserved_bytes.set(bytes(self.reserved));
    }

    /// The slot of `block`, or a new one without valid data; `None` without room.
    fn slot_for(&mut self, block: u64, read_ahead: bool) -> Option<u32> {
        if let Some(&slot) = self.index.get(&block) {
            return Some(slot);
        }
        if self.reserved >= self.capacity {
            return None;
        }
        if self.held() + self.reserved >= self.capacity {
            self.evict();
        }
        let was_evicted_early = self.ghosts.take(block);
        if was_evicted_early && read_ahead {
            self.pass();
        }
        let new = CacheSlot {
            block,
            data: None,
            valid: 0,
            chances: u8::from(was_evicted_early),
            read_ahead: false,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = new;
                slot
            }
            None => {
                self.slots.push(new);
                self.slots.len() as u32 - 1
            }
        };
        self.queue.push(slot);
        self.index.insert(block, slot);
        self.tell_memory();
        Some(slot)
    }

    /// Evicts the least valuable block. There must be one.
    fn evict(&mut self) {
        loop {
            let slot = self.queue.at_hand().expect("a block is held");
            let slot = &self.slots[slot as usize];
            if slot.chances == 0 {
                let block = slot.block;
                self.ghosts.put(block);
                return self.remove(block);
            }
            self.pass();
        }
    }

    /// Takes a chance from the block at the hand and moves the hand on. The first time that it comes to a block whose
    /// reader is still to come, it sends the block to the end of the queue, so that it gets no nearer to the oldest.
    fn pass(&mut self) {
        if let Some(at_hand) = self.queue.at_hand() {
            let slot = &mut self.slots[at_hand as usize];
            slot.chances = slot.chances.saturating_sub(1);
            if slot.read_ahead && slot.chances > 0 {
                self.queue.remove(at_hand);
                self.queue.push(at_hand);
            } else {
                self.queue.pass();
            }
        }
    }

    /// Empties a slot that is no longer in the index.
    fn empty(&mut self, index: u32) {
        self.queue.remove(index);
        let slot = &mut self.slots[index as usize];
        slot.data = None;
        let unused = slot.read_ahead;
        self.free.push(index);
        self.count_waste(unused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 4096;

    fn store(capacity: usize) -> Store {
        Store::new(Blocks::new(BLOCK as u32, 512), capacity, Arc::default())
    }

    fn page(value: u8) -> Slice {
        Buf::copy_of(&[value; BLOCK]).freeze()
    }

    fn value(store: &mut Store, block: u64) -> Option<u8> {
        let found = store.get(block, 0..BLOCK, false)?;
        Some(found.data[0])
    }

    #[test]
    fn it_never_holds_more_than_its_capacity() {
        let mut store = store(8);
        for block in 0..20 {
            store.insert(block, page(block as u8), false);
            assert_eq!(store.held(), 8.min(block as usize + 1));
            assert_eq!(value(&mut store, block), Some(block as u8));
        }
        assert!(store.reserve(6) && !store.reserve(3));
        assert_eq!((store.held(), store.reserved()), (2, 6));
        store.insert(100, page(1), false);
        assert_eq!(store.held(), 2);
        assert!(store.reserve(2));
        store.insert(101, page(1), false);
        assert_eq!(store.held(), 0, "all is reserved");
        store.release(8);
        store.insert(102, page(1), false);
        assert_eq!(store.held(), 1);
    }

    #[test]
    fn it_holds_no_more_than_another_capacity_and_keeps_what_fits() {
        let mut store = store(8);
        (0..8).for_each(|block| store.insert(block, page(block as u8), false));
        assert!(store.reserve(2));
        assert_eq!(store.set_capacity(4), 4);
        assert_eq!((store.held(), value(&mut store, 7)), (2, Some(7)));
        assert_eq!(store.set_capacity(1), 2, "even what is reserved is more");
        assert!(!store.reserve(1));
        store.insert(9, page(9), false);
        assert_eq!(store.held(), 0);
        store.release(2);
        store.set_capacity(16);
        (0..20).for_each(|block| store.insert(block, page(block as u8), false));
        assert_eq!(store.held(), 16);
    }

    #[test]
    fn what_is_used_again_survives_a_scan() {
        for read_ahead in [false, true] {
            let mut store = store(100);
            for block in (0..70).chain(0..70) {
                if store.get(block, 0..BLOCK, true).is_none() {
                    store.insert(block, page(0), false);
                }
            }
            // Between two reads of the same hot block, ten times the capacity is scanned.
            let mut scan = 1000..;
            for hot in (0..70).chain(0..70) {
                for block in scan.by_ref().take(15) {
                    store.insert(block, page(0), read_ahead);
                    store.get(block, 0..BLOCK, read_ahead);
                }
                assert!(store.get(hot, 0..BLOCK, true).is_some(), "block {hot}");
            }
        }
    }

    #[test]
    fn a_block_that_was_evicted_too_early_gets_a_chance() {
        let mut store = store(4);
        for block in [0, 1, 2, 3, 4, 0] {
            store.insert(block, page(0), false);
        }
        // Those that came after it leave before it.
        for block in 5..9 {
            store.insert(block, page(0), false);
        }
        assert!(store.has_all(0) && !store.has_all(4));
    }

    #[test]
    fn what_was_read_ahead_waits_for_its_reader_and_not_longer() {
        let mut store = store(4);
        store.insert(0, page(0), true);
        store.insert(1, page(0), true);
        store.get(0, 0..BLOCK, true);
        for block in 2..9 {
            store.insert(block, page(0), false);
        }
        assert!(store.has_all(1) && !store.has_all(0));
        // Its reader never comes, and others need its room.
        for block in (0..30).map(|n| 10 + n % 4) {
            store.insert(block, page(0), false);
        }
        assert!(!store.has_all(1));
    }

    #[test]
    fn a_reader_keeps_what_it_has_while_a_write_replaces_it() {
        let mut store = store(8);
        store.insert(1, page(1), false);
        let seen = store.get(1, 0..BLOCK, false).expect("just inserted").data;
        let data = Payload::from(Buf::copy_of(&[2; 512]));
        store.update(1, 512..1024, &data, 0);
        assert!(seen.iter().all(|&byte| byte == 1));
        let now = store.get(1, 0..BLOCK, false).expect("still there").data;
        assert_eq!((now[511], now[512], now[1023], now[1024]), (1, 2, 2, 1));
        let place = now.as_ptr();
        drop((seen, now));
        store.update(1, 0..512, &data, 0);
        let now = store.get(1, 0..BLOCK, false).expect("still there").data;
        assert_eq!(now.as_ptr(), place, "nobody looked: changed in place");
    }

    #[test]
    fn only_what_was_written_is_valid() {
        let mut store = store(8);
        let data = Payload::from(Buf::copy_of(&[2; 2048]));
        store.update(1, 1024..3072, &data, 0);
        assert!(store.get(1, 1024..3072, false).is_some());
        assert!(store.get(1, 512..1536, false).is_none());
        assert!(store.get(1, 3072..3584, false).is_none());
        assert!(!store.has_all(1));
        store.update(1, 0..1024, &data, 1024);
        store.update(1, 3072..4096, &data, 0);
        assert!(store.has_all(1));
        store.invalidate(1, &(512..700));
        assert!(store.get(1, 1000..1024, false).is_none());
        assert!(store.get(1, 1024..4096, false).is_some());
        store.remove_all(0..1 << 30);
        assert!(!store.has_all(1) && store.held() == 0);
    }

    #[test]
    fn read_ahead_that_nobody_used_is_counted() {
        let mut store = store(4);
        for block in 0..4 {
            store.insert(block, page(0), true);
        }
        let first = store.get(0, 0..512, true).expect("inserted");
        let second = store.get(0, 512..1024, false).expect("inserted");
        assert!(first.was_read_ahead && !second.was_read_ahead);
        store.remove_all(0..4);
        let wasted = store.counters.stats().read_ahead_wasted_bytes;
        assert_eq!(wasted, 3 * BLOCK as u64);
    }
}
