//! How the world outside a lane reaches it: any thread can put in wake-ups for its tasks and closures to run, and the
//! lane takes them out. The bell (an eventfd) is rung only when the lane sleeps.
//!
//! A waker is a single word that names lane, task and generation, so cloning it costs nothing, and
//! waking a task of the current lane touches no shared memory.

use std::{
    collections::VecDeque,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{RawWaker, RawWakerVTable, Waker},
};

use super::{shares::Share, tasks::TaskRef, try_with};

/// Names a lane of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub(crate) struct LaneId(pub(crate) u16);

pub(crate) enum Message {
    Wake(TaskRef),
    /// The share to charge, and the closure.
    Run(Share, Box<dyn FnOnce() + Send>),
}

pub(crate) struct Inbox {
    pub(crate) id: LaneId,
    messages: Mutex<Vec<Message>>,
    filled: AtomicBool,
    asleep: AtomicBool,
    ended: AtomicBool,
    /// How long the lane has looked for work in vain; it alone writes this.
    looked_ns: AtomicU64,
    bell: Option<OwnedFd>,
}

/// Every lane by its id. The id of an ended lane stays taken until the last reference to its inbox
/// is gone, so that no handle can reach a wrong lane.
static LANES: RwLock<Lanes> = RwLock::new(Lanes {
    inboxes: Vec::new(),
    free: Vec::new(),
});

struct Lanes {
    inboxes: Vec<Weak<Inbox>>,
    /// Ids not in use.
    free: Vec<LaneId>,
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut lanes = LANES.write().unwrap_or_else(PoisonError::into_inner);
        lanes.free.push(self.id);
    }
}

impl Inbox {
    /// Enters a new lane into the process's table. `bell` is an eventfd that wakes its reactor.
    pub(crate) fn register(bell: Option<OwnedFd>) -> Arc<Inbox> {
        let mut lanes = LANES.write().unwrap_or_else(PoisonError::into_inner);
        let id = lanes.free.pop().unwrap_or_else(|| {
            let next = lanes.inboxes.len();
            lanes.inboxes.push(Weak::new());
            LaneId(u16::try_from(next).expect("fewer than 65,536 lanes in a process"))
        });
        let inbox = Arc::new(Inbox {
            id,
            messages: Mutex::default(),
            filled: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            looked_ns: AtomicU64::new(0),
            bell,
        });
        lanes.inboxes[usize::from(id.0)] = Arc::downgrade(&inbox);
        inbox
    }

    /// The lane has ended; messages to it are dropped from now on.
    pub(crate) fn end(&self) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        self.ended.store(true, Ordering::SeqCst);
        let unread = std::mem::take(&mut *messages);
        drop(messages);
        // Whoever waits for an answer learns from the drop that none will come.
        drop(unread);
    }

    /// Whether the lane has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn find(id: LaneId) -> Option<Arc<Inbox>> {
        LANES
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .inboxes
            .get(usize::from(id.0))?
            .upgrade()
    }

    pub(crate) fn push(&self, message: Message) {
        {
            let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
            if self.ended.load(Ordering::SeqCst) {
                drop(messages);
                drop(message);
                return;
            }
            messages.push(message);
        }
        self.filled.store(true, Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            if let Some(bell) = &self.bell {
                let one = 1u64.to_ne_bytes();
                // SAFETY: writes eight bytes from a live array to a descriptor that self owns.
                // An eventfd write fails only on a full counter, and then the bell is rung already.
                unsafe { libc::write(bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            }
        }
    }

    /// Whether there are no messages. A single load, cheap enough for the lane's spin.
    pub(crate) fn is_empty(&self) -> bool {
        !self.filled.load(Ordering::SeqCst)
    }

    /// Moves all messages to `into`.
    pub(crate) fn take(&self, into: &mut VecDeque<Message>) {
        // Check before the swap: a swap takes the cache line exclusively, and there is almost never a message.
        if !self.is_empty() && self.filled.swap(false, Ordering::SeqCst) {
            let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
            into.extend(messages.drain(..));
        }
    }

    /// Announces that the lane is about to sleep. Returns false if there is a message to take first.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let empty = self.is_empty();
        if !empty {
            self.asleep.store(false, Ordering::SeqCst);
        }
        empty
    }

    /// Counts time in which the lane looked for work in vain. Only the lane itself may call this.
    pub(crate) fn add_looked(&self, ns: u64) {
        self.looked_ns
            .store(self.looked_ns() + ns, Ordering::Relaxed);
    }

    /// How long the lane has looked for work in vain, in nanoseconds.
    pub(crate) fn looked_ns(&self) -> u64 {
        self.looked_ns.load(Ordering::Relaxed)
    }

    /// The same of all lanes of this process.
    pub(crate) fn looked_ns_of_all() -> u64 {
        let lanes = LANES.read().unwrap_or_else(PoisonError::into_inner);
        let inboxes = lanes.inboxes.iter().filter_map(Weak::upgrade);
        inboxes.map(|inbox| inbox.looked_ns()).sum()
    }

    /// Announces that the lane is awake, so senders need not ring the bell.
    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }
}

// A static, not a constant: `will_wake` compares its address.
static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| RawWaker::new(data, &VTABLE),
    |data| wake(data as usize as u64),
    |data| wake(data as usize as u64),
    |_| {},
);

/// The waker of `task` on `lane`.
pub(crate) fn waker(lane: LaneId, task: TaskRef) -> Waker {
    let word = u64::from(lane.0) << 48 | u64::from(task.generation) << 32 | u64::from(task.index);
    // SAFETY: the data is a number, never dereferenced; all four functions are thread-safe.
    unsafe { Waker::from_raw(RawWaker::new(word as usize as *const (), &VTABLE)) }
}

fn wake(word: u64) {
    let id = LaneId((word >> 48) as u16);
    let task = TaskRef {
        index: word as u32,
        generation: (word >> 32) as u16,
    };
    let local = try_with(|lane| {
        let own = lane.inbox.id == id;
        if own {
            lane.tasks.borrow_mut().schedule(task);
        }
        own
    });
    if local != Some(true) {
        if let Some(inbox) = Inbox::find(id) {
            inbox.push(Message::Wake(task));
        }
    }
}
