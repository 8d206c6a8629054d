//! Where the time of each command goes: from its arrival, through the waits for its data, for
//! memory and for its turn, through the volume, until its answer has been sent.
//!
//! Each session counts for each volume that it uses, on its own lane, with a few plain stores per
//! command. A reader adds up the sessions by volume and by initiator. When a session ends, its
//! counts are added to the volume's.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use engine::{Instant, time};
use hdrhistogram::Histogram;
use volume::{
    histogram::{self, LaneHistogram, add},
    pending::{self, Pending},
};

/// A stage in a command's life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// From its arrival until its data-out is complete; writes only.
    Transfer,
    /// From there until the volume starts on it: waiting for memory and for commands that go before.
    Queue,
    /// Running in the volume.
    Volume,
    /// From there until the system has accepted its answer, data included.
    Reply,
    /// All stages together.
    Total,
}

const STAGES: usize = 5;

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Stage; STAGES] = [
        Stage::Transfer,
        Stage::Queue,
        Stage::Volume,
        Stage::Reply,
        Stage::Total,
    ];
}

/// The kind of a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CommandKind {
    /// Transfers data to the initiator.
    Read,
    /// Takes data from the initiator.
    Write,
    /// Works on the medium without data: a flush, a discard.
    Other,
}

const KINDS: usize = 3;

impl CommandKind {
    /// Every kind.
    pub const ALL: [CommandKind; KINDS] =
        [CommandKind::Read, CommandKind::Write, CommandKind::Other];
}

/// When a command passed from one stage to the next.
#[derive(Clone, Copy, Debug)]
pub struct StageStamps {
    /// Its CDB had arrived.
    pub received: Instant,
    /// Its data-out had arrived.
    pub complete: Instant,
    /// The volume began.
    pub started: Instant,
    /// The volume ended.
    pub ended: Instant,
}

impl StageStamps {
    /// The times of a command that arrives now without data.
    pub fn at(received: Instant) -> StageStamps {
        StageStamps {
            received,
            complete: received,
            started: received,
            ended: received,
        }
    }

    /// The times of a block operation that ends now. Its volume began when its data was `complete`.
    pub fn of_block_operation(received: Instant, complete: Instant) -> StageStamps {
        StageStamps {
            received,
            complete,
            started: complete,
            ended: time::now(),
        }
    }
}

/// Buckets of an eighth of a power of two.
type Buckets = LaneHistogram<3>;

/// The counters of one session for one volume.
#[derive(Debug)]
pub(crate) struct SessionCounters {
    volume: String,
    initiator: String,
    kinds: [OnceLock<[Buckets; STAGES]>; KINDS],
    bytes: [AtomicU64; KINDS],
}

impl SessionCounters {
    /// Counts a command that moved `bytes` and whose answer was sent at `sent`. Only on the session's lane.
    pub(crate) fn record(&self, kind: CommandKind, bytes: u64, times: &StageStamps, sent: Instant) {
        add(&self.bytes[kind as usize], bytes);
        let stages = self.kinds[kind as usize].get_or_init(Default::default);
        let ns = |from: Instant, to: Instant| to.since(from).as_nanos() as u64;
        if kind == CommandKind::Write {
            stages[Stage::Transfer as usize].record(ns(times.received, times.complete));
        }
        stages[Stage::Queue as usize].record(ns(times.complete, times.started));
        stages[Stage::Volume as usize].record(ns(times.started, times.ended));
        stages[Stage::Reply as usize].record(ns(times.ended, sent));
        stages[Stage::Total as usize].record(ns(times.received, sent));
    }

    fn add_to(&self, table: &mut StageTable) {
        for (kind, stages) in self.kinds.iter().enumerate() {
            for (stage, times) in stages.get().into_iter().flatten().enumerate() {
                times.add_to(&mut table.stages[kind][stage]);
                table.sums_ns[kind][stage] += times.sum_ns();
            }
        }
        for (bytes, sum) in self.bytes.iter().zip(&mut table.bytes) {
            *sum += bytes.load(Ordering::Relaxed);
        }
    }
}

/// All counters, of all lanes.
#[derive(Default)]
pub(crate) struct Stages(Mutex<Counters>);

#[derive(Default)]
struct Counters {
    sessions: Vec<Arc<SessionCounters>>,
    /// By volume, for sessions that have ended.
    ended: BTreeMap<String, StageTable>,
    /// What has not ended yet of each nexus, with its initiator.
    pending: Vec<(String, Arc<Pending>)>,
}

