//! The time limits of a connection. It ends when its peer is too slow to log in, to [take replies or to send
//! data](unit::Paces) that it announced, or does not answer; and when the server stops.

use std::rc::Rc;

use engine::{Duration, Instant, spawn, time};
use iscsi::{AsyncMessage, LoginStatus, TaskId};
use unit::{ClientPace, Paces, TooSlow};

use crate::{
    connection::{Connection, EndReason},
    events,
    notices::IscsiNotice,
};

/// How often the watchdog checks.
const INTERVAL: Duration = Duration::from_secs(1);
/// The time, in seconds, that an initiator is told it has to log out.
const LOGOUT_WITHIN_S: u16 = 2;
/// The time it actually has; also how long a silent peer has to continue what it began.
const STOP_PATIENCE: Duration = Duration::from_millis(2500);
/// How often a stopping server checks.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// Watches the connection until it ends.
pub(crate) async fn watch(connection: Rc<Connection>) {
    let limits = connection.limits.clone();
    let began = time::now();
    // Doubled because several writes may share a slow link.
    let data_patience = 2 * limits.peer_timeout;
    let mut paces = Paces::new(limits.peer_timeout, data_patience);
    let mut moved = DataMoved::default();
    let mut unsent = Vec::new();
    while time::timeout(INTERVAL, connection.over()).await.is_none() {
        let now = time::now();
        let in_login = !connection.is_logged_in();
        if in_login && now - began > limits.login_timeout {
            if let Some(suppressed) = connection.may_say(IscsiNotice::TooSlow) {
                let limit = "limits.login_time";
                tracing::warn!(peer = %connection.peer, limit, suppressed, "no login within {:?}", limits.login_timeout);
            }
            dismiss(&connection, LoginStatus::OUT_OF_RESOURCES);
        }
        let awaited = connection.machine.borrow().awaiting_data();
        if let Err(slow) = check(&connection, &mut paces, &mut moved, &awaited, now) {
            if let Some(suppressed) = connection.may_say(IscsiNotice::TooSlow) {
                let initiator = connection.initiator();
                tracing::warn!(peer = %connection.peer, initiator, suppressed, "disconnected an initiator: {slow}");
            }
            connection.end(&slow.to_string());
            continue;
        }
        if longest(&mut unsent, &awaited, now) > data_patience {
            if let Some(suppressed) = connection.may_say(IscsiNotice::TooSlow) {
                let initiator = connection.initiator();
                tracing::warn!(peer = %connection.peer, initiator, suppressed,
                    "the data of a write did not arrive within {data_patience:?}");
            }
            connection.end("the data of a write did not arrive in time");
        }
        // A discovery session allows no pings (RFC 7143 §4.3) and needs only a moment.
        let is_discovery = !in_login && connection.target().is_none();
        let silent = now - connection.last_heard.get();
        if is_discovery && silent > limits.ping_interval + limits.peer_timeout {
            tracing::debug!(peer = %connection.peer, "a discovery session has been silent for {silent:?}");
            connection.end("the discovery session is over");
        }
        let mut machine = connection.machine.borrow_mut();
        if !in_login && now - connection.last_heard.get() > limits.ping_interval {
            machine.ping(now.as_ns(), limits.peer_timeout.as_nanos() as u64);
        }
        if machine.next_timeout().is_some_and(|due| now.as_ns() >= due) {
            machine.handle_timeout(now.as_ns());
            drop(machine);
            if let Some(suppressed) = connection.may_say(IscsiNotice::TooSlow) {
                tracing::warn!(peer = %connection.peer, suppressed, "no answer to a ping within {:?}", limits.peer_timeout);
            }
            connection.end("the peer does not answer");
        }
        connection.transmit.notify();
    }
}

/// Checks how fast the peer takes its replies, and sends the data of the tasks that are `awaited`.
fn check(
    connection: &Connection,
    paces: &mut Paces,
    moved: &mut DataMoved,
    awaited: &[TaskId],
    now: Instant,
) -> Result<(), TooSlow> {
    let is_sending = connection.is_sending.get();
    let replies = is_sending.then(|| ClientPace {
        moved_bytes: connection.stream.taken_bytes(),
        held: connection.held_by_replies(),
    });
    // While replies are under way, R2Ts may wait behind them, so that the peer cannot send yet. Unsolicited data waits
    // for nothing.
    let unsolicited = connection.machine.borrow().awaiting_unsolicited();
    let sendable = match is_sending {
        true => &unsolicited,
        false => awaited,
    };
    let moved_bytes = moved.update(connection);
    let data = (!sendable.is_empty()).then(|| ClientPace {
        moved_bytes,
        held: connection.open.held_by(sendable),
    });
    let memory = connection.nexus().map(|nexus| &nexus.memory);
    paces.check(now, memory, replies, data)
}

