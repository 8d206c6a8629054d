//! A concat: one volume whose children follow one another, each with its full length. It extends a full disk by a
//! second one, and makes use of children of different lengths. It has no redundancy: if one child is lost, everything
//! is.
//!
//! It is the volume of a [stripe](crate::kinds::stripe) with another map, and has the same superblocks and claims: a
//! missing, foreign or duplicate child is refused, and the order of the list does not matter.

#[cfg(test)]
mod join_tests;
pub mod settings;
#[cfg(test)]
mod tests;
