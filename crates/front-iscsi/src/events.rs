//! Handles the protocol machine's events in one place. Every call into the machine is followed by handling its
//! events.

use std::rc::Rc;

use engine::spawn;
use iscsi::{CloseReason, TargetEvent, TaskId};

use crate::{
    command,
    connection::{Connection, EndReason},
    login,
    notices::IscsiNotice,
    task_management,
};

/// Data-out events, which only the reader can handle.
pub(crate) enum DataOut {
    /// The next `len` bytes of the PDU's payload belong to a command's data-out at `offset`.
    Place { task: TaskId, offset: u32, len: u32 },
    /// The command's data-out is complete once the payload has been received.
    Complete(TaskId),
}

/// Handles events up to the first one that concerns data-out.
pub(crate) fn act(connection: &Rc<Connection>) -> Option<DataOut> {
    loop {
        let event = connection.machine.borrow_mut().poll_event()?;
        match event {
            TargetEvent::Command(request) => {
                command::begin(connection, &request);
                let (task, offset, len) = (request.task, 0, request.immediate_len);
                if len > 0 {
                    return Some(DataOut::Place { task, offset, len });
                }
            }
            TargetEvent::DataOut { task, offset, len } => {
                return Some(DataOut::Place { task, offset, len });
            }
            TargetEvent::DataComplete { task } => return Some(DataOut::Complete(task)),
            // The machine answers a command whose data arrived out of order.
            TargetEvent::Failed { task } => {
                connection.open.remove_unanswered(task);
            }
            TargetEvent::TaskManagement(request) => {
                let before = connection.open.mark();
                spawn(task_management::run(connection.clone(), request, before));
            }
            TargetEvent::LoginRequest(request) => login::begin(connection, &request),
            TargetEvent::SessionRequest(request) => {
                let connection = connection.clone();
                spawn(async move {
                    login::enter(&connection, request).await;
                    go_on(&connection);
                });
            }
            TargetEvent::AuthenticationFailed { user, why } => {
                let delay = login::failed(connection, user.as_deref(), why);
                let connection = connection.clone();
                spawn(async move {
                    login::answer_failure(&connection, delay).await;
                    go_on(&connection);
                });
            }
            TargetEvent::LoggedIn(parameters) => {
                tracing::debug!(peer = %connection.peer, ?parameters, "full feature phase");
                connection.tells_stage_times.set(parameters.stage_times);
            }
            TargetEvent::SendTargets(which) => {
                let connection = connection.clone();
                spawn(async move {
                    if let Some(turn) = login::list_turn(&connection).await {
                        login::send_targets(&connection, &which).await;
                        go_on(&connection);
                        login::until_list_taken(&connection, turn).await;
                    }
                });
            }
            TargetEvent::Logout { .. } => log_out(connection),
            TargetEvent::Closed(reason) => {
                log_close(connection, &reason);
                connection.close_when_sent();
            }
            _ => {}
        }
    }
}

/// Handles the events caused by a response of ours or by an error. A command whose data became complete in the
/// meantime is not begun: that happens only when the connection ends.
pub(crate) fn go_on(connection: &Rc<Connection>) {
    while act(connection).is_some() {}
    connection.sent.notify();
    connection.transmit.notify();
}

fn log_out(connection: &Rc<Connection>) {
    // Dormant commands must not begin any more, least of all after the logout response.
    for task in connection.open.order.waiting() {
        connection.abort_task(task);
    }
    let connection = connection.clone();
    spawn(async move {
        if let Some(nexus) = connection.nexus() {
            nexus.wait_idle().await;
        }
        let responded = connection.machine.borrow_mut().logout_response(0);
        if responded.is_ok() {
            connection.note_ending(|| EndReason::Logout);
            go_on(&connection);
            connection.close_when_sent();
        }
    });
}

fn log_close(connection: &Connection, reason: &CloseReason) {
    let peer = connection.peer;
    match reason {
        CloseReason::Logout => tracing::debug!(%peer, "logout"),
        CloseReason::LoginRefused {
            status,
            target_address,
        } => {
            if !connection.has_ending() {
                login::refused(connection, *status, target_address.as_deref());
            }
            connection.note_ending(|| EndReason::Refused);
        }
        CloseReason::Protocol(error) => {
            connection.note_ending(|| match connection.is_logged_in() {
                true => EndReason::Lost("the peer violated the protocol".to_owned()),
                false => EndReason::Refused,
            });
            if let Some(suppressed) = connection.may_say(IscsiNotice::Broken) {
                tracing::warn!(%peer, %error, suppressed, "the peer violated the protocol");
            }
        }
        other => tracing::debug!(%peer, reason = ?other, "connection closed"),
    }
}
