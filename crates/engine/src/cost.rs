//! What this thread has cost so far, in units that do not depend on the clock: calls of the system,
//! sleeps and bytes copied. Tests hold them against bounds, so that a change that makes every I/O dearer is
//! seen on any machine.

use std::cell::Cell;

thread_local! {
    static SYSTEM_CALLS: Cell<u64> = const { Cell::new(0) };
    static SLEEPS: Cell<u64> = const { Cell::new(0) };
    static COPIED_BYTES: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread's lanes have entered the kernel to submit, to collect or to sleep.
pub fn system_calls() -> u64 {
    SYSTEM_CALLS.get()
}

/// How often of these they were ready to sleep until something came, and so had to be woken.
pub fn sleeps() -> u64 {
    SLEEPS.get()
}

/// Bytes that this thread has copied from memory to memory on the way of an I/O: what was received
/// together with something else, headers to be sent, blocks of a RAM disk.
pub fn copied_bytes() -> u64 {
    COPIED_BYTES.get()
}

pub(crate) fn count_system_call() {
    SYSTEM_CALLS.set(SYSTEM_CALLS.get() + 1);
}

pub(crate) fn count_sleep() {
    SLEEPS.set(SLEEPS.get() + 1);
}

/// Counts a copy on the way of an I/O.
pub fn count_copied(bytes: usize) {
    COPIED_BYTES.set(COPIED_BYTES.get() + bytes as u64);
}
