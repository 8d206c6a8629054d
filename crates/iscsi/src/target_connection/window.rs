//! What the initiator may send before it is asked: how many commands (RFC 7143 §4.2.2.1), and how much data with each.

use super::queue::StatSn;
use super::{TargetConnection, TargetPhase};
use crate::pdu::{self, FINAL, RESERVED_TAG, opcode};

impl TargetConnection {
    /// Whether as many commands are open as may be, so that the initiator may be waiting for a wider window.
    pub fn is_window_full(&self) -> bool {
        self.window.is_full()
    }

    /// Lets `by` more commands be on their way to us, within the command window; the initiator learns of it with the next
    /// PDU. Only where the driver [promises](TargetConfig::promises): without it the window is as wide as its width says.
    pub fn promise(&mut self, by: u32) {
        self.window.promise(by);
    }

    /// How many commands may be on their way; each that arrives takes one. `None`: as many as the window permits.
    pub fn promised(&self) -> Option<u32> {
        self.window.promised()
    }

    /// The most data of one command that the initiator may send before we ask for it, in bytes. Final once
    /// `SessionRequest` has been raised.
    pub fn unsolicited_max(&self) -> u32 {
        let negotiated;
        let parameters = match self.phase {
            TargetPhase::Login { .. } => {
                negotiated = self.login.negotiation().parameters();
                &negotiated
            }
            _ => &self.parameters,
        };
        let burst = parameters.first_burst_length;
        match (parameters.immediate_data, parameters.initial_r2t) {
            (_, false) => burst,
            (true, true) => burst.min(parameters.max_recv_data_segment_length),
            (false, true) => 0,
        }
    }

    /// Widens the command window by up to `by`, within the configured limit; the initiator learns of it with the next
    /// PDU. Returns the actual increase.
    pub fn widen_window(&mut self, by: u16) -> u16 {
        let by = by.min(self.config.command_window.saturating_sub(self.window_width));
        self.window_width += by;
        self.window.widen(by);
        by
    }

    /// Sends a NOP-In that requests no answer if the initiator has used up the window it knows of and a wider one
    /// exists; returns whether it does. Call this when commands have ended without a response, and when nothing else is
    /// to be sent; otherwise the initiator would wait forever (RFC 7143 §11.19).
    pub fn tell_window(&mut self) -> bool {
        if self.phase != TargetPhase::FullFeature || !self.window.is_to_be_shown() {
            return false;
        }
        let header = pdu::NopIn {
            opcode: opcode::NOP_IN,
            flags: FINAL,
            initiator_task_tag: RESERVED_TAG.into(),
            target_transfer_tag: RESERVED_TAG.into(),
            ..Default::default()
        };
        self.push_ready(header.to_bytes(), Vec::new(), StatSn::Shown);
        true
    }
}
