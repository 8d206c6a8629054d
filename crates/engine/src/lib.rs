//! One core: an executor for local futures, an io_uring reactor, timers, buffers and mailboxes,
//! plus a simulated twin of the reactor that runs the same code from a seed in virtual time.
//!
//! A [`Lane`] is one executor with one reactor, driven by one thread. Everything a lane owns
//! (tasks, sockets, buffers) stays on its thread; lanes communicate by messages ([`LaneHandle`]).
//! Code above this crate is written once against [`net`], [`fs`], [`time`] and [`task`] and cannot
//! tell a ring from a simulation: both obey the contract in [`op`].

pub mod blocking;
pub mod buf;
mod chunk;
mod clock;
mod congestion;
pub mod cost;
pub mod cpu_time;
pub mod cross;
pub mod device;
pub mod extent;
pub mod fs;
mod future;
mod gather;
mod given;
mod handle;
mod instant;
pub mod lane;
pub mod local;
pub mod loops;
pub mod mounts;
pub mod net;
pub mod op;
pub mod programs;
pub mod random;
pub mod range;
pub mod range_lock;
pub mod rate;
mod reactor;
mod ring;
pub mod share;
#[cfg(feature = "sim")]
pub mod sim;
mod sockopt;
pub mod store;
pub mod sync;
pub mod task;
pub mod time;
pub mod zone;

pub use buf::{Buf, Payload, Slice};
pub use future::LaneFuture;
pub use gather::Gather;
pub use lane::{Lane, LaneConfig, LaneHandle, Waiting};
pub use share::{Share, spend};
pub use task::{begin, spawn};
pub use time::{Duration, Instant};
