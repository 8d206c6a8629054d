//! Text and logout exchanges at the target (RFC 7143 §11.10, §11.14). Only one text exchange is open at a time; the
//! text it collects and the text it sends are bounded.

use super::event::{SendTargets, TargetEvent};
use super::queue::StatSn;
use super::{LogoutExchange, TargetConnection, TargetPhase};
use crate::error::Error;
use crate::login::SessionType;
use crate::params;
use crate::pdu::{self, CONTINUE, FINAL, RESERVED_TAG, opcode, reject_reason};
use crate::task::RxData;
use crate::text::{self, TextBuffer};

/// The Target Transfer Tag of our Text Responses during an exchange; with only one exchange, one tag is enough.
const TEXT_TAG: u32 = 1;

/// How much of the answer to an initiator's pairs is worked out at a time, in bytes.
const ANSWERED_AT_A_TIME_BYTES: usize = 2 << 10;

/// The longest text that a discovery session may send, in bytes. Anybody may have such a session, and asks for targets.
const DISCOVERY_TEXT_LEN_MAX: usize = 4 << 10;

/// Logout response: connection recovery is not supported.
const RECOVERY_NOT_SUPPORTED: u8 = 2;

#[derive(Debug)]
pub(super) struct TextExchange {
    initiator_task_tag: u32,
    incoming: TextBuffer,
    /// Complete text that is not answered yet: the pairs of 16 KiB are answered with as much as the initiator takes at
    /// a time, so that no request costs more than another.
    unanswered: Vec<u8>,
    /// What it has asked the driver for, once all pairs are answered.
    asks: Option<SendTargets>,
    /// The text to send, and how much of it has been sent.
    outgoing: Vec<u8>,
    sent: usize,
    /// Whether the initiator has sent all its text.
    is_final: bool,
    /// Whether the driver owes an answer to `SendTargets`.
    asking: bool,
}

impl TextExchange {
    pub(super) fn is_asking(&self) -> bool {
        self.asking
    }

    /// Whether there is text to send.
    pub(super) fn has_rest(&self) -> bool {
        self.sent < self.outgoing.len() || !self.unanswered.is_empty()
    }
}

impl TargetConnection {
    pub(super) fn text_request(
        &mut self,
        bhs: &[u8; 48],
        request: &pdu::TextRequest,
        data: RxData<'_>,
    ) {
        let Some(data) = self.admit_inline(bhs, data) else {
            return;
        };
        let initiator_task_tag = request.initiator_task_tag.get();
        let text_len_max = match self.session_type {
            SessionType::Normal => self.config.text_len_max,
            SessionType::Discovery => self.config.text_len_max.min(DISCOVERY_TEXT_LEN_MAX),
        };
        let current = self
            .text
            .take_if(|text| !text.asking && text.initiator_task_tag == initiator_task_tag);
        let exchange = match (request.target_transfer_tag.get(), current) {
            // A reserved tag starts over (§11.10.4), unless the driver is still working on the last exchange.
            (RESERVED_TAG, _) if self.text.as_ref().is_none_or(|text| !text.asking) => {
                Some(TextExchange {
                    initiator_task_tag,
                    incoming: TextBuffer::new(text_len_max),
                    unanswered: Vec::new(),
                    asks: None,
                    outgoing: Vec::new(),
                    sent: 0,
                    is_final: false,
                    asking: false,
                })
            }
            (TEXT_TAG, current) => current,
            _ => None,
        };
        let Some(mut exchange) = exchange else {
            return self.push_reject(reject_reason::INVALID_PDU_FIELD, bhs);
        };
        if let Err(error) = exchange.incoming.append(data) {
            return self.violation(bhs, error);
        }
        exchange.is_final = request.flags & FINAL != 0;
        if request.flags & CONTINUE != 0 {
            self.push_text_response(initiator_task_tag, 0, Vec::new());
            self.text = Some(exchange);
            return;
        }
        exchange.unanswered.extend(exchange.incoming.take());
        if let Err(error) = self.answer_pairs(&mut exchange) {
            return self.violation(bhs, error);
        }
        match exchange.asks.take_if(|_| exchange.unanswered.is_empty()) {
            Some(which) => {
                exchange.asking = true;
                self.events.push_back(TargetEvent::SendTargets(which));
                self.text = Some(exchange);
            }
            None => self.send_text(exchange),
        }
    }

