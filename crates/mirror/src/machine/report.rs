//! What the driver and people ask of the machine. Nothing here changes it.

use super::{CopyStanding, Mirror};
use crate::{
    bitmap::Bitmap,
    copy_set::{CopyId, CopySet},
    ranges::Ranges,
    regions::Regions,
};

/// How far the owner is with a copy, as people see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stand {
    /// It is not in use.
    Out,
    /// It is being fenced, and what it keeps is read.
    Fencing,
    /// It gets all new writes, and is filled with what it has missed.
    Filling,
    /// It holds everything that was acknowledged.
    InSync,
    /// It is in sync and has failed: it leaves as soon as the register says so.
    Leaving,
}

impl Mirror {
    /// How far it is with `copy`.
    pub fn stand(&self, copy: CopyId) -> Stand {
        match self.members[copy.place()].standing {
            CopyStanding::Out => Stand::Out,
            CopyStanding::Fencing(_) | CopyStanding::Looking | CopyStanding::Ready => {
                Stand::Fencing
            }
            CopyStanding::Noting | CopyStanding::Returning | CopyStanding::Joining => {
                Stand::Filling
            }
            CopyStanding::InSync if self.failed.contains(copy) => Stand::Leaving,
            CopyStanding::InSync => Stand::InSync,
        }
    }

    /// The copies that stand as [in sync](Stand::InSync).
    pub fn in_sync(&self) -> CopySet {
        let in_sync = self.with_standing(|standing| *standing == CopyStanding::InSync);
        in_sync.without(self.failed)
    }

    /// Whether `copy` was given up, so that [`Event::Back`](crate::Event::Back) may be of use once it can be reached.
    pub fn misses(&self, copy: CopyId) -> bool {
        match self.phase {
            super::MirrorPhase::Fencing => {
                self.record.in_sync.contains(copy) && self.failed.contains(copy)
            }
            super::MirrorPhase::Serving => self.members[copy.place()].standing == CopyStanding::Out,
            super::MirrorPhase::Claiming | super::MirrorPhase::Stopped => false,
        }
    }

    /// Whether nothing is asked of `copy` any more, and nobody counts on it: it is out by the record, too.
    pub fn is_out(&self, copy: CopyId) -> bool {
        let is_counted = self.swap.is_some() || self.record.in_sync.contains(copy);
        !is_counted && self.stand(copy) == Stand::Out
    }

    /// Whether nobody but `copy` may be in sync.
    pub fn is_alone(&self, copy: CopyId) -> bool {
        self.is_one_left() && self.record.in_sync.contains(copy)
    }

    /// Whether only one copy may be in sync: it does not leave.
    pub(super) fn is_one_left(&self) -> bool {
        self.swap.is_none() && self.record.in_sync.len() == 1
    }

    /// How many blocks the copy that returns has still to get.
    pub fn left_to_fill(&self) -> u64 {
        blocks_of(&self.fill)
    }

    /// How many blocks may differ between copies in sync, and are being made equal.
    pub fn in_doubt(&self) -> u64 {
        blocks_of(&self.doubts)
    }

    /// How many regions are marked on copies in sync.
    pub fn marked(&self) -> usize {
        let mut marked = Regions::none(self.config.regions());
        for copy in self.record.in_sync.iter() {
            let bitmap = &self.members[copy.place()].bitmap;
            if !bitmap.wanted.0.is_empty() {
                marked.union(&bitmap.wanted);
            }
        }
        marked.len()
    }

    /// Whether each copy in sync keeps what it is told: the record, and the last heartbeats.
    pub fn has_noted_all(&self) -> bool {
        let mut in_sync = self.record.in_sync.iter();
        in_sync.all(|copy| self.has_noted(copy))
    }

    /// Whether the register knows of the last heartbeat, too.
    pub fn has_confirmed(&self) -> bool {
        self.has_noted_all() && !self.is_beaten && self.swap.is_none()
    }

    /// Whether nothing is under way, and no region is marked that could be cleared: the next owner has nothing to equalise.
    pub fn is_settled(&self) -> bool {
        let is_complete = self.record.in_sync == self.record.all();
        let mut bitmaps = self.members.iter().map(|member| &member.bitmap);
        self.is_quiet()
            && self.has_noted_all()
            && (!is_complete || self.marked() == 0 && bitmaps.all(Bitmap::is_settled))
    }
}

fn blocks_of(ranges: &Ranges) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}
