//! Leaves: where the data is.

pub mod file;
pub mod ram;
