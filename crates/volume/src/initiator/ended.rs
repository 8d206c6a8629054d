//! Why a session ended, as an error for whoever waited: which kind it is, and what to do.

use iscsi::{CloseReason, LoginStatus};

use crate::{Error, ErrorKind};

/// The error of all that a session leaves behind when it ends like this.
pub(super) fn error_of(reason: &CloseReason) -> Error {
    Error::new(kind_of(reason), message_of(reason))
}

fn kind_of(reason: &CloseReason) -> ErrorKind {
    match reason {
        CloseReason::LoginRefused { status, .. } if status.class() == 2 => ErrorKind::Configuration,
        // Trying again would not make it right.
        CloseReason::Protocol(iscsi::Error::Authentication(_)) => ErrorKind::Configuration,
        CloseReason::PingTimeout => ErrorKind::TimedOut,
        CloseReason::Protocol(_) => ErrorKind::Protocol,
        _ => ErrorKind::Unreachable,
    }
}

fn message_of(reason: &CloseReason) -> String {
    match reason {
        CloseReason::LoginRefused { status, .. } => {
            let mend = match *status {
                LoginStatus::AUTHENTICATION_FAILURE => "; look at user and secret of `chap`",
                LoginStatus::AUTHORIZATION_FAILURE => "; allow this initiator's name there",
                _ => "",
            };
            format!("the target refused the login: {status}{mend}")
        }
        CloseReason::Protocol(error) => error.to_string(),
        other => format!("the session ended: {other:?}"),
    }
}
