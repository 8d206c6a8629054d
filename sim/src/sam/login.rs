//! How a session of a case begins: the login is our initiator's, and what follows is the script's.

use std::{net::SocketAddr, rc::Rc};

use engine::{Gather, Payload, net::TcpStream, spawn, time};
use iscsi::{
    InitiatorConfig, InitiatorConnection, InitiatorEvent, Isid, OperationalConfig, RxData,
};
use iscsi_stream::Receiver;

use super::{
    history::Shared,
    listen,
    peer::{self, Session},
    script::Setup,
};

/// How an initiator of a case logs in.
pub(super) fn config(setup: &Setup, target: &str, who: usize) -> InitiatorConfig {
    let name = format!("iqn.2026-11.io.sanstone:initiator{who}");
    InitiatorConfig {
        isid: Isid::random([0; 3], who as u16),
        operational: OperationalConfig {
            initial_r2t: setup.initial_r2t,
            immediate_data: setup.immediate_data,
            first_burst_length: setup.first_burst,
            max_burst_length: setup.max_burst,
            max_outstanding_r2t: setup.r2t_max,
            max_recv_data_segment_length: setup.segment_max,
            ..OperationalConfig::default()
        },
        ..InitiatorConfig::new(name, Some(target.to_owned()))
    }
}

impl Session {
    /// Connects, logs in, and begins to listen.
    pub(super) async fn login(
        portal: SocketAddr,
        config: InitiatorConfig,
        who: usize,
        history: &Shared,
    ) -> Result<Rc<Session>, String> {
        let stream = TcpStream::connect(portal).await;
        let stream = stream.map_err(|error| format!("no connection: {error}"))?;
        let mut machine = InitiatorConnection::new(config);
        let mut receiver = Receiver::new(stream.clone(), 64 << 10);
        let ended = |error: iscsi_stream::ReceiveError| format!("the login broke: {error}");
        loop {
            while let Some(pdu) = machine.poll_transmit() {
                let mut gather = Gather::new();
                let pushed = iscsi_stream::push(&mut gather, &pdu, |_| None::<&Payload>);
                pushed.expect("a login has no commands");
                let sent = stream.send_all(gather).await.0;
                sent.map_err(|error| ended(error.into()))?;
            }
            let limits = machine.frame_limits();
            let (header, ahs, data) = receiver.next_whole(&limits).await.map_err(ended)?;
            let now = time::now().as_ns();
            machine.receive(now, header, ahs, RxData::Inline(data));
            let bhs = *header;
            while let Some(event) = machine.poll_event() {
                match event {
                    InitiatorEvent::LoggedIn { parameters, .. } => {
                        let limits = machine.frame_limits();
                        let session =
                            Session::begin(stream, who, history, parameters, limits, &bhs);
                        spawn(peer::send(session.clone()));
                        spawn(listen::listen(session.clone(), receiver));
                        return Ok(session);
                    }
                    InitiatorEvent::Closed(why) => return Err(format!("refused: {why:?}")),
                    _ => {}
                }
            }
        }
    }
}
