//! `sanstone serve` as an administrator meets it: its messages, its end, its appetite.

mod apply;
mod atomic;
mod both_ways;
mod caches;
mod configuration;
mod files;
mod frozen;
mod growth;
mod help;
mod identity;
mod idle;
mod limits;
mod log;
mod memory;
mod mistakes;
mod names;
mod refusals;
mod removable;
mod reservations;
mod restart;
mod sanitize;
mod secrets;
mod show;
mod sigterm;
mod stages;
