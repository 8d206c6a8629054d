//! The lane's memory for unsolicited data, and how much of it each nexus may send unasked. What a nexus may send is
//! promised to it before, a burst for each command that is on its way, and every promise is paid for: the promises and
//! what is held never exceed the memory. Where there are others on its lane, a nexus gets no more than it leaves free;
//! one that has the lane for itself leaves a quarter to whoever comes next. A few bursts are promised from its own
//! reserve, so that it goes on when others hold all.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::{Rc, Weak},
};

use engine::sync::Notify;

use super::shares::Holder;

/// A nexus is promised this many bursts at first, and twice as many whenever it has used up all; at first, no more than a
/// third of what is left, as it may be idle for long.
const PROMISES_FIRST: u32 = 128;
/// The least that it comes down to when it needs fewer.
const PROMISES_LEAST: u32 = 16;
/// The most.
const PROMISES_MAX: u32 = 1024;
/// Who has sent nothing unasked with so many commands in a row reads, and may send up to [`UNPAID_MAX`] more without room
/// for them.
const READS_AFTER: u32 = 256;
const UNPAID_MAX: u32 = 32;
/// How many commands show whether it needs fewer.
const SHOWN_BY: u32 = 256;

/// The memory of a lane.
pub(crate) struct UnsolicitedPool {
    total: usize,
    /// Neither held nor promised.
    left: Cell<usize>,
    /// How many nexuses have a share of it.
    shares: Cell<usize>,
    /// How many disks are written to.
    disks: Cell<usize>,
    /// Those to whom nothing could be promised, in order.
    starving: RefCell<VecDeque<Weak<Promises>>>,
}

/// What one nexus may hold of it.
pub(super) struct UnsolicitedShare {
    state: Rc<Promises>,
}

struct Promises {
    pool: Rc<UnsolicitedPool>,
    /// What a command may bring, in bytes.
    burst: Cell<usize>,
    /// How many bursts are promised from the pool, and from the reserve.
    promised: Cell<u32>,
    promised_of_reserve: Cell<u32>,
    /// How many are promised to it without room for them.
    promised_unpaid: Cell<u32>,
    /// With how many commands in a row it has sent nothing unasked.
    reads_for: Cell<u32>,
    /// What it holds of the pool.
    held: Cell<usize>,
    /// What is left of its reserve, neither held nor promised.
    reserve: Cell<usize>,
    /// How many bursts it needs promised at a time.
    wanted: Cell<u32>,
    /// The most that were there since, the fewest that were left, and how many commands have come in that time.
    most: Cell<u32>,
    fewest: Cell<u32>,
    seen: Cell<u32>,
    /// The disk that it has written to last.
    disk: RefCell<Option<Rc<Holder>>>,
    is_starving: Cell<bool>,
    /// Signaled when there may be room for a promise.
    room: Notify,
}

/// A part of a share, returned on drop.
pub(super) struct UnsolicitedPermit {
    state: Rc<Promises>,
    disk: Option<Rc<Holder>>,
    amount: usize,
    is_of_reserve: bool,
}

impl std::fmt::Debug for UnsolicitedPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("UnsolicitedPermit")
            .field(&self.amount)
            .finish()
    }
}

impl UnsolicitedPool {
    pub(super) fn new(total_bytes: usize) -> Rc<UnsolicitedPool> {
        Rc::new(UnsolicitedPool {
            total: total_bytes,
            left: Cell::new(total_bytes),
            shares: Cell::new(0),
            disks: Cell::new(0),
            starving: RefCell::default(),
        })
    }

    /// The share of one more nexus, with `reserve_bytes` of its own.
    pub(super) fn share(self: &Rc<Self>, reserve_bytes: usize) -> UnsolicitedShare {
        self.shares.set(self.shares.get() + 1);
        UnsolicitedShare {
            state: Rc::new(Promises {
                pool: self.clone(),
                burst: Cell::new(reserve_bytes),
                promised: Cell::new(0),
                promised_of_reserve: Cell::new(0),
                promised_unpaid: Cell::new(0),
                reads_for: Cell::new(0),
                held: Cell::new(0),
                reserve: Cell::new(reserve_bytes),
                wanted: Cell::new(PROMISES_FIRST),
                most: Cell::new(0),
                fewest: Cell::new(PROMISES_FIRST),
                seen: Cell::new(0),
                disk: RefCell::default(),
                is_starving: Cell::new(false),
                room: Notify::new(),
            }),
        }
    }

