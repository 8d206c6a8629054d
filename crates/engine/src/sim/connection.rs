//! The state of the simulated network: sockets, the packets between them, and partitions and cuts.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::{IpAddr, SocketAddr},
};

use super::keys::{FlightKey, HostId};
use crate::instant::Instant;

/// One direction of a connection, from one socket to another; for a connection request `to` is 0, as there is no
/// other socket yet.
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
    /// Addresses to or from which nothing passes.
    pub(super) cuts: BTreeSet<(IpAddr, TrafficDirection)>,
}

/// A direction of traffic at an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TrafficDirection {
    /// Traffic sent to the address.
    To,
    /// Traffic sent from the address.
    From,
}

pub(super) struct Flow {
    pub(super) from_host: HostId,
    pub(super) to_host: HostId,
    /// The addresses of both ends; `None`: neither end knows the connection any more.
    pub(super) addresses: Option<(IpAddr, IpAddr)>,
    /// The sender has aborted the connection: packets held back are not retransmitted.
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
    /// A connection request: to the first address, from the second.
    Syn(SocketAddr, SocketAddr),
    /// The connection is established; the other end is this socket.
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
        /// The local address it will have.
        from: IpAddr,
        resets_when_closed: bool,
    },
    Listener {
        addr: SocketAddr,
        backlog: VecDeque<i32>,
        accepts: VecDeque<FlightKey>,
    },
    Stream(SimStream),
}

pub(super) struct SimStream {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// The other end: its machine and its socket (0 while connecting).
    pub(super) peer: (HostId, i32),
    pub(super) connecting: Option<FlightKey>,
    pub(super) received: Arrived,
    /// The peer has finished sending.
    pub(super) ended: bool,
    /// This end has been shut down.
    pub(super) shut: bool,
    /// Closing it resets the connection.
    pub(super) resets_when_closed: bool,
    /// The connection is dead: no packet passes any more.
    pub(super) dead: bool,
    /// Reported once, to the next operation.
    pub(super) error: Option<i32>,
    pub(super) receive: Option<FlightKey>,
    pub(super) send: Option<FlightKey>,
    /// Room in the peer's buffer, in bytes.
    pub(super) room: usize,
    /// Since when a partition has held back sent data.
    pub(super) waits_since: Option<Instant>,
}

/// Bytes that have arrived and not been received yet, in the pieces in which they came.
#[derive(Default)]
pub(super) struct Arrived {
    pieces: VecDeque<Vec<u8>>,
    /// How many bytes of the first piece have been taken.
    taken: usize,
    len: usize,
}

impl Arrived {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn add(&mut self, piece: Vec<u8>) {
        self.len += piece.len();
        self.pieces.push_back(piece);
    }

    /// Takes the first bytes out, as many as `into` holds. Panics if there are fewer.
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

impl SimStream {
    pub(super) fn new(
        local: SocketAddr,
        remote: SocketAddr,
        peer: (HostId, i32),
        room: usize,
    ) -> Self {
        SimStream {
            local,
            remote,
            peer,
            connecting: None,
            received: Arrived::default(),
            ended: false,
            shut: false,
            resets_when_closed: false,
            dead: false,
            error: None,
            receive: None,
            send: None,
            room,
            waits_since: None,
        }
    }
}
