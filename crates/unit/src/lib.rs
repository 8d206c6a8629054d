//! A disk as every front sees it. A front brings commands or block operations of its nexuses; here
//! the rights of their nexus are looked at, they wait for whoever excludes them, and they reach the volume. What one
//! front fences off is fenced off for all.
//!
//! ```text
//!  a front ──► Nexus ──► (CDB)  Unit: scsi::LogicalUnit ─► execute ─► rights ─► gate ─► volume::Volume
//!                        (block operation)  block ───────────┘
//! ```
//!
//! [`Units`] opens every disk on every lane. What one lane has of them is its [`LaneUnits`]: volumes,
//! gates, memory, and the nexuses that fronts have brought. Lanes speak by messages, and only where
//! one command concerns the commands of others: exclusion, aborts.
#![forbid(unsafe_code)]

mod abort;
mod answer;
mod block;
mod change;
mod copy;
mod disk;
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
mod units;

pub use answer::answered;
pub use block::BlockError;
pub use disk::{Disk, Luns, Unit, identity};
pub use execute::{Executed, Io};
pub use lane::LaneUnits;
pub use medium::shortened;
pub use memory::{Limits, NexusMemory, Permits, WINDOW_STEP};
pub use nexus::{Commands, How, Mark, Nexus, Which, no_commands};
pub use running::{CommandId, RunningId};
pub use scsi::{
    NexusId, RegistrationReport, ReservationReport, SanitizeReport, TargetPort, UnitReport,
};
pub use stages::{Kind, Stage, StageReport, StageTable, Times};
pub use state::Keep;
pub use units::{DiskSpec, FlushError, OpenError, OpenVolume, Units, UnitsConfig};
