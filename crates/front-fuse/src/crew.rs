//! Which lanes wait for requests. The kernel wakes those that wait in turn: with little to do, each request
//! would wake a lane that sleeps, while the one that had the last looks for the next in vain. So the first lane
//! always waits, and the others rest while there is nothing for them to do.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use engine::cross::{Receiver, Sender, channel};

/// Whoever has so many requests in hand calls the others.
const BUSY: usize = 4;
/// Who has come back so often with one in hand at most rests.
const IDLE: u32 = 8;

/// The lanes, and how each is called.
pub(crate) struct Crew(Vec<Member>);

struct Member {
    rests: AtomicBool,
    call: Sender<()>,
}

/// A lane in its crew.
pub(crate) struct Place {
    crew: Arc<Crew>,
    lane: usize,
    called: Receiver<()>,
}

impl Crew {
    /// A place for each of so many lanes; none rests.
    pub(crate) fn of(lanes: usize) -> Vec<Place> {
        let (members, calls): (Vec<_>, Vec<_>) = (0..lanes)
            .map(|_| {
                let (call, called) = channel();
                let rests = AtomicBool::new(false);
                (Member { rests, call }, called)
            })
            .unzip();
        let crew = Arc::new(Crew(members));
        let places = calls.into_iter().enumerate();
        places
            .map(|(lane, called)| Place {
                crew: crew.clone(),
                lane,
                called,
            })
            .collect()
    }
}

impl Place {
    /// A request was taken, with which this lane has `in_hand`.
    pub(crate) fn took(&self, in_hand: usize) {
        if in_hand < BUSY {
            return;
        }
        for member in &self.crew.0 {
            if member.rests.load(Ordering::Relaxed) && member.rests.swap(false, Ordering::AcqRel) {
                // One that has ended needs no call.
                let _ = member.call.send(());
            }
        }
    }

    /// Whether this lane may rest, having come back for the next request with one in hand at most `idle`
    /// times in a row.
    pub(crate) fn may_rest(&self, idle: u32) -> bool {
        self.lane > 0 && idle >= IDLE
    }

    /// Rests until it is called.
    pub(crate) async fn rest(&self) {
        self.crew.0[self.lane].rests.store(true, Ordering::Release);
        self.called.receive().await;
    }
}
