//! The admin interface: another process on the same machine, run by the daemon's user or by root, queries and
//! controls a running daemon (`serve` or `attach`) over a Unix socket in the state directory, or in that of the volume that is
//! attached below it. Only one daemon at a time holds such a directory, so one name for the socket is enough.
//!
//! ```text
//!  show, top, apply ──► client ──► admin.sock ──► server (a thread beside the lanes)
//!                       one line of JSON each way   │ Daemon, by channels
//!                                                   ▼
//!                                                 the daemon, on its lane
//! ```

mod aside;
mod client;
mod lock;
mod places;
mod protocol;
mod server;
mod socket;

pub(crate) use client::{DaemonAddress, ask, directories, name_of};
pub(crate) use lock::is_held;
pub(crate) use protocol::{AdminCall, Applied, Compared, Sample};
pub(crate) use server::{AdminServer, ApplyRequest, Daemon, LoadConfig};
