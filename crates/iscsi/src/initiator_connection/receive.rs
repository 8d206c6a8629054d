//! How an initiator handles each received PDU: in the login phase, then in full feature phase.

use super::event::{InitiatorEvent, Residual, TaskResult};
use super::{ABORT_TASK, InitiatorConnection, InitiatorPhase, TagEntry};
use crate::error::{CloseReason, Error};
use crate::login::InitiatorStep;
use crate::pdu::{self, FINAL, RESERVED_TAG, ResponsePdu, opcode};
use crate::sequence::before;
use crate::stage_times::StageTimes;
use crate::status::LoginStatus;
use crate::task::{RxData, TaskId};
use crate::text;

/// Maximum number of Text Responses in one discovery.
const TEXT_ROUNDS_MAX: u32 = 4096;

impl InitiatorConnection {
    pub(super) fn receive_login(&mut self, bhs: &[u8; 48], data: RxData<'_>) -> Result<(), Error> {
        let ResponsePdu::Login(response) = ResponsePdu::parse(bhs)? else {
            let opcode = pdu::Bhs::of(bhs).opcode();
            return Err(Error::UnexpectedOpcode {
                opcode,
                phase: "during login",
            });
        };
        let data = data.inline()?;
        // StatSN is meaningless in a refusal (§11.13.4); tgt leaves it 0.
        if LoginStatus(response.status.get()).class() == 0 {
            self.exp_stat_sn.get_or_insert(response.stat_sn.get());
            self.take_stat_sn(bhs)?;
        }
        match self.login.receive(response, data) {
            Err(reason) => self.close(reason),
            Ok(InitiatorStep::Request(flags, text)) => self.push_login(flags, text),
            Ok(InitiatorStep::Done(tsih)) => {
                self.parameters = self.login.negotiation().parameters();
                self.phase = InitiatorPhase::FullFeature;
                // The first command uses the CmdSN of the Login Request (§4.2.2.1).
                self.max_cmd_sn = self.cmd_sn.wrapping_sub(1);
                self.take_window(bhs);
                let parameters = self.parameters.clone();
                self.events.push_back(InitiatorEvent::LoggedIn {
                    tsih,
                    portal_group_tag: self.login.portal_group_tag(),
                    parameters,
                });
            }
        }
        Ok(())
    }

    pub(super) fn receive_response(
        &mut self,
        bhs: &[u8; 48],
        ahs: &[u8],
        data: RxData<'_>,
    ) -> Result<(), Error> {
        if self.queued_replies > 2 * super::QUEUED_REPLIES_MAX {
            // The driver keeps reading although `wants_read` is false.
            return Err(Error::Limit {
                what: "queued replies",
                max: super::QUEUED_REPLIES_MAX,
            });
        }
        if !ahs.is_empty() {
            let (len, max) = (ahs.len() as u32, 0);
            return Err(Error::AhsTooLong { len, max });
        }
        let pdu = ResponsePdu::parse(bhs)?;
        self.take_window(bhs);
        match pdu {
            ResponsePdu::DataIn(pdu) => self.data_in(bhs, pdu, data.len()),
            ResponsePdu::R2t(r2t) => self.r2t(r2t),
            ResponsePdu::NopIn(nop) => self.nop_in(bhs, nop, data.inline()?),
            ResponsePdu::Login(_) => {
                let opcode = opcode::LOGIN_RESPONSE;
                Err(Error::UnexpectedOpcode {
                    opcode,
                    phase: "after login",
                })
            }
            // All other PDUs carry status.
            pdu => {
                self.take_stat_sn(bhs)?;
                let data = data.inline()?;
                match pdu {
                    ResponsePdu::ScsiResponse(response) => {
                        return self.scsi_response(bhs, response, data);
                    }
                    ResponsePdu::TaskManagement(response) => self.function_response(response),
                    ResponsePdu::Text(response) => return self.text_response(response, data),
                    ResponsePdu::Async(message) => self.async_message(message, data),
                    ResponsePdu::Reject(reject) => self.reject(reject, data),
                    ResponsePdu::Logout(response) => {
                        let id = self.tasks.find_tag(response.initiator_task_tag.get());
                        let id = id.filter(|id| self.tasks.get(*id).is_some_and(is_logout));
                        if id.is_some() {
                            self.close(CloseReason::Logout);
                        }
                    }
                    _ => {}
                }
                Ok(())
            }
        }
    }

    /// Checks that a PDU with status has the expected StatSN: at ErrorRecoveryLevel 0, a lost status cannot be
    /// recovered.
    fn take_stat_sn(&mut self, bhs: &[u8; 48]) -> Result<(), Error> {
        let numbers: &pdu::Numbers = zerocopy::transmute_ref!(bhs);
        let received = numbers.stat_sn.get();
        let expected = self.exp_stat_sn.unwrap_or(received);
        if received != expected {
            return Err(Error::Sequence {
                pdu: "response",
                field: "StatSN",
                received,
                expected,
            });
        }
        self.exp_stat_sn = Some(received.wrapping_add(1));
        Ok(())
    }

