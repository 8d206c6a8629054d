//! A network path that can fail: a TCP forwarder that can stall (bytes wait, nobody is told), break connections and
//! refuse new ones, while the target behind it keeps serving.
//!
//! Refused connections are never accepted first. A vanished portal behaves like that, and open-iscsi before 2.1.9 does
//! not recover if a new connection ends just before its login (its pull request 388).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Forwards from its own address until dropped.
#[derive(Debug)]
pub struct Forwarder {
    address: SocketAddr,
    way: Arc<Way>,
}

#[derive(Debug, Default)]
struct Way {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stalled: bool,
    refusing: bool,
    /// Whether a socket listens: soon the opposite of `refusing`.
    listening: bool,
    ended: bool,
    /// Both ends of each connection by number, oldest first.
    connections: BTreeMap<u64, (TcpStream, TcpStream)>,
    made: u64,
}

impl Forwarder {
    /// Listens on a free port of `ip` and forwards to `to`.
    ///
    /// # Panics
    /// If it cannot listen there.
    pub fn new(ip: &str, to: SocketAddr) -> Forwarder {
        let listener = TcpListener::bind((ip, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound socket has one");
        let way = Arc::new(Way::default());
        let of_thread = way.clone();
        way.with(|state| state.listening = true);
        thread::spawn(move || of_thread.listen(listener, address, to));
        Forwarder { address, way }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets nothing through in either direction, like a cut cable.
    pub fn stall(&self) {
        self.way.with(|state| state.stalled = true);
    }

    /// Breaks the oldest connection; others continue, but new ones are refused.
    ///
    /// # Panics
    /// If there is none.
    pub fn break_oldest(&self) {
        self.refuse();
        self.way.with(|state| {
            let oldest = state.connections.pop_first();
            close(&oldest.expect("somebody is connected").1);
        });
    }

    /// Breaks all connections and refuses new ones.
    pub fn break_all(&self) {
        self.refuse();
        self.way.with(|state| {
            let all = std::mem::take(&mut state.connections);
            all.values().for_each(close);
        });
    }

    fn refuse(&self) {
        self.way.with(|state| state.refusing = true);
        // The listener looks up for it.
        let _ = TcpStream::connect(self.address);
        drop(self.way.wait_while(|state| state.listening));
    }

    /// Ends all faults: everything passes again.
    pub fn mend(&self) {
        self.way.with(|state| {
            state.stalled = false;
            state.refusing = false;
        });
        drop(self.way.wait_while(|state| !state.listening));
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.way.with(|state| {
            state.ended = true;
            state.connections.values().for_each(close);
        });
        // The listener looks up for it.
        let _ = TcpStream::connect(self.address);
    }
}

fn close((near, far): &(TcpStream, TcpStream)) {
    let _ = near.shutdown(Shutdown::Both);
    let _ = far.shutdown(Shutdown::Both);
}

impl Way {
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let result = f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
        result
    }

    fn wait_while(&self, holds: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed
            .wait_while(state, |state| holds(state) && !state.ended)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts and forwards until the forwarder ends; has no listening socket while it refuses.
    fn listen(self: &Arc<Way>, mut listener: TcpListener, address: SocketAddr, to: SocketAddr) {
        loop {
            for near in listener.incoming().map_while(Result::ok) {
                if self.with(|state| state.ended || state.refusing) {
                    break;
                }
                if let Ok(far) = TcpStream::connect(to) {
                    self.forward(near, far);
                }
            }
            drop(listener);
            self.with(|state| state.listening = false);
            if self.wait_while(|state| state.refusing).ended {
                return;
            }
            listener = TcpListener::bind(address).expect("nobody else took this port");
            self.with(|state| state.listening = true);
        }
    }

    fn forward(self: &Arc<Way>, near: TcpStream, far: TcpStream) {
        let _ = near.set_nodelay(true);
        let _ = far.set_nodelay(true);
        let copy = |stream: &TcpStream| stream.try_clone().expect("descriptors are left");
        let pair = (copy(&near), copy(&far));
        let number = self.with(|state| {
            state.made += 1;
            state.connections.insert(state.made, pair);
            state.made
        });
        for (from, to) in [(copy(&near), copy(&far)), (far, near)] {
            let way = self.clone();
            thread::spawn(move || way.copy(number, from, to));
        }
    }

    /// Copies in one direction until the stream ends; a stall delays the end of the stream as well.
    fn copy(&self, number: u64, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 128 << 10];
        loop {
            let length = from.read(&mut buffer).unwrap_or(0);
            drop(self.wait_while(|state| state.stalled));
            if length == 0 || to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        close(&(from, to));
        self.with(|state| state.connections.remove(&number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::time::Duration;

    /// A forwarder to a listener, a client's end and the far end of its connection.
    fn connected() -> (TcpListener, Forwarder, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let forwarder = Forwarder::new("127.0.0.1", listener.local_addr().expect("bound"));
        let near = TcpStream::connect(forwarder.address()).expect("it listens");
        let far = listener.accept().expect("it forwards").0;
        (listener, forwarder, near, far)
    }

    #[test]
    fn a_stalled_way_delivers_later() {
        let (_listener, forwarder, mut near, mut far) = connected();
        near.write_all(b"one").expect("connected");
        let mut heard = [0; 3];
        far.read_exact(&mut heard).expect("delivered");
        forwarder.stall();
        near.write_all(b"two").expect("nobody is told");
        far.set_read_timeout(Some(Duration::from_millis(100)))
            .expect("a socket");
        far.read_exact(&mut heard).expect_err("nothing comes");
        far.set_read_timeout(None).expect("a socket");
        forwarder.mend();
        far.read_exact(&mut heard).expect("delivered");
        assert_eq!(&heard, b"two");
    }

    #[test]
    fn the_oldest_breaks_and_no_other_comes_until_it_is_mended() {
        let (listener, forwarder, mut near, _far) = connected();
        let mut second = TcpStream::connect(forwarder.address()).expect("it listens");
        let mut second_far = listener.accept().expect("it forwards").0;
        forwarder.break_oldest();
        assert_eq!(near.read(&mut [0]).unwrap_or(0), 0, "broken");
        let third = TcpStream::connect(forwarder.address()).expect_err("nobody listens");
        assert_eq!(third.kind(), ErrorKind::ConnectionRefused);
        second.write_all(b"x").expect("it goes on");
        second_far.read_exact(&mut [0]).expect("delivered");
        forwarder.mend();
        let _fourth = TcpStream::connect(forwarder.address()).expect("it listens");
        listener.accept().expect("it forwards again");
    }
}
