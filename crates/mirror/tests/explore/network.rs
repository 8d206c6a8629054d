//! What is on its way between nodes and copies, and what happens when it arrives.

use std::rc::Rc;

use mirror::{
    CopyCommand, CopyId, Mirror, MirrorAction, MirrorEvent, OpId, Outcome, Regions,
    copy::CopyState, key::FenceKey,
};

use crate::{
    budget::Flaw,
    world::{Node, World},
};

/// A command that is on its way, or whose answer is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Message {
    pub(crate) node: usize,
    pub(crate) copy: usize,
    pub(crate) key: u64,
    /// `None`: the node knows nothing of it any more.
    pub(crate) id: Option<OpId>,
    pub(crate) what: What,
    pub(crate) state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum What {
    Fence,
    Read { block: u64 },
    Prove,
    Write { block: u64, value: u8 },
    Mark([bool; 2]),
    Keep,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum State {
    Sent,
    /// The answer is late or lost.
    Executed,
    /// It was lost with the copy's power.
    Gone,
}

impl World {
    pub(crate) fn command(
        &mut self,
        node: usize,
        id: OpId,
        copy: CopyId,
        key: FenceKey,
        command: CopyCommand,
    ) {
        let what = match command {
            CopyCommand::Read(range) => What::Read { block: range.start },
            CopyCommand::Prove => What::Prove,
            CopyCommand::Write { range, data } => What::Write {
                block: range.start,
                value: self.datum(node, data),
            },
            CopyCommand::Mark { regions, .. } => {
                let regions = Regions(regions);
                What::Mark([0, 1].map(|region| regions.contains(region)))
            }
            CopyCommand::Keep(kept) => {
                self.keeps.push((node, id, kept));
                What::Keep
            }
        };
        self.send(node, copy, key, Some(id), what);
    }

    pub(crate) fn send(
        &mut self,
        node: usize,
        copy: CopyId,
        key: FenceKey,
        id: Option<OpId>,
        what: What,
    ) {
        self.messages.push(Message {
            node,
            copy: copy.place(),
            key: key.raw(),
            id,
            what,
            state: State::Sent,
        });
    }

    /// Unless metadata may be late, it is written at once: that only removes waiting.
    pub(crate) fn hurry(&mut self, node: usize) {
        if self.left.is_slow {
            return;
        }
        let is_quick = |message: &Message| {
            let marks_more = |new: [bool; 2]| {
                let old = self.copies[message.copy].marked;
                (0..2).all(|region| new[region] || !old[region])
            };
            let is_metadata = match message.what {
                What::Keep => true,
                What::Mark(marked) => marks_more(marked),
                _ => false,
            };
            message.node == node && message.id.is_some() && is_metadata
        };
        let serves = |message: &Message| self.copies[message.copy].serves(message.key);
        let at = self
            .messages
            .iter()
            .position(|one| is_quick(one) && serves(one));
        if let Some(at) = at {
            self.execute(at, true);
        }
    }

    /// The copy gets the message at `at`.
    pub(crate) fn execute(&mut self, at: usize, is_answered: bool) {
        let message = self.messages.remove(at);
        if message.what == What::Fence {
            return self.fence(message);
        }
        let copy = &mut self.copies[message.copy];
        let is_past_fences = match self.flaw {
            Some(Flaw::LocalUnfenced) => message.node == message.copy,
            Some(Flaw::ProofPassesFences) => message.what == What::Prove,
            _ => false,
        };
        if !copy.serves(message.key) && !is_past_fences {
            return self.deliver(message, Outcome::Fenced);
        }
        match message.what {
            What::Write { block, value } if block == self.left.block() => copy.value = value,
            What::Mark(marked) => copy.marked = marked,
            What::Keep => {
                let is_it = |(node, id, _): &&(usize, OpId, CopyState)| {
                    *node == message.node && Some(*id) == message.id
                };
                if let Some((_, _, kept)) = self.keeps.iter().find(is_it) {
                    copy.kept = *kept;
                }
            }
            What::Read { block } => {
                let value = if block == self.left.block() {
                    copy.value
                } else {
                    0
                };
                let read = message.id.map(|id| (message.node, id, value));
                self.data.extend(read);
            }
            What::Prove | What::Fence | What::Write { .. } => {}
        }
        if is_answered {
            self.deliver(message, Outcome::Good);
        } else {
            self.messages.push(Message {
                state: State::Executed,
                ..message
            });
        }
    }

    pub(crate) fn deliver(&mut self, message: Message, outcome: Outcome) {
        if let Some(id) = message.id {
            self.apply(message.node, MirrorEvent::Ended { id, outcome });
        }
    }

    /// A whole fence, which is one step here: `tests/fences.rs` shows that fences are made one after the other.
    pub(crate) fn fence(&mut self, message: Message) {
        let Some(running) = &self.nodes[message.node] else {
            return;
        };
        let mut machine = running.machine.clone();
        let copy = CopyId::new(message.copy);
        let (_, mut step) =
            mirror::fence::Fence::new(FenceKey::from_raw(message.key).expect("it is ours"));
        loop {
            let answer = self.copies[message.copy].answer(message.key, step);
            let key = FenceKey::from_raw(message.key).expect("it is ours");
            machine.apply(MirrorEvent::FenceAnswer { copy, key, answer });
            match machine.select() {
                Some(MirrorAction::Fence {
                    copy: at,
                    step: next,
                    ..
                }) if at == copy => step = next,
                Some(MirrorAction::ReadMetadata { copy, key }) => {
                    let read = self.copies[copy.place()].metadata(copy, key, self.left.block());
                    machine.apply(read.expect("it is fenced"));
                    break;
                }
                Some(MirrorAction::Stop(_)) => {
                    self.nodes[message.node] = Some(Rc::new(Node::new(machine)));
                    return self.end(message.node);
                }
                Some(action) => panic!("{action:?} while a fence is made"),
                None => break,
            }
        }
        self.settle(message.node, machine);
    }

    /// The power of `node` is gone: what was queued at its copy, and what it would still have sent there.
    pub(crate) fn lose_messages_at(&mut self, node: usize) {
        self.messages
            .retain(|one| !(one.copy == node && (one.node == node || one.id.is_none())));
        for message in self.messages.iter_mut().filter(|one| one.copy == node) {
            if message.state == State::Sent && message.what != What::Fence {
                message.state = State::Gone;
            }
        }
    }

    /// The session of `node` with `copy` ends: nothing of it lands any more. A new one has the same fence.
    pub(crate) fn end_session(&mut self, node: usize, copy: usize) -> Option<()> {
        let key = self.machine(node)?.key(CopyId::new(copy))?.raw();
        let is_ended =
            |one: &Message| (one.node, one.copy, one.key) == (node, copy, key) && one.id.is_some();
        let mut ended = Vec::new();
        self.messages.retain(|one| {
            if is_ended(one) {
                ended.push(one.id);
            }
            !is_ended(one)
        });
        // Names change with each event, but not their order: the first of those that are left is always the first.
        let mut left = ended.len();
        while left > 0 {
            let id = ended[ended.len() - left];
            left -= 1;
            if let Some(id) = id {
                let before = self.machine(node)?.clone();
                let mut machine = before;
                machine.apply(MirrorEvent::Ended {
                    id,
                    outcome: Outcome::Failed,
                });
                let mut others = ended.split_off(ended.len() - left);
                self.settle_renaming(node, machine, &mut others);
                left = others.len();
                ended = others;
            }
        }
        Some(())
    }

    pub(crate) fn settle_renaming(
        &mut self,
        node: usize,
        machine: Mirror,
        others: &mut Vec<Option<OpId>>,
    ) {
        // They ride along as messages that nobody executes.
        let marker = |id: Option<OpId>| Message {
            node,
            copy: usize::MAX,
            key: 0,
            id,
            what: What::Prove,
            state: State::Gone,
        };
        self.messages.extend(others.drain(..).map(marker));
        self.settle(node, machine);
        self.messages.retain(|one| {
            if one.copy == usize::MAX {
                others.push(one.id);
            }
            one.copy != usize::MAX
        });
    }
}
