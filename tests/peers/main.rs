//! Our initiator on targets that no one here wrote: Debian's tgt and istgt, and Linux's own (LIO). What
//! it wrote it reads back at every depth and size, it keeps the contract of a volume, it finds what they offer, and
//! it lives with any parameters that a peer may legally choose.

mod access;
mod contract;
mod discover;
mod discovery;
mod parameters;
mod paths;
mod reads_back;
