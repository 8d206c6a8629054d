//! Copies that were restored from a backup or a snapshot (rule 13). With each heartbeat every copy keeps the number of the
//! last one of each; one that was set back has an older number of its own than another remembers of it.

use super::Mirror;
use crate::{
    copy::CopyState,
    copy_set::{COPIES_MAX, CopyId, CopySet},
    planted::{Bug, is_planted},
    register::Record,
};

/// Whether `copy`, which keeps `kept`, was set back to before its heartbeat in `known`.
pub(super) fn is_set_back(copy: CopyId, kept: &CopyState, known: &[u64; COPIES_MAX]) -> bool {
    let place = copy.place();
    kept.heartbeats[place] < known[place] && !is_planted(Bug::SetBackIgnored)
}

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
        let kept_by = |copy: CopyId| {
            let kept = self.members[copy.place()].kept;
            (copy, kept.expect("what it keeps was read"))
        };
        let all: Vec<_> = copies.iter().map(kept_by).collect();
        // They are in sync, so all of them were told so since the same version, unless their owner crashed at that moment.
        let since = all.iter().map(|(_, kept)| kept.in_sync_since).max();
        let all_miss = copies.iter().all(|copy| self.misses_beats(copy));
        let mut older = CopySet::EMPTY;
        for (copy, kept) in all {
            let is_behind = Some(kept.in_sync_since) < since && !is_planted(Bug::SetBackIgnored);
            let knows_less = self.misses_beats(copy) && !all_miss;
            if is_behind || knows_less || is_set_back(copy, &kept, &known) {
                older.insert(copy);
                self.failed.insert(copy);
            }
        }
        older
    }

    /// Whether `copy`, which the record has in sync with all others, knows neither that record nor the one before: it was set back
    /// to before a start of the mirror, or is a disk that was replaced; or the owner crashed in that start, before anything was
    /// acknowledged. Only the others can tell, so alone it does not do.
    pub fn is_behind(&self, copy: CopyId) -> bool {
        if self.config.accepts_older {
            return false;
        }
        let since = self.record.all_in_sync_since;
        let kept = self.members[copy.place()].kept.as_ref();
        let is_behind =
            kept.is_some_and(|it| it.in_sync_since < since && it.record.version + 1 < since);
        let is_behind = self.record.in_sync == self.record.all() && is_behind;
        is_behind && !is_planted(Bug::SetBackIgnored) || self.misses_beats(copy)
    }

    /// Whether `copy`, in sync as the record says, does not know heartbeats of which the register knows: it was set back, whatever
    /// the others can tell.
    pub fn misses_beats(&self, copy: CopyId) -> bool {
        let kept = self.members[copy.place()].kept.as_ref();
        let misses = kept.is_some_and(|kept| kept.record.beats + 1 < self.record.beats);
        misses && !self.config.accepts_older && !is_planted(Bug::SetBackIgnored)
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
        (self.told, self.is_beaten) = (self.record, true);
        let known = self.known_heartbeats();
        for copy in self.record.in_sync.iter() {
            let member = &mut self.members[copy.place()];
            member.heartbeats = known;
            member.heartbeats[copy.place()] += 1;
        }
    }
    /// Has the register know of the last heartbeat, once the copies in sync keep it: not before, or one on which it had not landed
    /// when the power failed would look as if it was set back.
    pub(super) fn confirm(&mut self) {
        if !self.is_beaten
            || self.swap.is_some()
            || !self.failed.is_empty()
            || !self.has_noted_all()
        {
            return;
        }
        self.is_beaten = false;
        if self.told == self.record {
            let new = Record {
                beats: self.record.beats + 1,
                ..self.record.next(self.config.nonce)
            };
            self.swap_in(new);
        }
    }
}
