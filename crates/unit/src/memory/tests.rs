//! Nexuses and lanes stay within their memory limits, and each can always make progress.

use std::task::{Context, Waker};

use engine::{Duration, Instant};

use super::*;

const MIB: usize = 1 << 20;

fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// What permits hold of the pools, in bytes.
fn held(permits: &Permits) -> usize {
    permits.held().of(&Pool::ALL)
}

/// The memory of the only lane of a server.
fn only_lane(memory: usize, largest: usize) -> Rc<LaneMemory> {
    let plan = Plan::new(memory, 1, largest);
    LaneMemory::new(&plan, CommonMemory::new(plan.common))
}

#[test]
fn what_is_counted_is_what_buffers_take() {
    let lane = only_lane(4 * MIB, MIB);
    let session = NexusMemory::new(&lane);
    let permits = now(session.take(33 << 10)).expect("there is room");
    assert_eq!(held(&permits), 64 << 10);
    let of = |len| held(&session.take_at_once(len).expect("there is room"));
    assert_eq!((of(1), of(0)), (4096, 0));
}

#[test]
fn a_session_goes_on_when_others_hold_all() {
    let lane = only_lane(4 * MIB, MIB);
    let first = NexusMemory::new(&lane);
    let mut taken = Vec::new();
    let mut unasked: Vec<_> = std::iter::from_fn(|| first.take_at_once(64 << 10)).collect();
    let hogs: Vec<NexusMemory> = (0..4).map(|_| NexusMemory::new(&lane)).collect();
    for hog in &hogs {
        taken.extend(std::iter::from_fn(|| now(hog.take(64 << 10))));
        unasked.extend(std::iter::from_fn(|| hog.take_at_once(64 << 10)));
    }
    let total: usize = taken.iter().map(held).sum();
    assert!(total <= 2 * MIB, "{total}");
    let session = NexusMemory::new(&lane);
    for _ in 0..3 {
        let permits = now(session.take(64 << 10)).expect("its own reserve");
        assert!(now(session.take(4096)).is_none(), "and no more");
        assert_eq!(permits.held(), Held::default(), "nobody else could use it");
        drop(permits);
        let permits = session.take_at_once(64 << 10).expect("its own reserve");
        assert!(session.take_at_once(4096).is_none(), "and no more");
        assert_eq!(permits.held(), Held::default(), "nobody else could use it");
        drop(permits);
    }
    assert!(now(session.take(128 << 10)).is_none());
    drop(taken);
    assert!(now(session.take(128 << 10)).is_some());
}

#[test]
fn a_write_whose_data_is_all_unsolicited_may_take_what_solicited_data_leaves() {
    const LEN: usize = 256 << 10;
    let lane = only_lane(128 * MIB, 4 * MIB);
    let one = NexusMemory::new(&lane);
    let window: Vec<_> = std::iter::from_fn(|| one.take_at_once(LEN)).collect();
    let solicited = lane.transfers.left();
    assert_eq!(solicited, 64 * MIB, "dormant commands take nothing of it");
    assert_eq!(window.len(), 129, "a window and the reserve");
    let more: Vec<_> = std::iter::from_fn(|| one.take_all_at_once(LEN)).collect();
    assert_eq!(more.len() * LEN, 16 * MIB, "a nexus' part");
    assert_eq!(lane.transfers.left(), solicited - 16 * MIB);
    assert_eq!(more[0].held().of(&[Pool::Transfers]), LEN);
    let other = NexusMemory::new(&lane);
    assert!(other.take_at_once(LEN).is_some(), "its own reserve");
    drop((window, more));
    assert_eq!(lane.transfers.left(), solicited);
}

#[test]
fn whoever_sends_all_it_may_unasked_leaves_room_for_the_others() {
    const LEN: usize = 256 << 10;
    let lane = only_lane(128 * MIB, 4 * MIB);
    let take_all = |nexus: &NexusMemory| -> Vec<Permits> {
        std::iter::from_fn(|| nexus.take_at_once(LEN)).collect()
    };
    let hogs = [(); 3].map(|()| NexusMemory::new(&lane));
    let session = NexusMemory::new(&lane);
    // One more each, from its reserve.
    let held = hogs.each_ref().map(take_all);
    assert_eq!(held.each_ref().map(Vec::len), [65, 33, 17]);
    assert_eq!(take_all(&session).len(), 9);
    // They send more whenever they can.
    let mut held = held.map(|permits| {
        permits
            .into_iter()
            .collect::<std::collections::VecDeque<_>>()
    });
    for _ in 0..1000 {
        for (hog, held) in hogs.iter().zip(&mut held) {
            held.pop_front();
            held.extend(take_all(hog));
        }
    }
    let lens = held.each_ref().map(std::collections::VecDeque::len);
    assert!(lens.iter().all(|len| (30..=35).contains(len)), "{lens:?}");
    assert!(take_all(&session).len() >= 16);
}

