//! Property test of the target: whatever PDUs arrive, however TCP segments them, their outcome must be one that SAM-5's
//! task set allows.
//!
//! ```text
//!  script ──► run: peer, listen (wire) ══ segments ══► target ──► leaf
//!                          └──────────► history ◄───────────────────┘
//!                                          └──► check: the model; counters: was it hard?
//! ```
//!
//! A [`Script`] is drawn from a seed (or is [`known`], for a bug found earlier). Its initiators neither wait for
//! answers nor ping, so nothing they send can trigger work that the target has forgotten. Everything sent, received,
//! and done by the medium is recorded in one history, which the model checks at the end. A failing script is shrunk by
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
