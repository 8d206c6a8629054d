//! The settings of a target's connection, and its limits.

use crate::params::OperationalConfig;

/// Settings and limits of one target connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetConfig {
    /// What we want to negotiate.
    pub operational: OperationalConfig,
    /// Maximum number of open commands per session: the maximum width of the CmdSN window, 1 to 32768.
    pub command_window: u16,
    /// The initial width of the window, if that is less: see [`widen_window`](super::TargetConnection::widen_window).
    pub command_window_first: u16,
    /// Whether the driver says how many commands may be on their way, by what they may bring unasked: see
    /// [`promise`](super::TargetConnection::promise). Until then it is one.
    pub promises: bool,
    /// Maximum number of immediate commands and task management functions open in addition, 1 to 32767.
    pub immediate_max: u16,
    /// Maximum number of replies queued for unsolicited requests (pings, rejects) before
    /// [`wants_read`](super::TargetConnection::wants_read) turns false.
    pub queued_replies_max: usize,
    /// The same for the bytes of such replies. One more may exceed it.
    pub queued_bytes_max: usize,
    /// Longest data segment of a PDU delivered inline (text, ping), in bytes, at least 8192.
    pub inline_len_max: u32,
    /// Maximum number of Login Requests before the login is refused.
    pub login_pdus_max: u32,
    /// Maximum length of negotiation text in the whole login, and in one later text exchange, in bytes.
    pub text_len_max: usize,
    /// TargetAlias to declare, if any.
    pub target_alias: Option<String>,
}

impl TargetConfig {
    pub(super) fn first_width(&self) -> u16 {
        self.command_window_first.min(self.command_window).max(1)
    }

    pub(super) fn first_promise(&self) -> Option<u32> {
        self.promises.then_some(1)
    }
}

impl Default for TargetConfig {
    fn default() -> TargetConfig {
        TargetConfig {
            operational: OperationalConfig::default(),
            command_window: 128,
            command_window_first: 128,
            promises: false,
            immediate_max: 16,
            queued_replies_max: 32,
            queued_bytes_max: 16 * 1024,
            inline_len_max: 16 * 1024,
            login_pdus_max: 32,
            text_len_max: 16 * 1024,
            target_alias: None,
        }
    }
}
