//! Explores everything that two nodes, two copies and a register can do within a budget, driving the machine itself: what
//! clients were told is linearizable, no acknowledged write is lost, and copies that are in sync and quiet are equal.
//! Each planted bug must be found.

mod budget;
mod bugs;
mod clean;
mod device;
mod history;
mod network;
mod search;
mod steps;
mod world;
