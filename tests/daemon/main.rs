//! `sanstone serve` as an administrator meets it: its messages, its end, its appetite.

mod configuration;
mod idle;
mod memory;
mod reservations;
mod secrets;
mod sigterm;
mod stages;
