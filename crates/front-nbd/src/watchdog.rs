//! The time limits of a connection: it ends when its client does not finish the handshake, does not take its replies,
//! or does not finish sending a request. Between requests a client may be silent forever; TCP keepalive detects
//! whether it is still there.

use std::rc::Rc;

use engine::{Duration, time};

use crate::connection::Connection;

/// How often the watchdog checks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Watches the connection until it ends.
pub(crate) async fn watch(connection: Rc<Connection>) {
    let limits = connection.service.limits;
    while time::timeout(INTERVAL, connection.over()).await.is_none() {
        let now = time::now();
        let peer_time = limits.peer_time;
        let is_late =
            |since: Option<_>, patience| since.is_some_and(|since| now - since > patience);
        if connection.nexus().is_none() && now - connection.began > limits.handshake_time {
            let limit = limits.handshake_time;
            connection.dismiss(&format!("no handshake within {limit:?}"));
        } else if is_late(connection.sending_since.get(), peer_time) {
            connection.dismiss(&format!("it has read no replies for {peer_time:?}"));
        } else if is_late(connection.receiving_since.get(), 2 * peer_time) {
            let patience = 2 * peer_time;
            connection.dismiss(&format!(
                "the rest of a request did not arrive within {patience:?}"
            ));
        }
    }
}
