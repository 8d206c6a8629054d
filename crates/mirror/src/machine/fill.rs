//! The return of a copy (rule 12): fenced anew; the record, which says that it is not in sync, noted on it; then given
//! all new writes, and filled with what it has missed. From then on acknowledgements need it, and once every earlier
//! write to it has ended, it is swapped in.

use super::{
    CopyStanding, Mirror,
    set_back::is_set_back,
    work::{OperationKind, Work},
};
use crate::{
    copy_set::{COPIES_MAX, CopyId, CopySet},
    planted::{Bug, is_planted},
    ranges::Range,
};

impl Mirror {
    /// `copy` is fenced, and what it keeps was read. Before that, the heartbeats `known` were.
    pub(super) fn begin_return(&mut self, copy: CopyId, known: [u64; COPIES_MAX]) {
        let since = self.record.all_in_sync_since;
        let member = &mut self.members[copy.place()];
        let kept = member.kept.as_mut().expect("what it keeps was read");
        let is_older = kept.in_sync_since != since && !is_planted(Bug::AnyVersion);
        if is_set_back(copy, kept, &known) || is_older {
            // The bitmaps do not count, also for the owner after this one.
            member.has_lost_sync = true;
            self.fill.insert(Range::new(0, self.config.blocks));
        }
        member.heartbeats = known;
        member.standing = CopyStanding::Noting;
    }

    fn moving(&self) -> Option<CopyId> {
        let is_moving = |standing: &CopyStanding| {
            matches!(
                standing,
                CopyStanding::Noting | CopyStanding::Returning | CopyStanding::Joining
            )
        };
        self.with_standing(is_moving).iter().next()
    }

    /// Begins a piece of filling.
    pub(super) fn fill(&mut self) -> bool {
        let Some(copy) = self.moving() else {
            return false;
        };
        let is_filling = self
            .works
            .iter()
            .any(|work| work.kind == OperationKind::Fill(copy));
        match self.members[copy.place()].standing {
            CopyStanding::Noting if self.has_noted(copy) => {
                self.mark_missed(copy);
                self.members[copy.place()].standing = CopyStanding::Returning;
                true
            }
            CopyStanding::Returning if self.fill.is_empty() && !is_filling => {
                self.members[copy.place()].standing = CopyStanding::Joining;
                true
            }
            CopyStanding::Returning if self.has_room && !is_filling && !self.is_stalled => {
                let Some(piece) = self.free_piece(&self.fill) else {
                    return false;
                };
                self.has_room = false;
                let id = self.next_id();
                self.works
                    .push_back(Work::internal(id, OperationKind::Fill(copy), piece));
                true
            }
            _ => false,
        }
    }

    /// Adds to what `copy` is filled with what any bitmap marks.
    fn mark_missed(&mut self, copy: CopyId) {
        let mut bitmaps = self.record.in_sync;
        if !is_planted(Bug::OneBitmap) {
            bitmaps = bitmaps.union(CopySet::from(copy));
        }
        for one in bitmaps.iter() {
            for region in self.members[one.place()].bitmap.wanted.iter() {
                self.fill.insert(self.config.range_of(region));
            }
        }
    }

    pub(super) fn settle_filled(&mut self, at: usize, copy: CopyId) -> bool {
        let work = &mut self.works[at];
        let has_copied = work.source != Some(copy) && work.done.contains(copy);
        if has_copied {
            work.is_answered = true;
            let range = work.range;
            self.fill.remove(range);
            return true;
        }
        // It may be readable later. Until then nothing waits for it: requests for it fail, or write it anew.
        let has_no_source = self.has_no_source(at);
        if has_no_source {
            self.works[at].is_answered = true;
            self.is_stalled = true;
        }
        has_no_source
    }

    /// Swaps in a copy that is filled.
    pub(super) fn join(&mut self) {
        let joining = self.with_standing(|standing| *standing == CopyStanding::Joining);
        let Some(copy) = joining.iter().next() else {
            return;
        };
        // Writes that were answered without it. Those that are not, need it.
        let is_late = |work: &Work| work.is_answered && work.pending().contains(copy);
        let is_drained = is_planted(Bug::NotDrained) || !self.works.iter().any(is_late);
        if self.swap.is_none() && is_drained && self.failed.is_empty() {
            self.propose(self.record.in_sync.union(joining));
        }
    }
}
