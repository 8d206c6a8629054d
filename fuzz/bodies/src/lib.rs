//! What the fuzz targets do. A target is a plain function of bytes: it reads them as choices
//! (`input`), plays them against the pure protocol machines, the SCSI disk or our initiator's
//! disk, and panics when something does not hold that must. libFuzzer calls it from `fuzz/fuzz_targets`, the replay
//! test calls it with every committed input.
//!
//! `pdu` and `login` play the lowest layers, `scsi` the disk, `target` and `initiator` one role
//! each against a peer that is mostly right and sometimes not, `pair` both roles over a wire that
//! does harm. `fuse` gives the FUSE front requests of any bytes, `nbd` plays the NBD server's machine. `disk` is an
//! `iscsi` leaf in the simulated world, with a target that answers anything.
//! `target_side` and `initiator_side` are the drivers of the two machines; they watch
//! everything that goes in and comes out, and hold the rules.
#![forbid(unsafe_code)]

mod disk;
mod fuse;
mod held;
mod initiator;
mod initiator_side;
mod input;
mod login;
mod nbd;
mod pair;
mod pdu;
mod peer;
mod scsi;
mod seeds;
mod stream;
mod target;
mod target_side;
mod wire;

pub use disk::disk;
pub use fuse::fuse;
pub use initiator::initiator;
pub use input::Seed;
pub use login::login;
pub use nbd::nbd;
pub use pair::pair;
pub use pdu::pdu;
pub use scsi::scsi;
pub use seeds::seeds;
pub use target::target;

/// Plays one input.
pub type Body = fn(&[u8]);

/// Every target by its name, which is also that of its corpus.
pub const TARGETS: [(&str, Body); 9] = [
    ("pdu", pdu),
    ("login", login),
    ("scsi", scsi),
    ("target", target),
    ("initiator", initiator),
    ("pair", pair),
    ("disk", disk),
    ("nbd", nbd),
    ("fuse", fuse),
];
