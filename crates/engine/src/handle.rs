//! Open files and sockets of either world, and what closes them.

use std::{cell::Cell, fmt, os::fd::OwnedFd, sync::Arc};

/// An open file or socket. It is closed when the last operation on it has completed and the last
/// holder has let go.
pub struct Handle {
    pub(crate) raw: i32,
    pub(crate) keeper: Keeper,
    /// The last receive has taken all that had come.
    pub(crate) is_drained: Cell<bool>,
    /// Of a file: what is asked of it waits for somebody else, and is for a thread that may wait.
    pub(crate) waits: bool,
}

impl Handle {
    pub(crate) fn new(raw: i32, keeper: Keeper) -> Handle {
        Handle {
            raw,
            keeper,
            is_drained: Cell::new(false),
            waits: false,
        }
    }

    /// The same of a file that says whether it waits.
    pub(crate) fn of_file(raw: i32, keeper: Keeper, waits: bool) -> Handle {
        Handle {
            waits,
            ..Handle::new(raw, keeper)
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({})", self.raw)
    }
}

/// What closes a handle when it is dropped.
#[derive(Clone)]
#[expect(dead_code, reason = "held only to be dropped")]
pub(crate) enum Keeper {
    /// A file descriptor, shared between lanes.
    Fd(Arc<OwnedFd>),
    /// Something of the simulated world, which closes it in its own `Drop`.
    Simulated(SimulatedKeeper),
}

/// What closes something of the simulated world.
#[cfg(feature = "sim")]
pub(crate) type SimulatedKeeper = Arc<dyn Send + Sync>;
/// Where there is no simulated world, nothing closes any of it.
#[cfg(not(feature = "sim"))]
pub(crate) type SimulatedKeeper = std::convert::Infallible;

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Keeper::Fd(_) => "Fd",
            Keeper::Simulated(_) => "Simulated",
        })
    }
}
