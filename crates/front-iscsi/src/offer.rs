//! What accompanies a command's CDB: its task, its logical unit, and how much data the initiator sends and accepts.

use engine::{Payload, time};
use iscsi::TaskId;
use unit::{Mark, Permits, StageStamps};

use crate::open::{OpenCommand, Waiter, WriteParts};

/// The data transfer that an initiator offers for one command.
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) task: TaskId,
    pub(crate) lun: u32,
    /// Maximum data-in it accepts, in bytes.
    pub(crate) read_len: u32,
    /// Length of the data-out it sends, in bytes.
    pub(crate) write_len: u32,
    /// How much of the data-out comes without an R2T, in bytes.
    pub(crate) unsolicited_len: u32,
    /// Whether it asks for the command's stage times.
    pub(crate) asks_stage_times: bool,
}

impl Offer {
    /// The command in the form in which it is opened.
    #[inline]
    pub(crate) fn open(self, mark: Mark, transfer_len: u64) -> OpenCommand {
        OpenCommand {
            task: self.task,
            mark,
            lun: self.lun,
            times: StageStamps::at(time::turn_began()),
            asks_stage_times: self.asks_stage_times,
            admission_ns: 0,
            medium_ns: None,
            kind: None,
            pending: None,
            transfer_len,
            write: WriteParts::new(),
            read: Payload::new(),
            permits: Permits::new(),
            waiter: Waiter::default(),
        }
    }
}
