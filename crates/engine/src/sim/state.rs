//! The state of a simulated world between two turns of its lanes: the clock, future events,
//! operations in flight, and the machines with their sockets and files. Lanes reach it through
//! their [`super::reactor::SimReactor`]; [`super::World`] advances the clock.
//!
//! Every map here is ordered and every choice comes from the world's [`Random`], so the seed alone
//! decides what happens. Everything that happens is also mixed into a hash, the trace, by which two
//! runs can be compared.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    Occurred, Random, WorldConfig,
    connection::{FlowKey, Net},
    disk::{DiskEvent, SimDisk},
    keys::{FlightKey, HostId, LaneKey},
};
use crate::{
    handle::{Handle, Keeper},
    instant::Instant,
    op::Op,
    reactor::{Completion, OpId, OpenOptions},
};

pub(super) struct Flight {
    pub(super) host: HostId,
    pub(super) lane: LaneKey,
    pub(super) id: OpId,
    pub(super) op: Op,
}

/// An event in the future.
pub(super) enum WorldEvent {
    /// The first packet of a flow arrives.
    Arrival(FlowKey),
    /// An end gives up if it has been waiting for its peer since `since`.
    GiveUp { socket: i32, since: Instant },
    /// A disk has finished an operation.
    Disk(FlightKey, DiskEvent),
}

pub(super) struct HostState {
    pub(super) name: String,
    /// The primary address first, then the added ones.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) up: bool,
    pub(super) disk: SimDisk,
    pub(super) next_port: u16,
    /// When its network card will have sent everything it was given.
    pub(super) egress_free: Instant,
}

/// An open file.
pub(super) struct SimFile {
    pub(super) host: HostId,
    /// The file's index on the disk.
    pub(super) file: usize,
    pub(super) options: OpenOptions,
}

/// The world between two turns.
pub(super) struct WorldState {
    pub(super) config: WorldConfig,
    pub(super) now: Instant,
    pub(super) random: Random,
    pub(super) hosts: Vec<HostState>,
    pub(super) flights: BTreeMap<FlightKey, Flight>,
    pub(super) net: Net,
    pub(super) files: BTreeMap<i32, SimFile>,
    pub(super) occurred: Occurred,
    events: BinaryHeap<Reverse<Coming>>,
    /// Completions, indexed by lane number.
    ready: Vec<Vec<Completion>>,
    closed: Arc<Closed>,
    serial: u64,
    next_raw: i32,
    trace: u64,
}

/// A future event, ordered by time and then by creation.
struct Coming {
    when: Instant,
    serial: u64,
    event: WorldEvent,
}

impl Ord for Coming {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.when, self.serial).cmp(&(other.when, other.serial))
    }
}

impl PartialOrd for Coming {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Coming {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

impl Eq for Coming {}

/// Handles whose last owner has dropped them, to be closed before anything else happens. Owners may
/// do so at any time, even while the state is borrowed, so this has a lock of its own.
#[derive(Default)]
struct Closed {
    raws: Mutex<Vec<i32>>,
    /// Whether there are any, for the much more frequent check.
    any: AtomicBool,
}

impl Closed {
    fn add(&self, raw: i32) {
        let mut raws = self.raws.lock().unwrap_or_else(PoisonError::into_inner);
        raws.push(raw);
        self.any.store(true, Ordering::Release);
    }

    fn take(&self) -> Vec<i32> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut raws = self.raws.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *raws)
    }
}

/// Closes a simulated handle when it is dropped.
struct Closer {
    raw: i32,
    closed: Arc<Closed>,
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.closed.add(self.raw);
    }
}

impl WorldState {
    pub(super) fn new(seed: u64, config: WorldConfig) -> Self {
        WorldState {
            config,
            now: Instant::from_ns(1_000_000_000),
            random: Random::new(seed),
            hosts: Vec::new(),
            flights: BTreeMap::new(),
            net: Net::default(),
            files: BTreeMap::new(),
            occurred: Occurred::default(),
            events: BinaryHeap::new(),
            ready: Vec::new(),
            closed: Arc::default(),
            serial: 0,
            next_raw: 3,
            trace: 0xcbf2_9ce4_8422_2325,
        }
    }

