//! The flush state shared by all lanes of a file leaf: which writes no flush has covered yet, the flush in progress,
//! and whether one has failed.
//!
//! Each lane counts its *completed* volatile writes in a counter that only it writes. A flush sums up the counters
//! before its fdatasync begins; that sum is what it covers. Sums are taken under one lock, so of two sums the later
//! covers the earlier, and a flush whose sum is already covered has nothing to do. Only one fdatasync runs at a time:
//! flushes that arrive meanwhile share the next one, and no success can overtake the report of a failure.
//!
//! A failed flush is sticky: what it should have covered may be lost, although Linux marks the pages clean. A failed
//! durable write is an error of that write alone, with one exception: if the write itself worked and only its sync
//! failed, it casts [doubt](LaneFlushes::doubt) on everything volatile since it began. A disk that could not empty
//! its cache may have lost that, and reports it only once, so a flush that succeeds meanwhile proves nothing. Flushes
//! wait until it is [known](LaneFlushes::judging) which of the two failed. The next flush reports a doubt, and the
//! failure is sticky.

use std::{
    future::{Future, poll_fn},
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use crate::{Error, ErrorKind, Result, flush_failure::FlushFailure};

/// The flush state of one open file.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    state: Mutex<State>,
    /// A flush has failed: written data may be lost although Linux marks its pages clean.
    failed: FlushFailure,
}

#[derive(Debug)]
struct State {
    lanes: Vec<Arc<AtomicU64>>,
    /// Writes of lanes that have released the file, plus one for writes from before it was opened: a killed process
    /// may have left those in the page cache, and a flush has to cover them for whoever reads them there.
    retired: u64,
    /// The sum that the last successful flush began with.
    covered: u64,
    /// Volatile writes may be lost, and no flush has reported it yet.
    is_doubted: bool,
    /// How many failed durable writes are being judged.
    judged: u32,
    running: bool,
    waiting: Vec<Waker>,
}

impl Default for State {
    fn default() -> Self {
        State {
            lanes: Vec::new(),
            retired: 1,
            covered: 0,
            is_doubted: false,
            judged: 0,
            running: false,
            waiting: Vec::new(),
        }
    }
}

impl State {
    fn ended(&self) -> u64 {
        let counted: u64 = self
            .lanes
            .iter()
            .map(|lane| lane.load(Ordering::Acquire))
            .sum();
        self.retired + counted
    }
}

enum Turn {
    Covered,
    /// It is this flush's turn; it will cover the contained sum.
    Sync(u64),
}

impl Flushes {
    /// Adds a counter for one lane.
    pub(super) fn on_lane(self: &Arc<Self>) -> LaneFlushes {
        let ended = Arc::new(AtomicU64::new(0));
        self.lock().lanes.push(ended.clone());
        LaneFlushes {
            shared: self.clone(),
            ended,
        }
    }

