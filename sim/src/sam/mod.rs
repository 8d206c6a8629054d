//! A property of the target: whatever PDUs arrive in whatever segments, what becomes of them is what
//! SAM-5's task set allows.
//!
//! ```text
//!  script ──► run: peer, listen (wire) ══ segments ══► target ──► leaf
//!                          └──────────► history ◄───────────────────┘
//!                                          └──► check: the model; counters: was it hard?
//! ```
//!
//! A [`Script`] is drawn from a seed (or [`known`] for an error that was found). Its initiators never wait for an answer nor ping: what the
//! target does late, it does not do. All that is sent, received, and done by the medium goes into
//! one history, which the model judges when all is over. A failing script is made smaller by
//! leaving out steps.

mod check;
mod counters;
mod draw;
mod events;
mod history;
mod known;
mod leaf;
mod listen;
mod login;
mod order;
mod peer;
mod run;
mod script;
mod serve;
mod shrink;
mod told;
mod wire;

pub use counters::{Counters, HARD_CASES};
pub use known::known;
pub use script::Script;
pub use shrink::{fails, shrink};
