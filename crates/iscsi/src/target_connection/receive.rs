//! How a target handles each received PDU: in the login phase, then in full feature phase.

use std::collections::hash_map::Entry::Vacant;

use super::event::{CommandRequest, ReceivedCdb, TargetEvent, TaskManagementRequest};
use super::queue::{Outgoing, StatSn};
use super::task::Task;
use super::{Entry, Owed, TargetConnection, TargetPhase};
use crate::error::{CloseReason, Error};
use crate::login::{FULL_FEATURE, SessionType, TRANSIT, TargetStep};
use crate::lun::LunField;
use crate::pdu::{self, AdditionalHeaders, FINAL, RESERVED_TAG, RequestPdu, opcode, reject_reason};
use crate::sequence::{Admission, CommandWindow};
use crate::status::LoginStatus;
use crate::task::{Direction, RxData, TaskId};
use crate::text;

impl TargetConnection {
    pub(super) fn receive_login(&mut self, bhs: &[u8; 48], data: RxData<'_>) {
        let TargetPhase::Login { owed, .. } = self.phase else {
            return;
        };
        let request = match RequestPdu::parse(bhs) {
            Ok(RequestPdu::Login(request)) => request,
            _ => return self.refuse_login(LoginStatus::INVALID_DURING_LOGIN, None),
        };
        let data = match data.inline() {
            Ok(data) => data,
            Err(error) => return self.fail(error),
        };
        if owed != Owed::Nothing {
            let status = self
                .login
                .wrong("it did not wait for the response to its request");
            return self.refuse_login(status, None);
        }
        self.window_width = self.config.first_width();
        let promised = self.config.first_promise();
        self.window = CommandWindow::new(request.cmd_sn.get(), self.window_width, promised);
        let initiator_task_tag = request.initiator_task_tag.get();
        self.phase = TargetPhase::Login {
            owed: Owed::Nothing,
            initiator_task_tag,
        };
        let step = self.login.receive(request, data);
        self.follow(step, 0);
    }

    /// Carries out the next step of the login; `tsih` accompanies the last response.
    pub(super) fn follow(&mut self, step: TargetStep, tsih: u16) {
        match step {
            TargetStep::Identify(who) => {
                self.set_owed(Owed::Identity);
                self.events.push_back(TargetEvent::LoginRequest(who));
            }
            TargetStep::Begin(who) => {
                self.set_owed(Owed::Session);
                self.events.push_back(TargetEvent::SessionRequest(who));
            }
            TargetStep::Refuse(status) => match self.login.take_failure() {
                Some(failure) => {
                    self.set_owed(Owed::Rejection);
                    let (user, why) = (failure.user, failure.why);
                    self.events
                        .push_back(TargetEvent::AuthenticationFailed { user, why });
                }
                None => self.refuse_login(status, None),
            },
            TargetStep::Respond(flags, text) => {
                self.push_login_response(flags, tsih, LoginStatus::SUCCESS, text);
                if flags & TRANSIT != 0 && flags & 3 == FULL_FEATURE {
                    // The response above was queued earlier, so it still goes without digests.
                    self.parameters = self.login.negotiation().parameters();
                    self.session_type = self.login.who().session_type;
                    self.phase = TargetPhase::FullFeature;
                    self.events
                        .push_back(TargetEvent::LoggedIn(self.parameters.clone()));
                }
            }
        }
    }

    fn push_login_response(&mut self, flags: u8, tsih: u16, status: LoginStatus, text: Vec<u8>) {
        let TargetPhase::Login {
            initiator_task_tag, ..
        } = self.phase
        else {
            return;
        };
        let header = pdu::LoginResponse {
            opcode: opcode::LOGIN_RESPONSE,
            flags,
            data_segment_length: pdu::u24(text.len()),
            isid: self.login.who().isid.0,
            tsih: tsih.into(),
            initiator_task_tag: initiator_task_tag.into(),
            status: status.0.into(),
            ..Default::default()
        };
        self.push_ready(header.to_bytes(), text, StatSn::Taken);
    }

