//! Who is let in and who waits.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use engine::{Lane, LaneConfig, spawn, time};

use super::*;

fn extent(lba: u64, blocks: u64) -> Extent {
    Extent {
        lba,
        blocks,
        block_size_bytes: 512,
    }
}

fn on_a_lane<F: Future<Output = ()>>(test: F) {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(test);
}

fn always() -> Result<(), ()> {
    Ok(())
}

async fn a_moment() {
    time::sleep(Duration::from_millis(5)).await;
}

#[test]
fn a_hold_waits_for_those_at_work_and_keeps_others_out_of_its_blocks_only() {
    on_a_lane(async {
        let gate = Rc::new(Gate::default());
        let log = Rc::new(RefCell::new(Vec::new()));
        let note = |what: &'static str| log.borrow_mut().push(what);
        let inside = gate.enter(extent(8, 8), always).await.unwrap();
        let elsewhere = gate.enter(extent(100, 8), always).await.unwrap();
        gate.hold(extent(10, 2));
        spawn({
            let (gate, log) = (gate.clone(), log.clone());
            async move {
                gate.empty().await;
                log.borrow_mut().push("held");
            }
        });
        spawn({
            let (gate, log) = (gate.clone(), log.clone());
            async move {
                let _at_work = gate.enter(extent(11, 1), always).await.unwrap();
                log.borrow_mut().push("entered");
            }
        });
        drop(gate.enter(extent(12, 4), always).await.unwrap());
        note("beside");
        a_moment().await;
        note("left");
        drop(inside);
        a_moment().await;
        note("released");
        gate.release();
        a_moment().await;
        drop(elsewhere);
        let expected = ["beside", "left", "held", "released", "entered"];
        assert_eq!(*log.borrow(), expected);
    });
}

#[test]
fn who_is_not_allowed_any_more_does_not_wait_for_the_release() {
    on_a_lane(async {
        let gate = Rc::new(Gate::default());
        gate.hold(extent(0, 8));
        let may = Rc::new(Cell::new(true));
        let waiting = spawn({
            let (gate, may) = (gate.clone(), may.clone());
            async move {
                gate.enter(extent(0, 1), || may.get().then_some(()).ok_or("fenced"))
                    .await
                    .err()
            }
        });
        a_moment().await;
        assert!(!waiting.is_finished());
        may.set(false);
        gate.hold(extent(0, 100));
        assert_eq!(waiting.await, Some("fenced"));
        assert!(
            gate.enter(extent(200, 1), || Err::<(), _>(()))
                .await
                .is_ok(),
            "nobody excludes it"
        );
    });
}

#[test]
fn turns_go_to_one_at_a_time_also_over_a_waiter_that_is_gone() {
    on_a_lane(async {
        let turns = Arc::new(Turns::default());
        let first = turns.take().await;
        let log = Rc::new(RefCell::new(Vec::new()));
        // Someone who does not wait any longer.
        drop(turns.try_take());
        for n in 0..3 {
            let (turns, log) = (turns.clone(), log.clone());
            spawn(async move {
                let _turn = turns.take().await;
                log.borrow_mut().push(n);
                a_moment().await;
                log.borrow_mut().push(n);
            });
        }
        a_moment().await;
        assert!(log.borrow().is_empty());
        drop(first);
        while log.borrow().len() < 6 {
            a_moment().await;
        }
        assert_eq!(*log.borrow(), [0, 0, 1, 1, 2, 2]);
    });
}
