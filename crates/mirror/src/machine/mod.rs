//! The machine: what one node does about one mirror from its claim on. Events go in ([`Mirror::apply`]), actions come out
//! ([`Mirror::select`]).
//!
//! ```text
//!  claim ─► Claiming ── swap won ─► Fencing ── all in sync are fenced ─► Serving ─► Stopped
//! ```
//!
//! After each event the rules run until none of them has anything to do: `claim` decides the set in sync, `work` and
//! `acknowledge` move requests on, `doubt` equalises, `fill` brings a copy back, `keep` writes what copies keep. Each
//! looks only at the state; so no rule depends on the order of events.

mod acknowledge;
mod ahead;
mod claim;
mod compare;
mod doubt;
mod fill;
mod keep;
mod overlap;
mod progress;
mod read;
#[cfg(feature = "testing")]
mod rename;
mod report;
mod set_back;
mod steady;
mod work;

use std::collections::VecDeque;

use uuid::Uuid;

pub use self::report::Stand;
use self::{ahead::Sequences, work::Work};
use crate::{
    bitmap::Bitmap,
    copy::CopyState,
    copy_set::{COPIES_MAX, CopyId, CopySet},
    fence::Fence,
    key::FenceKey,
    op::{CopyCommand, MirrorAction, MirrorEvent, OpId, Outcome, Stopped},
    ranges::{Range, Ranges},
    regions::Regions,
    register::{Record, Swap},
};

/// What does not change.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MirrorConfig {
    /// This node.
    pub node: Uuid,
    /// Chosen at random for each claim.
    pub nonce: u64,
    /// The length of the data in blocks.
    pub blocks: u64,
    /// The length of a region of the bitmap in blocks.
    pub region_blocks: u64,
    /// The most blocks that are equalised or filled at a time.
    pub piece_blocks: u64,
    /// How many regions may be marked before recently written ones are cleared too.
    pub marked_max: usize,
    /// The most blocks that are marked ahead of a sequential write; 0: none are.
    pub ahead_blocks: u64,
    /// The copy that is read when nobody prefers one.
    pub nearest: CopyId,
    /// Whether copies that were set back are taken as they are, where nothing newer is left.
    pub accepts_older: bool,
}

impl MirrorConfig {
    /// How many regions there are.
    pub fn regions(&self) -> usize {
        self.blocks.div_ceil(self.region_blocks) as usize
    }

    /// The regions that `range` touches.
    fn regions_of(&self, range: Range) -> impl Iterator<Item = usize> + use<> {
        let last = (range.end - 1) / self.region_blocks;
        (range.start / self.region_blocks) as usize..last as usize + 1
    }

    /// The blocks of `region`.
    fn range_of(&self, region: usize) -> Range {
        let start = region as u64 * self.region_blocks;
        Range {
            start,
            end: (start + self.region_blocks).min(self.blocks),
        }
    }
}

/// How far this node is with the mirror.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MirrorPhase {
    /// The register was asked to make it the owner.
    Claiming,
    /// It is the owner, and fences the copies in sync.
    Fencing,
    /// Requests are served.
    Serving,
    /// It is the owner no more.
    Stopped,
}

/// How far the owner is with one copy.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum CopyStanding {
    /// It is left alone.
    Out,
    /// The fence is being made.
    Fencing(Fence),
    /// The fence is made; what it keeps is being read.
    Looking,
    /// In the set that is being claimed: fenced and read.
    Ready,
    /// It returns: the record, which says that it is not in sync, is being noted on it.
    Noting,
    /// It returns: it gets all new writes, and is filled.
    Returning,
    /// It is filled: acknowledgements need it, and it is swapped in.
    Joining,
    InSync,
}

/// What the owner knows of one copy.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct CopyMember {
    standing: CopyStanding,
    /// That of the newest fence that was made on it.
    key: Option<FenceKey>,
    kept: Option<CopyState>,
    keeping: Option<(OpId, CopyState)>,
    /// It is filled whole: what it keeps must not say again that it was in sync.
    has_lost_sync: bool,
    /// The heartbeats that it should keep.
    heartbeats: [u64; COPIES_MAX],
    bitmap: Bitmap,
    /// The 0-block read that is on its way.
    proof: Option<OpId>,
    /// A write of metadata has failed. If it is the last copy, it waits for the next tick.
    is_stalled: bool,
}

