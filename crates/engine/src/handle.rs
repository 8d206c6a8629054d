//! Open files and sockets, real or simulated, and what closes them.

use std::{cell::Cell, fmt, os::fd::OwnedFd, sync::Arc};

/// An open file or socket. It is closed when its last operation has completed and its last owner
/// has dropped it.
pub struct Handle {
    pub(crate) raw: i32,
    pub(crate) keeper: Keeper,
    /// The last receive emptied the socket's receive queue.
    pub(crate) is_drained: Cell<bool>,
    /// For a file: its operations may block on another process or machine, and must run on a thread that may block.
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

    /// A handle of a file, with `waits` set as given.
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
    /// Something of the simulated world, closed by its own `Drop`.
    Simulated(SimulatedKeeper),
}

/// What closes a simulated handle.
#[cfg(feature = "sim")]
pub(crate) type SimulatedKeeper = Arc<dyn Send + Sync>;
/// In a build without the simulator there are none.
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