#[test]
fn what_a_session_took_alone_it_returns_for_others() {
    const LEN: usize = 256 << 10;
    let lane = only_lane(128 * MIB, 4 * MIB);
    let one = NexusMemory::new(&lane);
    let mut window: Vec<_> = (0..128).filter_map(|_| one.take_at_once(LEN)).collect();
    assert_eq!((window.len(), lane.unsolicited.left()), (128, 0));
    let other = NexusMemory::new(&lane);
    let reserve = one.take_at_once(LEN).expect("its own reserve");
    window.truncate(70);
    assert!(one.take_at_once(LEN).is_none(), "more than a half");
    assert!(one.take_at_once(0).is_some(), "there is nothing to take");
    let others: Vec<_> = std::iter::from_fn(|| other.take_at_once(LEN)).collect();
    assert_eq!(others.len(), 29 + 1);
    drop((other, others, reserve));
    let again: Vec<_> = std::iter::from_fn(|| one.take_at_once(LEN)).collect();
    assert_eq!(again.len(), 58 + 1, "it is alone again");
}

#[test]
fn many_lanes_together_hold_no_more_than_there_is() {
    const LANES: usize = 64;
    let (memory, largest) = (32 * MIB, 4 * MIB);
    let plan = Plan::new(memory, LANES, largest);
    let common = CommonMemory::new(plan.common);
    let lanes: Vec<_> = (0..LANES)
        .map(|_| LaneMemory::new(&plan, common.clone()))
        .collect();
    let nexuses: Vec<_> = lanes
        .iter()
        .flat_map(|lane| [NexusMemory::new(lane), NexusMemory::new(lane)])
        .collect();
    for len in [largest, MIB, 128 << 10, 4096] {
        let mut taken = Vec::new();
        for session in &nexuses {
            taken.extend(std::iter::from_fn(|| session.try_take(len)).take(4096));
            taken.extend(std::iter::from_fn(|| session.take_at_once(len.min(64 << 10))).take(4096));
        }
        let total: usize = taken.iter().map(held).sum();
        assert!(total <= memory, "{total} in pieces of {len}");
        assert!(!taken.is_empty());
    }
    // A waiter for the common part gets it when it is returned, from whatever lane.
    let first = now(nexuses[0].take(largest)).expect("all is free");
    let mut second = pin!(nexuses[LANES].take(largest));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(second.as_mut().poll(&mut cx).is_pending());
    assert!(
        now(nexuses[LANES].take(64 << 10)).is_some(),
        "short ones pass"
    );
    drop(first);
    assert!(second.as_mut().poll(&mut cx).is_ready());
}

#[test]
fn what_came_unasked_is_paid_for_until_the_rest_has_gone_too() {
    let lane = only_lane(4 * MIB, MIB);
    let session = NexusMemory::new(&lane);
    let left = || (lane.unsolicited.left(), lane.transfers.left());
    let (unsolicited, transfers) = left();
    let mut permits = session.take_at_once(4096).expect("there is room");
    permits.pay_rest(now(session.take(64 << 10)).expect("there is room"));
    assert_eq!(held(&permits), 68 << 10);
    assert_eq!(left(), (unsolicited - 4096, transfers - (64 << 10)));
    drop(permits);
    assert_eq!(left(), (unsolicited, transfers));
}

#[test]
fn a_pool_is_wanted_while_another_session_is_short_of_it_and_not_for_ones_own_sake() {
    // Four sessions' shares are all the lane has.
    let lane = only_lane(4 * MIB, 512 << 10);
    let hogs: Vec<NexusMemory> = (0..4).map(|_| NexusMemory::new(&lane)).collect();
    let taken: Vec<Permits> = hogs
        .iter()
        .map(|hog| now(hog.take(512 << 10)).expect("its share"))
        .collect();
    assert_eq!(hogs[0].wanted(), [], "nobody else came");
    {
        let mut own = pin!(hogs[0].take(512 << 10));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(own.as_mut().poll(&mut cx).is_pending());
        assert_eq!(hogs[0].wanted(), [], "it waits for its own share");
        assert_eq!(hogs[1].wanted(), []);
    }
    let session = NexusMemory::new(&lane);
    let mut waits = pin!(session.take(128 << 10));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    for _ in 0..3 {
        let wanted = hogs.iter().map(NexusMemory::wanted);
        assert!(wanted.eq(vec![[Pool::Transfers]; 4]));
        assert_eq!(session.wanted(), [], "only it is short");
    }
    drop(taken);
    assert!(waits.as_mut().poll(&mut cx).is_ready());
    assert_eq!(hogs[0].wanted(), []);
    // A refusal counts once, and only where another's memory would have helped.
    let take_all = |hog: &NexusMemory| -> Vec<Permits> {
        std::iter::from_fn(|| hog.take_at_once(64 << 10)).collect()
    };
    let unasked = take_all(&hogs[1]);
    assert_eq!(hogs[0].wanted(), [], "it is at the end of its share");
    let more = take_all(&hogs[2]);
    assert_eq!(hogs[0].wanted(), [Pool::Unsolicited]);
    assert_eq!(hogs[0].wanted(), []);
    assert_eq!(hogs[1].wanted(), [Pool::Unsolicited]);
    assert_eq!(hogs[2].wanted(), []);
    drop((unasked, more));
}

