//! How a session of a case begins: the login is our initiator's, and what follows is the script's.

use std::{net::SocketAddr, rc::Rc};

use engine::{
    Gather,
    net::{FramedReader, TcpStream},
    spawn, time,
};
use iscsi::{
    InitiatorConfig, InitiatorConnection, InitiatorEvent, Isid, OperationalConfig, RxData,
    TransmitData, frame::frame, pdu,
};

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
        let mut reader = FramedReader::new(stream.clone(), 64 << 10);
        let ended = |error: std::io::Error| format!("the login broke: {error}");
        loop {
            while let Some(pdu) = machine.poll_transmit() {
                let mut gather = Gather::new();
                gather.push_bytes(&pdu.header);
                if let TransmitData::Inline(bytes) = &pdu.data {
                    gather.push_bytes(bytes);
                }
                gather.push_bytes(&[0; 3][..pdu.padding()]);
                stream.send_all(gather).await.0.map_err(ended)?;
            }
            if !reader.fill(pdu::BHS_LEN).await.map_err(ended)? {
                return Err("the target ended the login".to_owned());
            }
            let framed = frame(reader.bytes(), &machine.frame_limits());
            let Ok(Some(framed)) = framed else {
                return Err(format!("no PDU: {framed:?}"));
            };
            reader.fill(framed.total_len).await.map_err(ended)?;
            let bytes = reader.bytes();
            let bhs: [u8; 48] = *bytes.first_chunk().expect("48 bytes are at hand");
            let data = RxData::Inline(&bytes[framed.data()]);
            machine.receive(time::now().as_ns(), &bhs, &[], data);
            reader.consume(framed.total_len);
            while let Some(event) = machine.poll_event() {
                match event {
                    InitiatorEvent::LoggedIn { parameters, .. } => {
                        let limits = machine.frame_limits();
                        let session =
                            Session::begin(stream, who, history, parameters, limits, &bhs);
                        spawn(peer::send(session.clone()));
                        spawn(listen::listen(session.clone(), reader));
                        return Ok(session);
                    }
                    InitiatorEvent::Closed(why) => return Err(format!("refused: {why:?}")),
                    _ => {}
                }
            }
        }
    }
}
