//! The NBD front: it takes connections by TCP or through a Unix socket, runs the protocol machine of each on the lane
//! that has it, and brings their requests to one unit.
//!
//! ```text
//!  listener ──► connection ──► nbd::Server ──► request ──► unit's block operations
//!  (server)     reader, writer,  (pure machine)  (a task each)
//!               watchdog
//! ```
//!
//! Between the socket and reader and writer there is a `wire`, which deciphers and enciphers from the moment at which
//! the machine says that TLS begins.
//!
//! [`Server::start`] gives every lane a [`front`](mod@front). Connections go to the lanes in turn; each is a nexus of
//! its own, and its requests run side by side. A flush covers what was written over any connection.
#![forbid(unsafe_code)]

mod config;
mod connection;
mod front;
mod notices;
mod places;
mod reader;
mod request;
mod server;
mod service;
mod tls;
mod validity;
mod watchdog;
mod wire;
mod writer;

pub use config::{Address, Config, Limits, NoAddress};
pub use server::{Place, Server, StartError};
pub use tls::{Tls, TlsError, TlsFiles};