    pub(super) fn refuse_login(&mut self, status: LoginStatus, target_address: Option<&str>) {
        let mut text = Vec::new();
        if let Some(address) = target_address {
            text::push(&mut text, "TargetAddress", address);
        }
        self.push_login_response(0, 0, status, text);
        let target_address = target_address.map(str::to_owned);
        self.close(CloseReason::LoginRefused {
            status,
            target_address,
        });
    }

    fn set_owed(&mut self, now: Owed) {
        if let TargetPhase::Login { owed, .. } = &mut self.phase {
            *owed = now;
        }
    }

    pub(super) fn take_owed(&mut self, answer: Owed) -> Result<(), Error> {
        match &mut self.phase {
            TargetPhase::Login { owed, .. } if *owed == answer => {
                *owed = Owed::Nothing;
                Ok(())
            }
            _ => Err(Error::WrongState("no such login event is open")),
        }
    }

    pub(super) fn receive_request(&mut self, bhs: &[u8; 48], ahs: &[u8], data: RxData<'_>) {
        if self.queued_replies > 2 * self.config.queued_replies_max {
            // The driver keeps reading although `wants_read` is false.
            let max = 2 * self.config.queued_replies_max;
            return self.fail(Error::Limit {
                what: "queued replies",
                max,
            });
        }
        let discovery = self.session_type == SessionType::Discovery;
        match RequestPdu::parse(bhs) {
            Err(_) => self.push_reject(reject_reason::COMMAND_NOT_SUPPORTED, bhs),
            Ok(RequestPdu::Snack) => self.push_reject(reject_reason::SNACK_REJECT, bhs),
            Ok(RequestPdu::DataOut(request)) if !discovery => self.data_out(bhs, request, data),
            Ok(RequestPdu::ScsiCommand(request)) if !discovery => {
                self.scsi_command(bhs, request, ahs, data);
            }
            Ok(RequestPdu::TaskManagement(request)) if !discovery => {
                self.function(bhs, request);
            }
            Ok(RequestPdu::NopOut(request)) => self.nop_out(bhs, request, data),
            Ok(RequestPdu::Text(request)) => self.text_request(bhs, request, data),
            Ok(RequestPdu::Logout(request)) => self.logout_request(bhs, request),
            Ok(RequestPdu::Login(_) | RequestPdu::DataOut(_)) => {
                let opcode = pdu::Bhs::of(bhs).opcode();
                self.violation(
                    bhs,
                    Error::UnexpectedOpcode {
                        opcode,
                        phase: "in this session",
                    },
                );
            }
            Ok(RequestPdu::ScsiCommand(_) | RequestPdu::TaskManagement(_)) => {
                // A discovery session accepts nothing that addresses a unit (§4.3), but the CmdSN still counts.
                if self.admit(bhs) {
                    self.release_unless_immediate(bhs);
                    self.push_reject(reject_reason::PROTOCOL_ERROR, bhs);
                }
            }
        }
    }

    /// Checks the CmdSN of a request; false if the request must not be processed.
    pub(super) fn admit(&mut self, bhs: &[u8; 48]) -> bool {
        if is_immediate(bhs) {
            return true;
        }
        // At the same offset in every request that has one.
        let cmd_sn = u32::from_be_bytes([bhs[24], bhs[25], bhs[26], bhs[27]]);
        match self.window.admit(cmd_sn) {
            Admission::Next => true,
            Admission::Ignored => false,
            Admission::Gap => {
                let expected = self.window.expected();
                let (pdu, field) = ("request", "CmdSN");
                self.violation(
                    bhs,
                    Error::Sequence {
                        pdu,
                        field,
                        received: cmd_sn,
                        expected,
                    },
                );
                false
            }
        }
    }

    /// Releases the window slot of a request that ends as soon as it is answered.
    pub(super) fn release_unless_immediate(&mut self, bhs: &[u8; 48]) {
        if !is_immediate(bhs) {
            self.window.release();
        }
    }

