//! What comes with a command beside its CDB: who it is for, and how much data it moves.

use engine::{Payload, time};
use iscsi::TaskId;
use unit::{Mark, Permits, Times};

use crate::open::{OpenCommand, WriteParts};

/// What an initiator gives and takes for one command.
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) task: TaskId,
    pub(crate) lun: u32,
    /// The most data-in that it takes, in bytes.
    pub(crate) read_len: u32,
    /// The data-out that it gives, in bytes.
    pub(crate) write_len: u32,
    /// How much of that comes without an R2T.
    pub(crate) unsolicited_len: u32,
}

impl Offer {
    /// The command as it is opened.
    #[inline]
    pub(crate) fn open(self, mark: Mark, transfer_len: u64) -> OpenCommand {
        OpenCommand {
            task: self.task,
            mark,
            lun: self.lun,
            times: Times::at(time::turn_began()),
            kind: None,
            pending: None,
            transfer_len,
            write: WriteParts::new(),
            read: Payload::new(),
            permits: Permits::new(),
        }
    }
}