/// One node's part in one mirror.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mirror {
    config: MirrorConfig,
    phase: MirrorPhase,
    /// The last record that this owner has written or, before it is one, has found.
    record: Record,
    /// The one that the copies are to keep.
    told: Record,
    /// Whether the register is to know of a heartbeat.
    is_beaten: bool,
    /// What was sent to the register and not answered.
    swap: Option<Swap>,
    members: Vec<CopyMember>,
    /// Copies that were given up and are still in the set, or on their way into it.
    failed: CopySet,
    /// The number of the next fence in this epoch.
    fences: u32,
    /// Requests, equalisation and filling, in the order in which they came.
    works: VecDeque<Work>,
    /// What may differ between copies in sync.
    doubts: Ranges,
    /// Equalisation or filling has failed, and waits for the next tick.
    is_stalled: bool,
    /// What the copy that returns has not got yet.
    fill: Ranges,
    /// Whether a piece of it may be filled.
    has_room: bool,
    /// Regions that were written since the last tick.
    touched: Regions,
    sequences: Sequences,
    next: u64,
    actions: VecDeque<MirrorAction>,
}

impl Mirror {
    /// What to do next, if anything.
    pub fn select(&mut self) -> Option<MirrorAction> {
        self.actions.pop_front()
    }

    /// Something has happened.
    pub fn apply(&mut self, event: MirrorEvent) {
        if self.phase == MirrorPhase::Stopped {
            return;
        }
        let mut of = None;
        match event {
            MirrorEvent::Swapped(found) => self.swapped(&found),
            MirrorEvent::FenceAnswer { copy, key, answer } => {
                self.fence_answered(copy, key, answer)
            }
            MirrorEvent::Metadata {
                copy,
                key,
                kept,
                marked,
            } => self.metadata_read(copy, key, kept, marked),
            MirrorEvent::Ended { id, outcome } => of = self.ended(id, outcome),
            MirrorEvent::Failed(copy) => self.failed.insert(copy),
            MirrorEvent::Back(copy) => self.back(copy),
            MirrorEvent::Write { id, range } => {
                of = Some(self.works.len());
                self.works.push_back(Work::write(id, range));
            }
            MirrorEvent::Read { id, range, from } => {
                of = Some(self.works.len());
                self.works.push_back(Work::read(id, range, from));
            }
            MirrorEvent::Compare { id, range } => {
                self.works.push_back(Work::compare(id, range));
            }
            MirrorEvent::Expired(id) => self.expired(id),
            MirrorEvent::Room => self.has_room = true,
            MirrorEvent::Tick => self.tick(),
            MirrorEvent::Beat => self.beat(),
        }
        match of {
            Some(at) => self.run_rules_for(at),
            None => self.run_rules(),
        }
        self.check();
    }

    /// A name for the next request.
    pub fn next_id(&mut self) -> OpId {
        self.next += 1;
        OpId(self.next)
    }

    /// How far this node is.
    pub fn phase(&self) -> MirrorPhase {
        self.phase
    }

    /// The record that it has won.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Whether no request is under way, nothing is in doubt, and the set does not change.
    pub fn is_quiet(&self) -> bool {
        self.phase == MirrorPhase::Serving
            && self.works.is_empty()
            && self.doubts.is_empty()
            && self.swap.is_none()
    }

    /// The key of the fence under which `copy` is reached, if it is.
    pub fn key(&self, copy: CopyId) -> Option<FenceKey> {
        let member = &self.members[copy.place()];
        member.key.filter(|_| member.standing != CopyStanding::Out)
    }

    fn run_rules(&mut self) {
        if self.phase == MirrorPhase::Stopped {
            return;
        }
        self.settle_set();
        while self.phase == MirrorPhase::Serving && (self.equalise() | self.fill() | self.work()) {}
        self.join();
        if self.phase == MirrorPhase::Serving {
            self.keep();
            self.confirm();
            self.mark();
            self.prove();
        }
    }

    fn stop(&mut self, why: Stopped) {
        self.phase = MirrorPhase::Stopped;
        self.actions.clear();
        // First: it is why they fail.
        self.actions.push_back(MirrorAction::Stop(why));
        for work in self.works.drain(..) {
            if work.is_request() && !work.is_answered {
                self.actions.push_back(MirrorAction::Fail(work.id));
            }
        }
    }

    /// Sends a command to `copy`.
    fn send(&mut self, copy: CopyId, command: CopyCommand) -> OpId {
        let id = self.next_id();
        self.send_as(id, copy, command);
        id
    }

