//! Our protocol machine asks other targets what they offer, over a plain blocking socket.

use harness::disk::{Disk, Target};
use harness::lio::{Backing, Lio, PORTALS_INSIDE};
use iscsi::frame::frame;
use iscsi::{
    InitiatorConfig, InitiatorConnection, InitiatorEvent, RxData, TargetRecord, TransmitData,
};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

struct Discovery {
    stream: TcpStream,
    machine: InitiatorConnection,
    received: Vec<u8>,
    began: Instant,
}

impl Discovery {
    fn begin(address: &str) -> Discovery {
        let stream = TcpStream::connect(address).expect("the target listens");
        let limit = Some(Duration::from_secs(120));
        stream.set_read_timeout(limit).expect("a timeout above 0");
        let config = InitiatorConfig::new("iqn.2026-11.io.sanstone:tests", None);
        Discovery {
            stream,
            machine: InitiatorConnection::new(config),
            received: Vec::new(),
            began: Instant::now(),
        }
    }

    /// Sends what is ready and receives until something happens; `None`: the target has closed.
    fn next(&mut self) -> Option<InitiatorEvent> {
        loop {
            if let Some(event) = self.machine.poll_event() {
                return Some(event);
            }
            while let Some(pdu) = self.machine.poll_transmit() {
                let mut bytes = pdu.header.to_vec();
                match &pdu.data {
                    TransmitData::None => {}
                    TransmitData::Inline(data) => bytes.extend_from_slice(data),
                    TransmitData::Task { .. } => panic!("discovery has no commands"),
                }
                bytes.resize(bytes.len() + pdu.padding(), 0);
                self.stream.write_all(&bytes).expect("the target reads");
            }
            let limits = self.machine.frame_limits();
            let pdu = frame(&self.received, &limits).expect("the target sends whole PDUs");
            match pdu.filter(|pdu| pdu.total_len <= self.received.len()) {
                Some(pdu) => {
                    let bytes = &self.received;
                    let header = bytes.first_chunk().expect("a whole PDU has a header");
                    let now_ns = self.began.elapsed().as_nanos() as u64;
                    let data = RxData::Inline(&bytes[pdu.data()]);
                    self.machine
                        .receive(now_ns, header, &bytes[pdu.ahs()], data);
                    self.received.drain(..pdu.total_len);
                }
                None => {
                    let mut chunk = [0; 4096];
                    match self.stream.read(&mut chunk) {
                        Ok(0) => return None,
                        Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                        Ok(length) => self.received.extend_from_slice(&chunk[..length]),
                        Err(error) => panic!("the target has not answered: {error}"),
                    }
                }
            }
        }
    }
}

/// Logs in, asks, logs out. istgt closes without its logout response: that is a logout, too.
fn discover(address: &str) -> Vec<TargetRecord> {
    let mut discovery = Discovery::begin(address);
    let mut found = Vec::new();
    while let Some(event) = discovery.next() {
        match event {
            InitiatorEvent::LoggedIn { .. } => discovery.machine.discover().expect("logged in"),
            InitiatorEvent::Targets(targets) => {
                found = targets;
                discovery.machine.logout().expect("logged in");
            }
            InitiatorEvent::Closed(iscsi::CloseReason::Logout) => break,
            other => panic!("unexpected: {other:?}"),
        }
    }
    found
}

#[test]
fn our_initiator_discovers_every_target() {
    for target in [Target::Sanstone, Target::Tgt, Target::Istgt] {
        let Some(disk) = Disk::on(target, 16 << 20) else {
            continue;
        };
        let (name, _) = disk.target_and_lun();
        let expected = TargetRecord {
            name: name.to_owned(),
            addresses: vec![format!("{},1", disk.address())],
        };
        let found = discover(disk.address());
        assert_eq!(found, [expected], "{}", target.name());
    }
}

/// It lists the targets of other tests, too, and says where they are inside.
#[test]
fn our_initiator_discovers_lio_at_both_of_its_portal_groups() {
    let Some(lio) = Lio::serve(Backing::Ram, 1 << 20, 512) else {
        return;
    };
    let mut found = discover(&lio.portals()[0].to_string());
    found.retain(|target| target.name == lio.iqn);
    let [first, second] = PORTALS_INSIDE;
    let expected = TargetRecord {
        name: lio.iqn.clone(),
        addresses: vec![format!("{first},1"), format!("{second},2")],
    };
    assert_eq!(found, [expected]);
}