impl Stages {
    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session starts to use a volume.
    pub(crate) fn begin(&self, volume: &str, initiator: &str) -> Arc<SessionCounters> {
        let counted = Arc::new(SessionCounters {
            volume: volume.into(),
            initiator: initiator.into(),
            kinds: Default::default(),
            bytes: Default::default(),
        });
        self.lock().sessions.push(counted.clone());
        counted
    }

    /// The session has ended: its counts move to the volume's.
    pub(crate) fn end(&self, counted: &Arc<SessionCounters>) {
        let mut state = self.lock();
        counted.add_to(state.ended.entry(counted.volume.clone()).or_default());
        state
            .sessions
            .retain(|session| !Arc::ptr_eq(session, counted));
    }

    /// A nexus of `initiator` begins, whose running I/Os are `pending`.
    pub(crate) fn follow(&self, initiator: &str, pending: &Arc<Pending>) {
        let followed = (initiator.to_owned(), pending.clone());
        self.lock().pending.push(followed);
    }

    /// It ends.
    pub(crate) fn leave(&self, pending: &Arc<Pending>) {
        let mut state = self.lock();
        state.pending.retain(|(_, its)| !Arc::ptr_eq(its, pending));
    }

    pub(crate) fn report(&self) -> StageReport {
        let state = self.lock();
        let mut report = StageReport {
            volumes: state.ended.clone(),
            initiators: BTreeMap::new(),
            in_progress: BTreeMap::new(),
        };
        for (initiator, pending) in &state.pending {
            let (count, oldest) = pending.all();
            let sum = report.in_progress.entry(initiator.clone()).or_default();
            *sum = (sum.0 + count, pending::earlier(sum.1, oldest));
        }
        for counted in &state.sessions {
            let volume = report.volumes.entry(counted.volume.clone());
            counted.add_to(volume.or_default());
            let initiator = report.initiators.entry(counted.initiator.clone());
            counted.add_to(initiator.or_default());
        }
        report
    }
}

/// The times of all commands since the start.
#[derive(Clone, Debug)]
pub struct StageReport {
    /// By volume, over all sessions, ended ones included.
    pub volumes: BTreeMap<String, StageTable>,
    /// By initiator name, over its current sessions.
    pub initiators: BTreeMap<String, StageTable>,
    /// By initiator: how many I/Os have not ended yet, and the beginning of the second in which the oldest of them began.
    pub in_progress: BTreeMap<String, (u64, Option<Instant>)>,
}

/// Times by kind and stage, in nanoseconds, and bytes by kind.
#[derive(Clone, Debug)]
pub struct StageTable {
    stages: [[Histogram<u64>; STAGES]; KINDS],
    sums_ns: [[u64; STAGES]; KINDS],
    bytes: [u64; KINDS],
}

impl Default for StageTable {
    fn default() -> Self {
        StageTable {
            stages: std::array::from_fn(|_| std::array::from_fn(|_| histogram::empty())),
            sums_ns: [[0; STAGES]; KINDS],
            bytes: [0; KINDS],
        }
    }
}

impl StageTable {
    /// How long commands of a kind spent in a stage.
    pub fn of(&self, kind: CommandKind, stage: Stage) -> &Histogram<u64> {
        &self.stages[kind as usize][stage as usize]
    }

    /// The exact sum of these times.
    pub fn sum_ns(&self, kind: CommandKind, stage: Stage) -> u64 {
        self.sums_ns[kind as usize][stage as usize]
    }

    /// The bytes that commands of a kind had to move.
    pub fn bytes(&self, kind: CommandKind) -> u64 {
        self.bytes[kind as usize]
    }
}

impl fmt::Display for StageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = self.volumes.iter().map(|(name, t)| ("volume", name, t));
        let initiators = self.initiators.iter();
        for (what, name, table) in tables.chain(initiators.map(|(name, t)| ("initiator", name, t)))
        {
            writeln!(f, "{what} {name}")?;
            write!(f, "{table}")?;
        }
        Ok(())
    }
}

impl fmt::Display for StageTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in CommandKind::ALL {
            let commands = self.of(kind, Stage::Total).len();
            if commands == 0 {
                continue;
            }
            let name = format!("{kind:?}").to_lowercase();
            writeln!(
                f,
                "  {name:<10} {commands:>12} commands, µs: median, 99 %, longest"
            )?;
            for stage in Stage::ALL {
                let times = self.of(kind, stage);
                if times.is_empty() {
                    continue;
                }
                let us = |ns: u64| ns as f64 / 1000.0;
                writeln!(
                    f,
                    "    {:<8} {:>12.1} {:>12.1} {:>12.1}",
                    format!("{stage:?}").to_lowercase(),
                    us(times.value_at_quantile(0.5)),
                    us(times.value_at_quantile(0.99)),
                    us(times.max()),
                )?;
            }
        }
        Ok(())
    }
}
