//! Decides which lanes wait for requests. The kernel wakes waiting lanes in rotation, so under light load each
//! request would wake a sleeping lane, while the lane that had the previous one polls for the next in vain.
//! Hence the first lane always waits, and the others rest while there is too little to do.
//!
//! The first lane takes no requests while those in its hands use up its places or its memory. If they do not
//! end, because a share does not answer, this may last for minutes. Meanwhile no other lane rests.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use engine::cross::{Receiver, Sender, channel};

/// A lane with this many requests in hand calls the others.
const BUSY: usize = 4;
/// A lane rests after it came back this many times in a row with at most one request in hand.
const IDLE: u32 = 8;

/// The lanes, and a way to call each of them.
pub(crate) struct Crew {
    members: Vec<CrewMember>,
    /// The first lane takes no requests at the moment.
    is_first_full: AtomicBool,
}

struct CrewMember {
    rests: AtomicBool,
    call: Sender<()>,
}

/// A lane's membership in its crew.
pub(crate) struct Membership {
    crew: Arc<Crew>,
    lane: usize,
    called: Receiver<()>,
}

impl Crew {
    /// Memberships for `lanes` lanes; none of them rests.
    pub(crate) fn of(lanes: usize) -> Vec<Membership> {
        let (members, calls): (Vec<_>, Vec<_>) = (0..lanes)
            .map(|_| {
                let (call, called) = channel();
                let rests = AtomicBool::new(false);
                (CrewMember { rests, call }, called)
            })
            .unzip();
        let crew = Arc::new(Crew {
            members,
            is_first_full: AtomicBool::new(false),
        });
        let places = calls.into_iter().enumerate();
        places
            .map(|(lane, called)| Membership {
                crew: crew.clone(),
                lane,
                called,
            })
            .collect()
    }

    /// Calls all lanes that rest.
    fn call(&self) {
        for member in &self.members {
            // Sequentially consistent, see `Place::rest`.
            if member.rests.load(Ordering::SeqCst) && member.rests.swap(false, Ordering::SeqCst) {
                // The send fails only for a lane that has ended.
                let _ = member.call.send(());
            }
        }
    }
}

impl Membership {
    /// The number of this lane among those of the front.
    pub(crate) fn lane(&self) -> usize {
        self.lane
    }

    /// Called when a request was taken, with the number that this lane now has `in_hand`.
    pub(crate) fn took(&self, in_hand: usize) {
        if in_hand >= BUSY {
            self.crew.call();
        }
    }

    /// Waits for `room`, without which this lane takes no further requests.
    pub(crate) async fn wait_for<T>(&self, room: impl Future<Output = T>) -> T {
        let mut room = pin!(room);
        let mut full = None;
        poll_fn(|cx| {
            let polled = room.as_mut().poll(cx);
            if polled.is_pending() && self.lane == 0 && full.is_none() {
                full = Some(Full::new(&self.crew));
            }
            polled
        })
        .await
    }

    /// Whether this lane may rest, after it has come back `idle` times in a row with at most one request
    /// in hand.
    pub(crate) fn may_rest(&self, idle: u32) -> bool {
        self.lane > 0 && idle >= IDLE && !self.crew.is_first_full.load(Ordering::Relaxed)
    }

    /// Rests until it is called.
    pub(crate) async fn rest(&self) {
        let rests = &self.crew.members[self.lane].rests;
        rests.store(true, Ordering::SeqCst);
        // The first lane may have become full before it could see that this one rests. Either it sees that now, or
        // this lane sees that it is full: the total order of these accesses rules out that neither does.
        let is_needed = self.crew.is_first_full.load(Ordering::SeqCst);
        if is_needed && rests.swap(false, Ordering::SeqCst) {
            return;
        }
        self.called.receive().await;
    }
}

/// While it exists, the first lane is full, and no other lane rests.
struct Full<'a>(&'a Crew);

impl Full<'_> {
    fn new(crew: &Crew) -> Full<'_> {
        crew.is_first_full.store(true, Ordering::SeqCst);
        crew.call();
        Full(crew)
    }
}

impl Drop for Full<'_> {
    fn drop(&mut self) {
        self.0.is_first_full.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        pin::Pin,
        task::{Context, Waker},
    };

    use super::*;

    fn crew() -> [Membership; 3] {
        Crew::of(3).try_into().ok().expect("three lanes")
    }

    fn is_over(future: &mut Pin<&mut impl Future>) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        future.as_mut().poll(&mut cx).is_ready()
    }

    #[test]
    fn no_lane_rests_while_the_first_is_full() {
        let [first, second, third] = crew();
        let mut resting = pin!(second.rest());
        assert!(!is_over(&mut resting));
        assert!(third.may_rest(IDLE));
        {
            let mut waiting = pin!(first.wait_for(pending::<()>()));
            assert!(!is_over(&mut waiting));
            assert!(is_over(&mut resting), "the resting lane is called");
            assert!(!third.may_rest(IDLE));
            // It had decided to rest just before.
            assert!(is_over(&mut pin!(third.rest())));
        }
        assert!(third.may_rest(IDLE), "the first lane takes requests again");
        assert!(!is_over(&mut pin!(third.rest())));
    }

    #[test]
    fn a_lane_with_room_and_a_full_lane_other_than_the_first_call_nobody() {
        let [first, second, third] = crew();
        let mut resting = pin!(third.rest());
        assert!(!is_over(&mut resting));
        assert!(is_over(&mut pin!(first.wait_for(async {}))));
        assert!(!is_over(&mut pin!(second.wait_for(pending::<()>()))));
        assert!(!is_over(&mut resting));
    }
}
