//! The FUSE front: shows a volume as one file on this machine, which any program can open.
//!
//! The kernel's requests are read from `/dev/fuse` and answered there. The mounted file system has a
//! single inode: its root, which is a regular file.
//!
//! ```text
//!  a program ──► kernel ──► /dev/fuse ──► request ──► session ──► transfer ──► unit
//!                              ▲          (bytes in)  (pure: an answer,  (whole blocks or not)
//!                              └─────────── reply ◄──  or what to do)          │
//!                                         (bytes out) ◄────────────────────────┘
//! ```
//!
//! [`Request::parse`], [`Session::step`] and [`Reply::to_bytes`] do no I/O. A [`Front`] runs them on
//! every lane, each with its own descriptor; a [`Place`] is the path where the file appears.
#![forbid(unsafe_code)]

mod abi;
mod as_front;
mod changes;
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

pub use as_front::Served;
pub use changes::{SetTime, SetTimes, Times, Timestamp};
pub use front::{Front, Spec, StartError};
pub use mount::Unmounted;
pub use place::{Place, PlaceError};
pub use reply::{Attributes, Reply};
pub use request::{HEAD_BYTES, Malformed, Operation, Request, SetAttributes};
pub use session::{Session, Step, Work};
