//! Who signs, and what is worth a turn.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex},
    thread,
};

use engine::{
    Lane, LaneConfig,
    net::TcpListener,
    task::{Either, either},
};
use rustls::{
    ClientConfig, ClientConnection, Error, RootCertStore, ServerConfig, SignatureAlgorithm,
    SignatureScheme,
    crypto::ring,
    pki_types::CertificateDer,
    server::{ClientHello, ResolvesServerCert},
    sign::{CertifiedKey, Signer, SigningKey},
};

use super::*;

/// A key that notes which threads sign with it. What it signs convinces nobody.
#[derive(Clone, Default, Debug)]
struct Key(Arc<Mutex<Vec<String>>>);

const SCHEME: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;

impl Signer for Key {
    fn sign(&self, _: &[u8]) -> Result<Vec<u8>, Error> {
        let name = thread::current().name().unwrap_or_default().to_owned();
        self.0.lock().expect("no panic").push(name);
        Ok(vec![0; 70])
    }

    fn scheme(&self) -> SignatureScheme {
        SCHEME
    }
}

impl SigningKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let is_offered = offered.contains(&SCHEME);
        is_offered.then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl ResolvesServerCert for Key {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let certificate = CertificateDer::from(vec![0; 100]);
        let key = Arc::new(self.clone());
        Some(Arc::new(CertifiedKey::new(vec![certificate], key)))
    }
}

fn server(key: &Key) -> Tls {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has cipher suites for them")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(key.clone()));
    Tls::from(Arc::new(config))
}

/// What a client sends first.
fn hello() -> Vec<u8> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has cipher suites for them")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = "localhost".try_into().expect("a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).expect("it takes bytes");
    hello
}

#[test]
fn a_thread_signs_and_no_lane_does() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let key = Key::default();
    lane.block_on(async {
        let listener = TcpListener::bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        let connected = TcpStream::connect(listener.local_addr()).await;
        let client = connected.expect("it listens");
        let stream = listener.accept().await.expect("it has connected");
        let mut sent = Gather::new();
        sent.push_bytes(&hello());
        client.send_all(sent).await.0.expect("it is taken");
        let (reached, turns) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let handshake = Handshake {
            offered: &server(&key),
            signing: &Budget::new(1),
            reached: &|progress| reached.borrow_mut().push(progress),
            awaits_us: &|awaits_us| turns.borrow_mut().push(awaits_us),
        };
        // The client never goes on.
        let answer = client.receive_exact(Buf::new(5), 0);
        match either(answer, handshake.run(&stream)).await {
            Either::One((received, _)) => received.expect("an answer"),
            Either::Other(_) => panic!("half a handshake has ended"),
        }
        assert_eq!(*reached.borrow(), [Progress::Signed]);
        assert_eq!(turns.borrow().first(), Some(&true));
    });
    assert_eq!(*key.0.lock().expect("no panic"), ["signatures"]);
}

#[test]
fn only_whole_records_take_a_turn() {
    let record = [&[22, 3, 1, 0, 3][..], b"abc"].concat();
    let two = [&record[..], &record].concat();
    for (len, whole) in [
        (0, 0),
        (1, 0),
        (5, 0),
        (7, 0),
        (8, 8),
        (13, 8),
        (15, 8),
        (16, 16),
    ] {
        assert_eq!(whole_records(&two[..len]), whole, "{len}");
    }
    assert_eq!(whole_records(b"GET / HTTP/1.1\r\n"), 16);
    assert_eq!(whole_records(&[22, 3, 1, 0xff, 0xff, 0]), 6, "too long");
}
