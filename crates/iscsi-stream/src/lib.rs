//! iSCSI PDUs over a lane's TCP streams, for initiator and target: the only place where the I/O-free
//! state machines of `iscsi` touch sockets and buffers.
//!
//! [`Receiver::next`] reads the head of a PDU from a stream for a state machine. The payload then goes directly
//! into the memory that the machine's events name, and digests are checked on the way. [`push`] adds a PDU that a
//! machine wants sent to a gathered send: headers are copied, payload is held by reference.
#![forbid(unsafe_code)]

mod receive;
mod send;
#[cfg(test)]
mod tests;

pub use receive::{ReceiveError, ReceiveResult, Receiver};
pub use send::{Forgotten, has_room, push};
