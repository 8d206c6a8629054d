//! The time limits of a connection: it ends when its client does not finish the handshake, takes its replies or sends
//! its data [too slowly](unit::Paces), or holds up the end of the server. Between requests a client may be silent
//! forever; TCP keepalive detects whether it is still there.

use std::rc::Rc;

use engine::{Duration, Instant, time};
use unit::{ClientPace, Paces, TooSlow};

use crate::connection::Connection;

/// How often the watchdog checks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Watches the connection until it ends.
pub(crate) async fn watch(connection: Rc<Connection>) {
    let limits = connection.service.limits;
    let patience = limits.peer_time;
    // Doubled for data because a request may be on its way while its replies fill a slow link.
    let mut paces = Paces::new(patience, 2 * patience);
    while time::timeout(INTERVAL, connection.over()).await.is_none() {
        let now = time::now();
        if connection.nexus().is_none() && now - connection.began > limits.handshake_time {
            let limit = limits.handshake_time;
            connection.dismiss(&format!("no handshake within {limit:?}"));
        } else if let Err(slow) = check(&connection, &mut paces, now) {
            connection.dismiss(&slow.to_string());
        } else if is_holding_up(&connection, now) {
            connection.dismiss(&format!(
                "the server stops, and it did not take its last replies within {patience:?}"
            ));
        }
    }
}

fn check(connection: &Connection, paces: &mut Paces, now: Instant) -> Result<(), TooSlow> {
    let wire = &connection.wire;
    let replies = connection.is_sending.get().then(|| ClientPace {
        moved_bytes: wire.sent_bytes(),
        held: connection.held_by_replies(),
    });
    let data = connection.receiving.get().map(|held| ClientPace {
        moved_bytes: wire.received_bytes(),
        held,
    });
    let memory = connection.nexus().map(|nexus| &nexus.memory);
    paces.check(now, memory, replies, data)
}

/// Whether the server wants to stop, and the client has had time to take its last replies.
fn is_holding_up(connection: &Connection, now: Instant) -> bool {
    let limit = connection.service.limits.peer_time;
    let stopping = connection.stopping_since.get();
    connection.is_sending.get() && stopping.is_some_and(|since| now - since > limit)
}
