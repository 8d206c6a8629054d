//! PDUs over a lane's TCP streams, for both roles: the one place where the pure machines of `iscsi` meet
//! sockets and buffers.
//!
//! [`Receiver::next`] takes the head of a PDU from a stream, which goes to a machine; its payload follows straight
//! into the memory that the machine's events name, and digests are checked on the way. [`push`] adds a PDU
//! that a machine wants sent to one gathered send: headers copied, payload by reference.
#![forbid(unsafe_code)]

mod receive;
mod send;
#[cfg(test)]
mod tests;

pub use receive::{Error, Receiver, Result};
pub use send::{Forgotten, has_room, push};
