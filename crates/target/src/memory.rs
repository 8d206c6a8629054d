//! The lane's memory for payload, and what each session may have of it.
//!
//! Data that comes unasked must find room at once or its command is refused with TASK SET FULL;
//! what is asked for waits in line. Neither can take the other's. Beside the lane's memory each
//! session has a small reserve of its own for each of the two, which it uses when the lane's is
//! taken: so none is brought to a standstill by what others hold and do not give back.
//!
//! What is counted is the memory behind a buffer, which is more than the bytes asked for.

use std::{future::Future, pin::pin, rc::Rc, task::Poll};

use engine::{
    buf::capacity_for,
    sync::{Budget, Permit},
};
use smallvec::smallvec;

use crate::open::Permits;

/// What a session can always have: for a command's unsolicited data (FirstBurstLength), and for
/// what a database reads and writes in one go.
const RESERVE_BYTES: usize = 64 << 10;

/// A session begins with a window of so many commands and is given as many more each time it has
/// used it up, while the lane has commands left: what a thousand waiting commands take beside their
/// payload is not to be had for every session at once.
pub(crate) const WINDOW_STEP: u16 = 128;
/// For each of so many bytes of memory the lane has a command to give: some KiB for its state, which
/// is a tenth of that.
const BYTES_A_COMMAND: usize = 32 << 10;

/// The lane's.
pub(crate) struct LaneMemory {
    unsolicited: Rc<Budget>,
    transfers: Rc<Budget>,
    /// Commands that sessions may have open beyond what each begins with.
    commands: Rc<Budget>,
    /// The most of `transfers` that one session may hold.
    session_max: usize,
}

/// One session's.
pub(crate) struct SessionMemory {
    lane: Rc<LaneMemory>,
    own: Rc<Budget>,
    unsolicited_reserve: Rc<Budget>,
    transfers_reserve: Rc<Budget>,
}

impl LaneMemory {
    /// The memory of a lane whose share is `share` bytes and whose longest transfer is `largest`.
    pub(crate) fn new(share: usize, largest: usize) -> Rc<LaneMemory> {
        // A quarter is for buffers that are free, or memory would be the sum of all that each size
        // of buffer ever needed at once.
        engine::buf::keep_at_most(share / 4);
        let transfers = share / 2;
        Rc::new(LaneMemory {
            unsolicited: Budget::new(share / 4),
            transfers: Budget::new(transfers),
            commands: Budget::new(share / BYTES_A_COMMAND),
            session_max: (transfers / 4).max(largest).min(transfers),
        })
    }

    /// A wider window for a session, if there is one to be had.
    pub(crate) fn take_window(&self) -> Option<Permit> {
        let step = usize::from(WINDOW_STEP);
        (self.commands.total() >= step)
            .then(|| self.commands.try_take(step))
            .flatten()
    }

    /// Waits for memory for `len` bytes that the server moves by itself.
    pub(crate) async fn take(&self, len: usize) -> Permit {
        self.transfers.take(capacity_for(len)).await
    }
}

impl SessionMemory {
    /// A session's share of `lane`.
    pub(crate) fn new(lane: &Rc<LaneMemory>) -> SessionMemory {
        SessionMemory {
            own: Budget::new(lane.session_max),
            lane: lane.clone(),
            unsolicited_reserve: Budget::new(RESERVE_BYTES),
            transfers_reserve: Budget::new(RESERVE_BYTES),
        }
    }

    /// Memory for `len` bytes that come, or go, without having been asked for, if there is any.
    pub(crate) fn take_at_once(&self, len: usize) -> Option<Permit> {
        let bytes = if len == 0 { 0 } else { capacity_for(len) };
        let lane = self.lane.unsolicited.try_take(bytes);
        // A budget takes more than the whole for the whole.
        let reserve = || {
            (bytes <= RESERVE_BYTES)
                .then(|| self.unsolicited_reserve.try_take(bytes))
                .flatten()
        };
        lane.or_else(reserve)
    }

    /// Waits for memory for `len` bytes: of the session's share and the lane's, or of its reserve.
    pub(crate) async fn take(&self, len: usize) -> Permits {
        let bytes = capacity_for(len);
        let shared = async {
            let own = self.own.take(bytes).await;
            let lane = self.lane.transfers.take(bytes).await;
            smallvec![lane, own]
        };
        if bytes > RESERVE_BYTES {
            return shared.await;
        }
        let (mut shared, mut reserve) = (pin!(shared), pin!(self.transfers_reserve.take(bytes)));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(permits) = shared.as_mut().poll(cx) {
                return Poll::Ready(permits);
            }
            reserve.as_mut().poll(cx).map(|permit| smallvec![permit])
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Waker};

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn what_is_counted_is_what_buffers_take() {
        let lane = LaneMemory::new(4 << 20, 1 << 20);
        let session = SessionMemory::new(&lane);
        let permits = now(session.take(33 << 10)).expect("there is room");
        assert_eq!(permits[0].amount(), 64 << 10);
        assert_eq!(
            session.take_at_once(1).expect("there is room").amount(),
            4096
        );
        assert_eq!(
            session.take_at_once(0).expect("nothing is free").amount(),
            0
        );
    }

    #[test]
    fn a_session_goes_on_when_others_hold_all() {
        let lane = LaneMemory::new(4 << 20, 1 << 20);
        let hogs: Vec<SessionMemory> = (0..4).map(|_| SessionMemory::new(&lane)).collect();
        let mut held = Vec::new();
        let mut unasked = Vec::new();
        for hog in &hogs {
            held.extend(std::iter::from_fn(|| now(hog.take(64 << 10))));
            unasked.extend(std::iter::from_fn(|| hog.take_at_once(64 << 10)));
        }
        let total: usize = held.iter().map(|permits| permits[0].amount()).sum();
        assert!(total <= (2 << 20) + 4 * RESERVE_BYTES, "{total}");
        let session = SessionMemory::new(&lane);
        for _ in 0..3 {
            let permits = now(session.take(64 << 10)).expect("its own reserve");
            assert!(now(session.take(4096)).is_none(), "and no more");
            drop(permits);
            let permit = session.take_at_once(64 << 10).expect("its own reserve");
            assert!(session.take_at_once(4096).is_none(), "and no more");
            drop(permit);
        }
        assert!(now(session.take(128 << 10)).is_none());
        drop(held);
        assert!(now(session.take(128 << 10)).is_some());
    }
}
