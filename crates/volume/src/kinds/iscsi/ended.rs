//! Why a session ended, as an error for the waiting requests: its kind, and what the user can do.

use iscsi::{CloseReason, LoginStatus};

use crate::{Advice, Error, ErrorKind};

/// The new location that a target reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirection {
    /// TargetAddress, as received.
    pub(super) to: String,
    pub(super) permanently: bool,
}

/// What its owner has ended is refused with this.
pub(super) fn by_owner() -> Error {
    let message = "the owner of the disk has ended it here";
    Error::new(ErrorKind::Preempted, message)
}

/// The error for all requests of a session that ended for this reason.
pub(super) fn error_of(reason: &CloseReason) -> Error {
    Error::with_advice(kind_of(reason), message_of(reason), advice_on(reason))
}

/// The redirection in a login response, if there is one.
pub(super) fn redirection_of(reason: &CloseReason) -> Option<Redirection> {
    let CloseReason::LoginRefused {
        status,
        target_address,
    } = reason
    else {
        return None;
    };
    let permanently = match *status {
        LoginStatus::MOVED_TEMPORARILY => false,
        LoginStatus::MOVED_PERMANENTLY => true,
        _ => return None,
    };
    Some(Redirection {
        to: target_address.clone()?,
        permanently,
    })
}

fn kind_of(reason: &CloseReason) -> ErrorKind {
    match reason {
        CloseReason::LoginRefused { status, .. } if status.class() == 2 => ErrorKind::Configuration,
        // A retry would fail the same way.
        CloseReason::Protocol(iscsi::Error::Authentication(_)) => ErrorKind::Configuration,
        CloseReason::PingTimeout => ErrorKind::TimedOut,
        CloseReason::Protocol(_) => ErrorKind::Protocol,
        _ => ErrorKind::Unreachable,
    }
}

fn advice_on(reason: &CloseReason) -> Option<Advice> {
    let CloseReason::LoginRefused { status, .. } = reason else {
        return None;
    };
    (*status == LoginStatus::AUTHENTICATION_FAILURE).then_some(Advice::Credentials)
}

fn message_of(reason: &CloseReason) -> String {
    match reason {
        CloseReason::LoginRefused { status, .. } => {
            let mend = match *status {
                LoginStatus::MOVED_TEMPORARILY | LoginStatus::MOVED_PERMANENTLY => {
                    ", but gave no new address"
                }
                LoginStatus::AUTHORIZATION_FAILURE => "; allow this initiator's name on the target",
                _ => "",
            };
            format!("the target refused the login: {status}{mend}")
        }
        CloseReason::Protocol(error) => error.to_string(),
        CloseReason::PingTimeout => "the target did not answer a ping in time".to_owned(),
        CloseReason::DroppedByPeer => "the target dropped the session".to_owned(),
        _ => "the session was logged out".to_owned(),
    }
}
