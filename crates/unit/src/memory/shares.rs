//! Something countable (bytes, steps) that the nexuses and the disks of a lane share. A disk may hold no more of it than
//! it leaves free, where there is another one, and a nexus no more than it leaves of what its disk may have: one disk
//! that hangs, or one client that is slow, holds a half, and whoever comes next finds room. Who waits for more than its
//! part does not hold up those behind it.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    rc::Rc,
    task::{Poll, Waker},
};

use smallvec::SmallVec;

/// When so many others of its disk have been served before a nexus that holds nothing, they wait for it.
const PASSED_MAX: u32 = 256;

/// How much one nexus or one disk holds.
#[derive(Debug, Default)]
pub(crate) struct Holder(Cell<usize>);

impl Holder {
    pub(super) fn held(&self) -> usize {
        self.0.get()
    }

    pub(super) fn add(&self, amount: usize) {
        self.0.set(self.0.get() + amount);
    }

    pub(super) fn remove(&self, amount: usize) {
        self.0.set(self.0.get() - amount);
    }
}

/// Who is charged: a nexus, and the disk that it uses; two for a copy.
#[derive(Clone, Debug)]
pub(crate) struct Charged {
    nexus: Rc<Holder>,
    disk: Option<Rc<Holder>>,
    other_disk: Option<Rc<Holder>>,
}

impl Charged {
    pub(crate) fn new(nexus: &Rc<Holder>, disk: Option<&Rc<Holder>>) -> Charged {
        Charged {
            nexus: nexus.clone(),
            disk: disk.cloned(),
            other_disk: None,
        }
    }

    /// For a copy from one disk to the other, which may be the same.
    pub(crate) fn for_copy(nexus: &Rc<Holder>, [from, to]: [&Rc<Holder>; 2]) -> Charged {
        let mut charged = Charged::new(nexus, Some(from));
        charged.other_disk = (!Rc::ptr_eq(from, to)).then(|| to.clone());
        charged
    }

    // No iterator: this is done for each I/O.
    fn for_each_disk(&self, mut each: impl FnMut(&Holder)) {
        if let Some(disk) = &self.disk {
            each(disk);
        }
        if let Some(disk) = &self.other_disk {
            each(disk);
        }
    }

    /// Whether none of its disks holds anything.
    fn has_fresh_disks(&self) -> bool {
        let mut held = 0;
        self.for_each_disk(|disk| held += disk.held());
        held == 0
    }

    fn is(&self, other: &Charged) -> bool {
        Rc::ptr_eq(&self.nexus, &other.nexus) && self.has_disks_of(other)
    }

    fn has_disks_of(&self, other: &Charged) -> bool {
        let address = |disk: &Option<Rc<Holder>>| disk.as_ref().map(Rc::as_ptr);
        let disks = |of: &Charged| [address(&of.disk), address(&of.other_disk)];
        disks(self) == disks(other)
    }
}

/// What is shared.
#[derive(Debug)]
pub(crate) struct Shares {
    total: usize,
    left: Cell<usize>,
    /// How many disks share it.
    disks: Cell<usize>,
    /// Those who wait, in order of their last turn.
    line: RefCell<VecDeque<NexusQueue>>,
}

/// The requests of one nexus for one disk.
#[derive(Debug)]
struct NexusQueue {
    charged: Charged,
    /// How many others of its disk have been served before it.
    passed: u32,
    waiting: VecDeque<Rc<Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    amount: usize,
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A part, returned on drop.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    shares: Rc<Shares>,
    charged: Charged,
    amount: usize,
}

impl Shares {
    pub(crate) fn new(total: usize) -> Rc<Shares> {
        Rc::new(Shares {
            total,
            left: Cell::new(total),
            disks: Cell::new(0),
            line: RefCell::default(),
        })
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// How much is free.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.left.get()
    }

