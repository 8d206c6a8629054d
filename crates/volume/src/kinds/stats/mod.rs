//! The `stats` layer: [counters](crate::stats) where there are none.

pub mod settings;
