//! What the simulated network is made of: sockets, the packets between them, and the ways that are cut.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::{IpAddr, SocketAddr},
};

use super::keys::{FlightKey, HostId};
use crate::instant::Instant;

/// From one socket to another; of a connection request, to none yet (0).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct FlowKey {
    pub(super) from: i32,
    pub(super) to: i32,
}

#[derive(Default)]
pub(super) struct Net {
    pub(super) sockets: BTreeMap<i32, (HostId, Socket)>,
    pub(super) listeners: BTreeMap<(HostId, SocketAddr), i32>,
    pub(super) flows: BTreeMap<FlowKey, Flow>,
    /// Arrivals that a partition holds back, in order.
    pub(super) held: Vec<FlowKey>,
    pub(super) partitions: BTreeSet<(HostId, HostId)>,
    /// The addresses to which, or from which, nothing passes.
    pub(super) cuts: BTreeSet<(IpAddr, Direction)>,
}

/// A direction of what passes an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// What is sent to it.
    To,
    /// What is sent from it.
    From,
}

pub(super) struct Flow {
    pub(super) from_host: HostId,
    pub(super) to_host: HostId,
    /// The addresses of its ends; `None`: of a connection that neither end knows any more.
    pub(super) addresses: Option<(IpAddr, IpAddr)>,
    /// Its sender has thrown the connection away: what does not get through is not sent again.
    pub(super) is_aborted: bool,
    pub(super) last_arrival: Instant,
    pub(super) packets: VecDeque<Packet>,
}

impl Flow {
    pub(super) fn has_data(&self) -> bool {
        let is_data = |packet: &Packet| matches!(packet, Packet::Data(_));
        self.packets.iter().any(is_data)
    }
}

pub(super) enum Packet {
    /// A connection request to this address, from that one.
    Syn(SocketAddr, SocketAddr),
    /// The connection stands; the other end is this socket.
    Accepted(i32),
    Refused,
    Data(Vec<u8>),
    /// The receiver has taken this many bytes out of its buffer.
    Credit(usize),
    End,
    Reset,
}

pub(super) enum Socket {
    Fresh {
        /// The address that it will have.
        from: IpAddr,
    },
    Listener {
        addr: SocketAddr,
        backlog: VecDeque<i32>,
        accepts: VecDeque<FlightKey>,
    },
    Stream(Stream),
}

pub(super) struct Stream {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// The other end: its machine, and its socket (0 while connecting).
    pub(super) peer: (HostId, i32),
    pub(super) connecting: Option<FlightKey>,
    pub(super) received: Received,
    /// The peer has said that it sends no more.
    pub(super) ended: bool,
    /// This end has been shut down.
    pub(super) shut: bool,
    /// No packet will pass any more.
    pub(super) dead: bool,
    /// To be told once.
    pub(super) error: Option<i32>,
    pub(super) receive: Option<FlightKey>,
    pub(super) send: Option<FlightKey>,
    /// Room in the peer's buffer, in bytes.
    pub(super) room: usize,
    /// Since when a partition holds back what was sent.
    pub(super) waits_since: Option<Instant>,
}

/// Bytes that have arrived and wait for somebody to receive them, in the pieces in which they came.
#[derive(Default)]
pub(super) struct Received {
    pieces: VecDeque<Vec<u8>>,
    /// How many bytes of the first piece are taken.
    taken: usize,
    len: usize,
}

impl Received {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn add(&mut self, piece: Vec<u8>) {
        self.len += piece.len();
        self.pieces.push_back(piece);
    }

    /// Takes the first bytes out, as many as `into` holds. Panics when there are fewer.
    pub(super) fn take(&mut self, mut into: &mut [u8]) {
        self.len -= into.len();
        while !into.is_empty() {
            let left = &self.pieces[0][self.taken..];
            let (now, later) = into.split_at_mut(left.len().min(into.len()));
            now.copy_from_slice(&left[..now.len()]);
            if now.len() == left.len() {
                self.pieces.pop_front();
                self.taken = 0;
            } else {
                self.taken += now.len();
            }
            into = later;
        }
    }
}

impl Stream {
    pub(super) fn new(
        local: SocketAddr,
        remote: SocketAddr,
        peer: (HostId, i32),
        room: usize,
    ) -> Self {
        Stream {
            local,
            remote,
            peer,
            connecting: None,
            received: Received::default(),
            ended: false,
            shut: false,
            dead: false,
            error: None,
            receive: None,
            send: None,
            room,
            waits_since: None,
        }
    }
}
