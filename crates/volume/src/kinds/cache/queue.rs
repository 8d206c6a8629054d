//! A queue of slots: in at one end, out at the other, and out from the middle when a block is forgotten.
//! The slots are linked by their numbers.

/// No slot.
const NONE: u32 = u32::MAX;

/// A slot's neighbours in the queue that it is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    before: u32,
    after: u32,
}

impl Link {
    /// Of a slot that is in no queue.
    pub(super) const NONE: Link = Link {
        before: NONE,
        after: NONE,
    };
}

/// The ends of a queue; the links of all slots are its user's.
#[derive(Debug)]
pub(super) struct Queue {
    first: u32,
    last: u32,
    len: usize,
}

impl Queue {
    pub(super) fn new() -> Self {
        Queue {
            first: NONE,
            last: NONE,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The slot that has been in it longest.
    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Puts `slot`, which is in no queue, at the end.
    pub(super) fn push(&mut self, slot: u32, links: &mut [Link]) {
        links[slot as usize] = Link {
            before: self.last,
            after: NONE,
        };
        match self.last {
            NONE => self.first = slot,
            last => links[last as usize].after = slot,
        }
        self.last = slot;
        self.len += 1;
    }

    /// Takes `slot`, which is in this queue, out of it.
    pub(super) fn remove(&mut self, slot: u32, links: &mut [Link]) {
        let Link { before, after } = std::mem::replace(&mut links[slot as usize], Link::NONE);
        match before {
            NONE => self.first = after,
            before => links[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            after => links[after as usize].before = before,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_queue_from_which_any_slot_may_leave(
            steps in prop::collection::vec((0u32..8, any::<bool>()), 0..100),
        ) {
            let (mut queue, mut links) = (Queue::new(), [Link::NONE; 8]);
            let mut model = VecDeque::new();
            for (slot, leaves_first) in steps {
                let out = match leaves_first {
                    true => model.front().copied(),
                    false => Some(slot).filter(|slot| model.contains(slot)),
                };
                match out {
                    Some(out) => {
                        queue.remove(out, &mut links);
                        model.retain(|slot| *slot != out);
                    }
                    None if !model.contains(&slot) => {
                        queue.push(slot, &mut links);
                        model.push_back(slot);
                    }
                    None => {}
                }
                prop_assert_eq!((queue.first(), queue.len()), (model.front().copied(), model.len()));
            }
        }
    }
}
