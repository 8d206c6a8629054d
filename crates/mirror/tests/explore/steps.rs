//! What may happen next, and what follows from it.

use mirror::{CopyId, Mirror, MirrorEvent, MirrorPhase, Outcome, copy::CopyState, register::Swap};
use uuid::Uuid;

use crate::{
    budget::Flaw,
    device::Copy,
    network::{State, What},
    world::{NODES, Request, World},
};

/// What happened between two states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    OrphanLands(u64),
    Claims(usize),
    Crashes { node: usize, loses_fence: bool },
    Restarts(usize),
    SwapLandsUnanswered(usize),
    SwapAnswered(usize),
    Executed { message: usize, is_answered: bool },
    RegisteredTooLate(usize),
    AnsweredLate(usize),
    Fails { node: usize, copy: usize },
    Back { node: usize, copy: usize },
    Reads { node: usize, copy: usize },
    Writes(usize),
    Expires(usize),
    Clears(usize),
    SessionEnds { node: usize, copy: usize },
    Replaced(usize),
    FencedAgain { node: usize, copy: usize },
}

impl World {
    /// Every step that may happen now.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        steps.extend(
            self.orphans
                .iter()
                .map(|swap| Step::OrphanLands(swap.new.nonce << 32 | swap.new.version)),
        );
        for (at, message) in self.messages.iter().enumerate() {
            match message.state {
                State::Sent => {
                    steps.push(Step::Executed {
                        message: at,
                        is_answered: true,
                    });
                    let is_write = matches!(message.what, What::Write { .. });
                    if is_write && message.id.is_some() && message.node != message.copy {
                        steps.push(Step::Executed {
                            message: at,
                            is_answered: false,
                        });
                    }
                    let newest = self.copies[message.copy].keys.last();
                    if message.what == What::Fence && newest.is_some_and(|key| *key > message.key) {
                        steps.push(Step::RegisteredTooLate(at));
                    }
                }
                State::Executed if self.left.is_slow => steps.push(Step::AnsweredLate(at)),
                State::Executed | State::Gone => {}
            }
        }
        for node in 0..NODES {
            match self.machine(node) {
                None if self.register.epoch < u64::from(self.left.epochs) || self.goes_on(node) => {
                    steps.push(Step::Claims(node));
                }
                None => {}
                Some(machine) => self.steps_of(node, machine, &mut steps),
            }
        }
        let is_unowned = |copy: usize| !self.register.in_sync.contains(CopyId::new(copy));
        if self.left.replaced > 0 && self.orphans.is_empty() && self.swaps == [None; 2] {
            steps.extend((0..2).filter(|copy| is_unowned(*copy)).map(Step::Replaced));
        }
        steps
    }

    /// A restarted owner may claim without a new epoch, if that bug is planted.
    fn goes_on(&self, node: usize) -> bool {
        let keeps_epoch = self.flaw == Some(Flaw::KeysComeBack);
        keeps_epoch
            && self.register.owner == Uuid::from_u128(node as u128 + 1)
            && self.claims[node] < 2
    }

    fn steps_of(&self, node: usize, machine: &Mirror, steps: &mut Vec<Step>) {
        if self.left.crashes > 0 {
            steps.push(Step::Crashes {
                node,
                loses_fence: false,
            });
            if self.left.lost > 0 {
                steps.push(Step::Crashes {
                    node,
                    loses_fence: true,
                });
            }
        }
        if let Some(swap) = self.swaps[node] {
            if self.register == swap.expect {
                steps.push(Step::SwapLandsUnanswered(node));
            }
            steps.push(Step::SwapAnswered(node));
        }
        let is_fenced_off = |copy: usize| {
            let id = CopyId::new(copy);
            let key = machine
                .key(id)
                .filter(|_| machine.record().in_sync.contains(id));
            key.is_some_and(|key| !self.copies[copy].serves(key.raw()))
        };
        if machine.phase() == MirrorPhase::Serving && (0..2).any(is_fenced_off) {
            steps.push(Step::Restarts(node));
        }
        let is_fencing = machine.phase() == MirrorPhase::Fencing;
        for copy in 0..2 {
            let id = CopyId::new(copy);
            let is_member = machine.key(id).is_some() || machine.record().in_sync.contains(id);
            let may_fail =
                machine.phase() == MirrorPhase::Serving || is_fencing && machine.key(id).is_none();
            if may_fail && is_member {
                steps.push(Step::Fails { node, copy });
            }
            if self.left.returns > 0 && !machine.record().in_sync.contains(id) {
                steps.push(Step::Back { node, copy });
            }
            if self.left.sessions_end && node != copy {
                steps.push(Step::SessionEnds { node, copy });
            }
            let is_empty = self.copies[copy].keys.is_empty();
            if self.flaw == Some(Flaw::FencedAgain) && is_empty && machine.key(id).is_some() {
                steps.push(Step::FencedAgain { node, copy });
            }
        }
        self.requests_of(node, machine, steps);
    }

    fn requests_of(&self, node: usize, machine: &Mirror, steps: &mut Vec<Step>) {
        let own = |wants_write: bool| {
            let is_one = |request: &&Request| {
                request.node == node && request.writes.is_some() == wants_write
            };
            self.requests.iter().find(is_one)
        };
        if machine.phase() == MirrorPhase::Serving {
            let (write, read) = (own(true), own(false));
            let is_free = |other: Option<&Request>| other.is_none() || self.left.asks_both;
            if self.left.writes > 0 && write.is_none() && is_free(read) {
                steps.push(Step::Writes(node));
            }
            if self.left.reads > 0 && read.is_none() && is_free(write) {
                steps.extend((0..2).map(|copy| Step::Reads { node, copy }));
            }
            if self.left.abandons > 0 && write.is_some() {
                steps.push(Step::Expires(node));
            }
            if self.left.clears > 0 {
                steps.push(Step::Clears(node));
            }
        }
    }

    /// The state after `step`, if it changes anything.
    pub(crate) fn after(&self, step: Step) -> Option<World> {
        let mut next = self.clone();
        let left = &mut next.left;
        match step {
            Step::OrphanLands(name) => {
                let is_it = |swap: &Swap| swap.new.nonce << 32 | swap.new.version == name;
                let at = next.orphans.iter().position(is_it)?;
                let swap = next.orphans.remove(at);
                next.register = swap.land(next.register);
            }
            Step::Claims(node) => next.begin_claim(node),
            Step::Crashes { node, loses_fence } => {
                left.crashes -= 1;
                next.lose_messages_at(node);
                if loses_fence {
                    next.left.lost -= 1;
                    next.copies[node].lose_fence();
                }
                next.end(node);
            }
            Step::Restarts(node) => next.end(node),
            Step::SwapLandsUnanswered(node) => {
                next.register = self.swaps[node].expect("it was sent").land(self.register);
            }
            Step::SwapAnswered(node) => next.answer_swap(node),
            Step::Executed {
                message,
                is_answered,
            } => next.execute(message, is_answered),
            Step::RegisteredTooLate(at) => {
                // It registers between the reading of the keys and the newer fence.
                let message = next.messages.remove(at);
                next.copies[message.copy].register(message.key);
                next.end(message.node);
            }
            Step::AnsweredLate(at) => {
                let message = next.messages.remove(at);
                next.deliver(message, Outcome::Good);
            }
            Step::Replaced(copy) => {
                left.replaced -= 1;
                let mut blank = CopyState::first(self.register);
                blank.in_sync_since = 0;
                next.copies[copy] = Copy::new(blank, left);
                next.messages.retain(|message| message.copy != copy);
            }
            Step::FencedAgain { node, copy } => {
                let key = self.machine(node)?.key(CopyId::new(copy))?;
                if !next.copies[copy].register(key.raw()) {
                    return None;
                }
            }
            _ => next.happens(step, self)?,
        }
        next.tidy();
        Some(next)
    }

    /// What happens at one node, with what it was `before`. Returns `None` if it changes nothing.
    fn happens(&mut self, step: Step, before: &World) -> Option<()> {
        match step {
            Step::Fails { node, copy } => self.apply(node, MirrorEvent::Failed(CopyId::new(copy))),
            Step::Back { node, copy } => {
                self.apply(node, MirrorEvent::Back(CopyId::new(copy)));
                let fingerprint =
                    |world: &World| world.nodes[node].as_ref().map(|one| one.fingerprint);
                if fingerprint(self) == fingerprint(before) {
                    return None;
                }
                self.left.returns -= 1;
                self.apply(node, MirrorEvent::Room);
            }
            Step::Reads { node, copy } => {
                self.left.reads -= 1;
                self.history.read(node);
                self.ask(node, None, CopyId::new(copy));
            }
            Step::Writes(node) => {
                let value = self.left.writes;
                self.left.writes -= 1;
                self.history.write(value);
                self.ask(node, Some(value), CopyId::new(0));
            }
            Step::Expires(node) => {
                self.left.abandons -= 1;
                let is_it = |request: &&Request| request.node == node && request.writes.is_some();
                let id = before.requests.iter().find(is_it)?.id;
                self.apply(node, MirrorEvent::Expired(id));
            }
            Step::Clears(node) => {
                self.left.clears -= 1;
                self.apply(node, MirrorEvent::Tick);
                self.apply(node, MirrorEvent::Tick);
            }
            Step::SessionEnds { node, copy } => self.end_session(node, copy)?,
            _ => unreachable!("{step:?} is not of one node"),
        }
        Some(())
    }
}