    pub(super) fn add_disk(&self) {
        self.disks.set(self.disks.get() + 1);
    }

    pub(super) fn remove_disk(&self) {
        self.disks.set(self.disks.get() - 1);
    }

    /// How many bytes are neither held nor promised.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left.get()
    }

    fn give(&self, bytes: usize) {
        let left = self.left.get() + bytes;
        assert!(left <= self.total, "memory was returned twice");
        self.left.set(left);
        self.feed();
    }

    /// Promises a burst to each of those who starve, as far as there is room.
    fn feed(&self) {
        if self.starving.borrow().is_empty() {
            return;
        }
        self.starving.borrow_mut().retain(|starving| {
            let Some(state) = starving.upgrade() else {
                return false;
            };
            let is_fed = state.promise(1) > 0;
            if is_fed {
                state.is_starving.set(false);
                state.room.notify();
            }
            !is_fed
        });
    }
}

impl UnsolicitedShare {
    /// What a command may bring from now on, in bytes; nothing is promised yet.
    pub(super) fn set_burst(&self, bytes: usize) {
        let state = &self.state;
        state.burst.set(bytes);
        let third = state.pool.left.get() / 3 / bytes.max(1);
        let first = PROMISES_FIRST.min(u32::try_from(third).unwrap_or(PROMISES_FIRST));
        state.wanted.set(first.max(PROMISES_LEAST));
    }

    /// Promises as many more bursts as it needs and there is room for; returns how many are promised now.
    pub(super) fn promise(&self) -> u32 {
        let state = &self.state;
        let (before, wanted) = (state.promised_in_all(), state.wanted.get());
        if before >= wanted {
            return before;
        }
        state.pool.feed();
        state.promise(wanted - before);
        let now = state.promised_in_all();
        if now == 0 && !state.is_starving.replace(true) {
            let starving = &state.pool.starving;
            starving.borrow_mut().push_back(Rc::downgrade(state));
        }
        now
    }

    /// Waits until there may be room for a promise, if none could be made.
    pub(super) async fn room(&self) {
        match self.state.is_starving.get() {
            true => self.state.room.notified().await,
            false => std::future::pending().await,
        }
    }

    /// A command has come for which a burst was promised, so that there is room for what it has brought.
    pub(super) fn arrived(&self) {
        let state = &self.state;
        let burst = state.burst.get();
        match (state.promised.get(), state.promised_of_reserve.get()) {
            (0, 0) => state.promised_unpaid.set(state.promised_unpaid.get() - 1),
            (0, promised) => {
                state.promised_of_reserve.set(promised - 1);
                state.reserve.set(state.reserve.get() + burst);
            }
            (promised, _) => {
                // Nobody else gets it before the command has had its chance.
                let left = &state.pool.left;
                left.set(left.get() + burst);
                state.promised.set(promised - 1);
            }
        }
        let reads_for = state.reads_for.get() + 1;
        state.reads_for.set(reads_for.min(READS_AFTER + UNPAID_MAX));
        state.learn();
    }

    /// Takes `bytes` for data of `disk` from the pool or the reserve, if there is room.
    pub(super) fn try_take(
        &self,
        disk: Option<&Rc<Holder>>,
        bytes: usize,
    ) -> Option<UnsolicitedPermit> {
        let state = &self.state;
        if bytes > 0 {
            state.reads_for.set(0);
        }
        let left = state.pool.left.get();
        let permit = |is_of_reserve: bool| UnsolicitedPermit {
            state: state.clone(),
            disk: disk.filter(|_| !is_of_reserve).cloned(),
            amount: bytes,
            is_of_reserve,
        };
        if bytes <= left {
            state.pool.left.set(left - bytes);
            state.held.set(state.held.get() + bytes);
            if let Some(disk) = disk {
                disk.add(bytes);
                let is_last = |last: &Rc<Holder>| Rc::ptr_eq(last, disk);
                if !state.disk.borrow().as_ref().is_some_and(is_last) {
                    state.disk.replace(Some(disk.clone()));
                }
            }
            return Some(permit(false));
        }
        let reserve = state.reserve.get();
        (bytes <= reserve).then(|| {
            state.reserve.set(reserve - bytes);
            permit(true)
        })
    }

    /// Whether it may not have more because of what it holds itself.
    pub(super) fn is_own_fault(&self) -> bool {
        let state = &self.state;
        let mine = state.mine();
        mine > 0 && mine >= state.pool.total - mine
    }
}

