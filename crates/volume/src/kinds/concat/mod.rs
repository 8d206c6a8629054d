//! A concat: one volume whose children follow one another, each with all that it has. It is how a full disk gets a
//! second one behind it, and what children of different lengths are good for. It has no redundancy: if a child is
//! lost, all is.
//!
//! It is the volume of a [stripe](crate::kinds::stripe) with another map, and has the same superblocks and claims: a
//! child that is missing, foreign or doubled is refused, and the order of the list does not matter.

pub mod settings;
#[cfg(test)]
mod tests;
