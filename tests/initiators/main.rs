//! Initiators that no one here wrote, on a disk of ours: libiscsi's tools and QEMU's driver.
//! The protocol as its users speak it; `SANSTONE_TEST_TARGET=tgt` tries the tests themselves.

mod authentication;
mod copy;
mod libiscsi;
mod negotiation;
mod portals;
mod qemu;
mod sessions;
