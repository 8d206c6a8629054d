//! A mirror of two copies with a driver that does at once what decides nothing: swaps, fences, reading and writing of
//! metadata. Other commands wait until the test ends them.

use mirror::{
    CopyCommand, CopyId, Mirror, MirrorAction, MirrorConfig, MirrorEvent, OpId, Outcome, Range,
    Regions,
    copy::CopyState,
    fence::{FenceAnswer, FenceCommand},
    planted::check_every_rule,
    register::Record,
};
use uuid::Uuid;

pub(crate) const REGIONS: usize = 64;
pub(crate) const REGION_BLOCKS: u64 = 16;
/// As far as half of the regions.
pub(crate) const AHEAD_BLOCKS: u64 = 32 * REGION_BLOCKS;

/// What a copy keeps, and how often it was written.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(crate) kept: CopyState,
    pub(crate) marked: Regions,
    pub(crate) marks: usize,
    key: Option<u64>,
    /// Writes of metadata fail.
    pub(crate) is_broken: bool,
    /// It cannot be fenced.
    pub(crate) is_away: bool,
}

/// The driver.
pub(crate) struct Rig {
    pub(crate) mirror: Mirror,
    pub(crate) register: Record,
    pub(crate) disks: Vec<Disk>,
    /// Commands that have not ended.
    pub(crate) waiting: Vec<(OpId, CopyId, CopyCommand)>,
    /// Everything else that the machine did, in order.
    pub(crate) done: Vec<MirrorAction>,
    /// Swaps get no answer.
    pub(crate) register_is_away: bool,
    /// Writes of metadata wait like all others.
    pub(crate) holds_metadata: bool,
}

pub(crate) fn copy(place: usize) -> CopyId {
    CopyId::new(place)
}

/// `blocks` blocks at the beginning of `region`.
pub(crate) fn at(region: u64, blocks: u64) -> Range {
    Range::new(region * REGION_BLOCKS, blocks)
}

impl Rig {
    /// A new mirror that is served.
    pub(crate) fn new() -> Rig {
        let register = Record::first(Uuid::from_u128(1), 2, 1);
        let disk = Disk {
            kept: CopyState::first(register),
            marked: Regions::none(REGIONS),
            marks: 0,
            key: None,
            is_broken: false,
            is_away: false,
        };
        Rig::claim(register, vec![disk.clone(), disk])
    }

    /// Another owner claims the mirror.
    pub(crate) fn claim(register: Record, disks: Vec<Disk>) -> Rig {
        Rig::claim_as(register, disks, false)
    }

    /// The same, which takes copies that were set back as they are or not.
    pub(crate) fn claim_as(register: Record, disks: Vec<Disk>, accepts_older: bool) -> Rig {
        let config = MirrorConfig {
            node: Uuid::from_u128(register.version.into()),
            nonce: register.version,
            blocks: REGIONS as u64 * REGION_BLOCKS,
            region_blocks: REGION_BLOCKS,
            piece_blocks: REGION_BLOCKS / 2,
            marked_max: 8,
            ahead_blocks: AHEAD_BLOCKS,
            nearest: copy(0),
            accepts_older,
        };
        let mut rig = Rig {
            mirror: {
                check_every_rule();
                Mirror::claim(config, register)
            },
            register,
            disks,
            waiting: Vec::new(),
            done: Vec::new(),
            register_is_away: false,
            holds_metadata: false,
        };
        rig.run();
        rig
    }

    pub(crate) fn apply(&mut self, event: MirrorEvent) {
        self.mirror.apply(event);
        self.run();
    }

    pub(crate) fn write(&mut self, range: Range) -> OpId {
        let id = self.mirror.next_id();
        self.apply(MirrorEvent::Write { id, range });
        id
    }

    pub(crate) fn read(&mut self, range: Range) -> OpId {
        let id = self.mirror.next_id();
        let from = copy(0);
        self.apply(MirrorEvent::Read { id, range, from });
        id
    }

