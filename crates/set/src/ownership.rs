//! The ownership of a set, as a machine: [`Ownership::select`] gives the next order for a member, its answer goes to
//! [`Ownership::apply`], and what must hold is asserted after each step.
//!
//! A claim takes the members one after the other. If two owners start at once, each may get a member that the other one
//! needs too; then both release what they have, and neither waits for the other. What a member's label said before it
//! was taken tells an older copy: with a member that is part of a complete claim, every other member was part of that
//! claim too, or is not the disk that it was. Then the owner raises the generation on all members, and only when all
//! have it, it calls that claim complete on each; data is written after that. So a claim that was interrupted anywhere
//! never makes a member look older than it is.
//!
//! A set that is owned may get more members. Each is taken and labelled as the others are, and until all of them
//! [join](Ownership::join) the set, nothing that becomes of them is its concern.

use crate::{label::Generation, policy::Policy};

/// What a member is asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberOrder {
    /// Keep others out and write a label with our name, unless an owner that may be alive has it.
    Take,
    /// Write the label again, with this generation, if it still is ours.
    Label(Generation),
    /// Write the label without a name and let others in.
    Release,
}

/// What has become of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderReport {
    /// The member is ours; how far it had come by its label. `None`: it has no label, and is as old as its set.
    Taken(Option<Generation>),
    /// The label is written.
    Labelled,
    /// The member is released, as far as that was possible.
    Released,
    /// The member cannot be had, or not be written.
    Failed,
}

/// Why an ownership has ended, or never began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnershipEnd {
    /// This member cannot be had.
    Refused(usize),
    /// A member is older than another one.
    Older {
        /// The older copy.
        member: usize,
        /// The last claim that took it.
        claimed: u64,
        /// A member that was part of a later complete claim.
        newest: usize,
        /// That claim.
        complete: u64,
    },
    /// Another owner has this member.
    Lost(usize),
    /// It was given up.
    Released,
}

/// How far the claim has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClaimStep {
    Taking,
    /// Every member gets this generation.
    Raising(u64),
    /// Every member has it, and is told so.
    Completing(u64),
    Owning(u64),
    Leaving,
}

#[derive(Clone, Copy, Debug, Default)]
struct OwnedMember {
    /// Whether it has been asked, and has answered.
    is_asked: bool,
    /// Whether it is ours, and has to be released.
    is_taken: bool,
    /// It cannot be used: refused, failed, older or lost.
    is_missing: bool,
    /// It is added to the set, and not part of it yet.
    is_added: bool,
    /// `None`: it has no label.
    generation: Option<Generation>,
    /// The last proof that it is ours, in nanoseconds; `None`: it needs none.
    proved_ns: Option<u64>,
}

/// The ownership of one set, from the first order of a claim to the last one of its release.
#[derive(Debug)]
pub struct Ownership<P> {
    policy: P,
    accepts_older: bool,
    members: Vec<OwnedMember>,
    step: ClaimStep,
    end: Option<OwnershipEnd>,
    /// The member that has not answered yet, and what it was asked.
    asked: Option<(usize, MemberOrder)>,
}

impl<P: Policy> Ownership<P> {
    /// A claim on a set of this many members, none of which is taken.
    pub fn new(policy: P, members: usize) -> Self {
        Ownership {
            policy,
            accepts_older: false,
            members: vec![OwnedMember::default(); members],
            step: ClaimStep::Taking,
            end: None,
            asked: None,
        }
    }

    /// Whether members may be of any age: those of a new set, or those that the user insists on.
    pub fn accept_older(&mut self, accepts: bool) {
        self.accepts_older = accepts;
        self.check();
    }

    /// The next order, and the member that it is for. `None` while one is under way, while the set is owned, and when
    /// all is over.
    pub fn select(&mut self) -> Option<(usize, MemberOrder)> {
        if self.asked.is_some() {
            return None;
        }
        self.asked = self.next();
        self.check();
        self.asked
    }

