//! Our initiator and our target when things break: the target is killed under load, restarts,
//! stands still. What was acknowledged stays, what hangs ends in an error in time, what may be lost
//! is said.

mod kill;
mod restart;
mod standstill;
