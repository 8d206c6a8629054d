//! The ring's clock: nanoseconds since an origin that all lanes of the process share.
//!
//! The time is read several times per I/O, so a read must cost only a few instructions. Where the
//! processor's time-stamp counter has a constant rate and the kernel itself trusts it, the counter
//! is read directly and scaled. Every few milliseconds, and whenever the counter reports something
//! impossible, the kernel's clock is read and the scale recomputed. On other machines every read
//! asks the kernel.

use std::{
    cell::Cell,
    sync::OnceLock,
    time::{Duration, Instant as KernelInstant, SystemTime, UNIX_EPOCH},
};

/// How long the counter is trusted before the kernel's clock is read again, in nanoseconds.
const TRUSTED_NS: u64 = 20_000_000;
/// The shortest time between two reads of the kernel's clock from which to compute a scale, in nanoseconds.
const SCALE_MIN_NS: u64 = 1_000_000;
/// Reading both clocks may take at most 1/LOOK_PART of the time since the last reading: this bounds
/// the error of treating the two reads as simultaneous.
const LOOK_PART: u64 = 1000;
const SCALE_BITS: u32 = 24;

/// The CPU time that the current thread has used so far, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a live timespec. It cannot fail: every thread has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The clock of the current thread's CPU time, for other threads ([`cpu_of`]).
#[cfg(feature = "sim")]
pub(crate) fn thread_clock() -> libc::clockid_t {
    let mut clock = 0;
    // SAFETY: the current thread lives; writes to a live number. It cannot fail: every thread has this clock.
    unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
    clock
}

/// The CPU time of the thread or process with this clock; `None` if it has ended.
pub(crate) fn cpu_of(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a live timespec.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (failed == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// The time of day, as the time since 1970-01-01 00:00 UTC.
pub(crate) fn since_unix_epoch() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // A clock that was never set may be before it.
    since.unwrap_or_default()
}

/// A lane's clock. It never goes back.
#[derive(Debug)]
pub(crate) struct Clock {
    has_counter: bool,
    /// Counter and time at the last accepted reading of the kernel's clock.
    anchor: Cell<(u64, u64)>,
    /// Nanoseconds per tick, times 2^[`SCALE_BITS`].
    scale: Cell<u64>,
    /// How many ticks after the anchor the scale holds; zero: there is none yet.
    trusted_ticks: Cell<u64>,
    last_ns: Cell<u64>,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        // Take the tightest of several readings, as the thread may be interrupted between the two clocks.
        let looks = [(); 5].map(|()| ClockReading::now());
        let first = looks.into_iter().min_by_key(|look| look.took_ticks);
        let first = first.unwrap_or_else(ClockReading::now);
        Clock {
            has_counter: counter::is_trusted(),
            anchor: Cell::new((first.ticks, first.ns)),
            scale: Cell::new(0),
            trusted_ticks: Cell::new(0),
            last_ns: Cell::new(0),
        }
    }

    /// Nanoseconds since the origin.
    pub(crate) fn now_ns(&self) -> u64 {
        let ns = match self.has_counter {
            true => self.counted_ns(),
            false => kernel_ns(),
        };
        let ns = ns.max(self.last_ns.get());
        self.last_ns.set(ns);
        ns
    }

    fn counted_ns(&self) -> u64 {
        let (anchor_ticks, anchor_ns) = self.anchor.get();
        let ticks = counter::read();
        // A counter behind its anchor yields a huge difference, which fails this check.
        let passed = ticks.wrapping_sub(anchor_ticks);
        if passed < self.trusted_ticks.get() {
            return anchor_ns + ((passed * self.scale.get()) >> SCALE_BITS);
        }
        self.ask_kernel(ClockReading::now())
    }

    /// Recomputes anchor and scale from this reading, if it is good enough, and returns its time.
    #[cold]
    fn ask_kernel(&self, look: ClockReading) -> u64 {
        let ClockReading { ticks, ns, .. } = look;
        let (anchor_ticks, anchor_ns) = self.anchor.get();
        let (passed_ticks, passed_ns) = (ticks.wrapping_sub(anchor_ticks), ns - anchor_ns);
        if passed_ns < SCALE_MIN_NS || look.took_ticks > passed_ticks / LOOK_PART {
            return ns; // too early to compute a scale, or interrupted: keep the anchor
        }
        self.anchor.set((ticks, ns));
        // Accept 100 MHz to 10 GHz; anything else cannot be a count of this interval.
        let is_plausible = (passed_ns / 10..=passed_ns.saturating_mul(10)).contains(&passed_ticks);
        if is_plausible {
            let scale = (u128::from(passed_ns) << SCALE_BITS) / u128::from(passed_ticks);
            self.scale.set(scale as u64);
            self.trusted_ticks
                .set((TRUSTED_NS << SCALE_BITS) / (scale as u64).max(1));
        } else {
            self.trusted_ticks.set(0);
        }
        ns
    }
}

