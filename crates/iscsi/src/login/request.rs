//! The details of a login, as reported to the target's driver.

use super::{ChapAccount, Isid, SessionType};

/// What is known about a login, for the target's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginReport<'a> {
    /// The request; names are empty or missing until received.
    pub request: &'a LoginRequest,
    /// Whether a Login Request has arrived.
    pub has_begun: bool,
    /// What the initiator did wrong, if the status alone does not say it.
    pub complaint: Option<&'static str>,
    /// Whether the target has authenticated itself to the initiator. An initiator that was not convinced disconnects.
    pub has_proven: bool,
    /// The account with which the initiator has authenticated.
    pub account: Option<&'a ChapAccount>,
}

/// Who logs in to what (RFC 7143 §11.12, §13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// InitiatorName.
    pub initiator_name: String,
    /// InitiatorAlias, if given.
    pub initiator_alias: Option<String>,
    /// TargetName; always present in a normal session.
    pub target_name: Option<String>,
    /// Normal or discovery.
    pub session_type: SessionType,
    /// Initiator part of the session identifier.
    pub isid: Isid,
    /// 0 for a new session; otherwise the session that this connection wants to join: refuse with
    /// `SESSION_DOES_NOT_EXIST` or `TOO_MANY_CONNECTIONS`.
    pub tsih: u16,
    /// Connection ID.
    pub cid: u16,
}
