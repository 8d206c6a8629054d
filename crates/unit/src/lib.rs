//! A disk as every front sees it. A front submits SCSI commands or block operations on behalf of its nexuses. Here
//! the nexus' access rights are checked, the I/O waits for exclusive operations, and it reaches the volume. A nexus
//! that one front fences off is fenced off on all fronts.
//!
//! ```text
//!  a front ──► Nexus ──► (CDB)  Unit: scsi::LogicalUnit ─► execute ─► rights ─► gate ─► volume::Volume
//!                        (block operation)  block ───────────┘
//! ```
//!
//! [`Units`] opens every disk on every lane. One lane's part of them is its [`LaneUnits`]: volumes,
//! gates, memory, and the nexuses of its fronts. Lanes exchange messages only where one command
//! affects the commands of others: for exclusion and aborts.
#![forbid(unsafe_code)]

mod abort;
mod block;
mod change;
mod copy;
mod disk;
mod error;
mod exclusion;
mod exclusive;
mod execute;
mod lane;
mod medium;
mod memory;
mod nexus;
mod places;
mod running;
mod sanitize;
mod stages;
mod state;
#[cfg(test)]
mod testing;
mod units;
mod wanted;

pub use copy::Copying;
pub use disk::{Disk, Luns, Unit, identity, names};
pub use error::IoError;
pub use execute::{Executed, Io};
pub use lane::LaneUnits;
pub use medium::shortened;
pub use memory::{
    ClientPace, DiskMemory, Held, MemoryLimits, Moving, NexusMemory, Paces, Permits, TooSlow,
    WINDOW_STEP,
};
pub use nexus::{Commands, How, Mark, Nexus, Which, no_commands};
pub use running::{CommandId, RunningId};
pub use sanitize::NoSanitize;
pub use scsi::{
    Kept, KeptError, NexusId, RegistrationReport, ReservationReport, SanitizeReport, TargetPort,
    UnitReport,
};
pub use stages::{CommandKind, Stage, StageReport, StageStamps, StageTable};
pub use state::{Keep, Note};
pub use units::{DiskSpec, FlushError, OpenError, OpenVolume, Units, UnitsConfig};
pub use wanted::Wanted;
