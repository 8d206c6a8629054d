//! The simulated network: TCP as its users see it.
//!
//! Packets in one direction of a connection (a flow) arrive in order, each after a latency of its own. Sent
//! bytes count against the room in the peer's buffer, so a slow reader stops its writer. Packets across a
//! partition, or to a machine without power, wait as if being retransmitted until the way is free or the
//! sender gives up (ETIMEDOUT). A machine that loses power forgets its connections silently: the peer finds
//! out only by a reset in answer to what it sends, or by its own timeout.

use std::{
    collections::{BTreeSet, VecDeque},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{
    connection::{Flow, FlowKey, Net, Packet, SimStream, Socket, TrafficDirection},
    keys::HostId,
    state::{WorldEvent, WorldState},
};
use crate::instant::Instant;

/// The listen backlog; a further connection request has to retry.
const BACKLOG_MAX: usize = 128;
const RETRY: Duration = Duration::from_secs(1);

fn pair(a: HostId, b: HostId) -> (HostId, HostId) {
    (a.min(b), a.max(b))
}

impl Net {
    /// The addresses of a connection, as seen from the end `from`.
    fn addresses_between(&self, from: i32, to: i32) -> Option<(IpAddr, IpAddr)> {
        let ends = |raw: i32| match self.sockets.get(&raw) {
            Some((_, Socket::Stream(stream))) => Some((stream.local.ip(), stream.remote.ip())),
            _ => None,
        };
        ends(from).or_else(|| ends(to).map(|(local, remote)| (remote, local)))
    }

    fn is_cut(&self, flow: &Flow) -> bool {
        flow.addresses.is_some_and(|(from, to)| {
            let cuts = [(from, TrafficDirection::From), (to, TrafficDirection::To)];
            cuts.iter().any(|cut| self.cuts.contains(cut))
        })
    }
}

// Packet transport.
impl WorldState {
    pub(super) fn transmit(
        &mut self,
        from_host: HostId,
        from: i32,
        to_host: HostId,
        to: i32,
        packet: Packet,
    ) {
        let net = &self.config.net;
        let mut latency = Duration::from_nanos(self.random.within(&net.latency_ns));
        let addresses = self.net.addresses_between(from, to);
        if from_host == to_host {
            latency /= 8; // loopback
        }
        let mut sent = self.now;
        if let (Packet::Data(bytes), Some(rate)) = (&packet, net.bytes_per_s) {
            let takes = bytes.len() as u64 * 1_000_000_000 / rate.max(1);
            let free = &mut self.hosts[from_host.0].egress_free;
            sent = sent.max(*free) + Duration::from_nanos(takes);
            *free = sent;
        }
        let flow = self
            .net
            .flows
            .entry(FlowKey { from, to })
            .or_insert_with(|| Flow {
                from_host,
                to_host,
                addresses,
                is_aborted: false,
                last_arrival: sent,
                packets: VecDeque::new(),
            });
        flow.last_arrival = flow.last_arrival.max(sent + latency);
        flow.packets.push_back(packet);
        let when = flow.last_arrival;
        self.at(when, WorldEvent::Arrival(FlowKey { from, to }));
    }

    fn is_blocked(&self, flow: &Flow) -> bool {
        let (a, b) = (flow.from_host, flow.to_host);
        let is_parted = a != b && self.net.partitions.contains(&pair(a, b));
        !self.hosts[b.0].up || is_parted || self.net.is_cut(flow)
    }

    pub(super) fn arrive(&mut self, key: FlowKey) {
        let Some(flow) = self.net.flows.get(&key) else {
            return;
        };
        let (from_host, to_host, is_aborted) = (flow.from_host, flow.to_host, flow.is_aborted);
        if self.is_blocked(flow) {
            let is_parted = self.net.partitions.contains(&pair(from_host, to_host));
            let is_parted = is_parted || self.net.is_cut(flow);
            self.occurred.packets_parted += u64::from(is_parted);
            if is_aborted {
                return self.drop_flows(|other, _| *other == key);
            }
            self.net.held.push(key);
            return self.begin_waiting(key.from);
        }
        let Some(flow) = self.net.flows.get_mut(&key) else {
            return;
        };
        let packet = flow.packets.pop_front();
        if flow.packets.is_empty() {
            self.net.flows.remove(&key);
        }
        let Some(packet) = packet else {
            return;
        };
        if let Some((_, Socket::Stream(sender))) = self.net.sockets.get_mut(&key.from) {
            sender.waits_since = None;
        }
        self.receive_packet((from_host, key.from), (to_host, key.to), packet);
    }

    fn begin_waiting(&mut self, raw: i32) {
        let now = self.now;
        let Some((_, Socket::Stream(stream))) = self.net.sockets.get_mut(&raw) else {
            return;
        };
        if stream.waits_since.is_some() {
            return;
        }
        stream.waits_since = Some(now);
        let patience = self.config.net.give_up_after;
        self.after(
            patience,
            WorldEvent::GiveUp {
                socket: raw,
                since: now,
            },
        );
    }

    pub(super) fn give_up(&mut self, raw: i32, since: Instant) {
        let Some((_, Socket::Stream(stream))) = self.net.sockets.get_mut(&raw) else {
            return;
        };
        if stream.waits_since != Some(since) {
            return;
        }
        self.note(&[4, raw as u64]);
        self.drop_flows(|key, _| key.from == raw);
        self.kill_stream(raw, libc::ETIMEDOUT);
    }

    fn drop_flows(&mut self, unwanted: impl Fn(&FlowKey, &Flow) -> bool) {
        self.net.flows.retain(|key, flow| !unwanted(key, flow));
        let flows = &self.net.flows;
        self.net.held.retain(|key| flows.contains_key(key));
    }

    /// Ends a connection abnormally: operations waiting on it fail with `errno`.
    fn kill_stream(&mut self, raw: i32, errno: i32) {
        let Some((_, Socket::Stream(stream))) = self.net.sockets.get_mut(&raw) else {
            return;
        };
        if stream.dead {
            return;
        }
        stream.dead = true;
        if let Some(key) = stream.connecting.take() {
            return self.complete(key, -errno);
        }
        stream.error = Some(errno);
        self.serve_receive(raw);
        self.serve_send(raw);
    }

    /// Resets a connection from this side: both ends are told, the peer when the packet arrives.
    pub(super) fn reset(&mut self, raw: i32) {
        let Some((host, Socket::Stream(stream))) = self.net.sockets.get(&raw) else {
            return;
        };
        let (host, peer, dead) = (*host, stream.peer, stream.dead);
        let ways = [(raw, peer.1), (peer.1, raw)].map(|(from, to)| FlowKey { from, to });
        let has_data = |way| self.net.flows.get(way).is_some_and(Flow::has_data);
        if !dead && ways.iter().any(has_data) {
            self.occurred.resets_under_data += 1;
        }
        if !dead && peer.1 != 0 {
            self.transmit(host, raw, peer.0, peer.1, Packet::Reset);
        }
        self.kill_stream(raw, libc::ECONNRESET);
    }

    /// Aborts a connection from this side: data still in transit reaches the peer only if the way is
    /// free.
    pub(super) fn abort(&mut self, raw: i32) {
        let Some((host, Socket::Stream(stream))) = self.net.sockets.get(&raw) else {
            return;
        };
        let (host, peer) = (*host, stream.peer);
        if stream.dead || stream.connecting.is_some() {
            return;
        }
        self.transmit(host, raw, peer.0, peer.1, Packet::Reset);
        let way = FlowKey {
            from: raw,
            to: peer.1,
        };
        if self.net.held.contains(&way) {
            self.occurred.aborts_of_held += 1;
            self.drop_flows(|other, _| *other == way);
        } else if let Some(flow) = self.net.flows.get_mut(&way) {
            flow.is_aborted = true;
        }
        self.kill_stream(raw, libc::ECONNABORTED);
    }

    fn receive_packet(&mut self, from: (HostId, i32), to: (HostId, i32), packet: Packet) {
        let kind = match &packet {
            Packet::Syn(..) => 0,
            Packet::Accepted(_) => 1,
            Packet::Refused => 2,
            Packet::Data(bytes) => 16 + bytes.len() as u64,
            Packet::Credit(_) => 3,
            Packet::End => 4,
            Packet::Reset => 5,
        };
        self.note(&[5, from.1 as u64, to.1 as u64, kind]);
        if let Packet::Syn(addr, source) = packet {
            return self.receive_syn(from, to.0, addr, source);
        }
        let by_chance = matches!(packet, Packet::Data(_))
            && self.random.chance(self.config.net.reset_probability);
        let Some((_, Socket::Stream(stream))) = self.net.sockets.get_mut(&to.1) else {
            // This host does not know the connection any more.
            if let Packet::Accepted(server) = packet {
                self.transmit(to.0, to.1, from.0, server, Packet::Reset);
            } else if matches!(packet, Packet::Data(_)) {
                self.transmit(to.0, to.1, from.0, from.1, Packet::Reset);
            }
            return;
        };
        if stream.dead {
            return;
        }
        match packet {
            Packet::Syn(..) => unreachable!("handled above"),
            Packet::Accepted(server) => {
                stream.peer.1 = server;
                if let Some(key) = stream.connecting.take() {
                    self.complete(key, 0);
                }
            }
            Packet::Refused => self.kill_stream(to.1, libc::ECONNREFUSED),
            // As on Linux: data for a socket that was shut down resets the connection.
            Packet::Data(_) if by_chance || stream.shut => self.reset(to.1),
            Packet::Data(bytes) => {
                stream.received.add(bytes);
                self.serve_receive(to.1);
            }
            Packet::Credit(n) => {
                stream.room += n;
                self.serve_send(to.1);
            }
            Packet::End => {
                stream.ended = true;
                self.serve_receive(to.1);
            }
            Packet::Reset => self.kill_stream(to.1, libc::ECONNRESET),
        }
    }

    fn receive_syn(
        &mut self,
        from: (HostId, i32),
        to: HostId,
        addr: SocketAddr,
        source: SocketAddr,
    ) {
        if !self.net.sockets.contains_key(&from.1) {
            return; // the client is gone
        }
        let listeners = &self.net.listeners;
        let found = listeners.get(&(to, addr)).copied().or_else(|| {
            let mut any = listeners.iter().filter(|((host, other), _)| {
                *host == to && other.port() == addr.port() && other.ip().is_unspecified()
            });
            any.next().map(|(_, &raw)| raw)
        });
        let Some(listener) = found else {
            return self.transmit(to, 0, from.0, from.1, Packet::Refused);
        };
        let buffer_bytes = self.config.net.buffer_bytes;
        let server = self.fresh_raw();
        let Some((_, Socket::Listener { backlog, .. })) = self.net.sockets.get_mut(&listener)
        else {
            return;
        };
        if backlog.len() >= BACKLOG_MAX {
            let again = FlowKey {
                from: from.1,
                to: 0,
            };
            let when = self.now + RETRY;
            let flow = Flow {
                from_host: from.0,
                to_host: to,
                addresses: Some((source.ip(), addr.ip())),
                is_aborted: false,
                last_arrival: when,
                packets: VecDeque::from([Packet::Syn(addr, source)]),
            };
            self.net.flows.insert(again, flow);
            return self.at(when, WorldEvent::Arrival(again));
        }
        backlog.push_back(server);
        let stream = SimStream::new(addr, source, from, buffer_bytes);
        self.net
            .sockets
            .insert(server, (to, Socket::Stream(stream)));
        self.transmit(to, server, from.0, from.1, Packet::Accepted(server));
        self.serve_accepts(listener);
    }
}

// What tests do to the network.
impl WorldState {
    pub(super) fn partition(&mut self, a: HostId, b: HostId) {
        self.note(&[6, a.0 as u64, b.0 as u64]);
        self.net.partitions.insert(pair(a, b));
    }

    pub(super) fn heal(&mut self, a: HostId, b: HostId) {
        self.note(&[7, a.0 as u64, b.0 as u64]);
        self.net.partitions.remove(&pair(a, b));
        self.release_held();
    }

    /// Blocks all traffic to or from `ip` in one direction.
    pub(super) fn cut(&mut self, ip: IpAddr, direction: TrafficDirection) {
        self.note(&[10, direction as u64]);
        self.net.cuts.insert((ip, direction));
    }

    /// Undoes all cuts of `ip`.
    pub(super) fn mend(&mut self, ip: IpAddr) {
        self.note(&[11]);
        self.net.cuts.retain(|(other, _)| *other != ip);
        self.release_held();
    }

    /// Resets every connection that has `ip` at one end.
    pub(super) fn reset_at(&mut self, ip: IpAddr) {
        let is_at = |socket: &Socket| match socket {
            Socket::Stream(stream) => stream.remote.ip() == ip,
            _ => false,
        };
        let sockets = self.net.sockets.iter();
        let ends = sockets.filter(|(_, (_, socket))| is_at(socket));
        let ends: Vec<i32> = ends.map(|(&raw, _)| raw).collect();
        for raw in ends {
            self.reset(raw);
        }
    }

    /// Sends held packets again whose way is free now.
    pub(super) fn release_held(&mut self) {
        for key in std::mem::take(&mut self.net.held) {
            let Some(flow) = self.net.flows.get(&key) else {
                continue;
            };
            if self.is_blocked(flow) {
                self.net.held.push(key);
            } else {
                let latency = self.random.within(&self.config.net.latency_ns);
                self.after(Duration::from_nanos(latency), WorldEvent::Arrival(key));
            }
        }
    }

    /// Resets every connection between two machines.
    pub(super) fn reset_between(&mut self, a: HostId, b: HostId) {
        let ends: Vec<i32> = self
            .net
            .sockets
            .iter()
            .filter(|(_, (host, socket))| {
                matches!(socket, Socket::Stream(stream) if *host == a && stream.peer.0 == b)
            })
            .map(|(&raw, _)| raw)
            .collect();
        for raw in ends {
            self.reset(raw);
        }
    }

    /// A power cut: peers are told nothing, and packets waiting for retransmission are lost.
    pub(super) fn forget_sockets_of(&mut self, host: HostId) {
        self.net.sockets.retain(|_, (owner, _)| *owner != host);
        self.net.listeners.retain(|(owner, _), _| *owner != host);
        let held: BTreeSet<FlowKey> = self.net.held.iter().copied().collect();
        self.drop_flows(|key, flow| flow.from_host == host && held.contains(key));
    }

    /// The end of a process: its sockets are closed.
    pub(super) fn close_sockets_of(&mut self, host: HostId) {
        let owned: Vec<i32> = self
            .net
            .sockets
            .iter()
            .filter(|(_, (owner, _))| *owner == host)
            .map(|(&raw, _)| raw)
            .collect();
        for raw in owned {
            self.close_socket(raw);
        }
    }
}
