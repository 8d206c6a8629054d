//! Socket operations on the simulated network, up to the first packet. [`super::net`] transports
//! the packets.

use std::{collections::VecDeque, io, net::SocketAddr};

use super::{
    connection::{Packet, SimStream, Socket},
    keys::{FlightKey, HostId},
    state::WorldState,
};
use crate::{
    handle::Handle,
    op::Op,
    reactor::{ConnectOptions, LocalEnd},
};

/// The most segments one send takes, as on Linux (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl WorldState {
    pub(super) fn fresh_socket(
        &mut self,
        host: HostId,
        options: &ConnectOptions,
    ) -> io::Result<Handle> {
        self.settle();
        let addresses = &self.hosts[host.0].addresses;
        let from = match &options.source {
            None => addresses.first().copied(),
            Some(LocalEnd::Address(ip)) => addresses.iter().copied().find(|own| own == ip),
            Some(LocalEnd::Interface(name)) => {
                let index = name
                    .strip_prefix("eth")
                    .and_then(|index| index.parse().ok());
                index.and_then(|index: usize| addresses.get(index).copied())
            }
        };
        let from = from.ok_or_else(|| error(libc::EADDRNOTAVAIL))?;
        let raw = self.fresh_raw();
        let fresh = Socket::Fresh {
            from,
            resets_when_closed: options.resets_when_closed,
        };
        self.net.sockets.insert(raw, (host, fresh));
        Ok(self.handle(raw))
    }

    pub(super) fn listen(
        &mut self,
        host: HostId,
        mut addr: SocketAddr,
    ) -> io::Result<(Handle, SocketAddr)> {
        self.settle();
        if self.host_of(addr.ip(), host) != Some(host) {
            return Err(error(libc::EADDRNOTAVAIL));
        }
        if addr.port() == 0 {
            addr.set_port(self.free_port(host));
        }
        let taken = self.net.listeners.keys().any(|(owner, other)| {
            let same_ip = other.ip() == addr.ip()
                || other.ip().is_unspecified()
                || addr.ip().is_unspecified();
            *owner == host && other.port() == addr.port() && same_ip
        });
        if taken {
            return Err(error(libc::EADDRINUSE));
        }
        let raw = self.fresh_raw();
        let listener = Socket::Listener {
            addr,
            backlog: VecDeque::new(),
            accepts: VecDeque::new(),
        };
        self.net.sockets.insert(raw, (host, listener));
        self.net.listeners.insert((host, addr), raw);
        Ok((self.handle(raw), addr))
    }

    fn free_port(&mut self, host: HostId) -> u16 {
        let host = self.host(host);
        let port = host.next_port;
        host.next_port = if port == u16::MAX { 32_768 } else { port + 1 };
        port
    }

    pub(super) fn addresses(&self, raw: i32) -> io::Result<(SocketAddr, SocketAddr)> {
        match self.net.sockets.get(&raw) {
            Some((_, Socket::Stream(stream))) if stream.connecting.is_none() && !stream.dead => {
                Ok((stream.local, stream.remote))
            }
            _ => Err(error(libc::ENOTCONN)),
        }
    }

    pub(super) fn submit_to_net(&mut self, key: FlightKey) {
        let Some(flight) = self.flights.get(&key) else {
            return;
        };
        let host = flight.host;
        let (raw, target) = match &flight.op {
            Op::Accept { socket } | Op::Receive { socket, .. } | Op::Send { socket, .. } => {
                (socket.raw, None)
            }
            Op::Connect { socket, addr } => (socket.raw, Some(*addr)),
            _ => unreachable!("file operations go to the disk"),
        };
        let is_send = matches!(flight.op, Op::Send { .. });
        if let Some(addr) = target {
            return self.connect(host, raw, addr, key);
        }
        match self.net.sockets.get_mut(&raw) {
            Some((_, Socket::Listener { accepts, .. })) => {
                accepts.push_back(key);
                self.serve_accepts(raw);
            }
            Some((_, Socket::Stream(stream))) => {
                let place = if is_send {
                    &mut stream.send
                } else {
                    &mut stream.receive
                };
                let before = place.replace(key);
                assert!(
                    before.is_none(),
                    "two {} at once on one socket, which the contract forbids",
                    if is_send { "sends" } else { "receives" }
                );
                if is_send {
                    self.serve_send(raw);
                } else {
                    self.serve_receive(raw);
                }
            }
            _ => self.complete(key, -libc::ENOTCONN),
        }
    }

    fn connect(&mut self, host: HostId, raw: i32, addr: SocketAddr, key: FlightKey) {
        let Some(target) = self.host_of(addr.ip(), host) else {
            return self.complete(key, -libc::EHOSTUNREACH);
        };
        let (from, resets_when_closed) = match self.net.sockets.get(&raw) {
            Some((
                _,
                Socket::Fresh {
                    from,
                    resets_when_closed,
                },
            )) => (*from, *resets_when_closed),
            _ => (addr.ip(), false),
        };
        let ip = match addr.ip().is_loopback() {
            true => addr.ip(),
            false => from,
        };
        let local = SocketAddr::new(ip, self.free_port(host));
        let mut stream = SimStream::new(local, addr, (target, 0), self.config.net.buffer_bytes);
        stream.connecting = Some(key);
        stream.resets_when_closed = resets_when_closed;
        self.net.sockets.insert(raw, (host, Socket::Stream(stream)));
        self.transmit(host, raw, target, 0, Packet::Syn(addr, local));
    }

    /// Removes an operation that will not be served from its socket.
    pub(super) fn leave_socket(&mut self, key: FlightKey) {
        let raw = match self.flights.get(&key).map(|flight| &flight.op) {
            Some(
                Op::Accept { socket }
                | Op::Connect { socket, .. }
                | Op::Receive { socket, .. }
                | Op::Send { socket, .. },
            ) => socket.raw,
            _ => return,
        };
        match self.net.sockets.get_mut(&raw) {
            Some((_, Socket::Listener { accepts, .. })) => accepts.retain(|&other| other != key),
            Some((_, Socket::Stream(stream))) => {
                for place in [&mut stream.receive, &mut stream.send] {
                    if *place == Some(key) {
                        *place = None;
                    }
                }
                if stream.connecting == Some(key) {
                    // The answer to the connection request finds no socket and is reset.
                    self.net.sockets.remove(&raw);
                }
            }
            _ => {}
        }
    }

    pub(super) fn shutdown(&mut self, raw: i32) {
        self.settle();
        let Some((host, Socket::Stream(stream))) = self.net.sockets.get_mut(&raw) else {
            return;
        };
        if stream.connecting.is_some() || stream.shut {
            return;
        }
        stream.shut = true;
        stream.resets_when_closed = false;
        let (host, peer) = (*host, stream.peer);
        if !stream.dead {
            self.transmit(host, raw, peer.0, peer.1, Packet::End);
        }
        self.serve_receive(raw);
        self.serve_send(raw);
    }

    /// The last owner has dropped the socket.
    pub(super) fn close_socket(&mut self, raw: i32) {
        if let Some((_, Socket::Stream(stream))) = self.net.sockets.get(&raw)
            && stream.resets_when_closed
        {
            self.abort(raw);
        }
        let Some((host, socket)) = self.net.sockets.remove(&raw) else {
            return;
        };
        match socket {
            Socket::Fresh { .. } => {}
            Socket::Listener { addr, backlog, .. } => {
                self.net.listeners.remove(&(host, addr));
                for waiting in backlog {
                    self.reset(waiting);
                    self.net.sockets.remove(&waiting);
                }
            }
            Socket::Stream(stream) => {
                if stream.dead || stream.connecting.is_some() {
                    return;
                }
                let (peer_host, peer) = stream.peer;
                // As on Linux: closing with unread data sends a reset, which tells the peer that the data was lost.
                if stream.received.len() > 0 {
                    self.transmit(host, raw, peer_host, peer, Packet::Reset);
                } else if !stream.shut {
                    self.transmit(host, raw, peer_host, peer, Packet::End);
                }
            }
        }
    }

    pub(super) fn serve_accepts(&mut self, raw: i32) {
        while let Some((
            _,
            Socket::Listener {
                backlog, accepts, ..
            },
        )) = self.net.sockets.get_mut(&raw)
        {
            if backlog.is_empty() || accepts.is_empty() {
                return;
            }
            let (Some(connection), Some(key)) = (backlog.pop_front(), accepts.pop_front()) else {
                return;
            };
            self.complete(key, connection);
        }
    }

    pub(super) fn serve_send(&mut self, raw: i32) {
        let split = self.random.chance(self.config.net.split_probability);
        let Some((host, Socket::Stream(stream))) = self.net.sockets.get_mut(&raw) else {
            return;
        };
        let (host, peer) = (*host, stream.peer);
        let Some(key) = stream.send else {
            return;
        };
        if let Some(errno) = stream.error.take() {
            stream.send = None;
            return self.complete(key, -errno);
        }
        if stream.shut || stream.dead {
            stream.send = None;
            return self.complete(key, -libc::EPIPE);
        }
        let Some(Op::Send { gather, .. }) = self.flights.get(&key).map(|flight| &flight.op) else {
            return;
        };
        let offered: usize = gather.chunks().take(PIECES_MAX).map(<[u8]>::len).sum();
        let mut n = offered.min(stream.room);
        if n == 0 && offered > 0 {
            return; // until the peer has read
        }
        if split && n > 1 {
            n = 1 + self.random.index(n);
        }
        stream.send = None;
        stream.room -= n;
        let mut bytes = Vec::with_capacity(n);
        for chunk in gather.chunks() {
            bytes.extend_from_slice(&chunk[..chunk.len().min(n - bytes.len())]);
            if bytes.len() == n {
                break;
            }
        }
        if n > 0 {
            self.transmit(host, raw, peer.0, peer.1, Packet::Data(bytes));
        }
        self.complete(key, n as i32);
    }

    pub(super) fn serve_receive(&mut self, raw: i32) {
        let split = self.random.chance(self.config.net.split_probability);
        let Some((host, Socket::Stream(stream))) = self.net.sockets.get_mut(&raw) else {
            return;
        };
        let (host, peer) = (*host, stream.peer);
        let Some(key) = stream.receive else {
            return;
        };
        let Some(Op::Receive { buf, start, .. }) =
            self.flights.get_mut(&key).map(|flight| &mut flight.op)
        else {
            return;
        };
        let room = &mut buf[*start..];
        let mut n = room.len().min(stream.received.len());
        if n == 0 && !room.is_empty() {
            let result = match stream.error.take() {
                Some(errno) => -errno,
                None if stream.ended || stream.shut || stream.dead => 0,
                None => return, // until something arrives
            };
            stream.receive = None;
            return self.complete(key, result);
        }
        if split && n > 1 {
            n = 1 + self.random.index(n);
        }
        stream.receive = None;
        stream.received.take(&mut room[..n]);
        if !stream.dead && n > 0 {
            self.transmit(host, raw, peer.0, peer.1, Packet::Credit(n));
        }
        self.complete(key, n as i32);
    }

    pub(super) fn describe_socket(&self, raw: i32) -> String {
        match self.net.sockets.get(&raw) {
            Some((_, Socket::Listener { addr, .. })) => addr.to_string(),
            Some((_, Socket::Stream(stream))) => format!("{} <- {}", stream.local, stream.remote),
            _ => "a closed socket".to_string(),
        }
    }
}
