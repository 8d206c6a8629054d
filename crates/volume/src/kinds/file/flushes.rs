//! The flush state shared by all lanes of a file leaf: which writes no flush has covered yet, the flush in progress,
//! and whether one has failed.
//!
//! Only one fdatasync runs at a time: flushes that arrive meanwhile share the next one, and no success can overtake
//! the report of a failure. A flush whose writes are covered by then has nothing to do.
//!
//! A failed flush is sticky: what it should have covered may be lost, although Linux marks the pages clean. A failed
//! durable write is an error of that write alone, with one exception: if the write itself worked and only its sync
//! failed, it casts [doubt](Flushes::doubt) on everything volatile since it began. A disk that could not empty
//! its cache may have lost that, and reports it only once, so a flush that succeeds meanwhile proves nothing. Flushes
//! wait until it is [known](Flushes::judging) which of the two failed. The next flush reports a doubt, and the
//! failure is sticky.

use std::{
    future::{Future, poll_fn},
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::{
    Error, ErrorKind, Result,
    flush_epochs::{Epoch, FlushEpochs},
    flush_failure::FlushFailure,
};

/// The flush state of one open file.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    epochs: FlushEpochs,
    state: Mutex<FlushState>,
    /// A flush has failed: written data may be lost although Linux marks its pages clean.
    failed: FlushFailure,
}

#[derive(Debug, Default)]
struct FlushState {
    /// Volatile writes may be lost, and no flush has reported it yet.
    is_doubted: bool,
    /// How many failed durable writes are being judged.
    judged: u32,
    running: bool,
    waiting: Vec<Waker>,
}

impl Flushes {
    /// Fails if a flush has failed.
    pub(super) fn check(&self) -> Result<()> {
        self.failed.check()
    }

    /// Records the end of a volatile write, successful or not.
    pub(super) fn volatile_write_ended(&self) {
        self.epochs.wrote();
    }

    /// What flushes have covered when a durable write begins: if its own sync fails, everything beyond may be lost.
    pub(super) fn covered(&self) -> Epoch {
        self.epochs.covered()
    }

    /// Whether a volatile write beyond `covered` has completed on any lane.
    pub(super) fn has_volatile_beyond(&self, covered: Epoch) -> bool {
        self.epochs.written() > covered
    }

    /// Starts judging a failed durable write, until the result is dropped; no flush succeeds meanwhile.
    pub(super) fn judging(&self) -> Judging<'_> {
        self.lock().judged += 1;
        Judging { shared: self }
    }

    /// Volatile writes may be lost, and the kernel has reported it to this call only: the next flush fails, whatever
    /// was flushed meanwhile.
    pub(super) fn doubt(&self) {
        self.lock().is_doubted = true;
    }

    /// Covers every completed volatile write of all lanes with `sync`, or finds them already covered.
    pub(super) async fn flush<F>(&self, sync: impl FnOnce() -> F) -> Result<()>
    where
        F: Future<Output = io::Result<()>>,
    {
        let wanted = self.epochs.written();
        let begun = poll_fn(|cx| {
            let mut state = self.lock();
            if let Err(error) = self.check() {
                return Poll::Ready(Err(error));
            }
            if state.judged > 0 {
                state.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
            if state.is_doubted && !state.running {
                self.fail();
                return Poll::Ready(self.check().map(|()| None));
            }
            if self.covered() >= wanted && !state.is_doubted {
                return Poll::Ready(Ok(None));
            }
            if state.running {
                state.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
            let begun = self.epochs.begin();
            state.running = begun.is_some();
            Poll::Ready(Ok(begun))
        })
        .await?;
        let Some(covers) = begun else {
            return Ok(());
        };
        let mut running = FlushTurn {
            shared: self,
            is_good: false,
        };
        let synced = match sync().await {
            Ok(()) => poll_fn(|cx| running.cover(covers, cx)).await,
            failed => failed,
        };
        drop(running);
        synced.map_err(|error| {
            Error::new(
                ErrorKind::FlushFailed,
                format!("written data could not be made durable: {error}"),
            )
        })
    }

    fn fail(&self) {
        self.failed.set(
            "an earlier flush failed, so data written before it may be lost; check the medium, \
             then open the volume again",
        );
    }

    fn lock(&self) -> MutexGuard<'_, FlushState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A failed durable write that is being judged.
pub(super) struct Judging<'a> {
    shared: &'a Flushes,
}

impl Drop for Judging<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.shared.lock();
            state.judged -= 1;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The flush whose turn it is. On drop the turn passes on; without a success (it failed, or its lane ended meanwhile)
/// it is unknown what is durable, and the file stays failed.
struct FlushTurn<'a> {
    shared: &'a Flushes,
    is_good: bool,
}

