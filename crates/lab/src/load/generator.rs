//! Drives a load. A closed loop has one task for each outstanding I/O. An open loop has a single task that
//! starts each I/O at its arrival time, however slowly earlier ones complete, and one task for each I/O.
//! Another task samples the queue length.

use std::{
    cell::{Cell, RefCell},
    iter::Peekable,
    ops::Range,
    rc::Rc,
};

use engine::{
    Duration, Instant, Payload,
    sync::{Budget, Notify, Permit},
    task, time,
};
use hdrhistogram::Histogram;
use volume::{
    Durability, Error, ErrorKind, Result, SharedVolume,
    layers::{Watch, watched},
};

use super::{
    Arrivals, Done, Ledger, Lun, Point, Stop, Workload,
    arrivals::Schedule,
    done::{Sampled, SeenIo, histogram},
    places::{Io, IoSequence, LoadVolume},
    sampler::Sampler,
    stamps::marked,
};

/// Maximum number of started but uncompleted I/Os in an open loop. Arrivals beyond it wait, and their latency
/// includes the wait. fio gets the same limit.
pub(crate) const BEGUN_MAX: usize = 1024;

/// The same limit in bytes.
const BEGUN_BYTES_MAX: usize = 256 << 20;

/// Number of queue samples over the whole duration.
const POINTS: u32 = 200;
/// The least time between two samples.
const POINT_MIN: Duration = Duration::from_millis(2);
/// The longest that the end of a load may go unnoticed.
const LOOK_MAX: Duration = Duration::from_millis(20);

/// A watched load samples its I/Os, because reporting stage times costs the target CPU: not more often than this, at the
/// pace at which it begins.
const SEEN_EVERY: Duration = Duration::from_millis(1);
/// So many I/Os of a closed loop must have ended before its pace is known.
const PACED: u64 = 16;

/// How many other places to try, when another write is in the way, before waiting for it.
const DRAWS_MAX: u32 = 16;

/// Loads `luns` in rotation for `duration`, or until `stop`.
///
/// # Errors
/// The first I/O error ends the load, and so does the first read that returns data other than what was
/// written.
pub async fn generate(
    luns: &[Lun],
    workload: &Workload,
    duration: Duration,
    stop: &Stop,
) -> Result<Done> {
    let began = time::now();
    let run = Rc::new(LoadRun::new(
        luns,
        workload,
        began..began + duration,
        stop.clone(),
    )?);
    let watch = task::spawn(watch(run.clone(), began, duration));
    let mut passed_ns = 0;
    match workload.arrivals {
        Arrivals::Closed { outstanding } => {
            let workers = (0..outstanding).map(|index| task::spawn(worker(run.clone(), index)));
            task::join_all(workers.collect::<Vec<_>>()).await;
        }
        Arrivals::Open {
            rate_per_s,
            spacing,
        } => {
            let schedule = Schedule::new(rate_per_s, spacing, workload.seed);
            arrive(&run, began, schedule).await;
            passed_ns = (time::now() - began).min(duration).as_nanos() as u64;
            let is_quiet = || (run.begun.get() == run.ended.get()).then_some(());
            run.one_ended.wait_for(is_quiet).await;
        }
    }
    let elapsed = time::now() - began;
    run.is_over.set(true);
    let series = watch.await;
    if let Some(error) = run.failed.take() {
        return Err(error);
    }
    let times = run.times.take();
    Ok(Done {
        ios: times.latency_ns.len(),
        bytes: times.bytes,
        elapsed,
        latency_ns: times.latency_ns,
        service_ns: times.service_ns,
        late_ns: times.late_ns,
        not_begun: run.arrived(passed_ns).saturating_sub(run.begun.get()),
        series,
        seen: run.seen.take().ios,
    })
}

