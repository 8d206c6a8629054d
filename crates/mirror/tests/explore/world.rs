//! Two nodes, two copies of one block, one register, and what is on its way between them. Everything is asynchronous: a
//! node that takes no step is a paused one; a command that is not carried out is late or lost; an answer may be lost; a
//! node may crash; a swap that was sent may land any time later.

use std::{
    hash::{Hash, Hasher},
    rc::Rc,
};

use mirror::{
    CopyId, Mirror, MirrorAction, MirrorConfig, MirrorEvent, MirrorPhase, OpId, Range,
    copy::CopyState,
    key::FenceKey,
    planted::check_every_rule,
    register::{Record, Swap},
};
use uuid::Uuid;

use crate::{
    budget::{Budget, Flaw},
    device::Copy,
    history::History,
    network::{Message, State, What},
    search::Fingerprint,
};

pub(crate) const NODES: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Request {
    pub(crate) node: usize,
    pub(crate) id: OpId,
    /// `None` for a read.
    pub(crate) writes: Option<u8>,
}

/// A machine, with its fingerprint.
pub(crate) struct Node {
    pub(crate) machine: Mirror,
    pub(crate) fingerprint: u128,
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u128(self.fingerprint);
    }
}

#[derive(Clone, Hash)]
pub(crate) struct World {
    pub(crate) register: Record,
    pub(crate) copies: [Copy; 2],
    pub(crate) nodes: [Option<Rc<Node>>; NODES],
    pub(crate) claims: [u8; NODES],
    pub(crate) swaps: [Option<Swap>; NODES],
    /// Swaps whose senders know nothing of them any more.
    pub(crate) orphans: Vec<Swap>,
    pub(crate) messages: Vec<Message>,
    /// What Keep commands write, by node and copy: the last one that was sent.
    pub(crate) keeps: Vec<(usize, OpId, CopyState)>,
    /// The data of requests and of commands that have read.
    pub(crate) data: Vec<(usize, OpId, u8)>,
    pub(crate) requests: Vec<Request>,
    pub(crate) history: History,
    pub(crate) left: Budget,
    pub(crate) flaw: Option<Flaw>,
}

impl World {
    /// A new mirror, served by node 0.
    pub(crate) fn new(budget: Budget, flaw: Option<Flaw>) -> World {
        let register = Record::first(Uuid::from_u128(1), 2, 1);
        let copy = Copy::new(CopyState::first(register), &budget);
        let mut world = World {
            register,
            copies: [copy.clone(), copy],
            nodes: [None, None],
            claims: [0; NODES],
            swaps: [None; NODES],
            orphans: Vec::new(),
            messages: Vec::new(),
            keeps: Vec::new(),
            data: Vec::new(),
            requests: Vec::new(),
            history: History::new(),
            left: budget,
            flaw,
        };
        world.begin_claim(0);
        // It claims the mirror, and then says that all are in sync.
        while world.swaps[0].is_some() {
            world.answer_swap(0);
            while let Some(at) = world
                .messages
                .iter()
                .position(|message| message.state == State::Sent)
            {
                world.execute(at, true);
            }
        }
        assert_eq!(
            world.machine(0).map(Mirror::phase),
            Some(MirrorPhase::Serving)
        );
        world
    }

    pub(crate) fn machine(&self, node: usize) -> Option<&Mirror> {
        self.nodes[node].as_ref().map(|node| &node.machine)
    }

    pub(crate) fn begin_claim(&mut self, node: usize) {
        self.claims[node] += 1;
        let config = MirrorConfig {
            node: Uuid::from_u128(node as u128 + 1),
            nonce: node as u64 * 16 + u64::from(self.claims[node]),
            blocks: self.left.block() + 1,
            region_blocks: 1,
            piece_blocks: 1,
            marked_max: 1,
            ahead_blocks: 0,
            nearest: CopyId::new(node),
            accepts_older: false,
        };
        check_every_rule();
        let machine = Mirror::claim(config, self.register);
        self.settle(node, machine);
    }

