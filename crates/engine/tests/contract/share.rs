//! The work that one share does between two polls of the reactor is bounded, whatever it has to do.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use engine::{
    LaneHandle, Share, begin,
    share::{PIECE_BYTES, TURN_BYTES, counts},
    spend,
    task::{spawn_for, yield_now},
};

use crate::site::Site;

contract![
    a_share_waits_for_its_turn_and_no_other_waits_for_it,
    all_that_a_share_asks_for_is_its_own,
];

const LONG: usize = 200;
const A: Share = Share::of(1);
const B: Share = Share::of(2);

/// Starts `LONG` tasks for the current share, each of which moves three turns' worth.
fn long_tasks(ended: &Rc<Cell<usize>>) {
    for _ in 0..LONG {
        let ended = ended.clone();
        begin(async move {
            for _ in 0..3 * TURN_BYTES / PIECE_BYTES {
                spend(PIECE_BYTES).await;
            }
            ended.set(ended.get() + 1);
        });
    }
}

async fn a_share_waits_for_its_turn_and_no_other_waits_for_it(_: Site) {
    let ended = Rc::new(Cell::new(0));
    let looks = counts().looks;
    {
        let ended = ended.clone();
        spawn_for(A, async move { long_tasks(&ended) }).await;
    }
    for _ in 0..20 {
        let before = counts().looks;
        spawn_for(B, async { spend(PIECE_BYTES).await }).await;
        let turns = counts().looks - before;
        assert!(turns <= 8, "a short task took {turns} turns");
        assert!(ended.get() < LONG, "while the long ones were at work");
    }
    while ended.get() < LONG {
        yield_now().await;
    }
    let turns = (counts().looks - looks) as usize;
    assert!(turns >= 3 * LONG, "all of it was done in {turns} turns");
}

async fn all_that_a_share_asks_for_is_its_own(site: Site) {
    let most = counts().spent_most_bytes;
    assert!(most <= TURN_BYTES + PIECE_BYTES, "{most} before");
    // Now the same for work that reaches another lane by messages: each message must carry its share.
    // Take the least of several attempts, because the other lane keeps running while this thread is
    // descheduled.
    let mut turns_least = u64::MAX;
    for _ in 0..5 {
        turns_least = turns_least.min(turns_beside_messages(&site.other).await);
    }
    assert!(turns_least <= LONG as u64, "{turns_least}");
}

/// How many turns `other` needs for a short task of one share that arrives behind many tasks of another
/// share, which all outlast it.
async fn turns_beside_messages(other: &LaneHandle) -> u64 {
    let (other, ended) = (other.clone(), Arc::new(AtomicBool::new(false)));
    let measured = spawn_for(A, async move {
        for _ in 0..LONG {
            let ended = ended.clone();
            other.spawn(move || async move {
                while !ended.load(Relaxed) {
                    spend(PIECE_BYTES).await;
                }
            });
        }
        let looks = other.call(|| async { counts().looks });
        let before = looks.await.expect("its lane lives");
        let own = spawn_for(B, async move {
            other
                .call(|| async {
                    spend(PIECE_BYTES).await;
                    (counts().looks, counts().spent_most_bytes)
                })
                .await
        });
        let (after, most) = own.await.expect("its lane lives");
        ended.store(true, Relaxed);
        assert!(most <= TURN_BYTES + PIECE_BYTES + 4096, "{most}");
        after - before
    });
    measured.await
}