struct LoadRun {
    luns: Vec<LunRun>,
    /// The adapter's total queue slots.
    places: Option<Rc<Budget>>,
    data: Payload,
    durability: Durability,
    deadline: Instant,
    stop: Stop,
    ios_max: u64,
    is_over: Cell<bool>,
    /// The future arrivals of an open loop, and the number of past ones.
    arrivals: RefCell<Option<(Peekable<Schedule>, u64)>>,
    begun: Cell<u64>,
    at_volume: Cell<u64>,
    ended: Cell<u64>,
    one_ended: Notify,
    times: RefCell<LoadTimes>,
    is_prompt: bool,
    is_watched: bool,
    began: Instant,
    /// `None` until the pace of a closed loop is known.
    sampler: RefCell<Option<Sampler>>,
    seed: u64,
    seen: RefCell<Sampled>,
    failed: RefCell<Option<Error>>,
}

struct LunRun {
    volume: SharedVolume,
    ledger: Option<Rc<Ledger>>,
    ios: RefCell<IoSequence>,
    /// The adapter's queue slots for this LUN.
    places: Option<Rc<Budget>>,
}

struct LoadTimes {
    bytes: u64,
    latency_ns: Histogram<u64>,
    service_ns: Histogram<u64>,
    late_ns: Histogram<u64>,
    /// Sum of all latencies, for the mean between two points.
    sum_ns: u64,
}

impl Default for LoadTimes {
    fn default() -> Self {
        LoadTimes {
            bytes: 0,
            latency_ns: histogram(),
            service_ns: histogram(),
            late_ns: histogram(),
            sum_ns: 0,
        }
    }
}

impl LoadRun {
    fn new(luns: &[Lun], workload: &Workload, time: Range<Instant>, stop: Stop) -> Result<LoadRun> {
        let (began, deadline) = (time.start, time.end);
        let budget = |amount: usize| Budget::new(amount.max(1));
        let adapter = workload.adapter.as_ref();
        let mut all = Vec::new();
        for (index, lun) in luns.iter().enumerate() {
            let span = checked_span(workload, &lun.volume)?;
            let part = LoadVolume {
                index,
                of: luns.len(),
            };
            all.push(LunRun {
                volume: lun.volume.clone(),
                ledger: lun.ledger.clone(),
                ios: RefCell::new(IoSequence::new(workload, span, part)),
                places: adapter.map(|adapter| budget(adapter.per_lun)),
            });
        }
        let (arrivals, sampler) = match workload.arrivals {
            Arrivals::Closed { .. } => (None, None),
            Arrivals::Open {
                rate_per_s,
                spacing,
            } => {
                let schedule = Schedule::new(rate_per_s, spacing, workload.seed);
                let pace = Duration::from_secs_f64(1.0 / rate_per_s);
                let expected = (deadline - began).as_secs_f64() * rate_per_s;
                let sampler = Sampler::new(pace, SEEN_EVERY, expected, workload.seed);
                (Some((schedule.peekable(), 0)), Some(sampler))
            }
        };
        Ok(LoadRun {
            luns: all,
            places: adapter.map(|adapter| budget(adapter.total)),
            data: marked(workload.size_bytes_max()),
            durability: workload.durability,
            deadline,
            stop,
            ios_max: workload.ios_max.unwrap_or(u64::MAX),
            is_over: Cell::new(false),
            arrivals: RefCell::new(arrivals),
            begun: Cell::new(0),
            at_volume: Cell::new(0),
            ended: Cell::new(0),
            one_ended: Notify::new(),
            times: RefCell::default(),
            is_prompt: workload.is_prompt,
            is_watched: workload.is_watched,
            began,
            sampler: RefCell::new(sampler),
            seed: workload.seed,
            seen: RefCell::default(),
            failed: RefCell::new(None),
        })
    }

    /// Number of I/Os that arrived in the first `ns` nanoseconds, started or not.
    fn arrived(&self, ns: u64) -> u64 {
        let mut arrivals = self.arrivals.borrow_mut();
        let Some((to_come, come)) = arrivals.as_mut() else {
            return self.begun.get();
        };
        while to_come.next_if(|at_ns| *at_ns < ns).is_some() {
            *come += 1;
        }
        *come
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_asked() || self.failed.borrow().is_some() || self.begun.get() >= self.ios_max
    }

