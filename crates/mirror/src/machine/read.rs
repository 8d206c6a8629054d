//! When a read is answered (rule 10): from one copy, once every other copy that may be in sync has answered a command that
//! was sent after the request came. Had another owner begun to serve before, one of them would have refused it.
//!
//! The proof is a READ of 0 blocks, which runs beside the read; any other command counts as well, and one proof
//! serves all that wait.

use super::Mirror;
use crate::{
    copy_set::{CopyId, CopySet},
    op::{CopyCommand, MirrorAction, OpId},
    planted::{Bug, is_planted},
};

impl Mirror {
    fn needed_by_reads(&self) -> CopySet {
        if is_planted(Bug::Unproven) {
            CopySet::EMPTY
        } else if is_planted(Bug::PendingInUnread) {
            self.record.in_sync
        } else {
            self.maybe_in_sync()
        }
    }

    /// `copy` has carried out the command `id` of the work at `own`, or of none. Returns whether other reads have waited for
    /// that.
    pub(super) fn proved(&mut self, copy: CopyId, id: OpId, own: Option<usize>) -> bool {
        let mut is_news = false;
        for (at, work) in self.works.iter_mut().enumerate() {
            if work.is_read() && work.id < id {
                is_news |= own != Some(at) && !work.done.contains(copy);
                work.done.insert(copy);
            }
        }
        is_news
    }

    /// Sends the proofs for which reads wait, one at a time to each copy.
    pub(super) fn prove(&mut self) {
        let needed = self.needed_by_reads().without(self.failed);
        let reads = self
            .works
            .iter()
            .filter(|work| work.is_read() && work.has_begun);
        let missing = reads.map(|work| needed.without(work.done).without(work.pending()));
        for copy in missing.fold(CopySet::EMPTY, CopySet::union).iter() {
            if self.members[copy.place()].proof.is_none() {
                let id = self.send(copy, CopyCommand::Prove);
                self.members[copy.place()].proof = Some(id);
            }
        }
    }

    pub(super) fn settle_read(&mut self, at: usize) -> bool {
        let needed = self.needed_by_reads();
        let work = &mut self.works[at];
        if let Some(data) = work.data {
            let is_proved = needed.is_within(work.done);
            if is_proved {
                work.is_answered = true;
                let request = work.id;
                self.actions
                    .push_back(MirrorAction::Answer { request, data });
            }
            return is_proved;
        }
        let has_no_source = self.has_no_source(at);
        if has_no_source {
            self.give_up(at);
        }
        has_no_source
    }
}
