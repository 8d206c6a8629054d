//! `sanstone serve` as an administrator sees it: its messages, its shutdown, its resource use.

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
mod slow;
mod stages;