impl FlushTurn<'_> {
    /// Records that its sync succeeded. The check for a doubt and the update of what is covered are under one lock,
    /// so that no doubt can be cast in between.
    fn cover(&mut self, covers: Epoch, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        if state.is_doubted {
            let error = io::Error::other("the sync of a durable write failed in the meantime");
            return Poll::Ready(Err(error));
        }
        if state.judged > 0 {
            state.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        self.shared.epochs.flushed(covers);
        self.is_good = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for FlushTurn<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.shared.lock();
            state.running = false;
            if !self.is_good {
                self.shared.fail();
            }
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, pin::pin};

    fn poll_once<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    async fn released(gate: &Cell<bool>) -> io::Result<()> {
        poll_fn(|_| {
            if gate.get() {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    #[test]
    fn a_flush_is_skipped_only_when_nothing_was_written() {
        let flushes = Flushes::default();
        let syncs = Cell::new(0);
        let flush = || {
            let sync = || {
                syncs.set(syncs.get() + 1);
                std::future::ready(Ok(()))
            };
            match poll_once(pin!(flushes.flush(sync))) {
                Poll::Ready(result) => result.expect("it flushes"),
                Poll::Pending => panic!("nobody else flushes"),
            }
            syncs.get()
        };
        assert_eq!(flush(), 1, "written before it was opened");
        assert_eq!(flush(), 1, "nothing written");
        flushes.volatile_write_ended();
        assert_eq!(flush(), 2, "written");
        assert_eq!(flush(), 2, "covered");
    }

    #[test]
    fn a_write_that_ends_during_a_flush_needs_another() {
        let flushes = Flushes::default();
        let gate = Cell::new(false);
        flushes.volatile_write_ended();
        let mut first = pin!(flushes.flush(|| released(&gate)));
        assert!(poll_once(first.as_mut()).is_pending());

        flushes.volatile_write_ended();
        let second_synced = Cell::new(false);
        let mut second = pin!(flushes.flush(|| {
            second_synced.set(true);
            std::future::ready(Ok(()))
        }));
        assert!(poll_once(second.as_mut()).is_pending(), "one at a time");
        gate.set(true);
        assert!(matches!(poll_once(first.as_mut()), Poll::Ready(Ok(()))));
        assert!(matches!(poll_once(second.as_mut()), Poll::Ready(Ok(()))));
        assert!(
            second_synced.get(),
            "the first had begun before the write ended"
        );
    }

    #[test]
    fn a_failure_is_seen_by_every_flush_and_stays() {
        let flushes = Flushes::default();
        flushes.volatile_write_ended();
        let gate = Cell::new(false);
        let mut failing = pin!(flushes.flush(|| async {
            released(&gate).await?;
            Err(io::ErrorKind::Other.into())
        }));
        assert!(poll_once(failing.as_mut()).is_pending());
        let mut waiting = pin!(flushes.flush(|| async { panic!("it must not try again") }));
        assert!(poll_once(waiting.as_mut()).is_pending());
        gate.set(true);
        for result in [poll_once(failing.as_mut()), poll_once(waiting.as_mut())] {
            match result {
                Poll::Ready(Err(error)) => assert_eq!(error.kind(), ErrorKind::FlushFailed),
                other => panic!("{other:?}"),
            }
        }
        flushes.check().expect_err("writes are refused, too");
    }

    #[test]
    fn a_doubt_fails_the_flush_that_runs_and_the_next() {
        let flushes = Flushes::default();
        let flush = || flushes.flush(|| std::future::ready(Ok(())));
        assert!(
            flushes.has_volatile_beyond(flushes.covered()),
            "written before it was opened"
        );
        assert!(matches!(poll_once(pin!(flush())), Poll::Ready(Ok(()))));
        assert!(!flushes.has_volatile_beyond(flushes.covered()));
        flushes.volatile_write_ended();
        let gate = Cell::new(false);
        let mut running = pin!(flushes.flush(|| released(&gate)));
        assert!(poll_once(running.as_mut()).is_pending());
        flushes.doubt();
        gate.set(true);
        assert!(matches!(poll_once(running.as_mut()), Poll::Ready(Err(_))));
        assert!(matches!(poll_once(pin!(flush())), Poll::Ready(Err(_))));
        flushes.check().expect_err("writes are refused, too");
    }

    #[test]
    fn a_doubt_outlives_a_flush_that_ended_well_since_the_durable_write_began() {
        let flushes = Flushes::default();
        flushes.volatile_write_ended();
        let begun = flushes.covered();
        let flush = || flushes.flush(|| std::future::ready(Ok(())));
        assert!(matches!(poll_once(pin!(flush())), Poll::Ready(Ok(()))));
        assert!(flushes.has_volatile_beyond(begun));
        flushes.doubt();
        for _ in 0..2 {
            assert!(matches!(poll_once(pin!(flush())), Poll::Ready(Err(_))));
        }
    }

    #[test]
    fn a_flush_waits_until_a_failed_durable_write_is_judged() {
        for is_lost in [false, true] {
            let flushes = Flushes::default();
            let gate = Cell::new(false);
            let mut running = pin!(flushes.flush(|| released(&gate)));
            assert!(poll_once(running.as_mut()).is_pending());
            let judging = flushes.judging();
            gate.set(true);
            assert!(poll_once(running.as_mut()).is_pending(), "not yet known");
            let mut next = pin!(flushes.flush(|| released(&gate)));
            assert!(poll_once(next.as_mut()).is_pending(), "not yet known");
            if is_lost {
                flushes.doubt();
            }
            drop(judging);
            for result in [poll_once(running.as_mut()), poll_once(next.as_mut())] {
                match result {
                    Poll::Ready(result) => assert_eq!(result.is_err(), is_lost),
                    Poll::Pending => panic!("it is known now"),
                }
            }
        }
    }

    #[test]
    fn an_abandoned_flush_counts_as_failed() {
        let flushes = Flushes::default();
        flushes.volatile_write_ended();
        {
            let mut flush = pin!(flushes.flush(std::future::pending));
            assert!(poll_once(flush.as_mut()).is_pending());
        }
        flushes.check().expect_err("nobody knows what it did");
    }
}
