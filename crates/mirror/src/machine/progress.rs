//! Nothing stands still: whatever has begun waits for an answer that somebody owes, or for the next tick.

use super::{Mirror, MirrorPhase, work::Work};

impl Mirror {
    pub(super) fn check_progress(&self) {
        if cfg!(debug_assertions) && self.phase == MirrorPhase::Serving && self.swap.is_none() {
            let mut begun = self.works.iter().filter(|work| work.has_begun);
            let stands = begun.find(|work| !work.is_answered && !self.moves(work));
            assert!(stands.is_none(), "nothing will end {stands:?}");
        }
    }

    fn moves(&self, work: &Work) -> bool {
        let is_sent = !work.sent.is_empty() || !work.unsent.is_empty();
        let is_owed = self
            .members
            .iter()
            .any(|member| member.proof.is_some() || member.keeping.is_some() || member.is_stalled);
        is_sent || is_owed
    }
}