    pub(crate) fn compare(&mut self, range: Range) -> OpId {
        let id = self.mirror.next_id();
        self.apply(MirrorEvent::Compare { id, range });
        id
    }

    /// Ends every waiting command for which `which` holds. Returns how many there were.
    pub(crate) fn end(
        &mut self,
        outcome: Outcome,
        which: impl Fn(CopyId, &CopyCommand) -> bool,
    ) -> usize {
        let is_it = |one: &(OpId, CopyId, CopyCommand)| which(one.1, &one.2);
        let ended: Vec<OpId> = self
            .waiting
            .iter()
            .filter(|one| is_it(one))
            .map(|one| one.0)
            .collect();
        self.waiting.retain(|one| !ended.contains(&one.0));
        for id in &ended {
            self.apply(MirrorEvent::Ended { id: *id, outcome });
        }
        ended.len()
    }

    /// Ends everything well until nothing is left.
    pub(crate) fn settle(&mut self) {
        while self.end(Outcome::Good, |_, _| true) > 0 {
            self.apply(MirrorEvent::Room);
        }
    }

    /// The commands that wait at `copy`.
    pub(crate) fn at(&self, copy: CopyId) -> Vec<&CopyCommand> {
        let there = self.waiting.iter().filter(|one| one.1 == copy);
        there.map(|one| &one.2).collect()
    }

    pub(crate) fn has_acknowledged(&self, id: OpId) -> bool {
        self.done.contains(&MirrorAction::Acknowledge(id))
    }

    fn run(&mut self) {
        while let Some(action) = self.mirror.select() {
            let answer = match action {
                MirrorAction::Swap(swap) if !self.register_is_away => {
                    self.register = swap.land(self.register);
                    Some(MirrorEvent::Swapped(self.register))
                }
                MirrorAction::Fence { copy, .. } if self.disks[copy.place()].is_away => {
                    Some(MirrorEvent::Failed(copy))
                }
                MirrorAction::Fence { copy, key, step } => {
                    let held = &mut self.disks[copy.place()].key;
                    let answer = match step {
                        FenceCommand::ReadKeys => FenceAnswer::Keys(held.iter().copied().collect()),
                        FenceCommand::ReadReservation => FenceAnswer::Reservation(*held),
                        // The older one is gone with it: a fence against others is explored elsewhere.
                        FenceCommand::Register => {
                            *held = Some(key.raw());
                            FenceAnswer::Good
                        }
                        FenceCommand::Reserve | FenceCommand::Preempt(_) | FenceCommand::Reset => {
                            FenceAnswer::Good
                        }
                    };
                    Some(MirrorEvent::FenceAnswer { copy, key, answer })
                }
                MirrorAction::ReadMetadata { copy, key } => {
                    let disk = &self.disks[copy.place()];
                    let (kept, marked) = (disk.kept, disk.marked.clone());
                    Some(MirrorEvent::Metadata {
                        copy,
                        key,
                        kept,
                        marked,
                    })
                }
                MirrorAction::Command {
                    id, copy, command, ..
                } => self.command(id, copy, command),
                MirrorAction::Release(_) => None,
                other => {
                    self.done.push(other);
                    None
                }
            };
            if let Some(event) = answer {
                self.mirror.apply(event);
            }
        }
    }

    fn command(&mut self, id: OpId, copy: CopyId, command: CopyCommand) -> Option<MirrorEvent> {
        let disk = &mut self.disks[copy.place()];
        match command {
            CopyCommand::Keep(_) | CopyCommand::Mark { .. } if disk.is_broken => {
                let outcome = Outcome::Failed;
                return Some(MirrorEvent::Ended { id, outcome });
            }
            CopyCommand::Keep(kept) if !self.holds_metadata => disk.kept = kept,
            CopyCommand::Mark { regions, .. } if !self.holds_metadata => {
                disk.marked = Regions(regions);
                disk.marks += 1;
            }
            other => {
                self.waiting.push((id, copy, other));
                return None;
            }
        }
        Some(MirrorEvent::Ended {
            id,
            outcome: Outcome::Good,
        })
    }
}
