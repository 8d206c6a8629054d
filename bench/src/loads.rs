//! The loads: realistic ones from libiscsi, a client that Sanstone's authors did not write, and full speed from our own
//! initiator.

use harness::libiscsi::Load as Stock;
use lab::load::{Arrivals, Load, Operation, Order, Spacing, Workload};

/// From this length on, copying the bytes costs more than everything else about a command.
const LONG_BYTES: u32 = 128 << 10;
/// Depth for loads at a given rate: large enough that arrivals wait only if the target falls behind.
const DEPTH_AT_A_RATE: u32 = 128;

/// A load of libiscsi's client, at random places.
#[derive(Clone, Copy)]
pub(crate) struct StockLoad {
    /// In tables and for `--only`.
    pub(crate) name: &'static str,
    pub(crate) load: Stock,
    /// About commands that exclude others from their blocks, or what those are compared with: only on our own disk in
    /// memory.
    pub(crate) is_about_exclusion: bool,
}

/// A load of our own client.
#[derive(Clone, Copy)]
pub(crate) struct OwnLoad {
    pub(crate) name: &'static str,
    pub(crate) sessions: usize,
    /// On each session.
    pub(crate) load: Load,
}

const fn stock(
    name: &'static str,
    operation: &'static str,
    (size_bytes, sessions, depth): (u32, u32, u32),
) -> StockLoad {
    StockLoad {
        name,
        load: Stock {
            operation,
            size_bytes,
            sessions,
            depth,
            rate: 0,
        },
        is_about_exclusion: false,
    }
}

const fn at_a_rate(name: &'static str, operation: &'static str, rate: u32) -> StockLoad {
    let mut all = stock(name, operation, (4096, 1, DEPTH_AT_A_RATE));
    all.load.rate = rate;
    all
}

const fn exclusion(
    name: &'static str,
    operation: &'static str,
    (size_bytes, sessions, depth): (u32, u32, u32),
) -> StockLoad {
    let mut all = stock(name, operation, (size_bytes, sessions, depth));
    all.is_about_exclusion = true;
    all
}

pub(crate) const STOCK: [StockLoad; 20] = [
    stock("4K read, one at a time", "read", (4096, 1, 1)),
    stock("4K write, one at a time", "write", (4096, 1, 1)),
    at_a_rate("4K read, 2,000/s", "read", 2_000),
    at_a_rate("4K write, 2,000/s", "write", 2_000),
    at_a_rate("4K read, 5,000/s", "read", 5_000),
    at_a_rate("4K write, 5,000/s", "write", 5_000),
    at_a_rate("4K read, 20,000/s", "read", 20_000),
    at_a_rate("4K write, 20,000/s", "write", 20_000),
    at_a_rate("4K read, 60,000/s", "read", 60_000),
    at_a_rate("4K write, 60,000/s", "write", 60_000),
    stock("4K read, 32 at a time", "read", (4096, 1, 32)),
    stock("4K write, 32 at a time", "write", (4096, 1, 32)),
    stock("4K read, 4 × 32 at a time", "read", (4096, 4, 32)),
    stock("4K write, 4 × 32 at a time", "write", (4096, 4, 32)),
    stock("128K read, 8 at a time", "read", (LONG_BYTES, 1, 8)),
    stock("128K write, 8 at a time", "write", (LONG_BYTES, 1, 8)),
    exclusion("16K write, 32 at a time", "write", (16 << 10, 1, 32)),
    exclusion(
        "16K atomic write, 32 at a time",
        "write-atomic",
        (16 << 10, 1, 32),
    ),
    exclusion(
        "4K COMPARE AND WRITE, 1 session",
        "compare-and-write",
        (4096, 1, 1),
    ),
    exclusion(
        "4K COMPARE AND WRITE, 8 sessions",
        "compare-and-write",
        (4096, 8, 1),
    ),
];

const fn own(
    name: &'static str,
    operation: Operation,
    order: Order,
    (size_bytes, sessions, depth): (usize, usize, usize),
) -> OwnLoad {
    OwnLoad {
        name,
        sessions,
        load: Load {
            operation,
            order,
            size_bytes,
            depth,
        },
    }
}

const READ: Operation = Operation::Read;
const WRITE: Operation = Operation::Write;
const RANDOM: Order = Order::Random;

pub(crate) const OWN: [OwnLoad; 10] = [
    own("4K random read, depth 1", READ, RANDOM, (4096, 1, 1)),
    own("4K random read, depth 32", READ, RANDOM, (4096, 1, 32)),
    own("4K random read, depth 64", READ, RANDOM, (4096, 1, 64)),
    own("4K random read, depth 1024", READ, RANDOM, (4096, 1, 1024)),
    own(
        "4K random read, 4 sessions × 32",
        READ,
        RANDOM,
        (4096, 4, 32),
    ),
    own("4K random write, depth 1", WRITE, RANDOM, (4096, 1, 1)),
    own("4K random write, depth 32", WRITE, RANDOM, (4096, 1, 32)),
    own(
        "4K random write, 4 sessions × 32",
        WRITE,
        RANDOM,
        (4096, 4, 32),
    ),
    own(
        "128K sequential read, depth 8",
        READ,
        Order::Sequential,
        (128 << 10, 1, 8),
    ),
    own(
        "128K sequential write, depth 8",
        WRITE,
        Order::Sequential,
        (128 << 10, 1, 8),
    ),
];

impl StockLoad {
    /// Whether the load shows how the settings of `wait` differ.
    pub(crate) fn is_about_waiting(&self) -> bool {
        let Stock { rate, sessions, .. } = self.load;
        let is_read = self.load.operation == "read" && self.load.size_bytes < LONG_BYTES;
        is_read && (rate == 0 && sessions == 1 || matches!(rate, 5_000 | 20_000))
    }

    /// Whether its floors are measured: for loads at a given rate, loads with one command at a time, and
    /// large transfers, where copying the bytes dominates. For small commands at full speed the floor does
    /// more I/Os than a target, so their costs per I/O are not comparable.
    pub(crate) fn has_floors(&self) -> bool {
        let Stock {
            rate,
            sessions,
            depth,
            size_bytes,
            ..
        } = self.load;
        !self.is_about_exclusion && (rate > 0 || sessions * depth == 1 || size_bytes >= LONG_BYTES)
    }

    /// The same for our own generator, for comparison with libiscsi.
    pub(crate) fn workload(&self) -> Option<Workload> {
        let Stock {
            operation,
            size_bytes,
            sessions,
            depth,
            rate,
        } = self.load;
        if self.is_about_exclusion || sessions > 1 {
            return None;
        }
        let operation = if operation == "read" { READ } else { WRITE };
        let closed = Workload::closed(operation, size_bytes as usize, depth as usize);
        let arrivals = Arrivals::Open {
            rate_per_s: rate.into(),
            spacing: Spacing::Poisson,
        };
        Some(Workload {
            // The comparison is about processor time.
            is_prompt: false,
            arrivals: if rate == 0 { closed.arrivals } else { arrivals },
            ..closed
        })
    }
}
