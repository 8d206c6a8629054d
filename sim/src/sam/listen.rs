//! The receiving half of a session: it checks every PDU of the target against the rules of RFC 7143 (StatSN, ExpCmdSN
//! and MaxCmdSN, R2Ts, one answer per command) and records it.

use std::rc::Rc;

use engine::{spawn, time};
use iscsi::pdu::{self, ResponsePdu};
use iscsi_stream::{ReceiveError, Receiver};

use super::{
    history::{Answer, SentWhat},
    peer::{Outgoing, Session},
};

/// S bit of a Data-In PDU.
const STATUS: u8 = 1;
const UNIT_ATTENTION: u8 = 6;
const CHECK_CONDITION: u8 = 2;

/// Listens until the connection ends.
pub(super) async fn listen(session: Rc<Session>, mut receiver: Receiver) {
    loop {
        match receiver.next_whole(&session.limits).await {
            Ok((header, _, data)) => session.receive(header, data),
            Err(ReceiveError::Protocol(error)) => return session.fault(format!("no PDU: {error}")),
            Err(_) => break,
        }
        session.changed.notify();
    }
    if !session.over.replace(true) {
        session.fault("the target has ended the connection".to_owned());
    }
    let mut history = session.history.lock();
    history.note(format_args!("{} <-- end", session.nexus));
    drop(history);
    session.changed.notify();
}

impl Session {
    pub(super) fn fault(&self, what: String) {
        let what = format!("session {}: {what}", self.nexus);
        self.history.lock().fault(what);
    }

    fn receive(self: &Rc<Self>, bhs: &[u8; 48], data: &[u8]) {
        let Ok(received) = ResponsePdu::parse(bhs) else {
            return self.fault(format!("no PDU of a target: {:x}", bhs[0]));
        };
        match received {
            ResponsePdu::DataIn(pdu) => {
                let tag = pdu.initiator_task_tag.get();
                let has_status = pdu.flags & STATUS != 0;
                let at = pdu.buffer_offset.get() as usize;
                self.data_in(tag, at, data);
                if has_status {
                    self.number(bhs, true);
                    self.answered(tag, Some(pdu.status), [0; 3]);
                } else {
                    self.window(bhs);
                }
            }
            ResponsePdu::ScsiResponse(pdu) => {
                self.number(bhs, true);
                let byte = |index: usize| data.get(2 + index).copied().unwrap_or(0);
                let sense = [byte(2) & 0xf, byte(12), byte(13)];
                self.answered(pdu.initiator_task_tag.get(), Some(pdu.status), sense);
            }
            ResponsePdu::TaskManagement(pdu) => {
                self.number(bhs, true);
                self.answered(pdu.initiator_task_tag.get(), Some(pdu.response), [0; 3]);
            }
            ResponsePdu::R2t(pdu) => {
                self.number(bhs, false);
                self.ready_to_transfer(pdu);
            }
            ResponsePdu::Reject(pdu) => {
                self.number(bhs, true);
                const IMMEDIATE_COMMAND_REJECT: u8 = pdu::reject_reason::IMMEDIATE_COMMAND_REJECT;
                let refused = data
                    .first_chunk::<48>()
                    .map(|bhs| pdu::Bhs::of(bhs).initiator_task_tag);
                let tag = refused.map(u32::from_be_bytes);
                match (pdu.reason, tag, self.over.get()) {
                    (IMMEDIATE_COMMAND_REJECT, Some(tag), _) => self.answered(tag, None, [0; 3]),
                    (_, _, true) => {}
                    (reason, ..) => self.fault(format!("reject {reason:x} of {tag:x?}")),
                }
            }
            ResponsePdu::Logout(pdu) => {
                self.number(bhs, true);
                if pdu.response != 0 {
                    self.fault(format!("logout: {}", pdu.response));
                }
                let mut history = self.history.lock();
                let at = history.note(format_args!("{} <-- logout response", self.nexus));
                history.nexuses[self.nexus].gone = Some(at);
            }
            // A NOP-In that asks for no reply announces an open window.
            ResponsePdu::NopIn(pdu) if pdu.target_transfer_tag.get() == pdu::RESERVED_TAG => {
                self.number(bhs, false);
                let mut history = self.history.lock();
                history.note(format_args!("{} <-- the window is open", self.nexus));
                history.windows_told += 1;
            }
            other => self.fault(format!("nothing has asked for {other:?}")),
        }
    }

    /// Checks StatSN, and the window.
    fn number(&self, bhs: &[u8; 48], is_taken: bool) {
        self.window(bhs);
        let stat_sn = u32_at(bhs, 24);
        let mut counts = self.counts.borrow_mut();
        let due = counts.stat_sn;
        if is_taken {
            counts.stat_sn = due.wrapping_add(1);
        }
        if stat_sn != due {
            self.fault(format!("StatSN {stat_sn} where {due} was due"));
        }
    }

