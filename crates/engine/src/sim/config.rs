//! How a simulated world behaves. Times are in nanoseconds, as ranges from which each event draws.

use std::{ops::Range, time::Duration};

/// How a world behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// The network.
    pub net: NetConfig,
    /// Every disk.
    pub disk: DiskConfig,
    /// What blocks ([`crate::blocking`]): before it is done, and from then to its answer, in
    /// nanoseconds.
    pub blocking_ns: Range<u64>,
    /// What one turn of a lane takes, in nanoseconds.
    pub turn_ns: Range<u64>,
    /// The most virtual time that a world lives; more is a test that hangs.
    pub time_max: Duration,
    /// The most turns and events of a world; more is a test that runs in circles.
    pub steps_max: u64,
}

/// How the network behaves.
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// One way between two machines, in nanoseconds.
    pub latency_ns: Range<u64>,
    /// Room for received bytes in each end of a connection.
    pub buffer_bytes: usize,
    /// How often a send or receive moves only a part of what it could.
    pub split_probability: f64,
    /// How often an arriving packet finds its connection reset.
    pub reset_probability: f64,
    /// What a machine's network card sends, in bytes per second; `None`: without limit.
    pub bytes_per_s: Option<u64>,
    /// How long an end sends again what does not arrive before it gives up (ETIMEDOUT).
    pub give_up_after: Duration,
}

/// How a disk behaves.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// A read, a write or an allocation, in nanoseconds.
    pub latency_ns: Range<u64>,
    /// A sync, in nanoseconds.
    pub sync_latency_ns: Range<u64>,
    /// How often an operation takes fifty times as long.
    pub slow_probability: f64,
    /// How often a read or write moves only a part.
    pub short_probability: f64,
    /// What memory, offsets and lengths on a direct handle must be multiples of, in bytes.
    pub io_align_bytes: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            net: NetConfig {
                latency_ns: 20_000..200_000,
                buffer_bytes: 256 << 10,
                split_probability: 0.25,
                reset_probability: 0.0,
                bytes_per_s: None,
                give_up_after: Duration::from_secs(120),
            },
            disk: DiskConfig {
                latency_ns: 10_000..150_000,
                sync_latency_ns: 100_000..2_000_000,
                slow_probability: 0.01,
                short_probability: 0.05,
                io_align_bytes: 4096,
            },
            blocking_ns: 10_000..2_000_000,
            turn_ns: 100..1_500,
            time_max: Duration::from_secs(24 * 3600),
            steps_max: 50_000_000,
        }
    }
}
