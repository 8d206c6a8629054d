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
//! [`FuseRequest::parse`], [`FileProperties::step`] and [`FuseReply::to_bytes`] do no I/O. A [`FuseFront`] runs them on
//! every lane, each with its own descriptor; a [`MountPath`] is the path where the file appears.
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

pub use as_front::FuseExport;
pub use changes::{FileTimes, SetTime, SetTimes, Timestamp};
pub use front::{FuseFront, Spec, StartError};
pub use mount::Unmounted;
pub use place::{MountPath, PlaceError};
pub use reply::{Attributes, FuseReply};
pub use request::{FuseOperation, FuseRequest, HEAD_BYTES, Malformed, SetAttributes};
pub use session::{FileProperties, FuseWork, Handling};
