//! Copies that were restored from a backup or a snapshot (rule 13). With each heartbeat every copy keeps the number of the
//! last one of each; one that was set back has an older number of its own than another remembers of it.

use super::Mirror;
use crate::{
    copy_set::{COPIES_MAX, CopySet},
    planted::{Bug, is_planted},
};

impl Mirror {
    /// The newest heartbeat of each copy that any copy remembers.
    pub(super) fn known_heartbeats(&self) -> [u64; COPIES_MAX] {
        let mut known = [0; COPIES_MAX];
        for kept in self
            .members
            .iter()
            .filter_map(|member| member.kept.as_ref())
        {
            for (known, heartbeat) in known.iter_mut().zip(kept.heartbeats) {
                *known = heartbeat.max(*known);
            }
        }
        known
    }

    /// Of `copies`, whose fences are made and what they keep is read, those that were set back. They count as failed.
    pub(super) fn set_back(&mut self, copies: CopySet) -> CopySet {
        let known = self.known_heartbeats();
        let mut older = CopySet::EMPTY;
        for copy in copies.iter() {
            let kept = self.members[copy.place()].kept.as_ref();
            let own = kept.map_or(0, |kept| kept.heartbeats[copy.place()]);
            if own < known[copy.place()] && !is_planted(Bug::SetBackIgnored) {
                older.insert(copy);
                self.failed.insert(copy);
            }
        }
        older
    }

    /// The mirror is served: each copy goes on with the heartbeats that it keeps.
    pub(super) fn begin_heartbeats(&mut self) {
        for member in &mut self.members {
            if let Some(kept) = &member.kept {
                member.heartbeats = kept.heartbeats;
            }
        }
    }

    /// One more heartbeat to each copy in sync, with the last ones of the others.
    pub(super) fn beat(&mut self) {
        let known = self.known_heartbeats();
        for copy in self.record.in_sync.iter() {
            let member = &mut self.members[copy.place()];
            member.heartbeats = known;
            member.heartbeats[copy.place()] += 1;
        }
    }
}
