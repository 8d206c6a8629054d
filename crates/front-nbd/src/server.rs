//! The server: gives every lane its front, and has their connections accepted.

use std::{rc::Rc, sync::Arc};

use engine::{spawn, sync::Notify};
use front::{Acceptor, Address, Admission, FrontLanes, StartError};
use unit::Units;

use crate::{
    config::NbdConfig,
    front::NbdLane,
    notices::NbdNotices,
    place::{Listeners, address_of},
    service::{AcceptPolicy, Everywhere, LaneMessage},
};

/// A running server. The lane that started it accepts the connections.
pub struct NbdServer {
    addresses: Vec<Address>,
    everywhere: Arc<Everywhere>,
    lanes: FrontLanes<LaneMessage>,
    stop: Rc<Notify>,
}

impl NbdServer {
    /// Starts serving a volume of `units`, on all their lanes, to clients that connect to `place`.
    ///
    /// # Errors
    /// [`StartError::Unit`]; nothing is served in that case.
    pub async fn start(
        config: NbdConfig,
        place: Listeners,
        units: &Units,
    ) -> Result<NbdServer, StartError> {
        let everywhere = Arc::new(Everywhere {
            admission: Admission::new(config.limits.places()),
            notices: NbdNotices::default(),
        });
        let opening = FrontLanes::start::<NbdLane>(units, (config.clone(), everywhere.clone()));
        let lanes = opening.await.map_err(StartError::Unit)?;
        let stop = Rc::new(Notify::new());
        let policy = AcceptPolicy {
            everywhere: everywhere.clone(),
            limits: config.limits,
        };
        let acceptor = Acceptor::new(policy, lanes.clone());
        let addresses = place.0.iter().map(address_of).collect();
        for listener in place.0 {
            spawn(acceptor.clone().accept(listener, stop.clone()));
        }
        Ok(NbdServer {
            addresses,
            everywhere,
            lanes,
            stop,
        })
    }

    /// The addresses it listens on, with the port that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The clients that have chosen the export, for people. A connection in its handshake is none.
    pub fn clients(&self) -> Vec<String> {
        self.everywhere
            .admission
            .sessions(|arrival| arrival.ends.clone())
    }

    /// Accepts no more connections or requests, answers the requests already accepted, and ends all connections. The
    /// holder of the units is responsible for [flushing](Units::flush) what the connections wrote.
    pub async fn stop(self) {
        self.stop.notify();
        self.lanes
            .answers("end all connections", LaneMessage::Stop)
            .await;
    }
}
