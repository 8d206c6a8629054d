//! A copy: one block, its metadata, its reservations and its floor.

use mirror::{
    CopyId, Event, Regions,
    copy::{Floor, Kept},
    fence::{Answer, Step},
    key::Key,
};

use crate::budget::Budget;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Copy {
    /// Registered, in order.
    pub(crate) keys: Vec<u64>,
    holder: Option<u64>,
    /// The reservation was lost with the power, and all sessions with it.
    is_lost: bool,
    floor: Option<Floor>,
    pub(crate) value: u8,
    pub(crate) marked: [bool; 2],
    pub(crate) kept: Kept,
}

impl Copy {
    pub(crate) fn new(kept: Kept, budget: &Budget) -> Copy {
        Copy {
            keys: Vec::new(),
            holder: None,
            is_lost: false,
            floor: budget.has_floor.then(Floor::default),
            value: 0,
            marked: [budget.has_other_block, false],
            kept,
        }
    }

    /// Whether a nexus with `key` may read and write: Exclusive Access, Registrants Only.
    pub(crate) fn serves(&self, key: u64) -> bool {
        let is_open = self.holder.is_none() && !self.is_lost;
        is_open || self.keys.contains(&key)
    }

    /// Registers `key`, unless the floor is higher.
    pub(crate) fn register(&mut self, key: u64) -> bool {
        if let (Some(floor), Some(key)) = (&mut self.floor, Key::from_raw(key)) {
            if !floor.admits(key) {
                return false;
            }
            *floor = floor.raised_to(key);
        }
        if !self.keys.contains(&key) {
            self.keys.push(key);
            self.keys.sort_unstable();
        }
        if self.is_lost {
            self.is_lost = false;
            self.holder = Some(key);
        }
        true
    }

    pub(crate) fn lose_fence(&mut self) {
        self.keys.clear();
        self.holder = None;
        self.is_lost = true;
    }

    /// The nexus with `key` sends a step of its fence.
    pub(crate) fn answer(&mut self, key: u64, step: Step) -> Answer {
        let is_registered = self.keys.contains(&key);
        match step {
            Step::ReadKeys => Answer::Keys(self.keys.clone()),
            Step::ReadReservation => Answer::Reservation(self.holder),
            Step::Register if self.register(key) => Answer::Good,
            Step::Reserve if is_registered && self.holder.is_none_or(|holder| holder == key) => {
                self.holder = Some(key);
                Answer::Good
            }
            Step::Preempt(other) if is_registered && self.keys.contains(&other.raw()) => {
                self.keys.retain(|one| *one != other.raw());
                if self.holder == Some(other.raw()) {
                    self.holder = Some(key);
                }
                Answer::Good
            }
            Step::Reset => Answer::Good,
            Step::Register | Step::Reserve | Step::Preempt(_) => Answer::Conflict,
        }
    }

    /// What it keeps, read under `key`.
    pub(crate) fn metadata(&self, copy: CopyId, key: Key, last_block: u64) -> Option<Event> {
        let mut marked = Regions::none(last_block as usize + 1);
        for region in 0..=last_block as usize {
            marked.set(region, self.marked[region]);
        }
        self.serves(key.raw()).then_some(Event::Metadata {
            copy,
            key,
            kept: self.kept,
            marked,
        })
    }
}
