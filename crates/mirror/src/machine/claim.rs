//! Who owns the mirror, and what is in sync (rules 1, 2, 3, 5 and, for copies that leave, 7).

use std::collections::VecDeque;

use super::{CopyMember, CopyStanding, Mirror, MirrorConfig, MirrorPhase, Sequences};
use crate::{
    bitmap::Bitmap,
    copy::CopyState,
    copy_set::{CopyId, CopySet},
    fence::{Fence, FenceAnswer, FenceProgress},
    key::FenceKey,
    op::{MirrorAction, Stopped},
    planted::{Bug, is_planted},
    ranges::Ranges,
    regions::Regions,
    register::{Record, Swap, SwapVerdict},
};

impl Mirror {
    /// Claims the mirror of which the register has `found`, checked by [`Record::check`].
    pub fn claim(config: MirrorConfig, found: Record) -> Mirror {
        let goes_on = is_planted(Bug::OldEpoch) && found.owner == config.node;
        let claim = Record {
            epoch: found.epoch + u64::from(!goes_on),
            owner: config.node,
            ..found.next(config.nonce)
        };
        let swap = Swap::new(found, claim);
        let touched = Regions::none(config.regions());
        Mirror {
            config,
            phase: MirrorPhase::Claiming,
            record: found,
            told: found,
            is_beaten: false,
            swap: Some(swap),
            members: vec![CopyMember::new(); found.copies.into()],
            failed: CopySet::EMPTY,
            fences: 0,
            works: VecDeque::new(),
            doubts: Ranges::default(),
            is_stalled: false,
            fill: Ranges::default(),
            has_room: false,
            touched,
            sequences: Sequences::default(),
            next: 0,
            actions: [MirrorAction::Swap(swap)].into(),
        }
    }

    pub(super) fn swapped(&mut self, found: &Record) {
        let Some(swap) = self.swap else {
            return; // Answered before.
        };
        match swap.judge(found) {
            SwapVerdict::Again => self.actions.push_back(MirrorAction::Swap(swap)),
            SwapVerdict::Lost => self.stop(Stopped::Register(*found)),
            SwapVerdict::Won => {
                let before = std::mem::replace(&mut self.record, swap.new).in_sync;
                self.swap = None;
                if swap.new.beats == swap.expect.beats {
                    self.told = self.record;
                }
                if self.phase == MirrorPhase::Claiming {
                    self.phase = MirrorPhase::Fencing;
                    for copy in self.record.in_sync.iter() {
                        self.fence(copy);
                    }
                    return;
                }
                for copy in before.without(self.record.in_sync).iter() {
                    self.leave(copy);
                }
                for copy in self.record.in_sync.without(before).iter() {
                    self.members[copy.place()].standing = CopyStanding::InSync;
                }
            }
        }
    }

    pub(super) fn propose(&mut self, in_sync: CopySet) {
        let next = self.record.next(self.config.nonce);
        let all_in_sync_since = match in_sync == next.all() {
            true => next.version,
            false => next.all_in_sync_since,
        };
        self.swap_in(Record {
            in_sync,
            all_in_sync_since,
            ..next
        });
    }

    /// Has the register changed to `new`.
    pub(super) fn swap_in(&mut self, new: Record) {
        let swap = Swap::new(self.record, new);
        self.swap = Some(swap);
        self.actions.push_back(MirrorAction::Swap(swap));
    }

    /// Takes out what has failed, once the register allows it; begins to serve when all in the set are fenced.
    pub(super) fn settle_set(&mut self) {
        let set = self.record.in_sync;
        match self.phase {
            MirrorPhase::Fencing => self.settle_claim(set),
            MirrorPhase::Serving => {
                for copy in self.failed.without(set).iter() {
                    let is_swapped = self
                        .swap
                        .is_some_and(|swap| swap.new.in_sync.contains(copy));
                    if !is_swapped {
                        self.leave(copy);
                    }
                }
                if self.swap.is_some() {
                    return;
                }
                if self.failed.common(set) == set {
                    // The last one never leaves.
                    let last = set.iter().next().expect("a set is never empty");
                    self.failed.remove(last);
                }
                let out = self.failed.common(set);
                if !out.is_empty() {
                    self.propose(set.without(out));
                }
            }
            MirrorPhase::Claiming | MirrorPhase::Stopped => {}
        }
    }

    fn settle_claim(&mut self, set: CopySet) {
        if self.swap.is_some() {
            return;
        }
        let ready = self
            .with_standing(|standing| *standing == CopyStanding::Ready)
            .common(set);
        let ready = ready.without(self.set_back(ready));
        let missing = set.without(ready);
        if missing.is_empty() && set.iter().all(|it| self.misses_beats(it)) {
            // All were set back, and what was written since is nowhere.
        } else if missing.is_empty() && set == self.record.all() && !self.is_fresh() {
            // A copy that is set back to before this claim is known by that, in the set or out of it.
            self.propose(set);
        } else if missing.is_empty() {
            self.serve();
        } else if missing.is_within(self.failed) && ready.iter().any(|it| !self.is_behind(it)) {
            if is_planted(Bug::UnfencedStays) {
                self.record.in_sync = ready;
                return self.serve();
            }
            self.propose(ready);
        }
    }

