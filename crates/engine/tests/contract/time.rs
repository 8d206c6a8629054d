//! Timers: never early, in order, and removed when nobody waits.

use std::{cell::RefCell, pin::pin, rc::Rc};

use engine::{
    cost, spawn,
    time::{Duration, last_known, now, sleep, sleep_until, timeout, turn_began},
};

use crate::site::{MS, Site, begin};

contract![
    a_sleep_never_ends_early,
    a_lane_does_not_sleep_right_before_an_exact_timer,
    timers_fire_in_the_order_of_their_deadlines,
    a_timeout_drops_what_took_too_long,
    a_dropped_sleep_wakes_nobody,
    a_deadline_in_the_past_is_over,
    the_time_last_known_is_that_of_the_turn_or_of_the_last_look,
];

async fn a_sleep_never_ends_early(_: Site) {
    for us in [1, 50, 333, 1000, 7001] {
        let d = Duration::from_micros(us);
        let mut soonest = Duration::MAX;
        for _ in 0..5 {
            let began = now();
            sleep(d).exactly().await;
            assert!(now() - began >= d);
            let began = now();
            sleep(d).await;
            assert!(now() - began >= d);
            soonest = soonest.min(now() - began);
        }
        assert!(soonest < d + Duration::from_secs(2), "and not much later");
    }
}

async fn a_lane_does_not_sleep_right_before_an_exact_timer(_: Site) {
    let before = cost::sleeps();
    for _ in 0..20 {
        sleep(Duration::from_micros(80)).exactly().await;
    }
    assert_eq!(cost::sleeps(), before);
}

async fn timers_fire_in_the_order_of_their_deadlines(_: Site) {
    let fired = Rc::new(RefCell::new(Vec::new()));
    // Late enough for all tasks to be asleep before the first deadline.
    let began = now() + Duration::from_secs(1);
    let sleepers: Vec<_> = [70u64, 10, 50, 30, 90]
        .map(|ms| {
            let fired = fired.clone();
            spawn(async move {
                sleep_until(began + Duration::from_millis(ms)).await;
                fired.borrow_mut().push(ms);
            })
        })
        .into();
    for sleeper in sleepers {
        sleeper.await;
    }
    assert_eq!(*fired.borrow(), [10, 30, 50, 70, 90]);
}

async fn a_timeout_drops_what_took_too_long(_: Site) {
    let held = Rc::new(());
    let inner = held.clone();
    let slow = async move {
        sleep(Duration::from_secs(3600)).await;
        drop(inner);
    };
    assert!(timeout(3 * MS, slow).await.is_none());
    assert_eq!(Rc::strong_count(&held), 1, "dropped with all that it held");
    assert_eq!(
        timeout(Duration::from_secs(3600), async { 5 }).await,
        Some(5)
    );
}

async fn a_dropped_sleep_wakes_nobody(_: Site) {
    for _ in 0..200 {
        let mut long = pin!(sleep(Duration::from_secs(3600)));
        begin(long.as_mut()).await;
    }
    let began = now();
    sleep(2 * MS).await;
    assert!(
        now() - began < Duration::from_secs(600),
        "an hour nobody waits for does not pass"
    );
}

async fn a_deadline_in_the_past_is_over(_: Site) {
    let before = now();
    sleep(MS).await;
    sleep_until(before).await;
    sleep(Duration::ZERO).await;
}

async fn the_time_last_known_is_that_of_the_turn_or_of_the_last_look(_: Site) {
    for _ in 0..3 {
        sleep(MS).await;
        assert!(last_known() >= turn_began());
        let looked = now();
        assert_eq!(last_known(), looked);
        assert_eq!(last_known(), looked, "and nobody has looked since");
    }
}
