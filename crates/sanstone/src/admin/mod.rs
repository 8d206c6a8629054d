//! The admin interface: another process on the same machine, run by the daemon's user or by root, queries and
//! controls a running daemon over a Unix socket in the state directory.
//!
//! ```text
//!  show, top, apply ──► client ──► admin.sock ──► server (a thread beside the lanes)
//!                       one line of JSON each way   │ Ask, over the channel that signals use
//!                                                   ▼
//!                                                 the daemon, on its lane
//! ```

mod client;
mod lock;
mod protocol;
mod server;
mod socket;

pub(crate) use client::{Place, ask};
pub(crate) use protocol::{Applied, Asked, Sample};
pub(crate) use server::{Ask, Server};