    /// Runs one I/O with the intended start `intended`, from queueing to completion.
    async fn one(&self, index: usize, intended: Instant) {
        let lun = &self.luns[index];
        // Take the LUN's own slot first, so that an I/O waiting for it does not hold a shared slot that
        // another LUN could use.
        let _places = (take(&lun.places).await, take(&self.places).await);
        let issued = time::now();
        self.at_volume.set(self.at_volume.get() + 1);
        let performed = lun.perform(&self.data, self.durability);
        let watch = (self.is_watched && self.is_seen(issued)).then(Watch::new);
        let result = match &watch {
            None => performed.await,
            Some(watch) => watched(watch.clone(), performed).await,
        };
        self.at_volume.set(self.at_volume.get() - 1);
        self.ended.set(self.ended.get() + 1);
        match result {
            Ok(len) => self.record(len, intended, issued, watch),
            Err(error) => {
                self.failed.borrow_mut().get_or_insert(error);
            }
        }
    }

    /// Whether to sample the I/O issued now.
    fn is_seen(&self, issued: Instant) -> bool {
        let mut sampler = self.sampler.borrow_mut();
        if sampler.is_none() && self.ended.get() >= PACED {
            let pace = (issued - self.began) / self.ended.get() as u32;
            let left = (self.deadline - self.began).as_secs_f64() / pace.as_secs_f64().max(1e-9);
            let expected = left.min(self.ios_max as f64);
            *sampler = Some(Sampler::new(pace, SEEN_EVERY, expected, self.seed));
        }
        sampler.as_mut().is_some_and(Sampler::is_next)
    }

    fn record(&self, len: usize, intended: Instant, issued: Instant, watch: Option<Watch>) {
        let now = time::now();
        let [latency_ns, service_ns] =
            [intended, issued].map(|from| now.since(from).as_nanos() as u64);
        if let Some(watch) = watch {
            self.seen.borrow_mut().add(SeenIo {
                latency_ns,
                service_ns,
                layers: watch.layers(),
            });
        }
        let mut times = self.times.borrow_mut();
        times.bytes += len as u64;
        times.sum_ns += latency_ns;
        times.latency_ns.saturating_record(latency_ns);
        times.service_ns.saturating_record(service_ns);
    }
}

async fn take(places: &Option<Rc<Budget>>) -> Option<Permit> {
    match places {
        Some(places) => Some(places.take(1).await),
        None => None,
    }
}

impl LunRun {
    /// Performs the next I/O of this volume and returns its length.
    async fn perform(&self, data: &Payload, durability: Durability) -> Result<usize> {
        let io = self.ios.borrow_mut().next();
        if let Some(ledger) = &self.ledger {
            return self.perform_verified(ledger, io, durability).await;
        }
        match io.is_read {
            true => drop(self.volume.read(io.at, io.len).await?),
            false => {
                let data = data.slice(0..io.len);
                self.volume.write(io.at, data, durability).await?;
            }
        }
        Ok(io.len)
    }

    async fn perform_verified(
        &self,
        ledger: &Ledger,
        mut io: Io,
        durability: Durability,
    ) -> Result<usize> {
        if io.is_read {
            let expected = ledger.expect(&io);
            let data = self.volume.read(io.at, io.len).await?;
            ledger.check(&io, &expected, &data)?;
            return Ok(io.len);
        }
        let mut draws = 0;
        let data = loop {
            if let Some(data) = ledger.begin(&io) {
                break data;
            }
            if draws == DRAWS_MAX {
                // The write in the way may belong to another session with the same disk.
                time::sleep(Duration::from_micros(100)).await;
                continue;
            }
            draws += 1;
            let next = self.ios.borrow_mut().next();
            io = Io {
                is_read: false,
                ..next
            };
        };
        let written = self.volume.write(io.at, data, durability).await;
        ledger.end(&io);
        written.map(|()| io.len)
    }
}

/// One of the outstanding I/Os of a closed loop: issues the next as soon as the last completes.
async fn worker(run: Rc<LoadRun>, index: usize) {
    let lun = index % run.luns.len();
    for own in 1_u64.. {
        let now = time::now();
        if now >= run.deadline || run.is_stopped() {
            return;
        }
        run.begun.set(run.begun.get() + 1);
        run.one(lun, now).await;
        // A volume that completes immediately never yields, so yield for the other tasks.
        if own % 64 == 0 {
            task::yield_now().await;
        }
    }
}