    fn next(&mut self) -> Option<(usize, MemberOrder)> {
        loop {
            let (step, members) = (self.step, &self.members);
            let first = |is_due: &dyn Fn(&OwnedMember) -> bool| members.iter().position(is_due);
            let behind = |to: Generation| {
                first(&|it| !it.is_missing && it.generation.is_some_and(|is| is != to))
            };
            let next = match step {
                ClaimStep::Taking => first(&|it| !it.is_asked).map(|it| (it, MemberOrder::Take)),
                ClaimStep::Raising(to) => {
                    let generations = members.iter().filter_map(|it| it.generation);
                    let complete = generations.map(|it| it.complete).max();
                    let to = Generation {
                        claimed: to,
                        complete: complete.unwrap_or_default(),
                    };
                    behind(to).map(|it| (it, MemberOrder::Label(to)))
                }
                ClaimStep::Completing(to) => {
                    let to = Generation::completed(to);
                    behind(to).map(|it| (it, MemberOrder::Label(to)))
                }
                // Those that are added.
                ClaimStep::Owning(to) => {
                    let to = Generation::completed(to);
                    let untaken = first(&|it| it.is_added && !it.is_missing && !it.is_asked);
                    let take = untaken.map(|it| (it, MemberOrder::Take));
                    take.or_else(|| behind(to).map(|it| (it, MemberOrder::Label(to))))
                }
                ClaimStep::Leaving => first(&|it| it.is_taken).map(|it| (it, MemberOrder::Release)),
            };
            match (next, step) {
                (Some(next), _) => return Some(next),
                (None, ClaimStep::Taking) => self.compare(),
                (None, ClaimStep::Raising(to)) => self.step = ClaimStep::Completing(to),
                (None, ClaimStep::Completing(to)) => self.step = ClaimStep::Owning(to),
                (None, ClaimStep::Owning(_) | ClaimStep::Leaving) => return None,
            }
            self.check();
        }
    }

    /// All members have answered: leaves out those that are older than the set.
    fn compare(&mut self) {
        let there = self
            .members
            .iter()
            .map(|it| it.generation.filter(|_| !it.is_missing));
        let mut there: Vec<Option<Generation>> = there.collect();
        let claimed = there.iter().flatten().map(|it| it.claimed).max();
        self.step = ClaimStep::Raising(claimed.unwrap_or_default() + 1);
        while let Some(end) = first_older(&there).filter(|_| !self.accepts_older) {
            if let OwnershipEnd::Older { member, .. } = end {
                there[member] = None;
                self.miss(member, end);
            }
        }
    }

    /// The answer of the member that was asked last.
    ///
    /// # Panics
    /// If none was asked, or the answer is to another order.
    pub fn apply(&mut self, report: OrderReport) {
        let (at, order) = self.asked.take().expect("an answer to an order");
        let member = &mut self.members[at];
        member.is_asked = true;
        match (order, report) {
            (MemberOrder::Take, OrderReport::Taken(generation)) => {
                member.is_taken = true;
                member.generation = generation;
            }
            (MemberOrder::Label(generation), OrderReport::Labelled) => {
                member.generation = Some(generation)
            }
            (MemberOrder::Release, OrderReport::Released | OrderReport::Failed) => {
                member.is_taken = false
            }
            (MemberOrder::Take, OrderReport::Failed) => self.miss(at, OwnershipEnd::Refused(at)),
            (MemberOrder::Label(generation), OrderReport::Failed) => {
                // It may be written all the same.
                member.generation = Some(generation);
                self.miss(at, OwnershipEnd::Refused(at));
            }
            (order, report) => panic!("{report:?} is no answer to {order:?}"),
        }
        self.check();
    }

    /// A member that cannot be used: whether the set stands without it is the policy's decision.
    fn miss(&mut self, at: usize, end: OwnershipEnd) {
        self.members[at].is_missing = true;
        if !self.stands() {
            self.leave(end);
        }
    }

    fn stands(&self) -> bool {
        let members = self.members.iter().filter(|it| !it.is_added);
        let is_there: Vec<bool> = members.map(|it| !it.is_missing).collect();
        self.policy.stands(&is_there)
    }

    fn leave(&mut self, end: OwnershipEnd) {
        self.end.get_or_insert(end);
        self.step = ClaimStep::Leaving;
    }

    /// Another owner has this member of ours.
    pub fn lose(&mut self, member: usize) {
        // Whoever has it now has its label, too.
        self.members[member].is_taken = false;
        self.miss(member, OwnershipEnd::Lost(member));
        self.check();
    }

    /// Gives the set up: from now on the orders release it.
    pub fn release(&mut self) {
        self.leave(OwnershipEnd::Released);
        self.check();
    }

