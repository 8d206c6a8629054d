//! Ends a test with a task that neither waits nor calls the engine: nothing could ever stop it, and nobody would learn
//! which seed it was. A thread watches the CPU time of each turn. It counts CPU time, so that a machine that is busy with
//! something else does no harm.

use std::{
    io::{self, Write},
    process,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use super::seeds::SeededRun;
use crate::clock;

/// How often the turns are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A world that is watched, until this is dropped.
pub(super) struct Watched(Arc<World>);

struct World {
    run: SeededRun,
    cpu_max: Duration,
    /// The CPU clock of the thread that runs the world.
    clock: libc::clockid_t,
    /// How many turns have begun and ended: odd during a turn.
    turns: AtomicU64,
    /// The turn that was seen last, and the CPU time of its thread when it was seen first.
    seen: Mutex<(u64, Duration)>,
}

/// All worlds of this process.
fn worlds() -> MutexGuard<'static, Vec<Arc<World>>> {
    static WORLDS: Mutex<Vec<Arc<World>>> = Mutex::new(Vec::new());
    lock(&WORLDS)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    /// Watches the world that the current thread runs.
    pub(super) fn new(run: SeededRun, cpu_max: Duration) -> Watched {
        static STARTED: OnceLock<()> = OnceLock::new();
        STARTED.get_or_init(|| {
            let watchdog = thread::Builder::new().name("watchdog".to_owned());
            watchdog.spawn(watch).expect("room for a thread");
        });
        let world = Arc::new(World {
            run,
            cpu_max,
            clock: clock::thread_clock(),
            turns: AtomicU64::new(0),
            seen: Mutex::default(),
        });
        worlds().push(world.clone());
        Watched(world)
    }

    /// A turn begins, and lasts until the answer is dropped.
    pub(super) fn begin_turn(&self) -> Turn<'_> {
        self.0.turns.fetch_add(1, Ordering::Relaxed);
        Turn(&self.0)
    }
}

/// A turn that is being watched.
pub(super) struct Turn<'a>(&'a World);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.turns.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        worlds().retain(|world| !Arc::ptr_eq(world, &self.0));
    }
}

fn watch() {
    loop {
        thread::sleep(LOOK_EVERY);
        let stuck = worlds().iter().find(|world| world.is_stuck()).cloned();
        if let Some(world) = stuck {
            let cpu = world.cpu_max;
            let what = format!(
                "a task has neither waited nor called the engine for {cpu:?} of CPU time: it loops, and no simulated \
                 time passes (Config::turn_cpu_max)"
            );
            // Not by eprintln!, whose output a test may have captured: it would be lost with the process.
            let _ = writeln!(io::stderr(), "{}", world.run.failed(&what));
            process::abort();
        }
    }
}

impl World {
    /// Whether its current turn has taken too long.
    fn is_stuck(&self) -> bool {
        let turn = self.turns.load(Ordering::Relaxed);
        let Some(cpu) = clock::cpu_of(self.clock) else {
            return false;
        };
        let mut seen = lock(&self.seen);
        if seen.0 != turn {
            *seen = (turn, cpu);
        }
        turn % 2 == 1 && cpu.saturating_sub(seen.1) > self.cpu_max
    }
}