/// Waits for an arrival time.
async fn arrival(intended: Instant, is_prompt: bool) {
    let sleep = time::sleep_until(intended);
    match is_prompt {
        true => sleep.exactly().await,
        false => sleep.await,
    }
}

/// Starts every I/O of an open loop at its arrival time.
async fn arrive(run: &Rc<LoadRun>, began: Instant, schedule: Schedule) {
    let begun = Budget::new(
        BEGUN_MAX
            .min(BEGUN_BYTES_MAX / run.data.len().max(1))
            .max(1),
    );
    // The last time a full window held up the load: delays before it are not the generator's fault.
    let mut free_since = began;
    let until = (run.deadline - began).as_nanos() as u64;
    for (index, at_ns) in schedule.enumerate() {
        if at_ns >= until || run.is_stopped() {
            break;
        }
        let intended = began + Duration::from_nanos(at_ns);
        arrival(intended, run.is_prompt).await;
        let place = match begun.try_take(1) {
            Some(place) => place,
            None => {
                let place = begun.take(1).await;
                free_since = time::now();
                place
            }
        };
        let now = time::now();
        if now >= run.deadline {
            break;
        }
        let late_ns = (now - intended.max(free_since)).as_nanos() as u64;
        run.times.borrow_mut().late_ns.saturating_record(late_ns);
        run.begun.set(run.begun.get() + 1);
        let (run, lun) = (run.clone(), index % run.luns.len());
        task::begin(async move {
            run.one(lun, intended).await;
            drop(place);
            run.one_ended.notify();
        });
        // After a delay many arrivals may be due at once; yield so that started I/Os can progress.
        if index % 64 == 63 {
            task::yield_now().await;
        }
    }
}

/// Samples the queue until the load is over.
async fn watch(run: Rc<LoadRun>, began: Instant, duration: Duration) -> Vec<Point> {
    let step = (duration / POINTS).max(POINT_MIN);
    let mut points: Vec<Point> = Vec::new();
    let (mut last, mut ended_before, mut sum_before) = (began, 0, 0);
    while !run.is_over.get() {
        time::sleep(step.min(LOOK_MAX)).await;
        let now = time::now();
        if now - last < step || points.len() == 2 * POINTS as usize {
            continue;
        }
        let (ended, sum_ns) = (run.ended.get(), run.times.borrow().sum_ns);
        let ios = ended - ended_before;
        let seconds = (now - last).as_secs_f64();
        // Arrivals that have not started count from their arrival time. Nothing arrives after the deadline.
        let arrived = run.arrived((now.min(run.deadline) - began).as_nanos() as u64);
        points.push(Point {
            at_ms: (now - began).as_secs_f64() * 1e3,
            queue: arrived.max(run.begun.get()) - ended,
            at_volume: run.at_volume.get(),
            iops: ios as f64 / seconds.max(1e-9),
            latency_us: (sum_ns - sum_before) as f64 / 1e3 / ios.max(1) as f64,
        });
        (last, ended_before, sum_before) = (now, ended, sum_ns);
    }
    points
}

/// The span of a volume that a load may use, in bytes.
fn checked_span(workload: &Workload, volume: &SharedVolume) -> Result<u64> {
    let shape = volume.shape();
    let wrong = |what: String| Error::new(ErrorKind::Configuration, what);
    let span = workload
        .span_bytes
        .unwrap_or(u64::MAX)
        .min(shape.len_bytes());
    let block = u64::from(shape.block_size_bytes);
    for (size, _) in &workload.sizes {
        let size = *size as u64;
        if size == 0 || size % block != 0 {
            return Err(wrong(format!(
                "I/Os of {size} bytes are not whole blocks of this disk, whose blocks have {block} \
                 bytes"
            )));
        }
        if size > span {
            return Err(wrong(format!(
                "an I/O of {size} bytes does not fit on {span} bytes of disk"
            )));
        }
    }
    if workload.read_percent < 100 && shape.read_only.is_on() {
        return Err(Error::new(
            ErrorKind::ReadOnly,
            "this load writes, but the disk is read-only",
        ));
    }
    Ok(span)
}