    /// Gives an admitted request its task ID; `None` if it must not be processed.
    fn insert(&mut self, bhs: &[u8; 48], entry: Entry) -> Option<TaskId> {
        let immediate = is_immediate(bhs);
        let tag = u32::from_be_bytes(pdu::Bhs::of(bhs).initiator_task_tag);
        let (true, Vacant(place)) = (tag != RESERVED_TAG, self.tags.entry(tag)) else {
            let field = "Initiator Task Tag";
            let why = "an open task already has this tag";
            let error = Error::Field {
                pdu: "request",
                field,
                value: u64::from(tag),
                why,
            };
            self.violation(bhs, error);
            return None;
        };
        if immediate && self.immediate_open >= usize::from(self.config.immediate_max) {
            self.push_reject(reject_reason::IMMEDIATE_COMMAND_REJECT, bhs);
            return None;
        }
        // The window limits the others to less than the slab's size.
        let id = self.tasks.insert(entry)?;
        place.insert(id);
        if immediate {
            self.immediate_open += 1;
        }
        Some(id)
    }

    fn scsi_command(
        &mut self,
        bhs: &[u8; 48],
        request: &pdu::ScsiCommand,
        ahs: &[u8],
        data: RxData<'_>,
    ) {
        if !self.admit(bhs) {
            return;
        }
        let transfer = match self.transfer(request, ahs, data.len()) {
            Ok(transfer) => transfer,
            Err(error) => return self.violation(bhs, error),
        };
        let immediate = is_immediate(bhs);
        let task = Task::new(
            request.initiator_task_tag.get(),
            request.lun.get(),
            immediate,
            transfer.direction,
            transfer.read_len,
            transfer.write_len,
            data.len(),
            transfer.unsolicited_end,
        );
        let Some(task) = self.insert(bhs, Entry::Command(task)) else {
            return;
        };
        self.events.push_back(TargetEvent::Command(CommandRequest {
            task,
            lun: LunField(request.lun.get()),
            cdb: ReceivedCdb::new(request.cdb, transfer.extended_cdb),
            attribute: request.flags & pdu::ScsiCommand::ATTRIBUTE,
            direction: transfer.direction,
            read_len: transfer.read_len,
            write_len: transfer.write_len,
            immediate_len: data.len(),
            unsolicited_len: transfer.unsolicited_end.unwrap_or(data.len()),
            immediate,
            asks_stage_times: self.parameters.stage_times
                && request.asks & pdu::ScsiCommand::STAGE_TIMES != 0,
        }));
    }

