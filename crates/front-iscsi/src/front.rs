//! One lane's front: owns the lane's connections, each from its first byte to the end of its last I/O, and handles
//! requests from other lanes.

use std::{cell::RefCell, collections::BTreeMap, pin::pin, rc::Rc, sync::Arc};

use engine::{Share, cross::Receiver, spawn, spend, sync::Notify, task::spawn_for, time};
use front::{LaneFront, OwnLane};
use iscsi::LoginStatus;
use unit::{LaneUnits, Nexus};

use crate::{
    change,
    config::ServerConfig,
    connection::{Connection, EndReason},
    login,
    notices::IscsiNotice,
    reader,
    request::LaneRequest,
    service::IscsiService,
    sessions::Sessions,
    watchdog, writer,
};

/// The log names at most this many LUNs with hanging I/O.
const HUNG_MAX: usize = 4;

/// The cost of describing one session, in bytes of memory that are moved in that time.
const REPORT_BYTES: usize = 8 << 10;

/// One lane's connections.
pub(crate) struct IscsiLane {
    service: Rc<IscsiService>,
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    /// Signaled when a connection has ended.
    changed: Notify,
}

impl LaneFront for IscsiLane {
    type Config = (ServerConfig, Arc<Sessions>);
    type Request = LaneRequest;

    async fn open(
        (config, sessions): (ServerConfig, Arc<Sessions>),
        lane: OwnLane<LaneRequest>,
        units: Rc<LaneUnits>,
    ) -> Result<Rc<IscsiLane>, String> {
        let service = IscsiService::open(&config, units, sessions, lane).await?;
        Ok(Rc::new(IscsiLane {
            service: Rc::new(service),
            connections: RefCell::default(),
            changed: Notify::new(),
        }))
    }

    async fn run(self: Rc<Self>, requests: Receiver<LaneRequest>) {
        while let Some(request) = requests.receive().await {
            match request {
                LaneRequest::Serve(newcomer) => {
                    let connection = Rc::new(Connection::new(self.service.clone(), newcomer));
                    // Registered before it is served, because the next request may be for it.
                    let id = connection.id;
                    self.connections.borrow_mut().insert(id, connection.clone());
                    spawn_for(Share::of(id), self.clone().serve(connection));
                }
                LaneRequest::MakeRoom { connection } => {
                    if let Some(connection) = self.find(connection) {
                        watchdog::dismiss(&connection, LoginStatus::OUT_OF_RESOURCES);
                    }
                }
                LaneRequest::EndSession { connection, done } => {
                    let Some(connection) = self.find(connection) else {
                        done.send(());
                        continue;
                    };
                    spawn(async move {
                        connection.end("the initiator logged in again");
                        connection.gone().await;
                        done.send(());
                    });
                }
                LaneRequest::Report { done } => {
                    let lane = self.service.lane;
                    let mut sessions = Vec::new();
                    for connection in self.all() {
                        spend(REPORT_BYTES).await;
                        sessions.extend(connection.report(lane));
                    }
                    done.send(sessions);
                }
                LaneRequest::EndTarget { target } => {
                    for connection in self.all() {
                        spend(REPORT_BYTES).await;
                        if connection.target().is_some_and(|t| t.name() == target) {
                            // The response to the task management function may still have to be sent.
                            connection.close_when_sent();
                        }
                    }
                }
                LaneRequest::Prepare { config, done } => {
                    done.send(change::prepare(&self.service, &config).await);
                }
                LaneRequest::Forget { done } => {
                    change::forget(&self.service).await;
                    done.send(());
                }
                LaneRequest::Commit { done } => {
                    let over = change::commit(&self.service, &self.all()).await;
                    spawn(async move {
                        over.await;
                        done.send(());
                    });
                }
                LaneRequest::Stop { done } => {
                    let front = self.clone();
                    spawn(async move {
                        front.stop().await;
                        done.send(());
                    });
                }
            }
        }
    }
}

impl IscsiLane {
    fn find(&self, connection: u64) -> Option<Rc<Connection>> {
        self.connections.borrow().get(&connection).cloned()
    }

    fn all(&self) -> Vec<Rc<Connection>> {
        self.connections.borrow().values().cloned().collect()
    }

    async fn stop(&self) {
        self.service.stopping.set(true);
        for connection in self.all() {
            let patience = connection.limits.peer_timeout;
            watchdog::finish(connection, patience, "the target is stopping");
        }
        self.changed
            .wait_for(|| self.connections.borrow().is_empty().then_some(()))
            .await;
    }

    /// Serves one connection from its first byte to the end of its last I/O.
    async fn serve(self: Rc<Self>, connection: Rc<Connection>) {
        let (id, peer) = (connection.id, connection.peer);
        tracing::debug!(%peer, id, "connected");
        spawn(writer::run(connection.clone()));
        spawn(watchdog::watch(connection.clone()));
        let reason = reader::run(&connection).await;
        tracing::debug!(%peer, id, reason, "reading ended");
        connection.close_when_sent();
        connection.over().await;
        self.leave(&connection).await;
    }

    /// Waits until the nexus has left its units. If its I/O hangs, logs where, because new logins of the same
    /// initiator port are refused until it ends.
    async fn leave_units(&self, connection: &Connection, nexus: &Nexus) {
        let mut left = pin!(self.service.units.leave(nexus));
        let patience = connection.limits.login_timeout / 2;
        if time::timeout(patience, left.as_mut()).await.is_some() {
            return;
        }
        if let Some(suppressed) = connection.may_say(IscsiNotice::Hung) {
            let (peer, initiator) = (connection.peer, connection.initiator());
            let hung = hung(nexus);
            tracing::warn!(
                %peer, initiator, suppressed,
                "session ended, but {hung} still hang: its initiator port cannot log in again \
                 until they complete"
            );
        }
        left.await;
    }

    async fn leave(&self, connection: &Connection) {
        if let Some(nexus) = connection.nexus() {
            connection.abort_tasks(nexus, None, connection.open.mark());
            self.leave_units(connection, nexus).await;
        }
        let sessions = &self.service.sessions;
        // The place first: a login waiting for this session to end needs one.
        sessions.admission.leave(connection.id, time::now());
        if let Some(key) = connection.take_key() {
            sessions.remove(&key, connection.id);
            if let Some(suppressed) = connection.may_say(IscsiNotice::LoggedOut) {
                let (peer, initiator, target) =
                    (connection.peer, key.initiator_name, key.target_name);
                match connection.take_ending() {
                    Some(EndReason::Lost(why)) => {
                        tracing::info!(%peer, initiator, target, suppressed, "connection lost: {why}");
                    }
                    _ => tracing::info!(%peer, initiator, target, suppressed, "logged out"),
                }
            }
        } else if !connection.is_logged_in() {
            login::given_up(connection);
        }
        self.connections.borrow_mut().remove(&connection.id);
        connection.has_gone();
        self.changed.notify();
    }
}

/// Describes a nexus's running I/O for the log.
fn hung(nexus: &Nexus) -> String {
    let running = nexus.running_by_volume();
    let shown = running.iter().take(HUNG_MAX);
    let shown = shown.map(|((lun, volume), ios)| match volume.is_empty() {
        // The unit is gone if the daemon is shutting down.
        true => format!("{ios} of its I/Os on LUN {lun}"),
        false => format!("{ios} of its I/Os on LUN {lun} (volume {volume})"),
    });
    let shown: Vec<String> = shown.collect();
    let and_more = match running.len() > HUNG_MAX {
        true => " and others",
        false => "",
    };
    format!("{}{and_more}", shown.join(", "))
}
