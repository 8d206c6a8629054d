//! `sanstone serve` as an administrator meets it: its messages, its end, its appetite.

mod atomic;
mod configuration;
mod idle;
mod limits;
mod memory;
mod reservations;
mod secrets;
mod sigterm;
mod stages;