    /// Checks the lengths and directions of a command against what was negotiated (§11.3).
    fn transfer<'a>(
        &self,
        request: &pdu::ScsiCommand,
        ahs: &'a [u8],
        immediate_len: u32,
    ) -> Result<DataTransfer<'a>, Error> {
        let additional = AdditionalHeaders::parse(ahs)?;
        let expected = request.expected_data_transfer_length.get();
        let (reads, writes) = (
            request.flags & pdu::ScsiCommand::READ != 0,
            request.flags & pdu::ScsiCommand::WRITE != 0,
        );
        let bidirectional_len = additional.read_length.unwrap_or(0);
        let (direction, read_len, write_len) = match (reads, writes) {
            (false, false) => (Direction::None, 0, 0),
            (true, false) => (Direction::Read, expected, 0),
            (false, true) => (Direction::Write, 0, expected),
            (true, true) => (Direction::Bidirectional, bidirectional_len, expected),
        };
        let field = |field, value: u32, why| Error::Field {
            pdu: "SCSI Command",
            field,
            value: u64::from(value),
            why,
        };
        let unsolicited_max = write_len.min(self.parameters.first_burst_length);
        let immediate_max = if self.parameters.immediate_data {
            unsolicited_max
        } else {
            0
        };
        if immediate_len > immediate_max {
            let why = "immediate data is limited by ImmediateData, FirstBurstLength and EDTL";
            return Err(field("DataSegmentLength", immediate_len, why));
        }
        let more = request.flags & FINAL == 0;
        if more && (!writes || self.parameters.initial_r2t) {
            let why = "F must be 1: no unsolicited Data-Out may follow";
            return Err(field("flags", request.flags.into(), why));
        }
        let unsolicited_end = more
            .then_some(unsolicited_max)
            .filter(|end| *end > immediate_len);
        let extended_cdb = additional.extended_cdb;
        Ok(DataTransfer {
            direction,
            read_len,
            write_len,
            unsolicited_end,
            extended_cdb,
        })
    }

    fn data_out(&mut self, bhs: &[u8; 48], request: &pdu::DataOut, data: RxData<'_>) {
        // Data for an aborted task or an ignored command is dropped.
        let Some(&id) = self.tags.get(&request.initiator_task_tag.get()) else {
            return;
        };
        let Some(Entry::Command(task)) = self.tasks.get_mut(id) else {
            return;
        };
        let failed_before = task.failed;
        match task.data_out(request, data.len()) {
            Err(error) => self.violation(bhs, error),
            Ok(place) => {
                if task.failed && !failed_before {
                    // The driver drops the command, and with it the data queued for sending.
                    self.outgoing.retain(
                        |entry| !matches!(entry, Outgoing::DataIn { task, .. } if *task == id),
                    );
                    self.events.push_back(TargetEvent::Failed { task: id });
                }
                if place.len > 0 {
                    let (offset, len) = (place.offset, place.len);
                    self.events.push_back(TargetEvent::DataOut {
                        task: id,
                        offset,
                        len,
                    });
                }
                self.advance_write(id);
            }
        }
    }

    fn function(&mut self, bhs: &[u8; 48], request: &pdu::TaskManagementRequest) {
        if !self.admit(bhs) {
            return;
        }
        let immediate = is_immediate(bhs);
        let initiator_task_tag = request.initiator_task_tag.get();
        let entry = Entry::Function {
            initiator_task_tag,
            immediate,
            answered: false,
        };
        let Some(task) = self.insert(bhs, entry) else {
            return;
        };
        let referenced = self.tags.get(&request.referenced_task_tag.get()).copied();
        let referenced =
            referenced.filter(|id| matches!(self.tasks.get(*id), Some(Entry::Command(_))));
        self.events
            .push_back(TargetEvent::TaskManagement(TaskManagementRequest {
                task,
                function: request.function & 0x7f,
                lun: LunField(request.lun.get()),
                referenced,
                immediate,
            }));
    }

    /// Admits a request that is answered at once, and returns its data; `None` if it must not be processed.
    pub(super) fn admit_inline<'a>(
        &mut self,
        bhs: &[u8; 48],
        data: RxData<'a>,
    ) -> Option<&'a [u8]> {
        match data.inline() {
            Ok(data) if self.admit(bhs) => {
                self.release_unless_immediate(bhs);
                Some(data)
            }
            Ok(_) => None,
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn nop_out(&mut self, bhs: &[u8; 48], request: &pdu::NopOut, data: RxData<'_>) {
        let Some(data) = self.admit_inline(bhs, data) else {
            return;
        };
        if request.initiator_task_tag.get() == RESERVED_TAG {
            let tag = request.target_transfer_tag.get();
            if self.ping.take_if(|ping| ping.tag == tag).is_some() {
                self.events.push_back(TargetEvent::Pong);
            }
            return;
        }
        if self.session_type == SessionType::Discovery {
            return self.push_reject(reject_reason::PROTOCOL_ERROR, bhs);
        }
        let len = data
            .len()
            .min(self.parameters.max_send_data_segment_length as usize);
        let header = pdu::NopIn {
            opcode: opcode::NOP_IN,
            flags: FINAL,
            data_segment_length: pdu::u24(len),
            lun: request.lun,
            initiator_task_tag: request.initiator_task_tag,
            target_transfer_tag: RESERVED_TAG.into(),
            ..Default::default()
        };
        self.push_reply(header.to_bytes(), data[..len].to_vec(), StatSn::Taken);
    }
}

/// What a command says about its data transfer.
struct DataTransfer<'a> {
    direction: Direction,
    read_len: u32,
    write_len: u32,
    unsolicited_end: Option<u32>,
    extended_cdb: &'a [u8],
}

fn is_immediate(bhs: &[u8; 48]) -> bool {
    bhs[0] & opcode::IMMEDIATE != 0
}