    fn send_as(&mut self, id: OpId, copy: CopyId, command: CopyCommand) {
        let key = self.members[copy.place()].key;
        let key = key.expect("only a copy that is fenced gets commands");
        self.actions.push_back(MirrorAction::Command {
            id,
            copy,
            key,
            command,
        });
    }

    /// A command has ended. Returns the place of the work of which it was, if that concerns no other.
    fn ended(&mut self, id: OpId, outcome: Outcome) -> Option<usize> {
        let of_work = self.work_of(id);
        let of_member = || {
            let place = self.members.iter().position(|member| member.has(id))?;
            Some(CopyId::new(place))
        };
        let Some(copy) = of_work.map(|(_, copy)| copy).or_else(of_member) else {
            // Of a copy that is out by now, or of a work that is over.
            self.actions.push_back(MirrorAction::Release(id));
            return None;
        };
        let is_good = outcome == Outcome::Good;
        let is_given_up = of_work.is_some_and(|(at, _)| self.works[at].is_given_up);
        let concerns_others = match outcome {
            Outcome::Fenced => {
                self.stop(Stopped::Fenced(copy));
                return None;
            }
            Outcome::Failed => {
                // Nobody waits for what was given up: it is equalised, and that may fail the copy.
                if !is_given_up {
                    self.failed.insert(copy);
                }
                true
            }
            Outcome::Good => self.proved(copy, id, of_work.map(|(at, _)| at)),
        };
        if let Some((at, _)) = of_work {
            self.work_ended(at, copy, id, outcome);
            return (!concerns_others).then_some(at);
        }
        let member = &mut self.members[copy.place()];
        member.proof.take_if(|one| *one == id);
        let kept = member.keeping.take_if(|(one, _)| *one == id);
        member.bitmap.ended(id, is_good);
        if let Some((_, kept)) = kept.filter(|_| is_good) {
            member.kept = Some(kept);
        }
        member.is_stalled |= !is_good;
        None
    }

    /// The place of the work to which the command `id` belongs, and the copy at which it is on its way.
    fn work_of(&self, id: OpId) -> Option<(usize, CopyId)> {
        let mut works = self.works.iter().enumerate();
        works.find_map(|(at, work)| Some((at, work.copy_of(id)?)))
    }

    fn with_standing(&self, wanted: impl Fn(&CopyStanding) -> bool) -> CopySet {
        let mut set = CopySet::EMPTY;
        for (place, member) in self.members.iter().enumerate() {
            if wanted(&member.standing) {
                set.insert(CopyId::new(place));
            }
        }
        set
    }

    /// What must hold after each event.
    fn check(&self) {
        let in_sync = self.with_standing(|standing| *standing == CopyStanding::InSync);
        if self.phase == MirrorPhase::Serving {
            assert_eq!(
                in_sync, self.record.in_sync,
                "what is in sync, and what the record says"
            );
            let joining = self.with_standing(|standing| *standing == CopyStanding::Joining);
            let swapped = self.swap.map_or(in_sync, |swap| swap.new.in_sync);
            let known = in_sync.union(joining);
            assert!(
                swapped.is_within(known),
                "only what is filled is swapped in: {swapped:?}"
            );
        }
        assert!(
            !self.record.in_sync.is_empty(),
            "the last copy never leaves"
        );
        for copy in in_sync.iter() {
            let key = self.members[copy.place()].key;
            let is_own = key.is_some_and(|key| key.epoch() == self.record.epoch);
            assert!(is_own, "what is in sync is fenced in this epoch");
        }
        self.check_overlap();
        self.check_progress();
    }
}

impl CopyMember {
    fn new() -> CopyMember {
        CopyMember {
            standing: CopyStanding::Out,
            key: None,
            kept: None,
            keeping: None,
            has_lost_sync: false,
            heartbeats: [0; COPIES_MAX],
            bitmap: Bitmap::default(),
            proof: None,
            is_stalled: false,
        }
    }

    /// Whether the command `id`, of no request, is on its way here.
    fn has(&self, id: OpId) -> bool {
        let keeping = self.keeping.as_ref().is_some_and(|(one, _)| *one == id);
        keeping || self.proof == Some(id) || self.bitmap.is_writing(id)
    }

    /// It is left alone: nothing of it counts any more.
    fn leave(&mut self) {
        self.standing = CopyStanding::Out;
        self.has_lost_sync = false;
        self.keeping = None;
        self.proof = None;
        self.is_stalled = false;
        self.bitmap = Bitmap::default();
    }
}
