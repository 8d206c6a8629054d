//! Work for a client that may wait for a disk for good, such as reading a configuration and looking at its files: on threads
//! of their own, of which there are few. A client is told when its work takes too long, and does not hold its place for
//! longer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use super::protocol::AdminRefusal;

/// The threads that may be at work at a time.
const THREADS_MAX: usize = 4;

/// The threads.
#[derive(Clone, Debug, Default)]
pub(super) struct Aside(Arc<AtomicUsize>);

/// One of them, until its work has ended.
struct Thread(Arc<AtomicUsize>);

impl Drop for Thread {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Aside {
    /// The output of `work`, which is about `what`.
    ///
    /// # Errors
    /// If it takes longer than `limit`: it goes on, unattended. If too many go on like this.
    pub(super) fn run<T: Send + 'static>(
        &self,
        what: &str,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, AdminRefusal> {
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < THREADS_MAX).then_some(taken + 1)
            });
        if taken.is_err() {
            return Err(AdminRefusal::failed(format!(
                "{THREADS_MAX} earlier configurations are still being read: a file system that they lie on, or that their \
                 files lie on, does not answer; see to it, then try again"
            )));
        }
        let thread = Thread(self.0.clone());
        let (sender, output) = mpsc::channel();
        let work = move || {
            let output = work();
            drop(thread);
            let _ = sender.send(output);
        };
        let named = thread::Builder::new().name("admin-aside".into());
        named
            .spawn(work)
            .map_err(|error| AdminRefusal::failed(format!("{what}: {error}")))?;
        output.recv_timeout(limit).map_err(|error| {
            AdminRefusal::failed(match error {
                mpsc::RecvTimeoutError::Timeout => format!(
                    "{what}: it, or a file that it names, could not be read within {limit:?}; nothing has changed; check \
                     the file systems and disks that they lie on"
                ),
                mpsc::RecvTimeoutError::Disconnected => format!("{what}: the work has failed"),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_hangs_is_told_of_and_bounded() {
        let aside = Aside::default();
        let (end, may_end) = mpsc::channel::<()>();
        let may_end = Arc::new(std::sync::Mutex::new(may_end));
        for _ in 0..THREADS_MAX {
            let may_end = may_end.clone();
            let hang = move || may_end.lock().expect("no panic").recv().is_err();
            let late = aside.run("/etc/a.toml", Duration::ZERO, hang);
            let late = late.expect_err("it hangs").message;
            assert!(
                late.contains("/etc/a.toml") && late.contains("within 0ns"),
                "{late}"
            );
        }
        let limit = Duration::from_secs(60);
        let full = aside
            .run("/etc/b.toml", limit, || ())
            .expect_err("all hang");
        assert!(
            full.message.contains("still being read"),
            "{}",
            full.message
        );
        drop(end);
        while aside.run("/etc/b.toml", limit, || ()).is_err() {
            thread::yield_now();
        }
        assert_eq!(aside.run("/etc/b.toml", limit, || 7), Ok(7));
    }
}
