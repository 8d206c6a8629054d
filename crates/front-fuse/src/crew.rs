//! Decides which lanes wait for requests. The kernel wakes waiting lanes in rotation, so under light load each
//! request would wake a sleeping lane, while the lane that had the previous one polls for the next in vain.
//! Hence the first lane always waits, and the others rest while there is too little to do.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use engine::cross::{Receiver, Sender, channel};

/// A lane with this many requests in hand calls the others.
const BUSY: usize = 4;
/// A lane rests after it came back this many times in a row with at most one request in hand.
const IDLE: u32 = 8;

/// The lanes, and a way to call each of them.
pub(crate) struct Crew(Vec<Member>);

struct Member {
    rests: AtomicBool,
    call: Sender<()>,
}

/// A lane's membership in its crew.
pub(crate) struct Place {
    crew: Arc<Crew>,
    lane: usize,
    called: Receiver<()>,
}

impl Crew {
    /// Memberships for `lanes` lanes; none of them rests.
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
    /// Called when a request was taken, with the number that this lane now has `in_hand`.
    pub(crate) fn took(&self, in_hand: usize) {
        if in_hand < BUSY {
            return;
        }
        for member in &self.crew.0 {
            if member.rests.load(Ordering::Relaxed) && member.rests.swap(false, Ordering::AcqRel) {
                // The send fails only for a lane that has ended.
                let _ = member.call.send(());
            }
        }
    }

    /// Whether this lane may rest, after it has come back `idle` times in a row with at most one request
    /// in hand.
    pub(crate) fn may_rest(&self, idle: u32) -> bool {
        self.lane > 0 && idle >= IDLE
    }

    /// Rests until it is called.
    pub(crate) async fn rest(&self) {
        self.crew.0[self.lane].rests.store(true, Ordering::Release);
        self.called.receive().await;
    }
}