    /// Answers pairs until there is enough to send, except SendTargets, which the driver must answer after them.
    fn answer_pairs(&mut self, exchange: &mut TextExchange) -> Result<(), Error> {
        let unanswered = std::mem::take(&mut exchange.unanswered);
        let mut rest = &unanswered[..];
        while exchange.outgoing.len() - exchange.sent < ANSWERED_AT_A_TIME_BYTES {
            let Some((pair, len)) = text::next_pair(rest) else {
                return Ok(());
            };
            rest = &rest[len..];
            match pair? {
                ("SendTargets", "All") if self.session_type == SessionType::Discovery => {
                    exchange.asks = Some(SendTargets::All);
                }
                ("SendTargets", "") if self.session_type == SessionType::Normal => {
                    exchange.asks = Some(SendTargets::Session);
                }
                ("SendTargets", name) if !matches!(name, "" | "All") => {
                    exchange.asks = Some(SendTargets::Named(text::folded_name(name)));
                }
                ("MaxRecvDataSegmentLength", value) => match text::number(value) {
                    Some(len @ 512..0x100_0000) => {
                        self.parameters.max_send_data_segment_length = len;
                    }
                    _ => text::push(&mut exchange.outgoing, "MaxRecvDataSegmentLength", "Reject"),
                },
                // Known keys are only allowed in the login.
                (key, _) if params::is_known(key) => {
                    text::push(&mut exchange.outgoing, key, "Reject");
                }
                (key, _) => text::push(&mut exchange.outgoing, key, "NotUnderstood"),
            }
        }
        exchange.unanswered = rest.to_vec();
        Ok(())
    }

    pub(super) fn answer_send_targets(&mut self, targets: &[u8]) -> Result<(), Error> {
        let Some(mut exchange) = self.text.take_if(|text| text.asking) else {
            return Err(Error::WrongState("no SendTargets is open"));
        };
        exchange.asking = false;
        exchange.outgoing.extend_from_slice(targets);
        self.send_text(exchange);
        Ok(())
    }

    /// Sends the next piece. The exchange ends with the last piece if the initiator agrees.
    fn send_text(&mut self, mut exchange: TextExchange) {
        let max = self.parameters.max_send_data_segment_length as usize;
        let left = &exchange.outgoing[exchange.sent..];
        let piece = left[..left.len().min(max)].to_vec();
        let is_last = piece.len() == left.len() && exchange.unanswered.is_empty();
        exchange.sent += piece.len();
        let flags = match (is_last, exchange.is_final) {
            (true, true) => FINAL,
            (true, false) => 0,
            (false, _) => CONTINUE,
        };
        self.push_text_response(exchange.initiator_task_tag, flags, piece);
        if flags != FINAL {
            if exchange.sent == exchange.outgoing.len() {
                exchange.outgoing = Vec::new();
                exchange.sent = 0;
            }
            self.text = Some(exchange);
        }
    }

    fn push_text_response(&mut self, initiator_task_tag: u32, flags: u8, text: Vec<u8>) {
        let tag = if flags & FINAL != 0 {
            RESERVED_TAG
        } else {
            TEXT_TAG
        };
        let header = pdu::TextResponse {
            opcode: opcode::TEXT_RESPONSE,
            flags,
            data_segment_length: pdu::u24(text.len()),
            initiator_task_tag: initiator_task_tag.into(),
            target_transfer_tag: tag.into(),
            ..Default::default()
        };
        self.push_reply(header.to_bytes(), text, StatSn::Taken);
    }

    pub(super) fn logout_request(&mut self, bhs: &[u8; 48], request: &pdu::LogoutRequest) {
        if !self.admit(bhs) {
            return;
        }
        self.release_unless_immediate(bhs);
        let reason = request.reason & 0x7f;
        let initiator_task_tag = request.initiator_task_tag.get();
        if self.logout.is_some() {
            return self.push_reject(reject_reason::WAITING_FOR_LOGOUT, bhs);
        }
        if reason > 1 {
            return self.push_logout_response(initiator_task_tag, RECOVERY_NOT_SUPPORTED);
        }
        self.logout = Some(LogoutExchange {
            initiator_task_tag,
            answered: false,
        });
        self.events.push_back(TargetEvent::Logout { reason });
    }

    pub(super) fn answer_logout(&mut self, response: u8) -> Result<(), Error> {
        let logout = self.logout.as_mut().filter(|logout| !logout.answered);
        let Some(logout) = logout.filter(|_| self.phase == TargetPhase::FullFeature) else {
            return Err(Error::WrongState("no Logout is open"));
        };
        logout.answered = true;
        let tag = logout.initiator_task_tag;
        // The connection ends once this has been sent, after everything queued before it.
        self.push_logout_response(tag, response);
        Ok(())
    }

    fn push_logout_response(&mut self, initiator_task_tag: u32, response: u8) {
        let header = pdu::LogoutResponse {
            opcode: opcode::LOGOUT_RESPONSE,
            flags: FINAL,
            response,
            initiator_task_tag: initiator_task_tag.into(),
            time2wait: self.parameters.default_time2wait_s.into(),
            time2retain: self.parameters.default_time2retain_s.into(),
            ..Default::default()
        };
        self.push_reply(header.to_bytes(), Vec::new(), StatSn::Taken);
    }
}
