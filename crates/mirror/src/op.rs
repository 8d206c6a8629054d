//! What the driver carries out for the mirror, and what it reports.

use crate::{
    copy::CopyState,
    copy_set::CopyId,
    fence::{FenceAnswer, FenceCommand},
    key::FenceKey,
    ranges::Range,
    regions::Regions,
    register::{Record, Swap},
};

/// A request of the mirror's user, or a command at a copy. Later ones are higher.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub(crate) u64);

/// What the driver has to do. Actions are carried out in the order in which they are given out; commands at different
/// copies, and those that do not depend on each other, run side by side.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MirrorAction {
    /// Send this swap to the register, and report what the register then holds: [`MirrorEvent::Swapped`]. An attempt without
    /// an answer is repeated, by the driver, unchanged.
    Swap(Swap),
    /// Carry out this step of a fence, on a new nexus with identifiers of its own for each new `key`: nothing that is
    /// queued for an older key is sent any more. Report it as [`MirrorEvent::FenceAnswer`].
    Fence {
        /// Where.
        copy: CopyId,
        /// The fence's key.
        key: FenceKey,
        /// The step.
        step: FenceCommand,
    },
    /// Say that the fence on this copy cannot be made; it counts as failed.
    Unusable {
        /// Where.
        copy: CopyId,
        /// The key of what uses it, which is no mirror; `None`: others kept changing its reservation.
        by: Option<u64>,
    },
    /// Read what the copy keeps, under its fence: [`MirrorEvent::Metadata`].
    ReadMetadata {
        /// Where.
        copy: CopyId,
        /// The fence's key.
        key: FenceKey,
    },
    /// Send a command to the copy, under its fence: [`MirrorEvent::Ended`].
    Command {
        /// Its name.
        id: OpId,
        /// Where.
        copy: CopyId,
        /// The fence's key.
        key: FenceKey,
        /// What it does.
        command: CopyCommand,
    },
    /// The write is done.
    Acknowledge(OpId),
    /// The read is done: its data is what the command `data` has read.
    Answer {
        /// The read.
        request: OpId,
        /// The command.
        data: OpId,
    },
    /// The comparison is done: these commands have read the range, one at each copy in sync, in the order of the copies.
    Compared {
        /// The comparison.
        request: OpId,
        /// The commands: two at least.
        data: Vec<OpId>,
    },
    /// The request has failed. A write may have been carried out in part.
    Fail(OpId),
    /// Nothing needs the data of this write any more, or what this command has read.
    Release(OpId),
    /// This owner is none any more. All its requests have failed; nothing more will be done.
    Stop(Stopped),
}

/// A command at a copy.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum CopyCommand {
    /// Read this range.
    Read(Range),
    /// Read 0 blocks: what a fence refuses, and no medium feels.
    Prove,
    /// Write this range, with FUA.
    Write {
        /// Where the data goes.
        range: Range,
        /// The write request that it comes with, or the command that has read it.
        data: OpId,
    },
    /// Write a block of the bitmap, with FUA.
    Mark {
        /// Which.
        block: usize,
        /// Its content.
        regions: Vec<u64>,
    },
    /// Write the next slot of what is kept, with FUA.
    Keep(CopyState),
}

/// Why an owner has stopped.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Stopped {
    /// Another node has changed the register.
    Register(Record),
    /// A copy has a newer fence, or refuses this owner's commands.
    Fenced(CopyId),
    /// A copy has seen a record of version `seen` of this mirror, which the register has not had yet, or has otherwise:
    /// the register was restored from an older state, or is another one.
    RegisterIsOlder {
        /// The copy.
        copy: CopyId,
        /// The record's version.
        seen: u64,
    },
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MirrorEvent {
    /// The register was asked to swap, and holds this afterwards.
    Swapped(Record),
    /// The copy has answered a step of the fence under `key`.
    FenceAnswer {
        /// Where.
        copy: CopyId,
        /// The fence's key.
        key: FenceKey,
        /// What it said.
        answer: FenceAnswer,
    },
    /// What a copy keeps was read. Where there is nothing, or another mirror's, the copy [failed](Event::Failed).
    Metadata {
        /// Where.
        copy: CopyId,
        /// The fence's key.
        key: FenceKey,
        /// The newest slot.
        kept: CopyState,
        /// The bitmap, all of it for a torn block.
        marked: Regions,
    },
    /// A command has ended: nothing of it can happen any more.
    Ended {
        /// Which.
        id: OpId,
        /// How.
        outcome: Outcome,
    },
    /// The copy is given up: it is too slow, out of reach, refuses a fence, or keeps nothing of this mirror.
    Failed(CopyId),
    /// The copy can be reached, and may return.
    Back(CopyId),
    /// The user writes this range. The request is called `id`, which [`Mirror::next_id`](crate::Mirror::next_id) gave.
    Write {
        /// The request.
        id: OpId,
        /// Where.
        range: Range,
    },
    /// The user reads this range.
    Read {
        /// The request.
        id: OpId,
        /// Where.
        range: Range,
        /// The copy to read from, if it is in sync.
        from: CopyId,
    },
    /// The user compares the copies in this range. It fails if fewer than two are in sync.
    Compare {
        /// The request.
        id: OpId,
        /// Where.
        range: Range,
    },
    /// The user waits no longer for the request.
    Expired(OpId),
    /// There is room for one more piece of filling a copy that returns.
    Room,
    /// Some time has passed: regions that were not written since the last time may be cleared.
    Tick,
    /// It is time for a heartbeat to each copy.
    Beat,
}

/// How a command has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It was carried out.
    Good,
    /// It was refused because of a fence.
    Fenced,
    /// It has failed, or its nexus has ended before its answer. It may have been carried out, whole or in part.
    Failed,
}
