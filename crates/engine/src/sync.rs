//! Synchronisation within a lane, without atomics. For use across lanes see [`crate::cross`].

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::{Future, poll_fn},
    rc::Rc,
    task::{Context, Poll, Waker},
};

/// Wakes tasks that wait for a condition to change. Waiters check their condition again, so
/// spurious wake-ups are harmless, and no wake-up is lost.
#[derive(Default, Debug)]
pub struct Notify {
    epoch: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Notify {
    /// A notifier without waiters.
    pub fn new() -> Self {
        Notify::default()
    }

    /// Wakes all current waiters.
    #[inline]
    pub fn notify(&self) {
        self.epoch.set(self.epoch.get().wrapping_add(1));
        if !self.waiting.borrow().is_empty() {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        let mut waiting = self.waiting.take();
        waiting.drain(..).for_each(Waker::wake);
        // Waking only queues the tasks, so nobody can have started to wait again: put the vector back to keep its
        // memory.
        *self.waiting.borrow_mut() = waiting;
    }

    /// Resolves at the next [`Notify::notify`] after this call.
    pub fn notified(&self) -> impl Future<Output = ()> + '_ {
        let seen = self.epoch.get();
        poll_fn(move |cx| self.poll_since(seen, cx))
    }

    /// The same for a task that begins later: what is notified before its first poll counts.
    pub fn notified_from_now(self: Rc<Self>) -> impl Future<Output = ()> {
        let seen = self.epoch.get();
        poll_fn(move |cx| self.poll_since(seen, cx))
    }

    /// Whether there was a notification since that epoch.
    fn poll_since(&self, seen: u64, cx: &mut Context<'_>) -> Poll<()> {
        if self.epoch.get() != seen {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until `condition` returns a value. Checks it now and after each notification.
    pub async fn wait_for<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        loop {
            let notified = self.notified();
            if let Some(value) = condition() {
                return value;
            }
            notified.await;
        }
    }
}

/// A bound on something countable (bytes, commands). A task that wants more than is left queues up, first come, first
/// served.
#[derive(Debug)]
pub struct Budget {
    total: usize,
    left: Cell<usize>,
    line: RefCell<VecDeque<Rc<BudgetClaim>>>,
}

#[derive(Debug)]
struct BudgetClaim {
    amount: usize,
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Budget {
    /// A budget of `total`.
    pub fn new(total: usize) -> Rc<Self> {
        Rc::new(Budget {
            total,
            left: Cell::new(total),
            line: RefCell::default(),
        })
    }

    /// The amount that is free now.
    pub fn left(&self) -> usize {
        self.left.get()
    }

    /// The total amount.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Takes `amount` if that much is free and nobody is queued.
    pub fn try_take(self: &Rc<Self>, amount: usize) -> Option<Permit> {
        let amount = amount.min(self.total);
        if self.line.borrow().is_empty() && self.left.get() >= amount {
            self.left.set(self.left.get() - amount);
            return Some(Permit {
                budget: self.clone(),
                amount,
            });
        }
        None
    }

    /// Takes `amount`, first come, first served. More than the whole budget counts as the whole
    /// budget, so that a large request runs alone instead of never.
    pub async fn take(self: &Rc<Self>, amount: usize) -> Permit {
        if let Some(permit) = self.try_take(amount) {
            return permit;
        }
        let claim = Rc::new(BudgetClaim {
            amount: amount.min(self.total),
            granted: Cell::new(false),
            waker: RefCell::default(),
        });
        self.line.borrow_mut().push_back(claim.clone());
        let mut guard = ClaimGuard {
            budget: self,
            claim: &claim,
            taken: false,
        };
        poll_fn(|cx| {
            if claim.granted.get() {
                return Poll::Ready(());
            }
            *claim.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        guard.taken = true;
        debug_assert!(
            !self
                .line
                .borrow()
                .iter()
                .any(|other| Rc::ptr_eq(other, &claim)),
            "a waiter that was served is no longer queued"
        );
        Permit {
            budget: self.clone(),
            amount: claim.amount,
        }
    }

    fn give(&self, amount: usize) {
        let left = self.left.get() + amount;
        assert!(
            left <= self.total,
            "{left} of {} left: more were returned than taken",
            self.total
        );
        self.left.set(left);
        if !self.line.borrow().is_empty() {
            self.serve_line();
        }
    }

    fn serve_line(&self) {
        let mut woken = Vec::new();
        {
            let mut line = self.line.borrow_mut();
            while let Some(first) = line.front() {
                if first.amount > self.left.get() {
                    break;
                }
                self.left.set(self.left.get() - first.amount);
                debug_assert!(!first.granted.get(), "a claim is served once");
                first.granted.set(true);
                woken.extend(first.waker.take());
                line.pop_front();
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Removes a claim from the queue when its waiter is dropped.
struct ClaimGuard<'a> {
    budget: &'a Budget,
    claim: &'a Rc<BudgetClaim>,
    taken: bool,
}

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        if self.claim.granted.get() {
            self.budget.give(self.claim.amount);
        } else {
            self.budget
                .line
                .borrow_mut()
                .retain(|claim| !Rc::ptr_eq(claim, self.claim));
            self.budget.serve_line();
        }
    }
}

/// A part of a [`Budget`], returned on drop.
#[derive(Debug)]
pub struct Permit {
    budget: Rc<Budget>,
    amount: usize,
}

impl Permit {
    /// The amount it holds.
    pub fn amount(&self) -> usize {
        self.amount
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.give(self.amount);
    }
}