    fn fail(&self) {
        self.failed.set(
            "an earlier flush failed, so data written before it may be lost; check the medium, \
             then open the volume again",
        );
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lane's handle on the flush state of a file.
#[derive(Debug)]
pub(super) struct LaneFlushes {
    shared: Arc<Flushes>,
    ended: Arc<AtomicU64>,
}

impl LaneFlushes {
    /// Fails if a flush has failed.
    pub(super) fn check(&self) -> Result<()> {
        self.shared.failed.check()
    }

    /// Counts the end of a volatile write, successful or not.
    pub(super) fn volatile_write_ended(&self) {
        // Only this lane writes the counter, so no atomic read-modify-write is needed.
        let ended = self.ended.load(Ordering::Relaxed);
        self.ended.store(ended + 1, Ordering::Release);
    }

    /// What flushes have covered when a durable write begins: if its own sync fails, everything beyond may be lost.
    pub(super) fn covered(&self) -> u64 {
        self.shared.lock().covered
    }

    /// Whether a volatile write beyond `covered` has completed on any lane.
    pub(super) fn has_volatile_beyond(&self, covered: u64) -> bool {
        self.shared.lock().ended() > covered
    }

    /// Starts judging a failed durable write, until the result is dropped; no flush succeeds meanwhile.
    pub(super) fn judging(&self) -> Judging<'_> {
        self.shared.lock().judged += 1;
        Judging {
            shared: &self.shared,
        }
    }

    /// Volatile writes may be lost, and the kernel has reported it to this call only: the next flush fails, whatever
    /// was flushed meanwhile.
    pub(super) fn doubt(&self) {
        self.shared.lock().is_doubted = true;
    }

    /// Covers every completed volatile write of all lanes with `sync`, or finds them already covered.
    pub(super) async fn flush<F>(&self, sync: impl FnOnce() -> F) -> Result<()>
    where
        F: Future<Output = io::Result<()>>,
    {
        let wanted = self.shared.lock().ended();
        let turn = poll_fn(|cx| {
            let mut state = self.shared.lock();
            if let Err(error) = self.check() {
                return Poll::Ready(Err(error));
            }
            if state.judged > 0 {
                state.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
            if state.is_doubted && !state.running {
                self.shared.fail();
                return Poll::Ready(self.check().map(|()| Turn::Covered));
            }
            if state.covered >= wanted && !state.is_doubted {
                return Poll::Ready(Ok(Turn::Covered));
            }
            if state.running {
                state.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
            state.running = true;
            Poll::Ready(Ok(Turn::Sync(state.ended())))
        })
        .await?;
        let Turn::Sync(covers) = turn else {
            return Ok(());
        };
        let mut running = Running {
            shared: &self.shared,
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
}

impl Drop for LaneFlushes {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.retired += self.ended.load(Ordering::Relaxed);
        state.lanes.retain(|lane| !Arc::ptr_eq(lane, &self.ended));
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
struct Running<'a> {
    shared: &'a Flushes,
    is_good: bool,
}

impl Running<'_> {
    /// Records that its sync succeeded. The check for a doubt and the update of what is covered are under one lock,
    /// so that no doubt can be cast in between.
    fn cover(&mut self, covers: u64, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        if state.is_doubted {
            let error = io::Error::other("the sync of a durable write failed in the meantime");
            return Poll::Ready(Err(error));
        }
        if state.judged > 0 {
            state.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        state.covered = covers;
        self.is_good = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Running<'_> {
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
    fn a_flush_is_skipped_only_when_no_lane_wrote() {
        let flushes = Arc::new(Flushes::default());
        let (a, b) = (flushes.on_lane(), flushes.on_lane());
        let syncs = Cell::new(0);
        let flush = |lane: &LaneFlushes| {
            let sync = || {
                syncs.set(syncs.get() + 1);
                std::future::ready(Ok(()))
            };
            match poll_once(pin!(lane.flush(sync))) {
                Poll::Ready(result) => result.expect("it flushes"),
                Poll::Pending => panic!("nobody else flushes"),
            }
            syncs.get()
        };
        assert_eq!(flush(&a), 1, "written before it was opened");
        assert_eq!(flush(&a), 1, "nothing written");
        a.volatile_write_ended();
        assert_eq!(flush(&b), 2, "the other lane wrote");
        assert_eq!(flush(&a), 2, "covered by the other lane's flush");
        b.volatile_write_ended();
        drop(b);
        assert_eq!(flush(&a), 3, "written by a lane that has let go");
        assert_eq!(flush(&a), 3);
    }

    #[test]
    fn a_write_that_ends_during_a_flush_needs_another() {
        let flushes = Arc::new(Flushes::default());
        let (a, b) = (flushes.on_lane(), flushes.on_lane());
        let gate = Cell::new(false);
        a.volatile_write_ended();
        let mut first = pin!(a.flush(|| released(&gate)));
        assert!(poll_once(first.as_mut()).is_pending());

        b.volatile_write_ended();
        let second_synced = Cell::new(false);
        let mut second = pin!(b.flush(|| {
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
    fn a_failure_is_seen_by_every_lane_and_stays() {
        let flushes = Arc::new(Flushes::default());
        let (a, b) = (flushes.on_lane(), flushes.on_lane());
        a.volatile_write_ended();
        let gate = Cell::new(false);
        let mut failing = pin!(a.flush(|| async {
            released(&gate).await?;
            Err(io::ErrorKind::Other.into())
        }));
        assert!(poll_once(failing.as_mut()).is_pending());
        let mut waiting = pin!(b.flush(|| async { panic!("it must not try again") }));
        assert!(poll_once(waiting.as_mut()).is_pending());
        gate.set(true);
        for result in [poll_once(failing.as_mut()), poll_once(waiting.as_mut())] {
            match result {
                Poll::Ready(Err(error)) => assert_eq!(error.kind(), ErrorKind::FlushFailed),
                other => panic!("{other:?}"),
            }
        }
        b.check().expect_err("writes are refused, too");
    }

    #[test]
    fn a_doubt_fails_the_flush_that_runs_and_the_next() {
        let flushes = Arc::new(Flushes::default());
        let lane = flushes.on_lane();
        let flush = || lane.flush(|| std::future::ready(Ok(())));
        assert!(
            lane.has_volatile_beyond(lane.covered()),
            "written before it was opened"
        );
        assert!(matches!(poll_once(pin!(flush())), Poll::Ready(Ok(()))));
        assert!(!lane.has_volatile_beyond(lane.covered()));
        lane.volatile_write_ended();
        let gate = Cell::new(false);
        let mut running = pin!(lane.flush(|| released(&gate)));
        assert!(poll_once(running.as_mut()).is_pending());
        lane.doubt();
        gate.set(true);
        assert!(matches!(poll_once(running.as_mut()), Poll::Ready(Err(_))));
        assert!(matches!(poll_once(pin!(flush())), Poll::Ready(Err(_))));
        lane.check().expect_err("writes are refused, too");
    }

    #[test]
    fn a_doubt_outlives_a_flush_that_ended_well_since_the_durable_write_began() {
        let flushes = Arc::new(Flushes::default());
        let (a, b) = (flushes.on_lane(), flushes.on_lane());
        a.volatile_write_ended();
        let begun = a.covered();
        let flush = || b.flush(|| std::future::ready(Ok(())));
        assert!(matches!(poll_once(pin!(flush())), Poll::Ready(Ok(()))));
        assert!(a.has_volatile_beyond(begun));
        a.doubt();
        for _ in 0..2 {
            assert!(matches!(poll_once(pin!(flush())), Poll::Ready(Err(_))));
        }
    }

    #[test]
    fn a_flush_waits_until_a_failed_durable_write_is_judged() {
        for is_lost in [false, true] {
            let flushes = Arc::new(Flushes::default());
            let (a, b) = (flushes.on_lane(), flushes.on_lane());
            let gate = Cell::new(false);
            let mut running = pin!(a.flush(|| released(&gate)));
            assert!(poll_once(running.as_mut()).is_pending());
            let judging = b.judging();
            gate.set(true);
            assert!(poll_once(running.as_mut()).is_pending(), "not yet known");
            let mut next = pin!(b.flush(|| released(&gate)));
            assert!(poll_once(next.as_mut()).is_pending(), "not yet known");
            if is_lost {
                b.doubt();
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
        let flushes = Arc::new(Flushes::default());
        let lane = flushes.on_lane();
        lane.volatile_write_ended();
        {
            let mut flush = pin!(lane.flush(std::future::pending));
            assert!(poll_once(flush.as_mut()).is_pending());
        }
        lane.check().expect_err("nobody knows what it did");
    }
}
