//! One lane's front: its connections, each from its first byte to the end of its last I/O.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
};

use engine::{
    Share,
    cross::Receiver,
    spawn,
    sync::{Budget, Notify},
    task::spawn_for,
    time,
};
use front::{LaneFront, Newcomer, OwnLane};
use unit::{LaneUnits, TargetPort};

use crate::{
    config::NbdConfig,
    connection::Connection,
    notices::NbdNotice,
    reader,
    service::{Everywhere, LUN, LaneMessage, NbdService},
    watchdog, writer,
};

/// One lane's connections.
pub(crate) struct NbdLane {
    service: Rc<NbdService>,
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    is_stopping: Cell<bool>,
    /// Signaled when a connection has ended.
    changed: Notify,
}

impl LaneFront for NbdLane {
    type Config = (NbdConfig, Arc<Everywhere>);
    type Request = LaneMessage;

    async fn open(
        (config, everywhere): (NbdConfig, Arc<Everywhere>),
        _: OwnLane<LaneMessage>,
        units: Rc<LaneUnits>,
    ) -> Result<Rc<NbdLane>, String> {
        let port = TargetPort {
            target_name: "nbd".into(),
            portal_group_tag: 1,
            relative_port: config.relative_port,
            port_group: 1,
        };
        let unit = units.unit(&config.volume, port, config.read_only, false)?;
        let service = NbdService {
            units,
            luns: Rc::new(BTreeMap::from([(LUN, unit)])),
            volume: config.volume,
            read_only: config.read_only,
            limits: config.limits,
            tls: config.tls,
            signing: Budget::new(1),
            everywhere,
        };
        Ok(Rc::new(NbdLane {
            service: Rc::new(service),
            connections: RefCell::default(),
            is_stopping: Cell::default(),
            changed: Notify::new(),
        }))
    }

    async fn run(self: Rc<Self>, requests: Receiver<LaneMessage>) {
        while let Some(request) = requests.receive().await {
            match request {
                LaneMessage::Serve(newcomer) => {
                    let id = newcomer.id;
                    let connection = self.let_in(newcomer);
                    spawn_for(Share::of(id), self.clone().serve(id, connection));
                }
                LaneMessage::MakeRoom(id) => self.make_room(id),
                LaneMessage::Stop(done) => {
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

impl NbdLane {
    fn let_in(&self, newcomer: Newcomer<String>) -> Rc<Connection> {
        let id = newcomer.id;
        let connection = Rc::new(Connection::new(self.service.clone(), newcomer));
        if self.is_stopping.get() {
            connection.stop();
        }
        self.connections.borrow_mut().insert(id, connection.clone());
        tracing::debug!(peer = connection.peer, id, "connected");
        connection
    }

    /// Ends a connection that is still in its handshake, if it has not ended already.
    fn make_room(&self, id: u64) {
        if let Some(connection) = self.connections.borrow().get(&id) {
            connection.end("it was in its handshake when another client needed the place");
        }
    }

    /// Serves one connection from its first byte to the end of its last I/O.
    async fn serve(self: Rc<Self>, id: u64, connection: Rc<Connection>) {
        spawn(writer::run(connection.clone()));
        spawn(watchdog::watch(connection.clone()));
        reader::run(&connection).await;
        connection.close();
        connection.over().await;
        if let Some(nexus) = connection.nexus() {
            self.service.units.leave(nexus).await;
        }
        self.connections.borrow_mut().remove(&id);
        let everywhere = &self.service.everywhere;
        everywhere.admission.leave(id, time::now());
        let (peer, why) = (&connection.peer, connection.ending());
        tracing::debug!(peer, id, why, "connection ended");
        if connection.nexus().is_some() {
            if let Some(suppressed) = everywhere.notices.may_say(NbdNotice::Client, time::now()) {
                tracing::info!(peer, suppressed, "a client has disconnected: {why}");
            }
        }
        self.changed.notify();
    }

    async fn stop(&self) {
        self.is_stopping.set(true);
        for connection in self.connections.borrow().values() {
            connection.stop();
        }
        let connections = &self.connections;
        self.changed
            .wait_for(|| connections.borrow().is_empty().then_some(()))
            .await;
    }
}
