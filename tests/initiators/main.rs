//! Third-party initiators on our disk: libiscsi's tools and QEMU's driver. `SANSTONE_TEST_TARGET=tgt` checks the tests
//! themselves.

mod authentication;
mod copy;
mod crowded;
mod libiscsi;
mod negotiation;
mod portals;
mod qemu;
mod sessions;
