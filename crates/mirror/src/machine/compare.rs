//! A comparison of the copies: a range is read from every copy in sync while nothing that overlaps is under way, so that
//! copies which are in sync never differ.

use super::Mirror;
use crate::op::{CopyCommand, MirrorAction, OpId};

impl Mirror {
    /// Begins to read the range of the work from every copy in sync.
    pub(super) fn read_all(&mut self, at: usize) {
        let range = self.works[at].range;
        for copy in self.record.in_sync.without(self.failed).iter() {
            let id = self.send(copy, CopyCommand::Read(range));
            self.works[at].sent.push((copy, id));
        }
    }

    pub(super) fn settle_compared(&mut self, at: usize) -> bool {
        let work = &mut self.works[at];
        if !work.sent.is_empty() {
            return false;
        }
        work.compared.sort_unstable();
        let request = work.id;
        let in_sync = self.record.in_sync;
        let compared = work.compared.iter();
        let data: Vec<OpId> = compared
            .filter(|(copy, _)| in_sync.contains(*copy))
            .map(|(_, id)| *id)
            .collect();
        if data.len() < 2 || data.len() < in_sync.len() {
            self.give_up(at);
            return true;
        }
        work.is_answered = true;
        self.actions
            .push_back(MirrorAction::Compared { request, data });
        true
    }
}
