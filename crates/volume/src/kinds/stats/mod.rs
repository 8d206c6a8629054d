//! The `stats` layer: an additional place for request [counters](crate::stats).

pub mod settings;
