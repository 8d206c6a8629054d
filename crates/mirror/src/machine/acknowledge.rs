//! When a write is acknowledged, and when it fails (rule 7).

use super::{CopyStanding, Mirror};
use crate::{
    copy_set::CopySet,
    op::{MirrorAction, OpId},
    planted::{Bug, is_planted},
};

impl Mirror {
    /// Copies that may be in sync by any record that the register may hold.
    pub(super) fn maybe_in_sync(&self) -> CopySet {
        let set = self.record.in_sync;
        let Some(swap) = self.swap else {
            return set;
        };
        if swap.new.in_sync.is_within(set) {
            return if is_planted(Bug::AcknowledgedBeforeOut) {
                swap.new.in_sync
            } else {
                set
            };
        }
        set.union(swap.new.in_sync)
    }

    /// Copies that must have a write before it is acknowledged.
    pub(super) fn needed_by_writes(&self) -> CopySet {
        if is_planted(Bug::NeededWhenIn) {
            return self.record.in_sync;
        }
        let joining = self.with_standing(|standing| *standing == CopyStanding::Joining);
        self.maybe_in_sync().union(joining)
    }

    /// Whether the copies in sync have noted the present set: it is theirs to decide by if the register is lost.
    fn is_noted(&self) -> bool {
        self.record.in_sync.iter().all(|copy| {
            let kept = &self.members[copy.place()].kept;
            kept.as_ref().is_some_and(|kept| kept.record == self.told)
        })
    }

    pub(super) fn settle_write(&mut self, at: usize) -> bool {
        let needed = self.needed_by_writes();
        let id = self.works[at].id;
        let is_noted = is_planted(Bug::Unnoted) || self.is_noted();
        if needed.is_within(self.works[at].done) && is_noted {
            self.works[at].is_answered = true;
            self.actions.push_back(MirrorAction::Acknowledge(id));
            return true;
        }
        if self.has_failed(at, needed) {
            self.give_up(at);
            return true;
        }
        false
    }

    /// The user waits no longer for the request `id`.
    pub(super) fn expired(&mut self, id: OpId) {
        let is_it = |work: &super::Work| work.id == id && work.is_request() && !work.is_answered;
        if let Some(at) = self.works.iter().position(is_it) {
            self.give_up(at);
        }
    }

    /// The request at `at` has failed. What it may have written is in doubt.
    pub(super) fn give_up(&mut self, at: usize) {
        let work = &mut self.works[at];
        work.is_answered = true;
        work.is_given_up = true;
        work.unsent = CopySet::EMPTY;
        let is_untouched = work.sent.is_empty() && work.done.union(work.failed).is_empty();
        self.actions.push_back(MirrorAction::Fail(work.id));
        if !work.is_harmless() && !is_untouched && !is_planted(Bug::DoubtIgnored) {
            self.doubts.insert(work.range);
        }
    }
}