    /// Updates MaxCmdSN as §4.2.2.1 says: never backwards, and only from a consistent pair.
    fn take_window(&mut self, bhs: &[u8; 48]) {
        let numbers: &pdu::Numbers = zerocopy::transmute_ref!(bhs);
        let (expected, max) = (numbers.exp_cmd_sn.get(), numbers.max_cmd_sn.get());
        if !before(max, expected.wrapping_sub(1)) && before(self.max_cmd_sn, max) {
            self.max_cmd_sn = max;
        }
    }

    /// The command that a tag refers to; `None` if it has ended.
    fn open_command(
        &mut self,
        tag: u32,
    ) -> Result<Option<(TaskId, &mut super::InitiatorTask)>, Error> {
        let Some(id) = self.tasks.find_tag(tag) else {
            return Ok(None);
        };
        let Some(TagEntry::Command(task)) = self.tasks.get_mut(id) else {
            return Ok(None);
        };
        if !task.sent {
            let (pdu, field) = ("response", "Initiator Task Tag");
            let why = "this command has not been sent yet";
            return Err(Error::Field {
                pdu,
                field,
                value: tag.into(),
                why,
            });
        }
        Ok(Some((id, task)))
    }

    fn data_in(&mut self, bhs: &[u8; 48], pdu: &pdu::DataIn, len: u32) -> Result<(), Error> {
        let carries_status = pdu.flags & pdu::STATUS != 0;
        if carries_status {
            self.take_stat_sn(bhs)?;
        }
        // Data of an aborted task is dropped.
        let Some(id) = self.tasks.find_tag(pdu.initiator_task_tag.get()) else {
            return Ok(());
        };
        let Some(TagEntry::Command(task)) = self.tasks.get_mut(id) else {
            return Ok(());
        };
        let offset = task.data_in(pdu, len)?;
        if len > 0 {
            self.events.push_back(InitiatorEvent::DataIn {
                task: id,
                offset,
                len,
            });
        }
        if carries_status {
            let moved = task.transferred(pdu.flags, pdu.residual_count.get());
            let told = task.asks_stage_times.then(|| StageTimes::of_header(bhs));
            self.complete(id, pdu.status, Vec::new(), moved, told);
        }
        Ok(())
    }

    fn complete(
        &mut self,
        task: TaskId,
        status: u8,
        sense: Vec<u8>,
        (residual, transferred): (Residual, u32),
        stage_times: Option<StageTimes>,
    ) {
        self.finish(
            task,
            TaskResult::Completed {
                status,
                sense,
                residual,
                transferred,
                stage_times,
            },
        );
    }

    fn r2t(&mut self, r2t: &pdu::R2t) -> Result<(), Error> {
        let Some(id) = self.tasks.find_tag(r2t.initiator_task_tag.get()) else {
            return Ok(());
        };
        let Some(TagEntry::Command(task)) = self.tasks.get_mut(id) else {
            return Ok(());
        };
        let end = task.r2t(r2t, &self.parameters)?;
        self.outgoing.push_back(super::InitiatorEntry::DataOut {
            task: id,
            tag: r2t.target_transfer_tag.get(),
            lun: r2t.lun.get(),
            offset: r2t.buffer_offset.get(),
            end,
            data_sn: 0,
        });
        Ok(())
    }

    fn scsi_response(
        &mut self,
        bhs: &[u8; 48],
        response: &pdu::ScsiResponse,
        data: &[u8],
    ) -> Result<(), Error> {
        let Some((id, task)) = self.open_command(response.initiator_task_tag.get())? else {
            return Ok(());
        };
        let moved = task.transferred(response.flags, response.residual_count.get());
        let told = task.asks_stage_times.then(|| StageTimes::of_header(bhs));
        match response.response {
            0 => self.complete(id, response.status, sense_of(data), moved, told),
            response => self.finish(id, TaskResult::TargetFailure { response }),
        }
        Ok(())
    }

    fn function_response(&mut self, response: &pdu::TaskManagementResponse) {
        let Some(id) = self.tasks.find_tag(response.initiator_task_tag.get()) else {
            return;
        };
        self.finish_function(id, response.response);
    }

    fn finish_function(&mut self, id: TaskId, response: u8) {
        let Some(&TagEntry::Function {
            function,
            lun,
            referenced,
            cmd_sn,
        }) = self.tasks.get(id)
        else {
            return;
        };
        self.tasks.remove(id);
        match (function, response) {
            // A task unknown to the target will not end by itself either.
            (ABORT_TASK, 0 | 1) => {
                if let Some(task) = referenced {
                    self.finish(task, TaskResult::Aborted);
                }
            }
            // Abort task set, clear task set and logical unit reset affect one unit; target resets affect all.
            (2 | 4 | 5, 0) => self.abort_where(|task| task.lun == lun, cmd_sn),
            (6 | 7, 0) => self.abort_where(|_| true, cmd_sn),
            _ => {}
        }
        self.events
            .push_back(InitiatorEvent::TaskManagementDone { task: id, response });
    }

