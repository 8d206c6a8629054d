//! What others are told of the process that has claimed a stripe which they want.

use std::{path::Path, sync::OnceLock};

use engine::time;
use uuid::Uuid;
use volume::claim::{Owner, boot_id, name_of};

use crate::{error::StateError, record::new_identity, state::StateDirectory};

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
        started_unix_s();
        Process {
            boot: boot_id(),
            name: name_of(format_args!("sanstone serve -c {}", path.display())),
        }
    }

    /// Describes the current process, which has `volume` of the configuration at `path` attached.
    pub fn attaching(path: &Path, volume: &str) -> Process {
        started_unix_s();
        Process {
            boot: boot_id(),
            name: name_of(format_args!(
                "sanstone attach -c {} {volume}",
                path.display()
            )),
        }
    }

    /// This process as an owner of claims, with the identity of `state`; without one, with an identity of its own that nobody
    /// has again.
    pub(crate) fn owner(&self, state: Option<&StateDirectory>) -> Result<Owner, StateError> {
        let uuid = state.map_or_else(new_identity, StateDirectory::owner)?;
        Ok(Owner::new(uuid, self.boot, &self.name))
    }
}

/// When this process began to serve, in seconds since 1970 by the system's clock.
pub(crate) fn started_unix_s() -> u64 {
    static STARTED: OnceLock<u64> = OnceLock::new();
    *STARTED.get_or_init(|| time::since_unix_epoch().as_secs())
}
