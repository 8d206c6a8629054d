//! Which disks have still to report their power-on to a session, and whether the report has arrived. A session
//! that comes back later is told of the nexus loss only (29h/07h) if it *has* arrived: an answer may be
//! lost with its connection, and an initiator that missed a power-on would take writes that a volatile cache
//! has lost for safe. ExpStatSN says what has arrived.

use std::cell::RefCell;

use iscsi::{TaskId, Transmit};
use scsi::{Action, Attention};

/// The power-ons that one session has to be told of.
#[derive(Debug, Default)]
pub(crate) struct PowerOnReports(RefCell<Vec<Report>>);

#[derive(Debug)]
struct Report {
    lun: u32,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Untold,
    /// The answer of this task reports it.
    Told(TaskId),
    /// The answer is on its way under this StatSN.
    Sent(u32),
}

impl PowerOnReports {
    /// This initiator port has to be told of the power-on of the disk at `lun`.
    pub(crate) fn begin(&self, lun: u32) {
        let step = Step::Untold;
        self.0.borrow_mut().push(Report { lun, step });
    }

    /// `task` for `lun` is going to be answered as `action` says.
    pub(crate) fn answered(&self, lun: u32, task: TaskId, action: &Action) {
        let mut all = self.0.borrow_mut();
        let Some(report) = all.iter_mut().find(|i| i.lun == lun) else {
            return;
        };
        let power_on = Attention::PowerOnOrReset.sense();
        if let Action::End(ending) = action {
            if ending.sense.as_ref() == Some(&power_on) {
                report.step = Step::Told(task);
            }
        }
    }

    /// A PDU that ends a task goes out.
    pub(crate) fn sent(&self, pdu: &Transmit) {
        let Some(task) = pdu.ends else {
            return;
        };
        for report in &mut *self.0.borrow_mut() {
            if report.step == Step::Told(task) {
                report.step = Step::Sent(pdu.stat_sn());
            }
        }
    }

    /// Gives, once each, the disks whose answer has been received, as `is_acknowledged` knows it
    /// of a StatSN.
    pub(crate) fn acknowledge(
        &self,
        is_acknowledged: impl Fn(u32) -> bool,
        mut each: impl FnMut(u32),
    ) {
        let mut all = self.0.borrow_mut();
        if all.is_empty() {
            return;
        }
        all.retain(|report| match report.step {
            Step::Sent(stat_sn) if is_acknowledged(stat_sn) => {
                each(report.lun);
                false
            }
            _ => true,
        });
    }
}
