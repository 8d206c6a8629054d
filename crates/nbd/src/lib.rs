//! The server side of NBD (the Network Block Device protocol, newstyle and fixed), pure: bytes in, events and
//! replies out. No sockets, no clock, no payload.
//!
//! ```text
//!  bytes ──► Server::receive ──► Event ──► the driver ──► Request::{done, data, extents, fail} ──► Reply
//!            handshake, then requests                                                    bytes before the payload
//! ```
//!
//! [`Server`] handles a client from its first byte to its last. The driver feeds it what was received, carries out
//! its [`NbdEvent`]s, and answers each [`NbdRequest`] once, in any order. Payload bypasses it: the data of a write follows
//! its request on the wire, and the driver receives it where it belongs; the data of a read follows its [`ReplyBytes`].
//!
//! "The specification" is the document `doc/proto.md` of the NetworkBlockDevice project; names such as `NBD_OPT_GO`
//! are its own.
#![forbid(unsafe_code)]

mod error;
mod export;
mod option;
mod reply;
mod request;
mod server;
pub mod wire;

pub use error::{ErrorCode, Violation};
pub use export::{BlockSizes, Export};
pub use reply::{AllocationExtent, ReplyBytes};
pub use request::{NbdCommand, NbdRequest};
pub use server::{
    NbdEvent, OPTION_MAX_BYTES, OPTIONS_MAX, RECEIVE_MAX_BYTES, ReceiveOutcome, Server,
};
