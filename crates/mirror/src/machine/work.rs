//! What is done to a range of blocks: a request, equalisation, or filling. Each goes through the same steps: it waits
//! for what overlaps, reads from a copy (but for a write), and writes to others (but for a read).

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::{CopyStanding, Mirror};
use crate::{
    copy_set::{CopyId, CopySet},
    op::{CopyCommand, MirrorAction, OpId, Outcome},
    planted::{Bug, is_planted},
    ranges::Range,
};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum OperationKind {
    /// From this copy, if it is in sync.
    Read(CopyId),
    Write,
    /// Reads it from every copy in sync.
    Compare,
    Equalise,
    /// Of this copy.
    Fill(CopyId),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Work {
    pub(super) id: OpId,
    pub(super) kind: OperationKind,
    pub(super) range: Range,
    /// Nothing that overlaps runs beside it.
    pub(super) has_begun: bool,
    /// What a comparison has read, by copy.
    pub(super) compared: Vec<(CopyId, OpId)>,
    /// The copy that is being read, or was.
    pub(super) source: Option<CopyId>,
    /// The data that is written, once it is there: the request itself, or the command that has read it.
    pub(super) data: Option<OpId>,
    /// Copies to which the data goes once its regions are marked there.
    pub(super) unsent: CopySet,
    /// Commands on their way, one to a copy.
    pub(super) sent: SmallVec<[(CopyId, OpId); 2]>,
    /// Copies that have the data; for a read, those that have answered since it came.
    pub(super) done: CopySet,
    pub(super) failed: CopySet,
    /// Whoever asked for it has an answer.
    pub(super) is_answered: bool,
    /// That it has failed.
    pub(super) is_given_up: bool,
}

impl Work {
    fn new(id: OpId, kind: OperationKind, range: Range) -> Work {
        Work {
            id,
            kind,
            range,
            has_begun: false,
            compared: Vec::new(),
            source: None,
            data: None,
            unsent: CopySet::EMPTY,
            sent: SmallVec::new(),
            done: CopySet::EMPTY,
            failed: CopySet::EMPTY,
            is_answered: false,
            is_given_up: false,
        }
    }

    pub(super) fn write(id: OpId, range: Range) -> Work {
        Work::new(id, OperationKind::Write, range)
    }

    pub(super) fn read(id: OpId, range: Range, from: CopyId) -> Work {
        Work::new(id, OperationKind::Read(from), range)
    }

    pub(super) fn compare(id: OpId, range: Range) -> Work {
        Work::new(id, OperationKind::Compare, range)
    }

    /// Equalisation or filling, which begins at once.
    pub(super) fn internal(id: OpId, kind: OperationKind, range: Range) -> Work {
        Work {
            has_begun: true,
            ..Work::new(id, kind, range)
        }
    }

    pub(super) fn is_request(&self) -> bool {
        matches!(
            self.kind,
            OperationKind::Read(_) | OperationKind::Write | OperationKind::Compare
        )
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.kind, OperationKind::Read(_))
    }

    /// Whether it changes nothing.
    pub(super) fn is_harmless(&self) -> bool {
        matches!(self.kind, OperationKind::Read(_) | OperationKind::Compare)
    }

    /// The copy at which its command `id` is on its way.
    pub(super) fn copy_of(&self, id: OpId) -> Option<CopyId> {
        let sent = self.sent.iter().find(|(_, one)| *one == id);
        sent.map(|(copy, _)| *copy)
    }

    /// `copy` is out: what is on its way there counts no more. Returns whether the work goes on.
    pub(super) fn forget(&mut self, copy: CopyId) -> bool {
        self.unsent.remove(copy);
        self.sent.retain(|(one, _)| *one != copy);
        self.done.remove(copy);
        self.failed.remove(copy);
        if self.source == Some(copy) && self.data.is_none() {
            self.source = None;
        }
        self.kind != OperationKind::Fill(copy)
    }

    /// Whether it can only wait for what is on its way: of many requests at once, most do. `needed` have to have a write.
    pub(super) fn waits(&self, needed: CopySet) -> bool {
        let is_write = self.kind == OperationKind::Write && self.failed.is_empty();
        let is_waiting = is_write && !needed.is_within(self.done);
        self.unsent.is_empty() && (self.is_answered || is_waiting)
    }

    /// Copies to which a command is on its way, or will be.
    pub(super) fn pending(&self) -> CopySet {
        let sent = self.sent.iter().map(|(copy, _)| CopySet::from(*copy));
        sent.fold(self.unsent, CopySet::union)
    }

    /// Nothing needs its data any more.
    pub(super) fn release(&self, actions: &mut VecDeque<MirrorAction>) {
        let data = match self.kind {
            OperationKind::Write => Some(self.id),
            _ => self.data,
        };
        let compared = self.compared.iter().map(|(_, id)| *id);
        actions.extend(data.into_iter().chain(compared).map(MirrorAction::Release));
    }

    /// Whether nothing of it can still happen.
    pub(super) fn is_over(&self) -> bool {
        let is_still = self.unsent.is_empty() && self.sent.is_empty();
        self.is_answered && (is_still || self.is_read() || is_planted(Bug::OverlapAfterAnswer))
    }
}

impl Mirror {
    /// Moves works on. Returns whether one has ended, so that another might move: what begins or is sent only holds
    /// others up.
    pub(super) fn work(&mut self) -> bool {
        let (mut has_settled, mut is_any_over) = (false, false);
        let needed = self.needed_by_writes();
        for at in 0..self.works.len() {
            if !self.works[at].has_begun && !self.is_held_up(at) {
                self.begin(at);
            }
            if self.works[at].has_begun && !self.works[at].waits(needed) {
                has_settled |= self.advance(at);
            }
            is_any_over |= self.works[at].is_over();
        }
        if is_any_over {
            self.retain_works(|work| !work.is_over());
        }
        has_settled || is_any_over
    }

