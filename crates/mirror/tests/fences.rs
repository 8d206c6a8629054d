//! Explores all interleavings of fences on one copy, step by step, with writes that older owners have queued: once a
//! fence is made, no older owner's write lands; and a fence that nobody disturbs is made.

use std::collections::HashSet;

use mirror::{
    fence::{Fence, FenceAnswer, FenceCommand, FenceProgress},
    key::FenceKey,
};

const FENCES: usize = 3;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Maker {
    Making(Fence, FenceCommand),
    Made,
    Ended,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    makers: [Option<Maker>; FENCES],
    keys: Vec<u64>,
    holder: Option<u64>,
    /// Whether the copy has a write of each maker in its queue, admitted before.
    queued: [bool; FENCES],
    /// Whether each may still send one: only owners whose fences were made do.
    may_send: [bool; FENCES],
    /// The highest maker whose fence was made.
    newest_made: Option<usize>,
}

fn key(maker: usize) -> FenceKey {
    // Two fences of one epoch, and one of the next.
    [
        FenceKey::new(1, 0),
        FenceKey::new(1, 1),
        FenceKey::new(2, 0),
    ][maker]
}

impl World {
    fn new() -> World {
        World {
            makers: [const { None }; FENCES],
            keys: Vec::new(),
            holder: None,
            queued: [false; FENCES],
            may_send: [true; FENCES],
            newest_made: None,
        }
    }

    fn serves(&self, maker: usize) -> bool {
        self.holder.is_none() || self.keys.contains(&key(maker).raw())
    }

    fn answer(&mut self, maker: usize, step: FenceCommand, aborts: bool) -> FenceAnswer {
        let own = key(maker).raw();
        let is_registered = self.keys.contains(&own);
        match step {
            FenceCommand::ReadKeys => FenceAnswer::Keys(self.keys.clone()),
            FenceCommand::ReadReservation => FenceAnswer::Reservation(self.holder),
            FenceCommand::Register => {
                self.keys.push(own);
                self.keys.sort_unstable();
                self.keys.dedup();
                FenceAnswer::Good
            }
            FenceCommand::Reserve
                if is_registered && self.holder.is_none_or(|holder| holder == own) =>
            {
                self.holder = Some(own);
                FenceAnswer::Good
            }
            FenceCommand::Preempt(other) if is_registered && self.keys.contains(&other.raw()) => {
                let is_holder = self.holder == Some(other.raw());
                self.keys.retain(|one| *one != other.raw());
                for older in (0..FENCES).filter(|one| key(*one) == other) {
                    self.queued[older] &= !aborts;
                }
                if is_holder {
                    self.holder = Some(own);
                }
                FenceAnswer::Good
            }
            FenceCommand::Reset => {
                if aborts {
                    self.queued = [false; FENCES];
                }
                FenceAnswer::Good
            }
            FenceCommand::Reserve | FenceCommand::Preempt(_) => FenceAnswer::Conflict,
        }
    }

    fn step_of(&self, maker: usize, aborts: bool) -> Option<World> {
        let mut next = self.clone();
        let made = match next.makers[maker].take() {
            None => {
                let (fence, step) = Fence::new(key(maker));
                Maker::Making(fence, step)
            }
            Some(Maker::Making(mut fence, step)) => {
                let answer = next.answer(maker, step, aborts);
                match fence.answer(answer) {
                    FenceProgress::Next(step) => Maker::Making(fence, step),
                    FenceProgress::Made => {
                        next.newest_made = next.newest_made.max(Some(maker));
                        Maker::Made
                    }
                    FenceProgress::Superseded(_) | FenceProgress::Failed(_) => Maker::Ended,
                }
            }
            Some(Maker::Made | Maker::Ended) => return None,
        };
        next.makers[maker] = Some(made);
        Some(next)
    }

    /// All that may happen next, and whether a write lands that must not.
    fn successors(&self, aborts: bool) -> (Vec<World>, bool) {
        let mut all: Vec<World> = (0..FENCES)
            .filter_map(|maker| self.step_of(maker, aborts))
            .collect();
        let mut is_wrong = false;
        for maker in 0..FENCES {
            if self.queued[maker] {
                is_wrong |= self.newest_made > Some(maker);
                let mut next = self.clone();
                next.queued[maker] = false;
                all.push(next);
            }
            if self.makers[maker] == Some(Maker::Made) && self.may_send[maker] && self.serves(maker)
            {
                let mut next = self.clone();
                next.may_send[maker] = false;
                next.queued[maker] = true;
                all.push(next);
            }
        }
        (all, is_wrong)
    }
}

/// Whether a write lands that must not, in any state that can be reached; and how many there are.
fn explore(aborts: bool) -> (bool, usize) {
    let mut seen = HashSet::from([World::new()]);
    let mut next = vec![World::new()];
    while let Some(world) = next.pop() {
        let (successors, is_wrong) = world.successors(aborts);
        if is_wrong {
            return (true, seen.len());
        }
        for successor in successors {
            if seen.insert(successor.clone()) {
                next.push(successor);
            }
        }
    }
    (false, seen.len())
}

#[test]
fn once_a_fence_is_made_no_older_write_lands() {
    let (is_wrong, states) = explore(true);
    println!("{states} states");
    assert!(!is_wrong);
}

#[test]
fn what_is_queued_must_be_aborted() {
    assert!(explore(false).0);
}

#[test]
fn fences_that_nobody_disturbs_are_made_in_turn() {
    let mut world = World::new();
    for maker in 0..FENCES {
        while let Some(next) = world.step_of(maker, true) {
            world = next;
        }
        assert_eq!(world.makers[maker], Some(Maker::Made), "fence {maker}");
        assert_eq!(
            (world.keys.as_slice(), world.holder),
            ([key(maker).raw()].as_slice(), Some(key(maker).raw()))
        );
    }
}

#[test]
fn a_key_of_other_software_ends_the_fence() {
    let (mut fence, _) = Fence::new(key(0));
    let progress = fence.answer(FenceAnswer::Keys(vec![0x1234]));
    assert_eq!(progress, FenceProgress::Failed(Some(0x1234)));
}

#[test]
fn what_a_killed_guest_has_left_is_preempted() {
    let guest = FenceKey::guest(7);
    let mut world = World::new();
    world.keys.push(guest.raw());
    while let Some(next) = world.step_of(0, true) {
        world = next;
    }
    assert_eq!(world.makers[0], Some(Maker::Made));
    assert_eq!(world.keys, [key(0).raw()]);
}
