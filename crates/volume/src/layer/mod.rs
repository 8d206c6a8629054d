//! Layers: volumes made of volumes.

pub mod fault;
pub mod stats;
pub mod throttle;