    /// Whether the record says that all are in sync since now.
    fn is_fresh(&self) -> bool {
        self.record.all_in_sync_since == self.record.version || is_planted(Bug::ClaimNotNoted)
    }

    fn serve(&mut self) {
        self.phase = MirrorPhase::Serving;
        let mut marked = Regions::none(self.config.regions());
        for copy in self.record.in_sync.iter() {
            let member = &mut self.members[copy.place()];
            member.standing = CopyStanding::InSync;
            marked.union(&member.bitmap.wanted);
        }
        if !is_planted(Bug::MarksIgnored) {
            for region in marked.iter() {
                self.doubts.insert(self.config.range_of(region));
            }
        }
        self.begin_heartbeats();
    }

    /// Begins a new fence on `copy`.
    pub(super) fn fence(&mut self, copy: CopyId) {
        let key = FenceKey::new(self.record.epoch, self.fences);
        self.fences += 1;
        let member = &mut self.members[copy.place()];
        let key = match member.key {
            Some(old) if is_planted(Bug::OldKeyOnReturn) => old,
            _ => key,
        };
        let (fence, step) = Fence::new(key);
        member.standing = CopyStanding::Fencing(fence);
        let is_passed_by = is_planted(Bug::OneUnfenced) && copy.place() == 1;
        if is_planted(Bug::Unfenced) || is_passed_by {
            return self.look(copy, key);
        }
        self.actions
            .push_back(MirrorAction::Fence { copy, key, step });
    }

    pub(super) fn fence_answered(&mut self, copy: CopyId, key: FenceKey, answer: FenceAnswer) {
        let CopyStanding::Fencing(fence) = &mut self.members[copy.place()].standing else {
            return;
        };
        if fence.key() != key {
            return;
        }
        match fence.answer(answer) {
            FenceProgress::Next(step) => {
                self.actions
                    .push_back(MirrorAction::Fence { copy, key, step })
            }
            FenceProgress::Made => self.look(copy, key),
            FenceProgress::Superseded(_) => self.stop(Stopped::Fenced(copy)),
            FenceProgress::Failed(by) => {
                self.failed.insert(copy);
                self.actions.push_back(MirrorAction::Unusable { copy, by });
            }
        }
    }

    fn look(&mut self, copy: CopyId, key: FenceKey) {
        let member = &mut self.members[copy.place()];
        member.key = Some(key);
        member.standing = CopyStanding::Looking;
        self.actions
            .push_back(MirrorAction::ReadMetadata { copy, key });
    }

    pub(super) fn metadata_read(
        &mut self,
        copy: CopyId,
        key: FenceKey,
        kept: CopyState,
        marked: Regions,
    ) {
        let member = &mut self.members[copy.place()];
        if member.standing != CopyStanding::Looking || member.key != Some(key) {
            return;
        }
        // A swap of this owner that is on its way counts as seen by nobody.
        if self
            .record
            .check(kept.record.mirror, Some(&kept.record))
            .is_err()
        {
            let seen = kept.record.version;
            return self.stop(Stopped::RegisterIsOlder { copy, seen });
        }
        // With what this owner itself remembers of it.
        let known = self.known_heartbeats();
        let member = &mut self.members[copy.place()];
        member.kept = Some(kept);
        member.bitmap = Bitmap::found(marked);
        if self.phase == MirrorPhase::Fencing {
            member.standing = CopyStanding::Ready;
            self.failed.remove(copy);
        } else {
            self.begin_return(copy, known);
        }
    }

    /// `copy` is out: nothing of it counts any more.
    pub(super) fn leave(&mut self, copy: CopyId) {
        self.failed.remove(copy);
        let member = &mut self.members[copy.place()];
        let was_filled = matches!(
            member.standing,
            CopyStanding::Noting | CopyStanding::Returning | CopyStanding::Joining
        );
        member.leave();
        if was_filled {
            self.fill = Ranges::default();
        }
        self.retain_works(|work| work.forget(copy));
    }

    /// `copy` can be reached: it is fenced anew, unless it is in use.
    pub(super) fn back(&mut self, copy: CopyId) {
        let standing = &self.members[copy.place()].standing;
        let may = match self.phase {
            MirrorPhase::Fencing => {
                self.record.in_sync.contains(copy) && self.failed.contains(copy)
            }
            MirrorPhase::Serving => {
                let is_moving =
                    |one: &CopyStanding| !matches!(one, CopyStanding::Out | CopyStanding::InSync);
                *standing == CopyStanding::Out && self.with_standing(is_moving).is_empty()
            }
            MirrorPhase::Claiming | MirrorPhase::Stopped => false,
        };
        if may && self.swap.is_none() {
            self.failed.remove(copy);
            self.fence(copy);
        }
    }
}