/// Both clocks read at nearly the same time: the kernel's after the counter was at `ticks`, and at most
/// `took_ticks` later.
#[derive(Clone, Copy)]
struct ClockReading {
    ticks: u64,
    ns: u64,
    took_ticks: u64,
}

impl ClockReading {
    fn now() -> ClockReading {
        let ticks = counter::read();
        let ns = kernel_ns();
        let took_ticks = counter::read().wrapping_sub(ticks);
        ClockReading {
            ticks,
            ns,
            took_ticks,
        }
    }
}

fn kernel_ns() -> u64 {
    static ORIGIN: OnceLock<KernelInstant> = OnceLock::new();
    ORIGIN.get_or_init(KernelInstant::now).elapsed().as_nanos() as u64
}

#[cfg(target_arch = "x86_64")]
mod counter {
    //! The time-stamp counter.

    use std::{arch::x86_64, fs, sync::OnceLock};

    /// Clock sources based on the counter. The kernel uses one only after it has verified that the
    /// counters of all CPUs agree.
    const BY_COUNTER: [&str; 3] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];

    pub(super) fn is_trusted() -> bool {
        static TRUSTED: OnceLock<bool> = OnceLock::new();
        *TRUSTED.get_or_init(|| {
            let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
            let source = fs::read_to_string(source).unwrap_or_default();
            has_constant_rate() && BY_COUNTER.contains(&source.trim())
        })
    }

    /// CPUID 8000_0007h, EDX bit 8: the counter's rate does not change with the CPU frequency.
    #[allow(unused_unsafe, reason = "a safe function in newer Rust")]
    fn has_constant_rate() -> bool {
        // SAFETY: every x86-64 processor has the instruction.
        let max = unsafe { x86_64::__cpuid(0x8000_0000) }.eax;
        // SAFETY: as above.
        max >= 0x8000_0007 && unsafe { x86_64::__cpuid(0x8000_0007) }.edx & (1 << 8) != 0
    }

    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
        unsafe { x86_64::_rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    //! No counter that we know how to read.

    pub(super) fn is_trusted() -> bool {
        false
    }

    pub(super) fn read() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_beside_the_kernels_clock_and_never_goes_back() {
        let clock = Clock::new();
        let began = KernelInstant::now();
        let mut last = clock.now_ns();
        let mut worst_ns = 0;
        while began.elapsed().as_millis() < 120 {
            let before = kernel_ns();
            let now = clock.now_ns();
            let after = kernel_ns();
            assert!(now >= last, "{now} after {last}");
            last = now;
            // Count only errors that a pause of this thread cannot explain.
            worst_ns = worst_ns
                .max(before.saturating_sub(now))
                .max(now.saturating_sub(after));
        }
        assert!(worst_ns < 100_000, "off by {worst_ns} ns");
    }

    #[test]
    fn an_interrupted_look_does_not_move_the_anchor() {
        let clock = Clock::new();
        let anchor = clock.anchor.get();
        // 20 ms at 2 GHz, plus 10 ms between reading the counter and the kernel's clock.
        let ns = anchor.1 + 30_000_000;
        let interrupted = ClockReading {
            ticks: anchor.0.wrapping_add(40_000_000),
            ns,
            took_ticks: 20_000_000,
        };
        assert_eq!(clock.ask_kernel(interrupted), ns);
        assert_eq!((clock.anchor.get(), clock.scale.get()), (anchor, 0));
        let took_ticks = 100;
        clock.ask_kernel(ClockReading {
            took_ticks,
            ..interrupted
        });
        assert_ne!(clock.anchor.get(), anchor);
    }

    #[test]
    fn a_counter_that_jumps_is_not_believed() {
        let clock = Clock::new();
        while clock.has_counter && clock.trusted_ticks.get() == 0 {
            clock.now_ns();
        }
        // As after a migration to a machine whose counter is far behind or far ahead.
        for jump in [u64::MAX / 3, 1 << 50] {
            let (ticks, ns) = clock.anchor.get();
            clock.anchor.set((ticks.wrapping_add(jump), ns));
            let (now, kernel) = (clock.now_ns(), kernel_ns());
            assert!(kernel - now < 50_000_000, "{now} beside {kernel}");
        }
    }
}
