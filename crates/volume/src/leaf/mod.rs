//! Leaves: where the data is.

pub mod ram;
