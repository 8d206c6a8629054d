//! Ranges in doubt (rules 5 and 8): what a bitmap marked when the mirror was claimed, and what a failed write may have
//! changed. Requests wait until one content is on all copies. It is read from one copy and written to all, also to that one,
//! where it may not be durable yet, when nothing else can happen to the range; each range by itself, because no request
//! depends on two.

use super::{
    Mirror,
    work::{OperationKind, Work},
};

/// How many pieces are equalised at a time.
const EQUALISED_MAX: usize = 4;

impl Mirror {
    pub(super) fn equalise(&mut self) -> bool {
        let is_one = |work: &&Work| work.kind == OperationKind::Equalise;
        if self.doubts.is_empty()
            || self.is_stalled
            || self.works.iter().filter(is_one).count() >= EQUALISED_MAX
        {
            return false;
        }
        let Some(piece) = self.free_piece(&self.doubts) else {
            return false;
        };
        let id = self.next_id();
        self.works
            .push_back(Work::internal(id, OperationKind::Equalise, piece));
        true
    }

    pub(super) fn settle_equalised(&mut self, at: usize) -> bool {
        let needed = self.needed_by_writes();
        let work = &mut self.works[at];
        if work.data.is_some() && needed.is_within(work.done) {
            work.is_answered = true;
            let range = work.range;
            self.doubts.remove(range);
            return true;
        }
        if self.has_failed(at, needed) {
            // The range stays in doubt until the copy has recovered.
            self.works[at].is_answered = true;
            self.is_stalled = true;
            return true;
        }
        false
    }
}
