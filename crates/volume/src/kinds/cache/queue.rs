//! The queue of a sieve: slots in the order in which their blocks came, and a hand that moves from the oldest towards
//! the newest, then starts again at the oldest. Any slot may leave. The slots are linked by their numbers.

/// No slot.
const NONE: u32 = u32::MAX;

pub(super) struct EvictionQueue {
    links: Vec<Neighbours>,
    oldest: u32,
    newest: u32,
    /// Where the hand is; `NONE` before the oldest.
    hand: u32,
}

/// A slot's neighbours.
#[derive(Clone, Copy)]
struct Neighbours {
    older: u32,
    newer: u32,
}

impl EvictionQueue {
    pub(super) fn new() -> Self {
        EvictionQueue {
            links: Vec::new(),
            oldest: NONE,
            newest: NONE,
            hand: NONE,
        }
    }

    /// Puts `slot`, which is not in the queue, at its end; no number before it was left out.
    pub(super) fn push(&mut self, slot: u32) {
        let link = Neighbours {
            older: self.newest,
            newer: NONE,
        };
        match self.links.get_mut(slot as usize) {
            Some(known) => *known = link,
            None => self.links.push(link),
        }
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.links[newest as usize].newer = slot,
        }
        self.newest = slot;
    }

    /// Takes `slot` out of the queue, and the hand off it.
    pub(super) fn remove(&mut self, slot: u32) {
        let Neighbours { older, newer } = self.links[slot as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        if self.hand == slot {
            self.hand = newer;
        }
    }

    /// The slot at the hand; `None` if the queue is empty.
    pub(super) fn at_hand(&self) -> Option<u32> {
        let slot = match self.hand {
            NONE => self.oldest,
            hand => hand,
        };
        (slot != NONE).then_some(slot)
    }

    /// Moves the hand over the slot where it is.
    pub(super) fn pass(&mut self) {
        if let Some(slot) = self.at_hand() {
            self.hand = self.links[slot as usize].newer;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u32),
        Remove(u32),
        Pass,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u32..8).prop_map(Step::Push),
            (0u32..8).prop_map(Step::Remove),
            Just(Step::Pass),
        ]
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_list_with_a_position(steps in prop::collection::vec(step(), 0..100)) {
            let (mut queue, mut model, mut hand) = (EvictionQueue::new(), Vec::new(), 0);
            let mut known = 0;
            for step in steps {
                match step {
                    Step::Push(slot) if slot <= known && !model.contains(&slot) => {
                        known = known.max(slot + 1);
                        // At the end of its way the hand is before the oldest, not before what comes.
                        hand %= model.len().max(1);
                        queue.push(slot);
                        model.push(slot);
                    }
                    Step::Remove(slot) => {
                        if let Some(place) = model.iter().position(|other| *other == slot) {
                            queue.remove(slot);
                            model.remove(place);
                            hand -= usize::from(hand > place);
                        }
                    }
                    Step::Pass if !model.is_empty() => {
                        queue.pass();
                        hand = hand % model.len() + 1;
                    }
                    Step::Push(_) | Step::Pass => {}
                }
                let at_hand = model.get(hand).or(model.first());
                prop_assert_eq!(queue.at_hand(), at_hand.copied());
            }
        }
    }
}
