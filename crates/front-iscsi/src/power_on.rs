//! Tracks, for one session, which disks have yet to report their power-on and whether the report has been received.
//! Only if it *has* been received is a later session of the same initiator port told of just the nexus loss
//! (29h/07h). A response can be lost with its connection, and an initiator that missed the power-on would believe
//! that writes lost from a volatile cache are safe. ExpStatSN shows which responses were received.

use std::cell::RefCell;

use iscsi::{TaskId, Transmit};
use scsi::{Action, Attention};

/// The power-ons that one session must be told of.
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
    /// The response of this task reports it.
    Told(TaskId),
    /// The response was sent with this StatSN.
    Sent(u32),
}

impl PowerOnReports {
    /// The initiator port must be told that the disk at `lun` was powered on.
    pub(crate) fn begin(&self, lun: u32) {
        let step = Step::Untold;
        self.0.borrow_mut().push(Report { lun, step });
    }

    /// `task` on `lun` will be answered as `action` says.
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

    /// A PDU that ends a task is being sent.
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

    /// Calls `each`, once, for every disk whose report has been received; `is_acknowledged` tells whether a StatSN
    /// has been acknowledged.
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
