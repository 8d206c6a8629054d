//! Our initiator and our target when things break: the target is killed under load, restarts,
//! stands still, or its link is cut. What was acknowledged stays, what hangs ends in an error in
//! time, what may be lost is said.

mod attentions;
mod claims;
mod kill;
mod link;
mod overtaking;
mod restart;
mod standstill;
