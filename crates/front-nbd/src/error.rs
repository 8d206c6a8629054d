//! Why a server did not start.

use crate::config::Address;

/// Why a server did not start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// The address could not be bound.
    #[error("cannot listen on {address}: {cause}; {mend}")]
    Address {
        /// The address that could not be bound.
        address: Address,
        /// The operating system's error message.
        cause: String,
        /// What the administrator should check.
        mend: &'static str,
    },
    /// A lane could not open the volume.
    #[error("{0}")]
    Unit(String),
}
