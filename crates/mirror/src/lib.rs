//! The rules of a mirror, pure: who owns it, which copies are in sync, and when a read or write may be answered. No
//! sockets, no clock, no data.
//!
//! `docs/internals/mirror.md` explains the rules and the words. What is kept where:
//!
//! - [`register`]: the record, changed only by compare-and-swap, that says who owns the mirror and what is in sync;
//! - [`copy`]: what lies at the end of each copy;
//! - [`key`]: the reservation key under which an owner reaches a copy.
#![forbid(unsafe_code)]

mod block;
pub mod copy;
mod copy_set;
pub mod key;
pub mod register;

pub use block::Unreadable;
pub use copy_set::{COPIES_MAX, CopyId, CopySet};
