//! Synchronisation between tasks of one lane.

use std::{cell::RefCell, pin::pin, rc::Rc};

use engine::{
    LaneFuture, spawn,
    sync::{Budget, Notify},
    task::{join_all, yield_now},
    time::{sleep, timeout},
};

use crate::site::{MS, Site, begin};

contract![
    a_budget_serves_first_come_first_served,
    who_gives_up_leaves_the_line_and_its_permit,
    a_notification_reaches_all_who_wait,
    joined_futures_give_their_outputs_in_order,
    a_yield_lets_others_run,
];

async fn a_budget_serves_first_come_first_served(_: Site) {
    let budget = Budget::new(10);
    let served = Rc::new(RefCell::new(Vec::new()));
    let first = budget.try_take(8).expect("free");
    let mut takers = Vec::new();
    for (i, amount) in [6, 1, 30, 2].into_iter().enumerate() {
        let (budget, served) = (budget.clone(), served.clone());
        takers.push(spawn(async move {
            let permit = budget.take(amount).await;
            served.borrow_mut().push(i);
            sleep(MS).await;
            permit.amount()
        }));
        sleep(MS).await; // so that they queue in this order
    }
    assert!(
        served.borrow().is_empty(),
        "a small claim does not pass a large one"
    );
    assert!(
        budget.try_take(1).is_none(),
        "nor does one that will not wait"
    );
    drop(first);
    let mut amounts = Vec::new();
    for taker in takers {
        amounts.push(taker.await);
    }
    assert_eq!(
        amounts,
        [6, 1, 10, 2],
        "more than there is counts as all of it"
    );
    let mut order = served.take();
    order[..2].sort_unstable(); // the first two fit at the same time
    assert_eq!(order, [0, 1, 2, 3]);
    assert_eq!(budget.left(), 10);
}

async fn who_gives_up_leaves_the_line_and_its_permit(_: Site) {
    let budget = Budget::new(10);
    let held = budget.try_take(5).expect("free");
    let waiting = {
        let budget = budget.clone();
        let mut large = Box::pin(async move { budget.take(10).await });
        begin(large.as_mut()).await;
        large
    };
    let mut small = pin!(budget.take(5));
    begin(small.as_mut()).await;
    drop(waiting);
    let permit = small.await; // the one before it in the queue is gone
    drop((permit, held));
    let all = budget.take(10).await;
    {
        let mut granted = pin!(budget.take(3));
        begin(granted.as_mut()).await;
        drop(all); // grants it, but it is dropped before it is polled
    }
    assert_eq!(budget.left(), 10);
}

async fn a_notification_reaches_all_who_wait(_: Site) {
    let notify = Rc::new(Notify::new());
    let value = Rc::new(RefCell::new(None));
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let (notify, value) = (notify.clone(), value.clone());
            spawn(async move { notify.wait_for(|| *value.borrow()).await })
        })
        .collect();
    sleep(MS).await;
    notify.notify(); // the condition does not hold yet
    sleep(MS).await;
    *value.borrow_mut() = Some(7);
    notify.notify();
    for waiter in waiting {
        assert_eq!(waiter.await, 7);
    }
    assert!(
        timeout(MS, notify.notified()).await.is_none(),
        "only what comes after counts"
    );
}

async fn joined_futures_give_their_outputs_in_order(_: Site) {
    for count in [0, 1, 4, 5, 20] {
        let outputs = join_all((0..count).map(|i| {
            LaneFuture::new(async move {
                sleep(MS * (count - i) / 4).await;
                i
            })
        }));
        assert_eq!(outputs.await.to_vec(), (0..count).collect::<Vec<u32>>());
    }
}

async fn a_yield_lets_others_run(_: Site) {
    let ran = Rc::new(RefCell::new(false));
    let other = ran.clone();
    let task = spawn(async move { *other.borrow_mut() = true });
    for _ in 0..100 {
        if *ran.borrow() {
            break;
        }
        yield_now().await;
    }
    assert!(*ran.borrow());
    task.await;
}