    pub(crate) fn answer_swap(&mut self, node: usize) {
        if let Some(swap) = self.swaps[node].take() {
            self.register = swap.land(self.register);
            self.apply(node, MirrorEvent::Swapped(self.register));
        }
    }

    pub(crate) fn ask(&mut self, node: usize, writes: Option<u8>, from: CopyId) {
        let Some(running) = &self.nodes[node] else {
            return;
        };
        let mut machine = running.machine.clone();
        let (id, range) = (machine.next_id(), Range::new(self.left.block(), 1));
        self.requests.push(Request { node, id, writes });
        if let Some(value) = writes {
            self.data.push((node, id, value));
            machine.apply(MirrorEvent::Write { id, range });
        } else {
            machine.apply(MirrorEvent::Read { id, range, from });
        }
        self.settle(node, machine);
    }

    pub(crate) fn apply(&mut self, node: usize, event: MirrorEvent) {
        if let Some(running) = &self.nodes[node] {
            let mut machine = running.machine.clone();
            machine.apply(event);
            self.settle(node, machine);
        }
    }

    /// Carries out what the machine wants, and puts it back.
    pub(crate) fn settle(&mut self, node: usize, mut machine: Mirror) {
        while let Some(action) = machine.select() {
            match action {
                MirrorAction::Swap(swap) => self.swaps[node] = Some(swap),
                MirrorAction::Fence { copy, key, .. } => {
                    self.send(node, copy, key, None, What::Fence)
                }
                MirrorAction::ReadMetadata { copy, key } => {
                    let Some(event) =
                        self.copies[copy.place()].metadata(copy, key, self.left.block())
                    else {
                        self.nodes[node] = Some(Rc::new(Node::new(machine)));
                        return self.end(node);
                    };
                    machine.apply(event);
                }
                MirrorAction::Command {
                    id,
                    copy,
                    key,
                    command,
                } => self.command(node, id, copy, key, command),
                MirrorAction::Acknowledge(id) => {
                    let at = self
                        .requests
                        .iter()
                        .position(|one| (one.node, one.id) == (node, id));
                    let request = self.requests.remove(at.expect("it was asked for"));
                    self.history
                        .acknowledge(request.writes.expect("reads are answered"));
                }
                MirrorAction::Answer { request, data } => {
                    let value = self.datum(node, data);
                    self.history.answer(node, Some(value));
                    self.requests
                        .retain(|one| (one.node, one.id) != (node, request));
                }
                MirrorAction::Compared { .. } => unreachable!("nobody compares"),
                MirrorAction::Unusable { .. } => unreachable!("mirrors alone use the copies"),
                MirrorAction::Fail(id) => {
                    let is_it = |one: &Request| (one.node, one.id) == (node, id);
                    if self
                        .requests
                        .iter()
                        .any(|one| is_it(one) && one.writes.is_none())
                    {
                        self.history.answer(node, None);
                    }
                    self.requests.retain(|one| !is_it(one));
                }
                MirrorAction::Release(id) => {
                    self.data.retain(|(of, one, _)| (*of, *one) != (node, id));
                }
                MirrorAction::Stop(_) => {
                    self.nodes[node] = Some(Rc::new(Node::new(machine)));
                    return self.end(node);
                }
            }
        }
        self.rename(node, &mut machine);
        self.nodes[node] = Some(Rc::new(Node::new(machine)));
        self.hurry(node);
    }

    pub(crate) fn datum(&self, node: usize, id: OpId) -> u8 {
        let found = self
            .data
            .iter()
            .find(|(of, one, _)| (*of, *one) == (node, id));
        found.expect("data is kept as long as it is needed").2
    }

    /// The process of `node` is gone; what it has sent is not.
    pub(crate) fn end(&mut self, node: usize) {
        if self
            .requests
            .iter()
            .any(|one| one.node == node && one.writes.is_none())
        {
            self.history.answer(node, None);
        }
        self.nodes[node] = None;
        self.orphans.extend(self.swaps[node].take());
        self.requests.retain(|one| one.node != node);
        self.data.retain(|(of, ..)| *of != node);
        self.forget(node, |_| None);
    }

