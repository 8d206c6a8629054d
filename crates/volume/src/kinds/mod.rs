//! The kinds of volume, a folder each.

pub mod cache;
pub mod fault;
pub mod file;
pub mod iscsi;
pub mod ram;
pub mod stats;
pub mod stripe;
pub mod throttle;