    pub(super) fn add_host(&mut self, name: &str) -> HostId {
        let n = self.hosts.len();
        let [.., high, low] = (n as u32 + 1).to_be_bytes();
        self.hosts.push(HostState {
            name: name.to_string(),
            addresses: vec![IpAddr::V4(Ipv4Addr::new(10, 0, high, low))],
            up: true,
            disk: SimDisk::default(),
            next_port: 32_768,
            egress_free: self.now,
        });
        HostId(n)
    }

    pub(super) fn host(&mut self, host: HostId) -> &mut HostState {
        &mut self.hosts[host.0]
    }

    /// The machine that has address `ip`, as seen from `from`.
    pub(super) fn host_of(&self, ip: IpAddr, from: HostId) -> Option<HostId> {
        if ip.is_loopback() || ip.is_unspecified() {
            return Some(from);
        }
        let found = self
            .hosts
            .iter()
            .position(|host| host.addresses.contains(&ip));
        found.map(HostId)
    }

    /// Adds an address to a machine.
    pub(super) fn add_address(&mut self, host: HostId) -> IpAddr {
        let [.., high, low] = (host.0 as u32 + 1).to_be_bytes();
        let addresses = &mut self.host(host).addresses;
        let ip = IpAddr::V4(Ipv4Addr::new(10, addresses.len() as u8, high, low));
        addresses.push(ip);
        ip
    }

    /// Mixes an event into the trace.
    pub(super) fn note(&mut self, words: &[u64]) {
        for word in [self.now.as_ns()].iter().chain(words) {
            self.trace = (self.trace ^ word)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(29);
        }
    }

    pub(super) fn trace(&self) -> u64 {
        self.trace
    }

    pub(super) fn fresh_raw(&mut self) -> i32 {
        self.next_raw += 1;
        self.next_raw
    }

    pub(super) fn keeper(&self, raw: i32) -> Keeper {
        Keeper::Simulated(Arc::new(Closer {
            raw,
            closed: self.closed.clone(),
        }))
    }

    pub(super) fn handle(&self, raw: i32) -> Handle {
        Handle::new(raw, self.keeper(raw))
    }

    /// Closes the dropped handles.
    pub(super) fn settle(&mut self) {
        loop {
            let closed = self.closed.take();
            if closed.is_empty() {
                return;
            }
            for raw in closed {
                if self.files.remove(&raw).is_none() {
                    self.close_socket(raw);
                }
            }
        }
    }

    pub(super) fn after(&mut self, delay: Duration, event: WorldEvent) {
        self.at(self.now + delay, event);
    }

    pub(super) fn at(&mut self, when: Instant, event: WorldEvent) {
        self.serial += 1;
        let serial = self.serial;
        self.events.push(Reverse(Coming {
            when,
            serial,
            event,
        }));
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        self.events.peek().map(|Reverse(first)| first.when)
    }

    /// Processes all events that are due.
    pub(super) fn run_due(&mut self) {
        self.settle();
        while self.next_event().is_some_and(|when| when <= self.now) {
            let Some(Reverse(Coming { event, .. })) = self.events.pop() else {
                return;
            };
            match event {
                WorldEvent::Arrival(flow) => self.arrive(flow),
                WorldEvent::GiveUp { socket, since } => self.give_up(socket, since),
                WorldEvent::Disk(key, event) => self.disk_done(key, &event),
            }
        }
    }

    /// Advances the clock to `when`.
    pub(super) fn advance(&mut self, when: Instant) {
        self.now = self.now.max(when);
        self.run_due();
    }

    pub(super) fn submit(&mut self, host: HostId, lane: LaneKey, id: OpId, op: Op) {
        self.settle();
        self.serial += 1;
        let key = FlightKey(self.serial);
        let is_file = matches!(
            op,
            Op::Read { .. } | Op::Write { .. } | Op::Sync { .. } | Op::Allocate { .. }
        );
        self.note(&[1, u64::from(lane.0), key.0, u64::from(is_file)]);
        self.flights.insert(key, Flight { host, lane, id, op });
        if matches!(self.flights[&key].op, Op::Take { .. }) {
            // Simulated machines have no such devices.
            return self.complete(key, -libc::ENODEV);
        }
        if is_file {
            self.submit_to_disk(key);
        } else {
            self.submit_to_net(key);
        }
    }