    /// Adds this many members to the set, which is owned: the next orders are for them. Returns the number of the first.
    ///
    /// # Panics
    /// If the set is not owned.
    pub fn add(&mut self, members: usize) -> usize {
        assert!(self.is_owner(), "only who owns a set adds to it");
        let first = self.members.len();
        let added = OwnedMember {
            is_added: true,
            ..OwnedMember::default()
        };
        self.members.resize(first + members, added);
        self.check();
        first
    }

    /// Makes the members that were added from the one with number `first` on part of the set, if the set is owned and all of
    /// them are taken and labelled. Returns whether they are.
    pub fn join(&mut self, first: usize) -> bool {
        let ClaimStep::Owning(to) = self.step else {
            return false;
        };
        let to = Generation::completed(to);
        let is_ready = |it: &OwnedMember| {
            it.is_taken && !it.is_missing && it.generation.is_none_or(|is| is == to)
        };
        let added = &mut self.members[first..];
        if !added.iter().all(is_ready) {
            return false;
        }
        added.iter_mut().for_each(|it| it.is_added = false);
        self.check();
        true
    }

    /// Gives up a member that was added, if this is one that has not joined. Returns whether it is.
    pub fn withdraw(&mut self, member: usize) -> bool {
        let member = &mut self.members[member];
        let is_added = member.is_added;
        member.is_missing |= is_added;
        self.check();
        is_added
    }

    /// Whether this member was added, and has not joined.
    pub fn is_added(&self, member: usize) -> bool {
        self.members[member].is_added
    }

    /// This member of ours was still ours at `at_ns`; from now on that has to be proved again and again.
    pub fn prove(&mut self, member: usize, at_ns: u64) {
        let proved_ns = &mut self.members[member].proved_ns;
        *proved_ns = (*proved_ns).max(Some(at_ns));
        self.check();
    }

    /// What the label of this member says, or is to say by the order that is under way. `None`: it has none, or was not
    /// taken yet.
    pub fn generation(&self, member: usize) -> Option<Generation> {
        match self.asked {
            Some((at, MemberOrder::Label(generation))) if at == member => Some(generation),
            _ => self.members[member].generation,
        }
    }

    /// The oldest of the last proofs of all members; `None`: none needs any.
    pub fn proved_ns(&self) -> Option<u64> {
        let there = self.members.iter();
        let there = there.filter(|it| !it.is_missing && !it.is_added);
        there.filter_map(|it| it.proved_ns).min()
    }

    /// Whether the set is ours, and data may be read and written.
    pub fn is_owner(&self) -> bool {
        matches!(self.step, ClaimStep::Owning(_))
    }

    /// Why it has ended.
    pub fn end(&self) -> Option<OwnershipEnd> {
        self.end
    }

    /// What must hold after each step.
    fn check(&self) {
        let is_leaving = self.step == ClaimStep::Leaving;
        assert_eq!(self.end.is_some(), is_leaving, "an end has a reason");
        assert!(is_leaving || self.stands(), "it stands");
        let members = self.members.iter();
        for it in members.filter(|it| !it.is_missing && !it.is_added) {
            let generation = it.generation.map(|it| (it.claimed, it.complete));
            let holds = match (self.step, generation) {
                (ClaimStep::Taking | ClaimStep::Leaving, _) => true,
                (_, None) => it.is_taken,
                (ClaimStep::Raising(to), Some((claimed, complete))) => {
                    claimed <= to && complete < to
                }
                (ClaimStep::Completing(to), Some((claimed, _))) => claimed == to,
                // Data is written to complete members alone.
                (ClaimStep::Owning(to), Some(generation)) => it.is_taken && generation == (to, to),
            };
            assert!(holds, "{:?}: {it:?}", self.step);
        }
    }
}

/// The first of these members that is older than the set: another one is part of a complete claim that has not taken
/// it. `None` for a member stands for one without a label.
pub fn first_older(generations: &[Option<Generation>]) -> Option<OwnershipEnd> {
    let there = || {
        (0..)
            .zip(generations)
            .filter_map(|(at, it)| Some((at, (*it)?)))
    };
    let (newest, Generation { complete, .. }) = there().max_by_key(|(_, it)| it.complete)?;
    let (member, older) = there().find(|(_, it)| it.claimed < complete)?;
    Some(OwnershipEnd::Older {
        member,
        claimed: older.claimed,
        newest,
        complete,
    })
}

#[cfg(test)]
#[path = "ownership_tests.rs"]
mod tests;
