//! Tracks, for one session, the unit attentions that its initiator must not miss, and whether it has received them: that
//! a disk was powered on, and that a LUN is another disk than in an earlier session. Only when they *have* been received
//! does a later session of the same initiator port do without them. A response can be lost with its connection, and an
//! initiator that missed it would believe that writes lost from a volatile cache are safe, or write to the wrong disk.
//! ExpStatSN shows which responses were received.

use std::cell::RefCell;

use iscsi::{TaskId, Transmit};
use scsi::{Action, Attention};

/// The unit attentions that the initiator of one session has not acknowledged yet.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged(RefCell<Vec<ReportedAttention>>);

#[derive(Debug)]
struct ReportedAttention {
    lun: u32,
    attention: Attention,
    step: Acknowledgement,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Acknowledgement {
    Pending,
    /// The response of this task reports it.
    Reported(TaskId),
    /// The response was sent with this StatSN.
    Sent(u32),
}

impl Unacknowledged {
    /// The initiator must be told of `attention` at `lun`.
    pub(crate) fn add(&self, lun: u32, attention: Attention) {
        self.0.borrow_mut().push(ReportedAttention {
            lun,
            attention,
            step: Acknowledgement::Pending,
        });
    }

    /// `task` on `lun` will be answered as `action` says.
    pub(crate) fn answered(&self, lun: u32, task: TaskId, action: &Action) {
        let reports = |attention: Attention| match action {
            Action::End(ending) => ending.sense.as_ref() == Some(&attention.sense()),
            // The reply itself withdraws the report.
            Action::ReportLuns(_) => attention == Attention::ReportedLunsChanged,
            _ => false,
        };
        let mut all = self.0.borrow_mut();
        let reported = all
            .iter_mut()
            .find(|report| report.lun == lun && reports(report.attention));
        if let Some(report) = reported {
            report.step = Acknowledgement::Reported(task);
        }
    }

    /// A PDU that ends a task is being sent.
    pub(crate) fn sent(&self, pdu: &Transmit) {
        let Some(task) = pdu.ends else {
            return;
        };
        for report in &mut *self.0.borrow_mut() {
            if report.step == Acknowledgement::Reported(task) {
                report.step = Acknowledgement::Sent(pdu.stat_sn());
            }
        }
    }

    /// Calls `each`, once, for every unit attention that has been received; `is_acknowledged` tells whether a StatSN
    /// has been acknowledged.
    pub(crate) fn acknowledge(
        &self,
        is_acknowledged: impl Fn(u32) -> bool,
        mut each: impl FnMut(u32, Attention),
    ) {
        let mut all = self.0.borrow_mut();
        if all.is_empty() {
            return;
        }
        all.retain(|report| match report.step {
            Acknowledgement::Sent(stat_sn) if is_acknowledged(stat_sn) => {
                each(report.lun, report.attention);
                false
            }
            _ => true,
        });
    }
}