/// What the peer has moved in order to send its data: what it has sent; and while we read nothing, because too many
/// replies wait for it, what it has taken of those.
#[derive(Default)]
struct DataMoved {
    sent_bytes: u64,
    taken_bytes: u64,
}

impl DataMoved {
    /// Counts what has moved since the last call; returns all, in bytes.
    fn update(&mut self, connection: &Connection) -> u64 {
        let sent_bytes = connection.stream.taken_bytes();
        if !connection.machine.borrow().wants_read() {
            self.taken_bytes += sent_bytes.saturating_sub(self.sent_bytes);
        }
        self.sent_bytes = sent_bytes;
        connection.stream.received_bytes() + self.taken_bytes
    }
}

/// Records which tasks wait, and returns how long the longest-waiting one has done so.
fn longest(seen: &mut Vec<(TaskId, Instant)>, waiting: &[TaskId], now: Instant) -> Duration {
    seen.retain(|(task, _)| waiting.contains(task));
    for &task in waiting {
        if !seen.iter().any(|(seen, _)| *seen == task) {
            seen.push((task, now));
        }
    }
    seen.iter()
        .map(|(_, since)| now - *since)
        .max()
        .unwrap_or_default()
}

/// Ends a connection that has not logged in, with a login response if the initiator has begun a login.
/// `status` is of class 3, so the initiator may retry. (On class 2, Linux gives up the session for good.)
pub(crate) fn dismiss(connection: &Rc<Connection>, status: LoginStatus) {
    if !connection.machine.borrow_mut().login_abandon(status) {
        return connection.end("it had not begun a login");
    }
    // The caller has logged the reason.
    connection.note_ending(|| EndReason::Refused);
    events::go_on(connection);
    connection.close_in_time();
}

/// Ends the connection gracefully. A session is asked to log out (RFC 7143 §11.9.1) and served until it does, for a
/// bounded time, so that an initiator that first flushes its writes loses nothing. Then no more commands are
/// accepted, and the connection ends once the open ones have been answered: immediately if there are none, and after
/// a short time if they only wait for a silent peer, or after `patience` if it talks. `why` is for the log.
pub(crate) fn finish(connection: Rc<Connection>, patience: Duration, why: &'static str) {
    if !connection.is_logged_in() {
        connection.set_finishing();
        return dismiss(&connection, LoginStatus::SERVICE_UNAVAILABLE);
    }
    spawn(async move {
        let began = time::now();
        // A discovery session has no target and accepts no such messages (RFC 7143 §4.3).
        let is_asked = connection.target().is_some();
        if is_asked {
            let within_s = LOGOUT_WITHIN_S;
            let message = AsyncMessage::LogoutRequest { within_s };
            connection.machine.borrow_mut().async_message(message);
            connection.transmit.notify();
            let over = time::timeout(STOP_PATIENCE, connection.over()).await;
            if over.is_some() {
                return;
            }
        }
        connection.set_finishing();
        let latest = began + patience;
        loop {
            let heard = connection.last_heard.get().max(began);
            // Commands that a volume is working on will end by themselves.
            let until = match connection.nexus().is_some_and(|nexus| nexus.is_running()) {
                true => latest,
                false => latest.min(heard + STOP_PATIENCE),
            };
            if connection.open.is_empty() || time::now() >= until {
                break;
            }
            if time::timeout(STOP_INTERVAL, connection.over())
                .await
                .is_some()
            {
                return;
            }
        }
        connection.note_ending(|| EndReason::Lost(why.to_owned()));
        connection.close_in_time();
    });
}

/// Ends the session of an initiator that may not use its target any more: no more commands are accepted, and nothing that
/// it would still have to send is waited for. Commands that a volume is working on are answered if they end soon.
pub(crate) fn revoke(connection: Rc<Connection>, why: &'static str) {
    connection.set_finishing();
    spawn(async move {
        let until = time::now() + STOP_PATIENCE;
        let is_running = || connection.nexus().is_some_and(|nexus| nexus.is_running());
        while is_running() && time::now() < until {
            let over = time::timeout(STOP_INTERVAL, connection.over()).await;
            if over.is_some() {
                return;
            }
        }
        connection.note_ending(|| EndReason::Lost(why.to_owned()));
        connection.close_in_time();
    });
}
