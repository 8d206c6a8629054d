//! The FUSE front: a volume as one file on this machine, which any program opens.
//!
//! The kernel asks by messages that are read from `/dev/fuse` and answered there; what is mounted has
//! one inode, its root, which is a regular file.
//!
//! ```text
//!  a program ──► kernel ──► /dev/fuse ──► request ──► session ──► transfer ──► unit
//!                              ▲          (bytes in)  (pure: an answer,  (whole blocks or not)
//!                              └─────────── reply ◄──  or what to do)          │
//!                                         (bytes out) ◄────────────────────────┘
//! ```
//!
//! [`Request::parse`], [`Session::step`] and [`Reply::to_bytes`] are pure. A [`Front`] runs them on every
//! lane, each with a descriptor of its own; a [`Place`] is where the file appears.
#![forbid(unsafe_code)]

mod abi;
mod crew;
mod front;
mod fusermount;
mod lane;
mod mount;
mod place;
mod reply;
mod request;
mod session;
mod transfer;

#[cfg(test)]
mod codec_tests;

pub use front::{Front, Spec, StartError};
pub use place::{Place, PlaceError};
pub use reply::{Attributes, Reply};
pub use request::{HEAD_BYTES, Malformed, Operation, Request};
pub use session::{Session, Step, Work};