    /// Renames operations, so that states that differ in names alone are one.
    pub(crate) fn rename(&mut self, node: usize, machine: &mut Mirror) {
        let old = machine.rename();
        let new = |id: OpId| old.binary_search(&id).ok().map(OpId::nth);
        self.forget(node, new);
        self.data.retain_mut(|(of, id, _)| {
            *of != node
                || new(*id).is_some_and(|new| {
                    *id = new;
                    true
                })
        });
        for request in self.requests.iter_mut().filter(|one| one.node == node) {
            request.id = new(request.id).expect("a machine knows its requests");
        }
    }

    pub(crate) fn forget(&mut self, node: usize, new: impl Fn(OpId) -> Option<OpId>) {
        for message in self.messages.iter_mut().filter(|one| one.node == node) {
            message.id = message.id.and_then(&new);
        }
        self.keeps.retain_mut(|(of, id, _)| {
            *of != node
                || new(*id).is_some_and(|new| {
                    *id = new;
                    true
                })
        });
    }

    /// Removes what cannot matter any more, and sorts what has no order.
    pub(crate) fn tidy(&mut self) {
        let keys_come_back = matches!(
            self.flaw,
            Some(Flaw::KeysComeBack | Flaw::FencedAgain | Flaw::LocalUnfenced)
        );
        let (copies, nodes) = (&self.copies, &self.nodes);
        self.messages.retain(|one| match one.what {
            What::Fence => nodes[one.node].is_some(),
            // Without effect, or with one that nobody waits for.
            What::Read { .. } | What::Prove | What::Keep if one.id.is_none() => false,
            _ if one.id.is_some() => true,
            _ => one.state == State::Sent && (keys_come_back || copies[one.copy].serves(one.key)),
        });
        self.messages.sort_unstable();
        self.data.sort_unstable();
        self.keeps
            .sort_unstable_by_key(|(node, id, _)| (*node, *id));
        self.requests.sort_unstable_by_key(|one| (one.node, one.id));
        self.orphans
            .retain(|swap| swap.expect.version >= self.register.version);
        self.orphans
            .sort_unstable_by_key(|swap| (swap.new.version, swap.new.nonce));
        self.orphans.dedup();
    }

    /// What is wrong with this state, if anything.
    pub(crate) fn violation(&self) -> Option<&'static str> {
        if !self.history.is_possible() {
            return Some("what clients were told has no order");
        }
        let quiet = (0..NODES).find_map(|node| {
            let machine = self.machine(node)?;
            self.is_quiet(node, machine).then_some((node, machine))
        });
        let (node, machine) = quiet?;
        let mut in_sync = machine
            .record()
            .in_sync
            .iter()
            .map(|copy| &self.copies[copy.place()]);
        let value = in_sync.next()?.value;
        if in_sync.any(|copy| copy.value != value) {
            return Some("copies in sync differ");
        }
        // What a read would return now.
        let mut history = self.history.clone();
        history.read(node);
        history.answer(node, Some(value));
        (!history.is_possible()).then_some("an acknowledged write is lost")
    }

    /// Whether `node` owns the mirror, and nothing that it has sent to the copies in sync is on its way.
    fn is_quiet(&self, node: usize, machine: &Mirror) -> bool {
        let set = machine.record().in_sync;
        let key = |copy: CopyId| machine.key(copy).map(FenceKey::raw);
        let is_reached =
            |copy: CopyId| key(copy).is_some_and(|key| self.copies[copy.place()].serves(key));
        let is_on_its_way = |one: &Message| {
            let copy = CopyId::new(one.copy);
            let is_sent = one.node == node && one.state == State::Sent;
            is_sent && set.contains(copy) && key(copy) == Some(one.key)
        };
        machine.is_quiet()
            && *machine.record() == self.register
            && set.iter().all(is_reached)
            && !self.messages.iter().any(is_on_its_way)
    }
}

impl Node {
    pub(crate) fn new(machine: Mirror) -> Node {
        let fingerprint = Fingerprint::of(&machine);
        Node {
            machine,
            fingerprint,
        }
    }
}
