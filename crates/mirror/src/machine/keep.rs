//! What is kept on the copies: the newest record, since when they are in sync, and the bitmap (rule 11).

use super::{CopyMember, CopyStanding, Mirror, MirrorPhase};
use crate::{
    copy::CopyState,
    copy_set::CopyId,
    op::CopyCommand,
    planted::{Bug, is_planted},
    regions::Regions,
};

impl Mirror {
    /// Whether `copy` keeps the record that it is told, and its last heartbeats.
    pub(super) fn has_noted(&self, copy: CopyId) -> bool {
        let kept = &self.members[copy.place()].kept;
        kept.is_some() && *kept == self.wanted(&self.members[copy.place()])
    }

    /// What `member` should keep, once it is known what it does keep.
    fn wanted(&self, member: &CopyMember) -> Option<CopyState> {
        let kept = member.kept?;
        let is_in_sync = member.standing == CopyStanding::InSync;
        let in_sync_since = if is_in_sync && self.record.in_sync == self.record.all() {
            self.record.all_in_sync_since
        } else if member.has_lost_sync {
            0
        } else {
            kept.in_sync_since
        };
        Some(CopyState {
            // One that returns keeps every record, so that it is not behind once it is swapped in.
            record: if is_in_sync { self.told } else { self.record },
            in_sync_since,
            heartbeats: member.heartbeats,
        })
    }

    /// Copies whose metadata is known and may be written.
    fn writable(&self) -> impl Iterator<Item = CopyId> + use<> {
        let is_known = |standing: &CopyStanding| {
            !matches!(
                standing,
                CopyStanding::Out | CopyStanding::Fencing(_) | CopyStanding::Looking
            )
        };
        let mut copies = self.with_standing(is_known);
        for copy in self
            .with_standing(is_known)
            .iter()
            .filter(|copy| self.members[copy.place()].is_stalled)
        {
            copies.remove(copy);
        }
        copies.iter()
    }

    /// Writes what copies should keep and do not, one write at a time to each.
    pub(super) fn keep(&mut self) {
        for copy in self.writable() {
            let member = &self.members[copy.place()];
            let wanted = self.wanted(member);
            if let Some(wanted) =
                wanted.filter(|_| member.keeping.is_none() && member.kept != wanted)
            {
                let id = self.send(copy, CopyCommand::Keep(wanted));
                self.members[copy.place()].keeping = Some((id, wanted));
            }
        }
    }

    /// Writes the blocks of the bitmaps that have to change, one write at a time to each block.
    pub(super) fn mark(&mut self) {
        for copy in self.writable() {
            loop {
                let id = self.next_id();
                let bitmap = &mut self.members[copy.place()].bitmap;
                let Some((block, regions)) = bitmap.write(id) else {
                    break;
                };
                self.send_as(id, copy, CopyCommand::Mark { block, regions });
            }
        }
    }

    /// Clears regions that every copy holds durably, and that were not written since the last tick.
    pub(super) fn tick(&mut self) {
        self.is_stalled = false;
        for member in &mut self.members {
            member.is_stalled = false;
        }
        if self.phase != MirrorPhase::Serving {
            return; // What some copies mark is not known yet.
        }
        let regions = self.config.regions();
        let touched = std::mem::replace(&mut self.touched, Regions::none(regions));
        let all = self.record.all();
        let stays = self.swap.is_none_or(|swap| swap.new.in_sync == all);
        let is_complete = self.record.in_sync == all && stays;
        if !is_complete && !is_planted(Bug::ClearedAlone) {
            return;
        }
        let in_sync: Vec<CopyId> = self.record.in_sync.iter().collect();
        let mut marked = Regions::none(regions);
        for copy in &in_sync {
            marked.union(&self.members[copy.place()].bitmap.wanted);
        }
        let is_full = marked.len() > self.config.marked_max;
        for region in marked.iter() {
            let range = self.config.range_of(region);
            let is_idle = !self.works.iter().any(|work| work.range.overlaps(range));
            let is_cold = is_full || !touched.contains(region);
            if is_cold && is_idle && !self.doubts.overlaps(range) {
                for copy in &in_sync {
                    self.members[copy.place()].bitmap.wanted.set(region, false);
                }
            }
        }
    }
}
