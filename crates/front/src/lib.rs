//! What every front is to a daemon ([`Front`]), and what those that listen on a network share: listeners and the acceptor that spreads connections over the lanes, who
//! of many is let in, a front's parts on the lanes, rate limits of what strangers make it log, and TLS.
//!
//! ```text
//!  Listener ──► Acceptor ──► Admission     strangers are told apart by their Peer
//!                  │
//!                  └── Newcomer ──► FrontLanes ──► LaneFront, one on each lane
//! ```
#![forbid(unsafe_code)]

mod acceptor;
mod address;
mod admission;
mod error;
mod front;
mod lanes;
mod listener;
mod notices;
mod peer;
pub mod report;
mod tls;
mod validity;

pub use acceptor::{Acceptor, Accepts, Arrival, Newcomer};
pub use address::{Address, NoAddress};
pub use admission::{Admission, Displaced, Limit, PlaceLimits, Progress};
pub use error::StartError;
pub use front::{Ended, Front, FrontConfig, LocalFile, NoSessions, Reporter};
pub use lanes::{FrontLanes, LaneFront, OwnLane};
pub use listener::{IN_USE_LIMIT, Listener, retried};
pub use notices::Notices;
pub use peer::Peer;
pub use tls::{Tls, TlsError, TlsFiles, explain};
