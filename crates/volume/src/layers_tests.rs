//! What a watch sees: each part of the time where it was spent, and in total never more than the request took.

use engine::{
    sim::{World, seeds},
    task, time,
};
use proptest::prelude::*;

use super::*;

const US: Duration = Duration::from_micros(1);

fn at_us(us: u64) -> Instant {
    Instant::from_ns(us * 1000)
}

fn begun(watch: &Watch, now: Instant) -> Work {
    let mut work = Work::new(watch.clone());
    work.begin(now);
    work
}

fn told(total_us: u64, medium_us: Option<u64>) -> Option<TargetTimes> {
    Some(TargetTimes {
        total: Duration::from_micros(total_us),
        medium: medium_us.map(Duration::from_micros),
    })
}

#[test]
fn what_a_target_tells_is_taken_from_the_round_trip() {
    let watch = Watch::new();
    let work = begun(&watch, at_us(100));
    work.end_at_target(told(70, Some(50)), at_us(200));
    let expected = Layers {
        wire: 30 * US,
        target: 20 * US,
        medium: 50 * US,
        ..Layers::default()
    };
    assert_eq!(watch.layers(), expected);
    assert_eq!(watch.layers().below(), Some(100 * US));

    let work = begun(&watch, at_us(300));
    work.end_at_target(None, at_us(310));
    let work = begun(&watch, at_us(400));
    work.end_at_target(told(5, None), at_us(410));
    let layers = watch.layers();
    assert_eq!((layers.untold, layers.target), (10 * US, 25 * US));
    assert!(layers.is_partial && layers.below().is_none());
}

#[test]
fn a_target_that_lies_gets_no_more_than_the_round_trip() {
    for (total_us, medium_us, target_us, medium_seen_us) in [
        (u64::MAX / 1000, Some(u64::MAX / 1000), 0, 100),
        (u64::MAX / 1000, Some(1), 99, 1),
        (10, Some(500), 0, 10),
    ] {
        let watch = Watch::new();
        let work = begun(&watch, at_us(100));
        work.end_at_target(told(total_us, medium_us), at_us(200));
        let layers = watch.layers();
        assert_eq!(layers.target, target_us as u32 * US);
        assert_eq!(layers.medium, medium_seen_us * US);
        assert_eq!(layers.below(), Some(100 * US));
    }
    // An answer that seems to arrive before the command was sent.
    let watch = Watch::new();
    let work = begun(&watch, at_us(100));
    work.end_at_target(told(10, Some(10)), at_us(90));
    assert_eq!(watch.layers().below(), Some(Duration::ZERO));
}

#[test]
fn parts_side_by_side_share_the_time() {
    let watch = Watch::new();
    let begin = |us| begun(&watch, at_us(us));
    let (medium, far) = (begin(0), begin(100));
    let given_up = begin(100);
    medium.end_at_medium(at_us(400));
    // Alone from 0 to 100, and one of three until 400.
    assert_eq!(watch.layers().medium, 200 * US);
    drop(given_up);
    far.end_at_target(told(200, Some(0)), at_us(500));
    // 100 as one of three, 100 alone; half of its 400 were spent at the target.
    let layers = watch.layers();
    assert_eq!((layers.target, layers.wire), (100 * US, 100 * US));
    assert_eq!(watch.account().working, 0);
}

#[test]
fn what_the_initiator_has_beside_its_commands_is_its_own() {
    let watch = Watch::new();
    // Above it, a layer of the volume works.
    let first = AtInitiator::new(watch.clone(), at_us(100));
    // A command waits for the window until then.
    let command = begun(&watch, at_us(130));
    command.end_at_target(told(40, Some(40)), at_us(190));
    let second = AtInitiator::new(watch.clone(), at_us(195));
    first.end(at_us(200));
    // A medium works beside the second request, so that time is the medium's.
    let medium = begun(&watch, at_us(210));
    medium.end_at_medium(at_us(240));
    second.end(at_us(250));
    // After that, nothing is the initiator's any more; nor is a request that was given up.
    drop(AtInitiator::new(watch.clone(), at_us(300)));
    begun(&watch, at_us(400)).end_at_medium(at_us(401));
    let expected = Layers {
        initiator: (30 + 20 + 10) * US,
        wire: 20 * US,
        medium: (40 + 30 + 1) * US,
        ..Layers::default()
    };
    assert_eq!(watch.layers(), expected);
    assert_eq!(
        watch.layers().below(),
        Some(91 * US),
        "the initiator is above"
    );
}

proptest! {
    #[test]
    fn all_parts_together_take_as_long_as_any_of_them_was_at_work(
        steps in prop::collection::vec((0..200u64, 0..8usize, 0..300u64, 0..300u64), 1..200),
    ) {
        let watch = Watch::new();
        let mut running: Vec<Option<Work>> = (0..8).map(|_| None).collect();
        let (mut now_us, mut busy_us) = (7, 0);
        for (pause_us, index, total_us, medium_us) in steps {
            now_us += pause_us;
            if running.iter().any(Option::is_some) {
                busy_us += pause_us;
            }
            match running[index].take() {
                None => running[index] = Some(begun(&watch, at_us(now_us))),
                Some(work) if index % 2 == 0 => work.end_at_medium(at_us(now_us)),
                Some(work) => work.end_at_target(told(total_us, Some(medium_us)), at_us(now_us)),
            }
        }
        for work in running.into_iter().flatten() {
            work.end_at_medium(at_us(now_us));
        }
        let seen = watch.layers().below().expect("all of it was seen");
        let busy = Duration::from_micros(busy_us);
        // Each part is rounded down by less than a nanosecond in its own sums.
        prop_assert!(seen <= busy && busy - seen < Duration::from_nanos(1000), "{seen:?} of {busy:?}");
    }
}

/// Work at a lower level, for whatever is currently watched.
async fn work(took: Duration) {
    let watch = current();
    let work = watch.map(|watch| begun(&watch, time::now()));
    time::sleep(took).await;
    if let Some(work) = work {
        work.end_at_medium(time::now());
    }
}

#[test]
fn a_watch_goes_with_its_future_and_what_that_spawns_and_with_nothing_else() {
    seeds(20, |seed| {
        let world = World::new(seed);
        let host = world.host("host");
        world.block_on(&host, async {
            let (watch, other) = (Watch::new(), Watch::new());
            let unwatched = task::spawn(work(Duration::from_millis(7)));
            let beside = task::spawn(watched(other.clone(), work(Duration::from_millis(3))));
            let spawned = async {
                work(Duration::from_millis(1)).await;
                spawn(work(Duration::from_millis(1))).await;
                task::spawn(work(Duration::from_millis(1))).await;
            };
            watched(watch.clone(), spawned).await;
            assert!(current().is_none());
            unwatched.await;
            beside.await;
            let ms = |watch: &Watch| watch.layers().medium.as_millis();
            assert_eq!((ms(&watch), ms(&other)), (2, 3));

            let entered = watch.enter();
            work(Duration::from_millis(1)).await;
            drop(entered);
            work(Duration::from_millis(1)).await;
            assert_eq!(ms(&watch), 3);
        });
    });
}