#[test]
fn who_holds_memory_of_one_pool_is_not_blamed_for_a_shortage_of_another() {
    let lane = only_lane(4 * MIB, MIB);
    let one = NexusMemory::new(&lane);
    let unsolicited: Vec<_> = std::iter::from_fn(|| one.take_at_once(64 << 10)).collect();
    let [other, more, late] = [(); 3].map(|()| NexusMemory::new(&lane));
    let unsolicited: Held = unsolicited.iter().map(Permits::held).sum();
    let permits = [&other, &more].map(|nexus| now(nexus.take(MIB)).expect("there is room"));
    let solicited = permits[0].held();
    assert_eq!(
        (unsolicited.of(&Pool::ALL), solicited.of(&Pool::ALL)),
        (MIB, MIB)
    );
    // The one was refused some.
    assert_eq!(solicited.of(&other.wanted()), 0);
    let mut waits = pin!(late.take(MIB));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    assert_eq!(unsolicited.of(&one.wanted()), 0);
    assert_eq!(solicited.of(&other.wanted()), MIB);
}

#[test]
fn a_client_ends_for_memory_that_others_need_in_either_direction_and_for_no_other() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let lane = only_lane(4 * MIB, MIB);
    let [one, other, more, late] = [(); 4].map(|()| NexusMemory::new(&lane));
    let unsolicited: Vec<_> = std::iter::from_fn(|| one.take_at_once(64 << 10)).collect();
    let permits = [&other, &more].map(|nexus| now(nexus.take(MIB)).expect("there is room"));
    // From now on somebody waits for transfers, and nobody is short of the other pool.
    let mut waits = pin!(late.take(MIB));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    one.wanted();
    let progress = |held| Progress {
        moved_bytes: 0,
        held,
    };
    let unsolicited = progress(unsolicited.iter().map(Permits::held).sum());
    let solicited = progress(permits[0].held());
    // In which second the client ends, and what it moves too slowly.
    let ends = |memory, replies, data| {
        let mut paces = Paces::new(PATIENCE, PATIENCE);
        (0..20).find_map(|second| {
            let at = Instant::from_ns(second * 1_000_000_000);
            match paces.check(at, memory, replies, data) {
                Err(TooSlow::Hoards { moving, .. }) => Some((second, moving)),
                _ => None,
            }
        })
    };
    assert_eq!(ends(Some(&one), Some(unsolicited), Some(unsolicited)), None);
    assert_eq!(ends(None, Some(solicited), Some(solicited)), None);
    assert_eq!(ends(Some(&other), None, None), None);
    let replies = Some((10, Moving::Replies));
    let data = Some((10, Moving::Data));
    assert_eq!(ends(Some(&other), Some(solicited), None), replies);
    assert_eq!(ends(Some(&other), None, Some(solicited)), data);
    let both = ends(Some(&other), Some(unsolicited), Some(solicited));
    assert_eq!(both, data);
}

#[test]
fn common_memory_is_wanted_on_every_lane() {
    let (memory, largest) = (32 * MIB, 4 * MIB);
    let plan = Plan::new(memory, 64, largest);
    let common = CommonMemory::new(plan.common);
    let lanes = [(); 2].map(|()| LaneMemory::new(&plan, common.clone()));
    let [hog, session] = lanes.each_ref().map(NexusMemory::new);
    let neighbour = NexusMemory::new(&lanes[1]);
    let taken = now(hog.take(largest)).expect("all is free");
    let beside = now(neighbour.take(128 << 10)).expect("all is free");
    assert_eq!(hog.wanted(), []);
    {
        let mut waits = pin!(session.take(largest));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        assert_eq!(taken.held().of(&hog.wanted()), largest);
        assert_eq!(session.wanted(), []);
        assert_eq!(beside.held().of(&neighbour.wanted()), 0, "of the lane's");
        assert_eq!(neighbour.wanted(), [Pool::Common]);
    }
    assert_eq!(hog.wanted(), [], "who has gone waits no more");
    drop(taken);
}
