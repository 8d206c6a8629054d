//! Where the registers of mirrors are kept, as the configuration says: one name for both kinds.

use std::path::PathBuf;

use uuid::Uuid;

use super::{
    lun_register::LunRegister,
    register::{Register, StateRegister},
};
use crate::{Error, ErrorKind, SharedVolume};

/// Where the registers of mirrors are kept.
pub(super) enum RegisterPlace {
    /// In this state directory.
    State(PathBuf),
    /// On a disk.
    Lun {
        /// What messages call it.
        name: String,
        volume: SharedVolume,
        /// Whether no other mirror of this process has its register there.
        is_own: bool,
    },
}

impl RegisterPlace {
    /// On the disk `volume`, which messages call `name`, and which nobody else in this process uses.
    pub(super) fn lun(name: String, volume: SharedVolume) -> RegisterPlace {
        RegisterPlace::Lun {
            name,
            volume,
            is_own: true,
        }
    }

    /// The register of `mirror` there.
    pub(super) fn of(&self, mirror: Uuid) -> Box<dyn Register> {
        match self {
            RegisterPlace::State(directory) => Box::new(StateRegister::new(directory, mirror)),
            RegisterPlace::Lun { name, volume, .. } => {
                Box::new(LunRegister::new(name.clone(), volume.clone(), mirror))
            }
        }
    }

    /// Ends what is open for it alone, and says in the log if that fails.
    pub(super) async fn close(&self) {
        if let RegisterPlace::Lun {
            name,
            volume,
            is_own: true,
        } = self
        {
            if let Err(error) = volume.close().await {
                tracing::warn!(register = name, %error, "the register could not be closed");
            }
        }
    }
}

/// Why a mirror without a register of its own cannot be used without a state directory.
pub(super) fn no_directory() -> Error {
    Error::new(
        ErrorKind::Configuration,
        "a mirror without `register` keeps it in a state directory, and this program has none: use `sanstone serve` or \
         `attach`",
    )
}