impl Promises {
    fn promised_in_all(&self) -> u32 {
        self.promised.get() + self.promised_of_reserve.get() + self.promised_unpaid.get()
    }

    /// What it holds of the pool, and what is promised from it.
    fn mine(&self) -> usize {
        self.held.get() + self.promised.get() as usize * self.burst.get()
    }

    /// Promises up to `more` bursts, as many as there is room for; returns how many. They come from the reserve, as long
    /// as it lasts.
    fn promise(&self, more: u32) -> u32 {
        let burst = self.burst.get();
        let of_reserve = more.min(match burst {
            0 => PROMISES_MAX.saturating_sub(self.promised_of_reserve.get()),
            burst => count(self.reserve.get() / burst),
        });
        add(&self.promised_of_reserve, of_reserve);
        let reserve = &self.reserve;
        reserve.set(reserve.get() - of_reserve as usize * burst);
        let of_pool = match more - of_reserve {
            0 => 0,
            rest => rest.min(self.room_in_pool()),
        };
        add(&self.promised, of_pool);
        let left = &self.pool.left;
        left.set(left.get() - of_pool as usize * burst);
        // One that only reads need not have fewer commands because others write.
        let may_be_unpaid = self.reads_for.get().saturating_sub(READS_AFTER);
        let may_be_unpaid = may_be_unpaid.saturating_sub(self.promised_unpaid.get());
        let unpaid = may_be_unpaid.min(more - of_reserve - of_pool);
        add(&self.promised_unpaid, unpaid);
        of_reserve + of_pool + unpaid
    }

    /// For how many more of its bursts there is room in the pool.
    fn room_in_pool(&self) -> u32 {
        let (pool, mine, left) = (&self.pool, self.mine(), self.pool.left.get());
        let mut room = match pool.shares.get() {
            1 => left.saturating_sub(pool.total / 4),
            // It holds no more than is left after that.
            _ => left.saturating_sub(mine) / 2,
        };
        if pool.disks.get() > 1 {
            // A disk that takes no writes holds what all its nexuses have sent.
            let disk = self.disk.borrow();
            let held = disk.as_ref().map_or(0, |disk| disk.held());
            room = room.min(left.saturating_sub(held));
        }
        count(room / self.burst.get().max(1))
    }

    /// Learns from a command how many promises it needs.
    fn learn(&self) {
        let (left, seen) = (self.promised_in_all(), self.seen.get() + 1);
        if left > 0 && seen < SHOWN_BY {
            self.most.set(self.most.get().max(left + 1));
            self.fewest.set(self.fewest.get().min(left));
            return self.seen.set(seen);
        }
        let wanted = self.wanted.get();
        // There may be no room for all that it wants.
        let had = wanted.min(self.most.get().max(left + 1));
        let used = had.saturating_sub(left.min(self.fewest.get()));
        let wanted = match left {
            0 => (2 * wanted).min(PROMISES_MAX),
            // What comes at a time is less than what it has on their way, where it and we take turns.
            _ if 4 * used < had => (had / 2).max(PROMISES_LEAST),
            _ => wanted,
        };
        self.wanted.set(wanted);
        self.most.set(0);
        self.fewest.set(wanted);
        self.seen.set(0);
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn add(to: &Cell<u32>, more: u32) {
    to.set(to.get() + more);
}

impl Drop for UnsolicitedShare {
    fn drop(&mut self) {
        let state = &self.state;
        let pool = &state.pool;
        pool.shares.set(pool.shares.get() - 1);
        let starving = &pool.starving;
        starving
            .borrow_mut()
            .retain(|other| !std::ptr::eq(other.as_ptr(), &**state));
        pool.give(state.promised.replace(0) as usize * state.burst.get());
    }
}

impl UnsolicitedPermit {
    /// The amount that it holds of the pool, in bytes.
    pub(super) fn amount(&self) -> usize {
        match self.is_of_reserve {
            true => 0,
            false => self.amount,
        }
    }
}

impl Drop for UnsolicitedPermit {
    fn drop(&mut self) {
        let state = &self.state;
        if self.is_of_reserve {
            state.reserve.set(state.reserve.get() + self.amount);
            return state.pool.feed();
        }
        state.held.set(state.held.get() - self.amount);
        if let Some(disk) = &self.disk {
            disk.remove(self.amount);
        }
        state.pool.give(self.amount);
    }
}
