//! Runs work that would block a lane on threads of its own: blocking system calls for which io_uring
//! has no operation (querying a file's extents, replacing a file with all its fsyncs, opening a file,
//! reading what disks hold before that, resolving a host name), and sums that take a CPU for milliseconds. The answer
//! returns to the calling lane through its inbox.
//!
//! Each [`WorkKind`] has its own threads and queue, so that a hanging name server or network file system
//! delays only its own kind. Both are bounded: threads are started on demand and end when idle for a
//! while, and a caller that finds the queue full waits for room without blocking its lane. Work whose
//! caller is gone is not started; work that has started runs to its end.
//!
//! In a simulated world the work runs on the lane itself and takes no time, between two delays drawn from
//! the seed: other events may come before it, and between it and its answer. A disk that stalls delays the answer.

use std::{
    cell::Cell,
    collections::VecDeque,
    future::poll_fn,
    io,
    net::{SocketAddr, ToSocketAddrs},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    thread,
    time::Duration,
};

use crate::{
    cross::oneshot,
    lane::with,
    reactor::Reactor,
    task::spawn,
    time::{sleep, timeout},
    zone,
};

/// The most threads of a kind that waits.
const THREADS_MAX: usize = 4;
/// The priority of threads that compute, as nice(2) counts: where they and a lane want the same CPU, the lane has nine
/// tenths of it.
const NICENESS_OF_SUMS: i32 = 10;
/// The most pieces of work of a kind that are queued; callers with more wait for room.
const QUEUE_MAX: usize = 64;
/// A thread that has been idle for this long ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The kinds of blocking work. Work of one kind never waits for work of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkKind {
    /// A file's extent map.
    Extents,
    /// Small files that are read or replaced as a whole, marks and syncs of directories, the first look at what disks
    /// hold, and the opening of their files.
    Files,
    /// Host names.
    Names,
    /// What has become of open files: their lengths, and what their paths lead to.
    Looks,
    /// Signatures, which take a CPU for long and wait for nothing: one at a time, and with what CPU time others leave.
    Signatures,
}

/// Runs `work` where it blocks no lane, and returns its result.
///
/// # Errors
/// If no thread can be started for it, or if it panicked.
///
/// # Panics
/// Outside a lane.
pub async fn run<T: Send + 'static>(
    kind: WorkKind,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = oneshot();
    match simulated_delay() {
        Some(before) => drop(spawn(async move {
            sleep(before).await;
            if sender.is_awaited() {
                AT_WORK.set(Some(Duration::ZERO));
                let output = work();
                let held_up = AT_WORK.take().unwrap_or_default();
                sleep(held_up + simulated_delay().unwrap_or_default()).await;
                sender.send(output);
            }
        })),
        None => {
            let work = move || {
                if sender.is_awaited() {
                    sender.send(work());
                }
            };
            kind.pool().enter(Box::new(work)).await?;
        }
    }
    let outcome = receiver.outcome().await;
    outcome.map_err(|_| io::Error::other("the work panicked"))
}

/// As [`run`], but waits no longer than `limit`. Work that has started continues unattended.
///
/// # Errors
/// As [`run`], and kind `TimedOut` if it took longer.
pub async fn run_within<T: Send + 'static>(
    limit: Duration,
    kind: WorkKind,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    timeout(limit, run(kind, work)).await.unwrap_or_else(|| {
        let message = format!("no answer within {limit:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    })
}

/// The first address of `host` (a name or an address) with `port`. In a simulated world only the
/// names of its machines are known.
///
/// # Errors
/// Resolver errors, and as [`run_within`].
pub async fn look_up(host: &str, port: u16, limit: Duration) -> io::Result<SocketAddr> {
    let found = look_up_all(host, port, limit).await?;
    Ok(found[0])
}

/// As [`look_up`], all addresses of `host`: one at least, and each once.
///
/// # Errors
/// As [`look_up`].
pub async fn look_up_all(host: &str, port: u16, limit: Duration) -> io::Result<Vec<SocketAddr>> {
    let host = host.to_owned();
    let (plain, zone) = zone::split(&host);
    if let Ok(ip) = plain.parse() {
        let address = SocketAddr::new(ip, port);
        let index = zone.map(|zone| {
            zone::index(zone).ok_or_else(|| {
                let message = format!("this machine has no network interface {zone:?}");
                io::Error::new(io::ErrorKind::NotFound, message)
            })
        });
        return Ok(vec![zone::with(address, index.transpose()?)]);
    }
    let known = with(|lane| lane.reactor().machine(&host));
    let work = move || {
        let mut found: Vec<SocketAddr> = Vec::new();
        let mut add = |address| {
            if !found.contains(&address) {
                found.push(address);
            }
        };
        match known {
            Some(known) => known
                .into_iter()
                .for_each(|address| add(SocketAddr::new(address, port))),
            None => (host.as_str(), port).to_socket_addrs()?.for_each(add),
        }
        match found.is_empty() {
            true => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            )),
            false => Ok(found),
        }
    };
    run_within(limit, WorkKind::Names, work).await?
}

