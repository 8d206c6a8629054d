//! Sets of disks that belong together, as far as that needs no disks: who owns a set, what its members say of that on
//! their labels, and in which order an owner takes them. Pure: answers in, orders out; the driver is the `volume` crate.
//!
//! ```text
//! ownership        the machine: takes the members of a set, raises their generation, loses and releases them
//! policy           what a set makes of members that are missing: a stripe needs all
//! claimant         what the label on a member means for who wants to have it
//! label            the label: owner and generation
//! envelope         the common header of our blocks on a disk
//! ```

pub mod claimant;
pub mod envelope;
pub mod label;
pub mod ownership;
pub mod policy;

pub use claimant::{Claimant, LabelStanding, Others};
pub use label::{FoundLabel, Generation, LABEL_AT, LABEL_BYTES, Label};
pub use ownership::{MemberOrder, OrderReport, Ownership, OwnershipEnd, first_older};
pub use policy::{All, Policy};