    fn window(&self, bhs: &[u8; 48]) {
        let (expected, max) = (u32_at(bhs, 28), u32_at(bhs, 32));
        let mut counts = self.counts.borrow_mut();
        let is_sane = expected >= counts.exp_cmd_sn
            && expected <= counts.cmd_sn
            && max >= counts.max_cmd_sn
            && max + 1 >= expected;
        let before = *counts;
        (counts.exp_cmd_sn, counts.max_cmd_sn) = (expected, max);
        drop(counts);
        if !is_sane {
            self.fault(format!(
                "ExpCmdSN {expected}, MaxCmdSN {max} after {before:?}"
            ));
        }
    }

    fn data_in(&self, tag: u32, at: usize, data: &[u8]) {
        let mut history = self.history.lock();
        let len = data.len();
        let now = history.note(format_args!(
            "{} <-- {tag}: {len} bytes of data at {at}",
            self.nexus
        ));
        let sent = history.sent.get_mut(&tag);
        let Some(sent) = sent.filter(|s| s.nexus == self.nexus && s.answer.is_none()) else {
            drop(history);
            return self.fault(format!("data for {tag}, which is not open"));
        };
        sent.last = Some(now);
        match sent.data.get_mut(at..at + data.len()) {
            Some(place) => place.copy_from_slice(data),
            None => history.fault(format!("{tag}: data at {at} beyond its end")),
        }
    }

    fn answered(&self, tag: u32, status: Option<u8>, sense: [u8; 3]) {
        let mut history = self.history.lock();
        let at = history.note(format_args!(
            "{} <-- {tag}: {status:x?} {sense:x?}",
            self.nexus
        ));
        let Some(sent) = history.sent.get_mut(&tag).filter(|s| s.nexus == self.nexus) else {
            drop(history);
            return self.fault(format!("an answer to {tag}, which was never sent"));
        };
        sent.last = Some(at);
        if sent.answer.is_some() {
            history.fault(format!("{tag} is answered twice"));
            return;
        }
        sent.answer = Some(Answer { at, status, sense });
        let lun = match &sent.what {
            SentWhat::Command(command) => command.lun,
            SentWhat::Beside(lun) => *lun,
            SentWhat::Function(_) => return,
        };
        let nexus = &mut history.nexuses[self.nexus];
        match (status, sense[0]) {
            (Some(CHECK_CONDITION), UNIT_ATTENTION) => nexus.told.push((lun, [sense[1], sense[2]])),
            (Some(_), _) => drop(nexus.quiet.entry(lun).or_insert(at)),
            _ => {}
        }
    }

    fn ready_to_transfer(self: &Rc<Self>, pdu: &pdu::R2t) {
        let tag = pdu.initiator_task_tag.get();
        let (offset, len) = (
            pdu.buffer_offset.get(),
            pdu.desired_data_transfer_length.get(),
        );
        let transfer_tag = pdu.target_transfer_tag.get();
        {
            let mut history = self.history.lock();
            let at = history.note(format_args!(
                "{} <-- {tag}: R2T for {len} at {offset}, transfer tag {transfer_tag:x}",
                self.nexus
            ));
            let sent = history.sent.get_mut(&tag);
            let Some(sent) = sent.filter(|s| s.nexus == self.nexus && s.answer.is_none()) else {
                history.fault(format!("R2T for {tag}, which is not open"));
                return;
            };
            sent.last = Some(at);
            sent.r2ts.push((at, None));
        }
        let command = self.commands.borrow()[&tag].clone();
        let end = command.prepared.data_out.len() as u32;
        let open = command.r2ts.borrow().len() + 1;
        let is_right = pdu.r2t_sn.get() == command.r2t_sn.get()
            && offset == command.asked.get()
            && len > 0
            && len <= self.parameters.max_burst_length
            && offset + len <= end
            && open <= usize::from(self.parameters.max_outstanding_r2t);
        if !is_right {
            return self.fault(format!("{tag}: R2T {pdu:?} with {open} open"));
        }
        command.r2t_sn.set(command.r2t_sn.get() + 1);
        command.asked.set(offset + len);
        let range = offset as usize..(offset + len) as usize;
        command.r2ts.borrow_mut().push_back((transfer_tag, range));
        let session = self.clone();
        spawn(async move {
            time::sleep(command.r2t_delay).await;
            session.answer_r2t(tag, &command);
        });
    }

    /// Sends what the oldest open R2T of a command asks for.
    fn answer_r2t(&self, tag: u32, command: &Outgoing) {
        let oldest = command.r2ts.borrow_mut().pop_front();
        let Some((transfer_tag, range)) = oldest.filter(|_| !self.over.get()) else {
            return;
        };
        let what = (command.prepared.lun, transfer_tag);
        let pdus = self.data_out(tag, what, command, range);
        let mut history = self.history.lock();
        let at = history.note(format_args!("{} --> {tag}: that data", self.nexus));
        if let Some(sent) = history.sent.get_mut(&tag) {
            let open = sent
                .r2ts
                .iter_mut()
                .find(|(_, answered)| answered.is_none());
            if let Some((_, answered)) = open {
                *answered = Some(at);
            }
        }
        drop(history);
        self.send_between(pdus);
    }
}

fn u32_at(bhs: &[u8; 48], at: usize) -> u32 {
    u32::from_be_bytes(bhs[at..at + 4].try_into().expect("four bytes"))
}