    /// How many requests wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.line
            .borrow()
            .iter()
            .map(|queue| queue.waiting.len())
            .sum()
    }

    pub(super) fn add_disk(&self) {
        self.disks.set(self.disks.get() + 1);
    }

    pub(super) fn remove_disk(&self) {
        self.disks.set(self.disks.get() - 1);
    }

    /// How much more these may take if `left` is free.
    fn room(&self, charged: &Charged, left: usize) -> usize {
        let is_alone = self.disks.get() <= 1;
        let (mut of_disks, held) = (left, charged.nexus.held());
        let mut is_fresh = held == 0;
        charged.for_each_disk(|disk| {
            let held = disk.held();
            is_fresh &= held == 0;
            if held > 0 && !is_alone {
                of_disks = of_disks.min(left.saturating_sub(held) / 2);
            }
        });
        match is_fresh {
            true => of_disks,
            false => of_disks.saturating_sub(held) / 2,
        }
    }

    /// Whether the nexus itself holds too much, so that nobody else can help it.
    pub(super) fn is_own_fault(&self, charged: &Charged, amount: usize) -> bool {
        let held = charged.nexus.held();
        held > 0 && amount > (self.total - held).saturating_sub(held) / 2
    }

    /// Takes `amount`, at most the total, if these may have it now and nobody must be served before.
    ///
    /// # Errors
    /// Gives back who would have been charged.
    pub(crate) fn try_take(
        self: &Rc<Self>,
        charged: Charged,
        amount: usize,
    ) -> Result<MemoryShare, Charged> {
        let amount = amount.min(self.total);
        let is_room = amount <= self.room(&charged, self.left.get());
        if !is_room || !self.line.borrow().is_empty() && !self.pass(&charged) {
            return Err(charged);
        }
        self.charge(&charged, amount);
        Ok(self.part(charged, amount))
    }

    /// Takes `amount`, when it is their turn. More than the total counts as the total, so that such a request runs alone
    /// instead of never.
    pub(crate) async fn take(self: &Rc<Self>, charged: Charged, amount: usize) -> MemoryShare {
        let charged = match self.try_take(charged, amount) {
            Ok(part) => return part,
            Err(charged) => charged,
        };
        let waiter = Rc::new(Waiter {
            amount: amount.min(self.total),
            granted: Cell::new(false),
            waker: RefCell::default(),
        });
        self.stand_in_line(&charged, &waiter);
        let mut place = Queued {
            shares: self,
            charged: &charged,
            waiter: &waiter,
            is_taken: false,
        };
        poll_fn(|cx| {
            if waiter.granted.get() {
                return Poll::Ready(());
            }
            *waiter.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        place.is_taken = true;
        drop(place);
        self.part(charged, waiter.amount)
    }

    fn part(self: &Rc<Self>, charged: Charged, amount: usize) -> MemoryShare {
        MemoryShare {
            shares: self.clone(),
            charged,
            amount,
        }
    }

    fn charge(&self, charged: &Charged, amount: usize) {
        self.left.set(self.left.get() - amount);
        charged.nexus.add(amount);
        charged.for_each_disk(|disk| disk.add(amount));
    }

    fn give(&self, charged: &Charged, amount: usize) {
        let left = self.left.get() + amount;
        assert!(left <= self.total, "{left} of {} left", self.total);
        self.left.set(left);
        charged.nexus.remove(amount);
        charged.for_each_disk(|disk| disk.remove(amount));
        if !self.line.borrow().is_empty() {
            self.serve_line();
        }
    }

    fn stand_in_line(&self, charged: &Charged, waiter: &Rc<Waiter>) {
        let mut line = self.line.borrow_mut();
        let own = line.iter_mut().find(|queue| queue.charged.is(charged));
        match own {
            Some(queue) => queue.waiting.push_back(waiter.clone()),
            None => line.push_back(NexusQueue {
                charged: charged.clone(),
                passed: 0,
                waiting: VecDeque::from([waiter.clone()]),
            }),
        }
    }

    /// Whether somebody who comes now may be served before those who wait; counts it if so.
    fn pass(&self, charged: &Charged) -> bool {
        let left = self.left.get();
        let mut line = self.line.borrow_mut();
        let blocks = |queue: &NexusQueue| {
            queue.charged.is(charged)
                || self.blocks(queue, left, |other| other.has_disks_of(charged))
        };
        if line.iter().any(blocks) {
            return false;
        }
        let of_disk = line
            .iter_mut()
            .filter(|queue| queue.charged.has_disks_of(charged));
        of_disk.for_each(|queue| queue.passed += 1);
        true
    }

    /// Whether a queue that is not served now holds up another, which `is_of_its_disk`.
    fn blocks(
        &self,
        queue: &NexusQueue,
        left: usize,
        is_of_its_disk: impl Fn(&Charged) -> bool,
    ) -> bool {
        if queue.charged.nexus.held() > 0 {
            return false;
        }
        // Only what others hold is in its way: without an end to that, small requests could pass it for ever.
        let first = queue.waiting.front().map_or(0, |first| first.amount);
        let is_next = queue.charged.has_fresh_disks() && first > left;
        is_next || (queue.passed >= PASSED_MAX && is_of_its_disk(&queue.charged))
    }

    /// Serves those in line who may have what they want, each in turn.
    fn serve_line(&self) {
        let mut woken = SmallVec::<[Waker; 4]>::new();
        let mut line = self.line.borrow_mut();
        let mut index = 0;
        let mut held_up: SmallVec<[Charged; 1]> = SmallVec::new();
        while index < line.len() {
            let left = self.left.get();
            let queue = &line[index];
            let Some(first) = queue.waiting.front().cloned() else {
                line.remove(index);
                continue;
            };
            let charged = queue.charged.clone();
            let waits = held_up.iter().any(|of| of.has_disks_of(&charged));
            let room = match queue.passed >= PASSED_MAX && charged.nexus.held() == 0 {
                true => left,
                false => self.room(&charged, left),
            };
            if waits || first.amount > room {
                if self.blocks(queue, left, |_| false) {
                    break;
                }
                if self.blocks(queue, left, |_| true) {
                    held_up.push(charged);
                }
                index += 1;
                continue;
            }
            self.charge(&charged, first.amount);
            debug_assert!(!first.granted.get(), "a request is served once");
            first.granted.set(true);
            woken.extend(first.waker.take());
            for earlier in line.iter_mut().take(index) {
                earlier.passed += u32::from(earlier.charged.has_disks_of(&charged));
            }
            if let Some(mut queue) = line.remove(index) {
                queue.waiting.pop_front();
                queue.passed = 0;
                if !queue.waiting.is_empty() {
                    line.push_back(queue);
                }
            }
        }
        drop(line);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Takes a request out of the line when its future is dropped.
struct Queued<'a> {
    shares: &'a Rc<Shares>,
    charged: &'a Charged,
    waiter: &'a Rc<Waiter>,
    is_taken: bool,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if self.is_taken {
            return;
        }
        if self.waiter.granted.get() {
            return self.shares.give(self.charged, self.waiter.amount);
        }
        self.shares.line.borrow_mut().retain_mut(|queue| {
            if queue.charged.is(self.charged) {
                let waiting = &mut queue.waiting;
                waiting.retain(|other| !Rc::ptr_eq(other, self.waiter));
            }
            !queue.waiting.is_empty()
        });
        self.shares.serve_line();
    }
}

impl MemoryShare {
    /// The amount it holds.
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.shares.give(&self.charged, self.amount);
    }
}
