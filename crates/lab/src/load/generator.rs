//! Drives a load: a task for each outstanding I/O of a closed loop; of an open one a single task that
//! lets each I/O begin at its moment, whatever has become of those before, and one for each I/O.
//! Another task looks at the queue from time to time.

use std::{
    cell::{Cell, RefCell},
    iter::Peekable,
    num::NonZeroU64,
    rc::Rc,
};

use engine::{
    Duration, Instant, Payload,
    sync::{Budget, Notify, Permit},
    task, time,
};
use hdrhistogram::Histogram;
use rustix::thread;
use volume::{
    Durability, Error, ErrorKind, Result, SharedVolume,
    layers::{Watch, watched},
};

use super::{
    Arrivals, Done, Ledger, Lun, Point, Stop, Workload,
    arrivals::Schedule,
    done::{Sampled, SeenIo, histogram},
    places::{Io, Places},
    stamps::marked,
};

/// I/Os of an open loop that have begun and not ended, at most: what arrives above it waits, and its
/// latency counts. fio is told the same.
pub(crate) const BEGUN_MAX: usize = 1024;

/// And as many bytes.
const BEGUN_BYTES_MAX: usize = 256 << 20;

/// Looks at the queue over the whole time.
const POINTS: u32 = 200;
/// The least time between two of them.
const POINT_MIN: Duration = Duration::from_millis(2);
/// The most time for which the end of a load may go unnoticed.
const LOOK_MAX: Duration = Duration::from_millis(20);

/// A sleep may end so much too late where the processor has rested.
const SPIN: Duration = Duration::from_micros(60);

/// Of a load that is watched, so many I/Os are: to tell where its time went takes a target longer. A prime, so
/// that it is not always the same disk's.
pub(crate) const SEEN_ONE_OF: u64 = 67;
/// And one is that comes so long after the last.
const SEEN_AFTER: Duration = Duration::from_millis(1);

/// How often another place is drawn where a write is in the way, before it is waited for.
const DRAWS_MAX: u32 = 16;

/// Loads `luns` in turn for `duration`, or until `stop`.
///
/// # Errors
/// The first error of an I/O ends the load, and so does the first read that gives what was not written.
pub async fn generate(
    luns: &[Lun],
    workload: &Workload,
    duration: Duration,
    stop: &Stop,
) -> Result<Done> {
    let began = time::now();
    let run = Rc::new(Run::new(luns, workload, began + duration, stop.clone())?);
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
            // Otherwise Linux may end each sleep up to 50 µs late. If this is refused, only precision is lost.
            let _ = thread::set_current_timer_slack(NonZeroU64::new(1));
            arrive(&run, began, Schedule::new(rate_per_s, spacing)).await;
            let _ = thread::set_current_timer_slack(None);
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
        volume_ns: times.volume_ns,
        late_ns: times.late_ns,
        not_begun: run.arrived(passed_ns).saturating_sub(run.begun.get()),
        series,
        seen: run.seen.take().ios,
    })
}

struct Run {
    luns: Vec<LunRun>,
    /// The adapter's places in all.
    places: Option<Rc<Budget>>,
    data: Payload,
    durability: Durability,
    deadline: Instant,
    stop: Stop,
    ios_max: u64,
    is_over: Cell<bool>,
    /// The arrivals of an open loop that are still to come, and how many have come.
    arrivals: RefCell<Option<(Peekable<Schedule>, u64)>>,
    begun: Cell<u64>,
    at_volume: Cell<u64>,
    ended: Cell<u64>,
    one_ended: Notify,
    times: RefCell<Times>,
    is_prompt: bool,
    is_watched: bool,
    /// When the last I/O was issued that is watched.
    seen_at: Cell<Instant>,
    seen: RefCell<Sampled>,
    failed: RefCell<Option<Error>>,
}

struct LunRun {
    volume: SharedVolume,
    ledger: Option<Rc<Ledger>>,
    ios: RefCell<Places>,
    /// The adapter's places for this one.
    places: Option<Rc<Budget>>,
}

struct Times {
    bytes: u64,
    latency_ns: Histogram<u64>,
    volume_ns: Histogram<u64>,
    late_ns: Histogram<u64>,
    /// Of all latencies, for the means between two looks.
    sum_ns: u64,
}

impl Default for Times {
    fn default() -> Self {
        Times {
            bytes: 0,
            latency_ns: histogram(),
            volume_ns: histogram(),
            late_ns: histogram(),
            sum_ns: 0,
        }
    }
}

