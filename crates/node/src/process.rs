//! What others are told of the process that has claimed a stripe which they want.

use std::path::Path;

use uuid::Uuid;
use volume::claim::{boot_id, name_of};

/// A daemon's process, as described to others that want a stripe it has claimed.
#[derive(Clone, Debug)]
pub struct Process {
    /// The boot ID of the machine; nil if unknown. A claimant from the same boot that no longer holds
    /// its lock is dead.
    pub boot: Uuid,
    /// For people: what it does, and where.
    pub name: String,
}

impl Process {
    /// Describes the current process, which serves the configuration at `path`.
    pub fn this(path: &Path) -> Process {
        Process {
            boot: boot_id(),
            name: name_of(format_args!("sanstone serve -c {}", path.display())),
        }
    }

    /// Describes the current process, which has `volume` of the configuration at `path` attached.
    pub fn attaching(path: &Path, volume: &str) -> Process {
        Process {
            boot: boot_id(),
            name: name_of(format_args!(
                "sanstone attach -c {} {volume}",
                path.display()
            )),
        }
    }
}
