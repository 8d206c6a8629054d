//! A copy: one block, its metadata, its reservations and its floor.

use mirror::{
    CopyId, MirrorEvent, Regions,
    copy::{CopyState, Floor},
    fence::{FenceAnswer, FenceCommand},
    key::FenceKey,
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
    pub(crate) kept: CopyState,
}

impl Copy {
    pub(crate) fn new(kept: CopyState, budget: &Budget) -> Copy {
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
        if let (Some(floor), Some(key)) = (&mut self.floor, FenceKey::from_raw(key)) {
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
    pub(crate) fn answer(&mut self, key: u64, step: FenceCommand) -> FenceAnswer {
        let is_registered = self.keys.contains(&key);
        match step {
            FenceCommand::ReadKeys => FenceAnswer::Keys(self.keys.clone()),
            FenceCommand::ReadReservation => FenceAnswer::Reservation(self.holder),
            FenceCommand::Register if self.register(key) => FenceAnswer::Good,
            FenceCommand::Reserve
                if is_registered && self.holder.is_none_or(|holder| holder == key) =>
            {
                self.holder = Some(key);
                FenceAnswer::Good
            }
            FenceCommand::Preempt(other) if is_registered && self.keys.contains(&other.raw()) => {
                self.keys.retain(|one| *one != other.raw());
                if self.holder == Some(other.raw()) {
                    self.holder = Some(key);
                }
                FenceAnswer::Good
            }
            FenceCommand::Reset => FenceAnswer::Good,
            FenceCommand::Register | FenceCommand::Reserve | FenceCommand::Preempt(_) => {
                FenceAnswer::Conflict
            }
        }
    }

    /// What it keeps, read under `key`.
    pub(crate) fn metadata(
        &self,
        copy: CopyId,
        key: FenceKey,
        last_block: u64,
    ) -> Option<MirrorEvent> {
        let mut marked = Regions::none(last_block as usize + 1);
        for region in 0..=last_block as usize {
            marked.set(region, self.marked[region]);
        }
        self.serves(key.raw()).then_some(MirrorEvent::Metadata {
            copy,
            key,
            kept: self.kept,
            marked,
        })
    }
}
