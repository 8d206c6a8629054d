//! What this thread's I/O has cost so far, in units that do not depend on the clock: system calls, sleeps
//! and copied bytes. Tests check bounds on them, so that a change that makes I/O more expensive shows on
//! any machine.

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

/// How many of these calls were prepared to sleep until something came, and so may have needed a wake-up.
pub fn sleeps() -> u64 {
    SLEEPS.get()
}

/// Bytes that this thread has copied between buffers on the I/O path: data received together with
/// something else, headers to be sent, blocks of a RAM disk.
pub fn copied_bytes() -> u64 {
    COPIED_BYTES.get()
}

pub(crate) fn count_system_call() {
    SYSTEM_CALLS.set(SYSTEM_CALLS.get() + 1);
}

pub(crate) fn count_sleep() {
    SLEEPS.set(SLEEPS.get() + 1);
}

/// Counts a copy on the I/O path.
pub fn count_copied(bytes: usize) {
    COPIED_BYTES.set(COPIED_BYTES.get() + bytes as u64);
}