    /// Keeps the works for which `goes_on` holds.
    pub(super) fn retain_works(&mut self, mut goes_on: impl FnMut(&mut Work) -> bool) {
        let actions = &mut self.actions;
        self.works.retain_mut(|work| {
            let goes_on = goes_on(work);
            if !goes_on {
                work.release(actions);
            }
            goes_on
        });
    }

    pub(super) fn begin(&mut self, at: usize) {
        self.works[at].has_begun = true;
        match self.works[at].kind {
            OperationKind::Write => {
                let targets = self.targets();
                self.works[at].data = Some(self.works[at].id);
                self.mark_ahead(self.works[at].range, targets);
                self.write_to(at, targets);
            }
            OperationKind::Compare => self.read_all(at),
            _ => {}
        }
    }

    /// Copies that get new writes.
    fn targets(&self) -> CopySet {
        let returning = self.with_standing(|standing| *standing == CopyStanding::Returning);
        self.needed_by_writes().union(returning)
    }

    /// Sends what can be sent for the work. Returns whether it has settled.
    pub(super) fn advance(&mut self, at: usize) -> bool {
        if self.works[at].data.is_none() && self.works[at].kind != OperationKind::Compare {
            self.read_source(at);
        }
        self.send_writes(at);
        !self.works[at].is_answered
            && match self.works[at].kind {
                OperationKind::Read(_) => self.settle_read(at),
                OperationKind::Write => self.settle_write(at),
                OperationKind::Compare => self.settle_compared(at),
                OperationKind::Equalise => self.settle_equalised(at),
                OperationKind::Fill(copy) => self.settle_filled(at, copy),
            }
    }

    /// Reads what the work needs, from a copy that is in sync.
    fn read_source(&mut self, at: usize) {
        let work = &self.works[at];
        if work.source.is_some() || work.is_answered {
            return;
        }
        let good = self
            .record
            .in_sync
            .without(self.failed)
            .without(work.failed);
        let preferred = match work.kind {
            OperationKind::Read(from) => from,
            _ => self.config.nearest,
        };
        let source = if good.contains(preferred) {
            Some(preferred)
        } else {
            good.iter().next()
        };
        let Some(source) = source else {
            return;
        };
        let range = work.range;
        let id = self.send(source, CopyCommand::Read(range));
        let work = &mut self.works[at];
        work.source = Some(source);
        work.sent.push((source, id));
    }

    /// The data of the work is there: it goes to `targets`, where its regions are marked first.
    pub(super) fn write_to(&mut self, at: usize, targets: CopySet) {
        let work = &mut self.works[at];
        work.unsent = targets;
        let range = work.range;
        self.touch(range, targets);
    }

    /// The regions of `range` are to be marked on `targets`.
    pub(super) fn touch(&mut self, range: Range, targets: CopySet) {
        for region in self.config.regions_of(range) {
            self.touched.set(region, true);
            for copy in targets.iter().filter(|_| !is_planted(Bug::Unmarked)) {
                self.members[copy.place()].bitmap.wanted.set(region, true);
            }
        }
    }

    fn send_writes(&mut self, at: usize) {
        let work = &self.works[at];
        let Some(data) = work.data else {
            return;
        };
        let range = work.range;
        for copy in work.unsent.iter() {
            let bitmap = &self.members[copy.place()].bitmap;
            let mut regions = self.config.regions_of(range);
            if is_planted(Bug::Unmarked) || regions.all(|region| bitmap.is_marked(region)) {
                let id = self.send(copy, CopyCommand::Write { range, data });
                let work = &mut self.works[at];
                work.unsent.remove(copy);
                work.sent.push((copy, id));
            }
        }
    }

    /// The command `id` at `copy`, of the work at `at`, has ended.
    pub(super) fn work_ended(&mut self, at: usize, copy: CopyId, id: OpId, outcome: Outcome) {
        let work = &mut self.works[at];
        work.sent.retain(|(_, one)| *one != id);
        let has_read = work.data.is_none();
        if outcome != Outcome::Good {
            work.failed.insert(copy);
            if has_read {
                work.source = None;
            }
            return;
        }
        if work.kind == OperationKind::Compare {
            work.compared.push((copy, id));
            return;
        }
        work.done.insert(copy);
        if has_read {
            work.data = Some(id);
            match work.kind {
                OperationKind::Equalise if is_planted(Bug::OthersNotEqualised) => {
                    work.done = self.record.all();
                }
                OperationKind::Equalise => {
                    // Also to this one: what a failed write has left there can be read, but a power cut may take it back.
                    work.done = CopySet::EMPTY;
                    let targets = self.targets();
                    self.write_to(at, targets);
                }
                OperationKind::Fill(copy) => self.write_to(at, copy.into()),
                OperationKind::Read(_) | OperationKind::Write | OperationKind::Compare => {}
            }
        }
    }

    /// Whether a work that has to read can do so nowhere: the last copy in sync has failed to read it. That copy may have
    /// carried out other commands since, which says nothing of this range.
    pub(super) fn has_no_source(&self, at: usize) -> bool {
        let work = &self.works[at];
        let is_read = work.data.is_some() || work.source.is_some();
        self.is_one_left() && !is_read && self.record.in_sync.is_within(work.failed)
    }

    /// Whether a work that needs `needed` can end no more: the last copy in sync has failed it.
    pub(super) fn has_failed(&self, at: usize, needed: CopySet) -> bool {
        let work = &self.works[at];
        let missing = needed.without(work.done);
        self.is_one_left() && !missing.is_empty() && missing.is_within(work.failed)
    }
}
