//! Our initiator and our target under faults: the target is killed under load, restarts, stalls, or its link is cut.
//! Acknowledged data stays, hanging requests fail in time, and possible losses are reported.

mod attentions;
mod claims;
mod floors;
mod kill;
mod link;
mod mirrors;
mod overtaking;
mod restart;
mod standstill;
