//! The NBD front: accepts connections over TCP or a Unix socket, runs the protocol machine of each on the lane that
//! owns it, and passes their requests to one unit.
//!
//! ```text
//!  listener ──► connection ──► nbd::Server ──► request ──► unit's block operations
//!  (server)     reader, writer,  (pure machine)  (a task each)
//!               watchdog
//! ```
//!
//! Between the socket and the reader and writer sits a `wire`, which decrypts and encrypts once the machine says that
//! TLS begins.
//!
//! [`NbdServer::start`] gives every lane a [`front`](mod@front). Connections are assigned to the lanes round-robin. Each
//! is a nexus of its own, and its requests run concurrently. A flush covers everything written over any connection.
#![forbid(unsafe_code)]

mod as_front;
mod config;
mod connection;
mod front;
mod handshake;
mod notices;
mod place;
mod reader;
mod request;
mod server;
mod service;
mod watchdog;
mod wire;
mod writer;

pub use ::front::{Address, StartError, Tls, TlsError, TlsFiles};
pub use as_front::NbdExport;
pub use config::{NbdConfig, NbdLimits};
pub use place::Listeners;
pub use server::NbdServer;
