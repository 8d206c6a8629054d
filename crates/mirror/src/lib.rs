//! The rules of a mirror, pure: who owns it, which copies are in sync, and when a read or write may be answered. No
//! sockets, no clock, no data.
//!
//! ```text
//!  Event ──► Mirror::apply ──► Mirror::select ──► Action ──► the driver ──► register and copies ──► Event
//! ```
//!
//! [`Mirror`] is one node's part in one mirror, from its claim to its end. The driver carries out the actions, commands at
//! different copies side by side, and reports what became of each. Time is the driver's: it says when a copy or a request
//! has taken too long. `docs/internals/mirror.md` explains the rules and the words.
#![forbid(unsafe_code)]

mod bitmap;
mod block;
pub mod copy;
mod copy_set;
pub mod fence;
pub mod key;
mod machine;
mod op;
pub mod planted;
mod ranges;
mod regions;
pub mod register;

pub use block::Unreadable;
pub use copy_set::{COPIES_MAX, CopyId, CopySet};
pub use machine::{Mirror, MirrorConfig, MirrorPhase, Stand};
pub use op::{CopyCommand, MirrorAction, MirrorEvent, OpId, Outcome, Stopped};
pub use ranges::Range;
pub use regions::Regions;
