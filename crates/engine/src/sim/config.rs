//! How a simulated world behaves. Times are in nanoseconds, as ranges from which each event draws.

use std::{ops::Range, time::Duration};

/// The parameters of a simulated world.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// The network.
    pub net: NetConfig,
    /// The disks.
    pub disk: DiskConfig,
    /// Blocking work ([`crate::blocking`]): the delay before it runs, and again from then to its
    /// answer, in nanoseconds.
    pub blocking_ns: Range<u64>,
    /// The duration of one turn of a lane, in nanoseconds.
    pub turn_ns: Range<u64>,
    /// The longest virtual time for a world; a test that exceeds it hangs.
    pub time_max: Duration,
    /// The most turns and events for a world; a test that exceeds it is in an endless loop.
    pub steps_max: u64,
    /// The most turns in a row without a moment in which all lanes wait: in a test that exceeds it, a task that is ready
    /// again at once never ends.
    pub busy_turns_max: u64,
    /// The most calls of the engine in one turn of a lane, which no simulated time passes in: a test that exceeds it has
    /// a task that never waits for anything.
    pub turn_calls_max: u64,
    /// The most CPU time of one turn, for a task that neither waits nor calls the engine. It cannot be made to panic, so
    /// the process is aborted.
    pub turn_cpu_max: Duration,
}

/// How the network behaves.
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// One-way latency between two machines, in nanoseconds.
    pub latency_ns: Range<u64>,
    /// Receive buffer of each end of a connection, in bytes.
    pub buffer_bytes: usize,
    /// Probability that a send or receive moves only a part of what it could.
    pub split_probability: f64,
    /// Probability that an arriving packet finds its connection reset.
    pub reset_probability: f64,
    /// Bandwidth of a machine's network card for sending, in bytes per second; `None`: unlimited.
    pub bytes_per_s: Option<u64>,
    /// How long an end retransmits before it gives up (ETIMEDOUT).
    pub give_up_after: Duration,
}

/// How a disk behaves.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Duration of a read, write or allocation, in nanoseconds.
    pub latency_ns: Range<u64>,
    /// Duration of a sync, in nanoseconds.
    pub sync_latency_ns: Range<u64>,
    /// Probability that an operation takes fifty times as long.
    pub slow_probability: f64,
    /// Probability that a read or write moves only a part.
    pub short_probability: f64,
    /// The number of bytes of which memory addresses, offsets and lengths on a direct handle must be multiples.
    pub io_align_bytes: u32,
    /// The number of bytes of whose multiples an allocation may change, as on a block device; 1: any.
    pub sector_bytes: u32,
    /// Whether the file system confirms that direct I/O bypasses the page cache.
    pub confirms_direct: bool,
}

impl Default for WorldConfig {
    fn default() -> Self {
        WorldConfig {
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
                sector_bytes: 1,
                confirms_direct: true,
            },
            blocking_ns: 10_000..2_000_000,
            turn_ns: 100..1_500,
            time_max: Duration::from_secs(24 * 3600),
            steps_max: 50_000_000,
            busy_turns_max: 2_000_000,
            turn_calls_max: 10_000_000,
            turn_cpu_max: Duration::from_secs(30),
        }
    }
}
