//! What the fronts that listen on a network share: who is let in when more come than there is room for. Strangers are
//! told apart by their [`Peer`], and [`Admission`] decides which connection makes room for which.
#![forbid(unsafe_code)]

mod admission;
mod peer;

pub use admission::{Admission, Displaced, Limit, Places, Progress};
pub use peer::Peer;
