//! Our initiator on third-party targets: Debian's tgt and istgt, and the kernel's own (LIO). It reads back what it
//! wrote at every depth and size, keeps the contract of a volume, discovers what they offer, and copes with any
//! parameters that a peer may legally choose.

mod access;
mod contract;
mod copies;
mod discover;
mod discovery;
mod parameters;
mod paths;
mod reads_back;