    /// Ends the matching tasks that were sent before `cmd_sn`.
    fn abort_where(&mut self, matches: impl Fn(&super::InitiatorTask) -> bool, cmd_sn: u32) {
        let ended: Vec<TaskId> = self.tasks.ids().collect();
        for id in ended {
            let Some(TagEntry::Command(task)) = self.tasks.get(id) else {
                continue;
            };
            if matches(task) && before(task.cmd_sn, cmd_sn) {
                self.finish(id, TaskResult::Aborted);
            }
        }
    }

    fn nop_in(&mut self, bhs: &[u8; 48], nop: &pdu::NopIn, data: &[u8]) -> Result<(), Error> {
        let tag = nop.initiator_task_tag.get();
        if tag != RESERVED_TAG {
            self.take_stat_sn(bhs)?;
            let id = self.tasks.find_tag(tag);
            if let Some(ping) = self.ping.take_if(|ping| Some(ping.task) == id) {
                self.tasks.remove(ping.task);
                self.events.push_back(InitiatorEvent::Pong);
            }
            return Ok(());
        }
        let target_tag = nop.target_transfer_tag.get();
        if target_tag != RESERVED_TAG {
            let len = data
                .len()
                .min(self.parameters.max_send_data_segment_length as usize);
            let echo = data[..len].to_vec();
            self.push_nop_out(RESERVED_TAG, target_tag, nop.lun.get(), echo, true);
        }
        Ok(())
    }

    fn text_response(&mut self, response: &pdu::TextResponse, data: &[u8]) -> Result<(), Error> {
        let Some(id) = self.tasks.find_tag(response.initiator_task_tag.get()) else {
            return Ok(());
        };
        let Some(TagEntry::Text { text, rounds }) = self.tasks.get_mut(id) else {
            return Ok(());
        };
        text.append(data)?;
        if response.flags & FINAL == 0 {
            *rounds += 1;
            let tag = response.target_transfer_tag.get();
            if *rounds > TEXT_ROUNDS_MAX || tag == RESERVED_TAG {
                let (what, max) = ("Text Responses in one exchange", TEXT_ROUNDS_MAX as usize);
                return Err(Error::Limit { what, max });
            }
            self.push_text(id, tag, Vec::new());
            return Ok(());
        }
        let targets = text::decode_targets(&text.take())?;
        self.tasks.remove(id);
        self.discovering = false;
        self.events.push_back(InitiatorEvent::Targets(targets));
        Ok(())
    }

    fn async_message(&mut self, message: &pdu::AsyncMessage, data: &[u8]) {
        let [one, two, three] = [message.parameter1, message.parameter2, message.parameter3];
        self.events.push_back(InitiatorEvent::AsyncMessage {
            event: message.event,
            parameters: [one.get(), two.get(), three.get()],
            sense: if message.event == 0 {
                sense_of(data)
            } else {
                Vec::new()
            },
        });
        // 2: this connection is dropped; 3: all connections of the session are.
        if matches!(message.event, 2 | 3) {
            self.close(CloseReason::DroppedByPeer);
        }
    }

    /// Handles a Reject: a refused command or function ends, a refused Data-Out is followed by a response (§11.17.1),
    /// and any other refusal is reported to the driver.
    fn reject(&mut self, reject: &pdu::Reject, data: &[u8]) {
        let reason = reject.reason;
        let refused = data.first_chunk::<48>().map(pdu::Bhs::of);
        let tag = refused.map_or(RESERVED_TAG, |bhs| {
            u32::from_be_bytes(bhs.initiator_task_tag)
        });
        let id = self.tasks.find_tag(tag);
        // The target chose the header's opcode: it must match the request with this tag.
        let named = id.and_then(|id| Some((id, self.tasks.get(id)?)));
        match (refused.map(pdu::Bhs::opcode), named) {
            (Some(opcode::SCSI_COMMAND), Some((id, TagEntry::Command(_)))) => {
                self.finish(id, TaskResult::Rejected { reason });
            }
            (Some(opcode::TASK_MANAGEMENT_REQUEST), Some((id, TagEntry::Function { .. }))) => {
                self.finish_function(id, 255);
            }
            (Some(opcode::NOP_OUT), Some((id, TagEntry::Ping))) => {
                // The target is alive, whatever it makes of pings.
                self.ping = None;
                self.tasks.remove(id);
                self.events.push_back(InitiatorEvent::Pong);
            }
            (Some(opcode::TEXT_REQUEST), Some((id, TagEntry::Text { .. }))) => {
                self.tasks.remove(id);
                self.discovering = false;
                self.events.push_back(InitiatorEvent::Rejected { reason });
            }
            _ => self.events.push_back(InitiatorEvent::Rejected { reason }),
        }
    }
}

fn is_logout(entry: &TagEntry) -> bool {
    matches!(entry, TagEntry::Logout)
}

/// The sense data of a response or SCSI event: a two-byte length, then at most that many bytes.
fn sense_of(data: &[u8]) -> Vec<u8> {
    let Some((length, rest)) = data.split_first_chunk::<2>() else {
        return Vec::new();
    };
    let len = usize::from(u16::from_be_bytes(*length)).min(rest.len());
    rest[..len].to_vec()
}
