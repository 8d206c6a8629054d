//! The script of one case: the PDUs of several initiators, how they are segmented, the pauses, and how long the medium
//! takes for each command. It is complete before anything runs, so that shrinking can leave out steps without changing
//! the rest.

use std::time::Duration;

/// No case takes longer.
pub(super) const CASE_TIME: Duration = Duration::from_secs(60);
/// Blocks of each disk, of 512 bytes.
pub(super) const DISK_BLOCKS: u64 = 32;

/// What all steps of a case have in common.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// Lanes of the target.
    pub(super) lanes: usize,
    /// Disks.
    pub(super) luns: u32,
    /// Initiator ports.
    pub(super) initiators: usize,
    /// TAS of the control mode page.
    pub(super) tas: bool,
    /// QERR of the control mode page: 0, 1 (all) or 3 (own).
    pub(super) qerr: u8,
    /// InitialR2T.
    pub(super) initial_r2t: bool,
    /// ImmediateData.
    pub(super) immediate_data: bool,
    /// FirstBurstLength in bytes.
    pub(super) first_burst: u32,
    /// MaxBurstLength in bytes.
    pub(super) max_burst: u32,
    /// MaxOutstandingR2T.
    pub(super) r2t_max: u16,
    /// MaxRecvDataSegmentLength of the target in bytes.
    pub(super) segment_max: u32,
    /// Commands of a session that may be open.
    pub(super) window: u16,
    /// Disk 0 is reserved by the first initiator, and all are registered.
    pub(super) reserved: bool,
    /// The network splits and joins segments in addition to the script.
    pub(super) network_splits: bool,
}

/// A case.
#[derive(Clone, Debug)]
pub struct Script {
    /// The seed it was drawn from.
    pub(super) seed: u64,
    /// What its steps have in common.
    pub(super) setup: Setup,
    /// The steps of all initiators; each initiator performs its own in this order.
    pub(super) steps: Vec<Step>,
}

/// One PDU, or an action that belongs to one.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Its identifier, which stays the same when other steps are left out.
    pub(super) id: u32,
    /// The initiator.
    pub(super) who: usize,
    /// What it does.
    pub(super) what: What,
    /// The next step's PDU comes in the same segment.
    pub(super) is_glued: bool,
    /// Before the next segment, in nanoseconds.
    pub(super) pause_ns: u64,
    /// Where its segment is cut in two, in thousandths, and the pause there in nanoseconds.
    pub(super) cut: Option<(usize, u64)>,
}

/// What a step does.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// Sends a SCSI command.
    Command(Command),
    /// Sends a task management function.
    Function(Function),
    /// Sends the unsolicited data of the oldest command that has not sent all of it.
    Unsolicited,
    /// Ends the session; the following steps belong to a new session of the same initiator port.
    End(Ending),
}

/// A SCSI command.
#[derive(Clone, Debug)]
pub(super) struct Command {
    /// Disk.
    pub(super) lun: u32,
    /// Task attribute (RFC 7143 §11.3.1).
    pub(super) attribute: u8,
    /// Immediate delivery.
    pub(super) is_immediate: bool,
    /// What it does.
    pub(super) op: Op,
    /// The initiator answers R2Ts after this, in nanoseconds.
    pub(super) r2t_delay_ns: u64,
    /// The medium takes this long before and after the effect, in nanoseconds.
    pub(super) latency_ns: [u64; 2],
}

/// What a command does.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Read {
        lba: u64,
        blocks: u16,
    },
    /// `immediate`: bytes sent with the command; `is_unsolicited`: unsolicited Data-Out PDUs follow.
    Write {
        lba: u64,
        blocks: u16,
        is_fua: bool,
        immediate: u32,
        is_unsolicited: bool,
    },
    /// Writes one block if it holds the version `expected`.
    CompareAndWrite {
        lba: u64,
        expected: u64,
    },
    SynchronizeCache,
    TestUnitReady,
    /// READ of no blocks.
    Nothing,
    /// READ beyond the end.
    Beyond,
    /// PERSISTENT RESERVE OUT, PREEMPT AND ABORT.
    Preempt {
        victim: usize,
    },
}

/// A task management function.
#[derive(Clone, Debug)]
pub(super) struct Function {
    /// Its code (RFC 7143 §11.5.1).
    pub(super) code: u8,
    /// Disk.
    pub(super) lun: u32,
    /// The step whose command ABORT TASK references; a step without a command stands for an unknown task.
    pub(super) referenced: u32,
    /// Immediate delivery.
    pub(super) is_immediate: bool,
}

/// How a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// The connection is closed without a logout.
    Drop,
    /// By a Logout Request.
    Logout,
    /// By a login of the same initiator port while the connection is still open.
    Reinstate,
    /// By a command that skips a CmdSN, a gap that nothing can fill.
    Gap,
}

pub(super) const ABORT_TASK: u8 = 1;
pub(super) const ABORT_TASK_SET: u8 = 2;
pub(super) const CLEAR_TASK_SET: u8 = 4;
pub(super) const LOGICAL_UNIT_RESET: u8 = 5;
pub(super) const TARGET_WARM_RESET: u8 = 6;
/// CLEAR ACA, QUERY TASK, QUERY TASK SET, QUERY ASYNCHRONOUS EVENT: not offered.
pub(super) const NOT_OFFERED: [u8; 4] = [3, 9, 10, 12];

pub(super) const ORDERED: u8 = 2;
pub(super) const HEAD_OF_QUEUE: u8 = 3;
pub(super) const ACA: u8 = 4;