impl Run {
    fn new(luns: &[Lun], workload: &Workload, deadline: Instant, stop: Stop) -> Result<Run> {
        let budget = |amount: usize| Budget::new(amount.max(1));
        let adapter = workload.adapter.as_ref();
        let mut all = Vec::new();
        for (index, lun) in luns.iter().enumerate() {
            let span = checked_span(workload, &lun.volume)?;
            all.push(LunRun {
                volume: lun.volume.clone(),
                ledger: lun.ledger.clone(),
                ios: RefCell::new(Places::new(workload, span, index as u64)),
                places: adapter.map(|adapter| budget(adapter.per_lun)),
            });
        }
        let arrivals = match workload.arrivals {
            Arrivals::Closed { .. } => None,
            Arrivals::Open {
                rate_per_s,
                spacing,
            } => Some((Schedule::new(rate_per_s, spacing).peekable(), 0)),
        };
        Ok(Run {
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
            seen_at: Cell::default(),
            seen: RefCell::default(),
            failed: RefCell::new(None),
        })
    }

    /// How many I/Os have arrived in the first `ns` nanoseconds, begun or not.
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

    /// One I/O that was to begin at `intended`, from its place in line to its end.
    async fn one(&self, index: usize, intended: Instant) {
        let lun = &self.luns[index];
        // A disk's own place first: who waits for it holds none that another disk could use.
        let _places = (take(&lun.places).await, take(&self.places).await);
        let issued = time::now();
        self.at_volume.set(self.at_volume.get() + 1);
        let performed = lun.perform(&self.data, self.durability);
        let watch = self.is_seen(issued).then(Watch::new);
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

    /// Whether the I/O that is issued now is to be watched.
    fn is_seen(&self, issued: Instant) -> bool {
        let is_one =
            self.begun.get() % SEEN_ONE_OF == 0 || issued - self.seen_at.get() > SEEN_AFTER;
        let is_seen = self.is_watched && is_one;
        if is_seen {
            self.seen_at.set(issued);
        }
        is_seen
    }

    fn record(&self, len: usize, intended: Instant, issued: Instant, watch: Option<Watch>) {
        let now = time::now();
        let [latency_ns, volume_ns] =
            [intended, issued].map(|from| now.since(from).as_nanos() as u64);
        if let Some(watch) = watch {
            self.seen.borrow_mut().add(SeenIo {
                latency_ns,
                volume_ns,
                layers: watch.layers(),
            });
        }
        let mut times = self.times.borrow_mut();
        times.bytes += len as u64;
        times.sum_ns += latency_ns;
        times.latency_ns.saturating_record(latency_ns);
        times.volume_ns.saturating_record(volume_ns);
    }
}

async fn take(places: &Option<Rc<Budget>>) -> Option<Permit> {
    match places {
        Some(places) => Some(places.take(1).await),
        None => None,
    }
}

impl LunRun {
    /// Does the next I/O of this volume, and gives its length.
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
                // Another session with the disk may have the one that is in the way.
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

/// A place among those that are outstanding in a closed loop.
async fn worker(run: Rc<Run>, index: usize) {
    let lun = index % run.luns.len();
    for own in 1_u64.. {
        let now = time::now();
        if now >= run.deadline || run.is_stopped() {
            return;
        }
        run.begun.set(run.begun.get() + 1);
        run.one(lun, now).await;
        // A volume that answers at once gives no turn to the others.
        if own % 64 == 0 {
            task::yield_now().await;
        }
    }
}

/// Waits for the moment of an arrival. Who sleeps is woken late, and each latency would have that in it: the last
/// of the wait is spent looking at the clock.
async fn arrival(intended: Instant, is_prompt: bool) {
    let spin = if is_prompt { SPIN } else { Duration::ZERO };
    let mut now = time::now();
    if now + spin < intended {
        time::sleep((intended - now).saturating_sub(spin)).await;
        now = time::now();
    }
    while now < intended {
        task::yield_now().await;
        let before = now;
        now = time::now();
        // Virtual time stands still until all sleep.
        if now == before {
            time::sleep_until(intended).await;
            now = time::now();
        }
    }
}

/// Lets every I/O of an open loop begin at its moment.
async fn arrive(run: &Rc<Run>, began: Instant, schedule: Schedule) {
    let begun = Budget::new(
        BEGUN_MAX
            .min(BEGUN_BYTES_MAX / run.data.len().max(1))
            .max(1),
    );
    // Until then the load was held up by what had not ended; the generator is not to blame.
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
        // Those that are due already may be many: what has arrived has a turn in between.
        if index % 64 == 63 {
            task::yield_now().await;
        }
    }
}

/// Looks at the queue from time to time until the load is over.
async fn watch(run: Rc<Run>, began: Instant, duration: Duration) -> Vec<Point> {
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
        // What waits to begin counts from its moment on. After the last moment nothing arrives.
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

/// How much of a volume a load may use.
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
                "I/Os of {size} bytes are not whole blocks of this disk, which has {block} bytes in each"
            )));
        }
        if size > span {
            return Err(wrong(format!(
                "an I/O of {size} bytes does not fit on {span} bytes of disk"
            )));
        }
    }
    if workload.read_percent < 100 && shape.read_only {
        return Err(Error::new(
            ErrorKind::ReadOnly,
            "this load writes, and the disk takes no writes",
        ));
    }
    Ok(span)
}