/// How long blocking work takes in a simulated world; `None` if it runs on a real thread.
pub(crate) fn simulated_delay() -> Option<Duration> {
    with(|lane| lane.reactor_mut().blocking_delay())
}

thread_local! {
    /// In a simulated world, if what runs now would run on a thread: how long its answer is held up.
    static AT_WORK: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// In a simulated world: holds up what runs now for `d`, if it is work that blocks no lane. Returns whether it is.
#[cfg(feature = "sim")]
pub(crate) fn hold_up(d: Duration) -> bool {
    let held_up = AT_WORK.get();
    AT_WORK.set(held_up.map(|held_up| held_up.max(d)));
    held_up.is_some()
}

type BoxedWork = Box<dyn FnOnce() + Send>;

/// The threads of one kind.
struct Pool {
    name: &'static str,
    threads_max: usize,
    /// What its threads lower their priority by.
    niceness: i32,
    state: Mutex<PoolState>,
    filled: Condvar,
}

struct PoolState {
    queue: VecDeque<BoxedWork>,
    threads: usize,
    /// Threads waiting for work.
    idle: usize,
    /// Callers waiting for room in the queue.
    waiting: Vec<Waker>,
}

static EXTENTS: Pool = Pool::new("extents", THREADS_MAX, 0);
static FILES: Pool = Pool::new("files", THREADS_MAX, 0);
static NAMES: Pool = Pool::new("names", THREADS_MAX, 0);
static LOOKS: Pool = Pool::new("looks", THREADS_MAX, 0);
static SIGNATURES: Pool = Pool::new("signatures", 1, NICENESS_OF_SUMS);

impl WorkKind {
    fn pool(self) -> &'static Pool {
        match self {
            WorkKind::Extents => &EXTENTS,
            WorkKind::Files => &FILES,
            WorkKind::Names => &NAMES,
            WorkKind::Looks => &LOOKS,
            WorkKind::Signatures => &SIGNATURES,
        }
    }
}

impl Pool {
    const fn new(name: &'static str, threads_max: usize, niceness: i32) -> Pool {
        Pool {
            name,
            threads_max,
            niceness,
            state: Mutex::new(PoolState {
                queue: VecDeque::new(),
                threads: 0,
                idle: 0,
                waiting: Vec::new(),
            }),
            filled: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues `work` as soon as there is room, and makes sure there is a thread for it.
    async fn enter(&'static self, work: BoxedWork) -> io::Result<()> {
        let mut work = Some(work);
        poll_fn(|cx| {
            let mut state = self.lock();
            if state.queue.len() >= QUEUE_MAX {
                if !state.waiting.iter().any(|w| w.will_wake(cx.waker())) {
                    state.waiting.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            state.queue.extend(work.take());
            if state.queue.len() <= state.idle || state.threads >= self.threads_max {
                self.filled.notify_one();
                return Poll::Ready(Ok(()));
            }
            let thread = thread::Builder::new().name(self.name.into());
            match thread.spawn(|| self.work()) {
                Ok(_) => state.threads += 1,
                // Not fatal: the existing threads will get to it.
                Err(_) if state.threads > 0 => {}
                Err(error) => {
                    state.queue.pop_back();
                    return Poll::Ready(Err(error));
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// The loop of a thread.
    fn work(&self) {
        if self.niceness > 0 {
            // SAFETY: it takes a number. On Linux it is the calling thread's priority that it lowers.
            unsafe { libc::nice(self.niceness) };
        }
        let mut state = self.lock();
        loop {
            if let Some(work) = state.queue.pop_front() {
                let waiting = std::mem::take(&mut state.waiting);
                drop(state);
                waiting.into_iter().for_each(Waker::wake);
                // The waiter learns of a panic when the sender of the answer is dropped. Reporting
                // the panic is up to the panic hook, which in a daemon ends the process.
                let _ = catch_unwind(AssertUnwindSafe(work));
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let waited = self.filled.wait_timeout(state, IDLE_MAX);
            let (back, ended) = waited.unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if ended.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