    /// Returns an operation to its lane with its result: a count or handle, or a negated errno.
    pub(super) fn complete(&mut self, key: FlightKey, result: i32) {
        let Some(Flight { lane, id, op, .. }) = self.flights.remove(&key) else {
            return;
        };
        self.note(&[2, key.0, result as u64]);
        let place = lane.0 as usize;
        if self.ready.len() <= place {
            self.ready.resize_with(place + 1, Vec::new);
        }
        self.ready[place].push(Completion { id, op, result });
    }

    pub(super) fn cancel(&mut self, lane: LaneKey, id: OpId) {
        let is_meant = |flight: &Flight| flight.lane == lane && flight.id.0 == id.0;
        let mut flights = self.flights.iter();
        let Some((&key, flight)) = flights.find(|(_, flight)| is_meant(flight)) else {
            return;
        };
        if flight.op.is_cancellable() {
            self.leave_socket(key);
            self.complete(key, -libc::ECANCELED);
        }
    }

    pub(super) fn has_completions(&self, lane: LaneKey) -> bool {
        let ready = self.ready.get(lane.0 as usize);
        ready.is_some_and(|ready| !ready.is_empty())
    }

    /// Takes the completions of `lane`, in random order.
    pub(super) fn take_completions(&mut self, lane: LaneKey, into: &mut Vec<Completion>) {
        self.settle();
        let WorldState { ready, random, .. } = self;
        let Some(ready) = ready.get_mut(lane.0 as usize) else {
            return;
        };
        while !ready.is_empty() {
            let next = random.index(ready.len());
            into.push(ready.swap_remove(next));
        }
    }

    /// Stops all software of a machine: its operations are dropped. Its sockets vanish silently in
    /// a power cut; otherwise they are closed as those of a dying process.
    pub(super) fn stop_host(&mut self, host: HostId, power_cut: bool) {
        self.settle();
        self.note(&[3, host.0 as u64, u64::from(power_cut)]);
        self.host(host).up = !power_cut;
        let gone: Vec<FlightKey> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.host == host)
            .map(|(&key, _)| key)
            .collect();
        let mut flights = Vec::new();
        for key in gone {
            self.leave_socket(key);
            flights.extend(self.flights.remove(&key));
        }
        if power_cut {
            self.forget_sockets_of(host);
        } else {
            self.close_sockets_of(host);
        }
        self.stop_disk(host, &flights, power_cut);
        self.files.retain(|_, file| file.host != host);
    }

    /// Drops what is queued for a lane that has ended.
    pub(super) fn forget_lane(&mut self, lane: LaneKey) {
        if let Some(ready) = self.ready.get_mut(lane.0 as usize) {
            drop(std::mem::take(ready));
        }
        self.settle();
    }

    /// Lists the pending operations, one per line.
    pub(super) fn describe_waiting(&self) -> String {
        let mut lines = String::new();
        for flight in self.flights.values() {
            let what = match &flight.op {
                Op::Accept { socket } => format!("accept on {}", self.describe_socket(socket.raw)),
                Op::Connect { addr, .. } => format!("connect to {addr}"),
                Op::Receive { socket, .. } => {
                    format!("receive on {}", self.describe_socket(socket.raw))
                }
                Op::Send { socket, gather } => format!(
                    "send of {} bytes on {}",
                    gather.len(),
                    self.describe_socket(socket.raw)
                ),
                Op::Read { at, .. } => format!("read at {at}"),
                Op::Write { at, .. } => format!("write at {at}"),
                Op::Sync { .. } => "sync".to_string(),
                Op::Allocate { at, .. } => format!("allocate at {at}"),
                Op::Take { .. } => "take a message".to_string(),
            };
            let name = &self.hosts[flight.host.0].name;
            lines.push_str(&format!("\n  {name} waits: {what}"));
        }
        lines
    }
}
