//! The CPU time of processes, from their CPU clocks: in nanoseconds, where /proc counts ticks of 10 ms.

use std::time::Duration;

use crate::clock;

/// The CPU time that this process has used so far: all of its threads, with those that have ended. `None`: there is no
/// such process.
pub fn of_process(pid: u32) -> Option<Duration> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    // 0 would be the caller.
    if pid == 0 {
        return None;
    }
    let mut clock: libc::clockid_t = 0;
    // SAFETY: writes to a live clock ID.
    if unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } != 0 {
        return None;
    }
    clock::cpu_of(clock)
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Child, Command, Stdio},
        thread,
        time::Instant,
    };

    use super::*;

    /// Burns less than a tick of CPU time.
    fn spin() {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(2) {}
    }

    #[test]
    fn ended_threads_of_this_process_count_and_less_than_a_tick_is_seen() {
        let used = || of_process(std::process::id()).expect("this process");
        let before = used();
        thread::spawn(spin).join().expect("it only spins");
        let spent = used() - before;
        // On a busy machine the thread may have got only a part of its 2 ms.
        assert!(spent > Duration::from_micros(50), "{spent:?}");
    }

    #[test]
    fn another_process_has_a_clock_until_it_is_gone() {
        struct Other(Child);
        impl Drop for Other {
            fn drop(&mut self) {
                let _ = (self.0.kill(), self.0.wait());
            }
        }
        let mut command = Command::new("sh");
        let command = command.args(["-c", "while :; do :; done"]);
        let mut other = Other(command.stdin(Stdio::null()).spawn().expect("a shell"));
        let pid = other.0.id();
        let used = || of_process(pid).expect("it runs");
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut steps = Vec::new();
        let mut last = used();
        while steps.len() < 20 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
            let now = used();
            if now > last {
                steps.push(now - last);
            }
            last = now;
        }
        // In ticks each would be a multiple of 10 ms.
        let is_tick = |step: &&Duration| step.as_micros() % 10_000 == 0;
        assert!(steps.len() == 20, "{steps:?}");
        assert!(steps.iter().filter(is_tick).count() < 10, "{steps:?}");
        other.0.kill().expect("it is ours");
        other.0.wait().expect("it is ours");
        assert_eq!(of_process(pid), None);
        assert_eq!(of_process(0), None);
        assert_eq!(of_process(u32::MAX), None);
    }
}
