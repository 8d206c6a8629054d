//! Which I/O passes a gate, and which waits.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

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
        gate.hold(1, extent(10, 2));
        spawn({
            let (gate, log) = (gate.clone(), log.clone());
            async move {
                gate.empty(1).await;
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
        gate.release(1);
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
        gate.hold(1, extent(0, 8));
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
        gate.hold(2, extent(0, 100));
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
fn several_hold_blocks_of_their_own_and_each_waits_for_its_own() {
    on_a_lane(async {
        let gate = Rc::new(Gate::default());
        let inside = gate.enter(extent(0, 8), always).await.unwrap();
        gate.hold(1, extent(0, 8));
        gate.hold(2, extent(8, 8));
        gate.empty(2).await;
        let waiting = spawn({
            let gate = gate.clone();
            async move { gate.empty(1).await }
        });
        gate.release(2);
        drop(gate.enter(extent(8, 8), always).await.unwrap());
        a_moment().await;
        assert!(!waiting.is_finished(), "somebody is still at work there");
        drop(inside);
        waiting.await;
    });
}

#[test]
#[should_panic(expected = "an exclusive operation would begin while others are in its blocks")]
fn an_io_that_a_hold_has_not_counted_does_not_end_unnoticed() {
    on_a_lane(async {
        let gate = Rc::new(Gate::default());
        let inside = gate.enter(extent(8, 8), always).await.unwrap();
        gate.hold(1, extent(10, 2));
        gate.held.borrow_mut()[0].at_work = 0;
        drop(inside);
    });
}
