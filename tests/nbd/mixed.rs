//! Writes, trims and verifying reads of one range, many at a time on one connection.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use harness::mixed::{self, BLOCK_BYTES, Device};

use crate::crowd::client_in_transmission;
use crate::{Attached, LIMIT, MIB};

const READ: u16 = 0;
const WRITE: u16 = 1;
const TRIM: u16 = 4;
const REPLY: u32 = 0x6744_6698;

/// A connection whose requests are in flight side by side: their replies come in any order.
struct Client {
    sending: Mutex<(UnixStream, u64)>,
    waiting: Arc<Mutex<Waiting>>,
}

/// Who waits for the reply to which request, and how much data it brings.
type Waiting = HashMap<u64, (usize, Sender<Vec<u8>>)>;

impl Client {
    fn new(stream: UnixStream) -> Client {
        let waiting: Arc<Mutex<Waiting>> = Arc::default();
        let receiving = stream.try_clone().expect("a socket");
        let found = waiting.clone();
        thread::spawn(move || {
            let _ended = receive(receiving, &found);
            // Whoever still waits is told.
            found.lock().expect("no other fails with it").clear();
        });
        Client {
            sending: Mutex::new((stream, 0)),
            waiting,
        }
    }

    fn request(&self, kind: u16, at: u64, len: usize, data: &[u8]) -> Receiver<Vec<u8>> {
        let (sender, receiver) = channel();
        let mut sending = self.sending.lock().expect("no other fails with it");
        sending.1 += 1;
        let cookie = sending.1;
        let reply = if kind == READ { len } else { 0 };
        let mut waiting = self.waiting.lock().expect("no other fails with it");
        waiting.insert(cookie, (reply, sender));
        drop(waiting);
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([0; 2]);
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(at.to_be_bytes());
        bytes.extend((len as u32).to_be_bytes());
        bytes.extend(data);
        sending.0.write_all(&bytes).expect("it is served");
        receiver
    }
}

fn receive(mut stream: UnixStream, waiting: &Mutex<Waiting>) -> io::Result<()> {
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
        assert_eq!((word(0), word(4)), (REPLY, 0), "a reply without an error");
        let cookie = u64::from_be_bytes(head[8..].try_into().expect("eight bytes"));
        let found = waiting
            .lock()
            .expect("no other fails with it")
            .remove(&cookie);
        let (len, sender) = found.expect("it was asked for");
        let mut data = vec![0; len];
        stream.read_exact(&mut data)?;
        let _ = sender.send(data);
    }
}

fn answered(reply: &Receiver<Vec<u8>>) -> Vec<u8> {
    reply.recv_timeout(LIMIT).expect("it is answered")
}

impl Device for Client {
    fn write(&self, at: u64, data: &[u8]) {
        answered(&self.request(WRITE, at, data.len(), data));
    }

    fn read(&self, at: u64, data: &mut [u8]) {
        data.copy_from_slice(&answered(&self.request(READ, at, data.len(), &[])));
    }

    fn punch(&self, at: u64, len: u64) {
        answered(&self.request(TRIM, at, len as usize, &[]));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Ok(sending) = self.sending.get_mut() {
            let _ = sending.0.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn a_mixed_load_with_trims_reads_what_is_there_at_any_depth() {
    for (depth, requests) in [(1, 1000), (8, 2500), (64, 4000)] {
        let attached = Attached::file("lanes = 2", &[]);
        let client = Client::new(client_in_transmission(&attached));
        let blocks = 24 * MIB as usize / BLOCK_BYTES;
        let counts = mixed::run(&client, blocks, depth, requests, depth as u64);
        assert!(counts.punches > requests / 8, "{counts:?}");
    }
}
