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
    let permits = now(session.take(None, 33 << 10)).expect("there is room");
    assert_eq!(held(&permits), 64 << 10);
    let of = |len| held(&session.take_at_once(None, len).expect("there is room"));
    assert_eq!((of(1), of(0)), (4096, 0));
}

/// Sends as many bursts as it may, one after the other.
fn send_all(nexus: &NexusMemory, len: usize) -> Vec<Permits> {
    let mut sent = Vec::new();
    while nexus.promise() > 0 {
        nexus.arrived();
        let permits = nexus.take_at_once(None, len);
        sent.push(permits.expect("what was promised is there"));
    }
    sent
}

#[test]
fn a_session_goes_on_when_others_hold_all() {
    let lane = only_lane(4 * MIB, MIB);
    let hogs: Vec<NexusMemory> = (0..20).map(|_| NexusMemory::new(&lane)).collect();
    let mut taken = Vec::new();
    let mut unasked = Vec::new();
    for hog in &hogs {
        taken.extend(std::iter::from_fn(|| now(hog.take(None, 64 << 10))));
        unasked.extend(send_all(hog, 64 << 10));
    }
    let total: usize = taken.iter().map(held).sum();
    assert!((MIB..=2 * MIB).contains(&total), "{total}");
    let session = NexusMemory::new(&lane);
    for _ in 0..3 {
        let permits = now(session.take(None, 64 << 10)).expect("its own reserve");
        assert!(now(session.take(None, 64 << 10)).is_none(), "and no more");
        assert_eq!(permits.held(), Held::default(), "nobody else could use it");
        drop(permits);
        assert!(session.promise() > 0, "its own reserve");
        session.arrived();
        let permits = session
            .take_at_once(None, 64 << 10)
            .expect("its own reserve");
        assert_eq!(session.promise(), 0, "and no more");
        assert_eq!(permits.held(), Held::default(), "nobody else could use it");
        drop(permits);
    }
    assert!(now(session.take(None, 128 << 10)).is_none());
    drop(taken);
    assert!(now(session.take(None, 128 << 10)).is_some());
}

#[test]
fn a_write_whose_data_is_all_unsolicited_may_take_what_solicited_data_leaves() {
    const LEN: usize = 256 << 10;
    let lane = only_lane(128 * MIB, 4 * MIB);
    let one = NexusMemory::new(&lane);
    let all = std::iter::from_fn(|| one.take_at_once(None, LEN));
    assert_eq!(all.collect::<Vec<_>>().len(), 129, "and the reserve");
    let window: Vec<_> = std::iter::from_fn(|| one.take_at_once(None, LEN)).collect();
    let more: Vec<_> = std::iter::from_fn(|| one.take_all_at_once(None, LEN)).collect();
    assert_eq!(more.len() * LEN, 32 * MIB, "as much as it leaves free");
    assert_eq!(more[0].held().of(&[Pool::Transfers]), LEN);
    let other = NexusMemory::new(&lane);
    assert!(other.take_at_once(None, LEN).is_some(), "its own reserve");
    drop((window, more));
    assert_eq!(lane.transfers.left(), 64 * MIB);
}

#[test]
fn what_may_be_sent_unasked_never_exceeds_what_there_is_room_for() {
    const BURST: usize = 64 << 10;
    let lane = only_lane(128 * MIB, 4 * MIB);
    let pool = 32 * MIB;
    let nexuses: Vec<NexusMemory> = (0..16).map(|_| NexusMemory::new(&lane)).collect();
    let promised = |nexuses: &[NexusMemory]| -> usize {
        nexuses
            .iter()
            .map(|nexus| nexus.promise() as usize * BURST)
            .sum()
    };
    for nexus in &nexuses {
        nexus.set_burst(BURST as u32);
        assert!(nexus.promise() >= 4, "its reserve, at least");
    }
    let reserves = nexuses.len() * lane.unsolicited_max;
    assert!(promised(&nexuses) <= pool + reserves);
    // All send whatever they may, in turn; the eldest writes end.
    let mut sent: Vec<std::collections::VecDeque<Permits>> = Vec::new();
    sent.resize_with(nexuses.len(), Default::default);
    for round in 0..400 {
        for (nexus, sent) in nexuses.iter().zip(&mut sent) {
            for _ in 0..nexus.promise() {
                nexus.arrived();
                let permits = nexus.take_at_once(None, BURST);
                sent.push_back(permits.expect("what was promised is there"));
            }
            if round > 100 {
                sent.drain(..sent.len() / 3);
            }
        }
        let unasked: usize = sent.iter().flatten().map(held).sum();
        assert!(
            unasked + promised(&nexuses) <= pool + reserves,
            "round {round}"
        );
    }
    let lens: Vec<usize> = sent.iter().map(std::collections::VecDeque::len).collect();
    assert!(lens.iter().all(|len| (4..=128).contains(len)), "{lens:?}");
}

#[test]
fn a_nexus_is_promised_what_it_needs_and_no_more_than_it_leaves_free() {
    const BURST: usize = 64 << 10;
    let lane = only_lane(128 * MIB, 4 * MIB);
    let [one, other] = [(); 2].map(|()| NexusMemory::new(&lane));
    one.set_burst(BURST as u32);
    other.set_burst(BURST as u32);
    assert_eq!(one.promise(), 128, "at first");
    // It only reads, many at a time, and uses all up.
    for _ in 0..1000 {
        for _ in 0..one.promise() {
            one.arrived();
        }
    }
    let busy = one.promise();
    assert!(
        (250..=300).contains(&busy),
        "{busy}: a half and its reserve"
    );
    assert_eq!(other.promise(), 128);
    // Then it has little to do.
    for _ in 0..10_000 {
        one.promise();
        one.arrived();
    }
    assert_eq!(one.promise(), 16);
    drop(one);
    assert_eq!(
        lane.unsolicited.left(),
        32 * MIB - 124 * BURST,
        "the other's"
    );
}

#[test]
fn one_whose_commands_come_in_two_halves_keeps_room_for_both() {
    const DEPTH: u32 = 32;
    let lane = only_lane(128 * MIB, 4 * MIB);
    let nexus = NexusMemory::new(&lane);
    nexus.set_burst(64 << 10);
    for _ in 0..1000 {
        let promised = nexus.promise();
        assert!(promised >= DEPTH, "{promised}");
        for _ in 0..DEPTH / 2 {
            nexus.arrived();
        }
    }
    assert!(nexus.promise() < 128, "it needs fewer than at first");
}

#[test]
fn one_that_only_reads_may_have_many_on_their_way_when_others_hold_all() {
    const BURST: usize = 64 << 10;
    let lane = only_lane(4 * MIB, MIB);
    let [hog, reader] = [(); 2].map(|()| NexusMemory::new(&lane));
    let _hogged: Vec<_> = std::iter::from_fn(|| hog.take_at_once(None, BURST)).collect();
    for _ in 0..300 {
        assert!(reader.promise() > 0);
        reader.arrived();
    }
    assert!(reader.promise() > 16, "{}", reader.promise());
    // It begins to write.
    let mut written = Vec::new();
    while reader.promise() > 0 {
        reader.arrived();
        written.push(reader.take_at_once(None, BURST));
    }
    assert!(
        written[0].is_some() && written.len() <= 33,
        "{}",
        written.len()
    );
}

#[test]
fn who_starves_is_fed_when_others_return_memory() {
    const BURST: usize = 64 << 10;
    let lane = only_lane(4 * MIB, MIB);
    let [hog, starving] = [(); 2].map(|()| NexusMemory::new(&lane));
    let mut hogged: Vec<_> = std::iter::from_fn(|| hog.take_at_once(None, BURST)).collect();
    let own = send_all(&starving, BURST);
    assert_eq!(own.len(), 1, "its reserve");
    let mut room = pin!(starving.room());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(room.as_mut().poll(&mut cx).is_pending());
    hogged.drain(..4);
    assert!(room.as_mut().poll(&mut cx).is_ready());
    assert!(starving.promise() > 0);
}

#[test]
fn a_disk_holds_no_more_than_it_leaves_free_where_there_is_another() {
    let lane = only_lane(128 * MIB, 4 * MIB);
    let [hung, healthy] = [(); 2].map(|()| DiskMemory::new(&lane));
    let nexuses: Vec<NexusMemory> = (0..40).map(|_| NexusMemory::new(&lane)).collect();
    let mut taken = Vec::new();
    for nexus in &nexuses {
        for len in [4 * MIB, MIB, 128 << 10] {
            taken.extend(std::iter::from_fn(|| now(nexus.take(Some(&hung), len))).take(100));
        }
    }
    assert!(
        hung.transfers.held() <= 32 * MIB,
        "{}",
        hung.transfers.held()
    );
    let mut waits = pin!(nexuses[0].take(Some(&hung), 4 * MIB));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    // Also those who have requests open on the disk that hangs.
    for nexus in &nexuses[..4] {
        assert!(now(nexus.take(Some(&healthy), 128 << 10)).is_some());
    }
    let session = NexusMemory::new(&lane);
    let read = now(session.take(Some(&healthy), 4 * MIB)).expect("there is room");
    assert_eq!(read.held().of(&[Pool::Transfers]), 4 * MIB);
    drop(taken);
    assert!(waits.as_mut().poll(&mut cx).is_ready());
}

#[test]
fn a_copy_is_charged_to_its_nexus_and_to_both_disks() {
    let lane = only_lane(128 * MIB, 4 * MIB);
    let disks = [(); 3].map(|()| DiskMemory::new(&lane));
    let nexus = NexusMemory::new(&lane);
    let between = [&disks[0], &disks[1]];
    let copies = std::iter::from_fn(|| now(nexus.take_for_copy(between, MIB)));
    let copies: Vec<_> = copies.collect();
    assert!((8..=32).contains(&copies.len()), "{}", copies.len());
    let held = |disk: &DiskMemory| disk.transfers.held();
    assert_eq!(
        disks.each_ref().map(held),
        [copies.len() * MIB, copies.len() * MIB, 0]
    );
    assert!(now(NexusMemory::new(&lane).take(Some(&disks[2]), 4 * MIB)).is_some());
}

#[test]
fn who_gives_up_waiting_holds_nothing_and_holds_up_nobody() {
    let lane = only_lane(4 * MIB, MIB);
    let [one, other] = [(); 2].map(|()| NexusMemory::new(&lane));
    let taken = now(one.take(None, 2 * MIB)).expect("all is free");
    let mut cx = Context::from_waker(Waker::noop());
    {
        let mut waits = pin!(other.take(None, MIB));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
    }
    {
        // Granted, but never taken.
        let mut waits = pin!(other.take(None, MIB));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        drop(taken);
    }
    assert_eq!(lane.transfers.left(), 2 * MIB);
    assert!(now(one.take(None, MIB)).is_some());
}

#[test]
fn a_long_request_is_not_passed_by_short_ones_for_ever() {
    let lane = only_lane(32 * MIB, 4 * MIB);
    let [many, long] = [(); 2].map(|()| NexusMemory::new(&lane));
    let disk = DiskMemory::new(&lane);
    let _other = DiskMemory::new(&lane);
    let mut shorts = std::collections::VecDeque::new();
    let mut waits = pin!(long.take(Some(&disk), 4 * MIB));
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..16 {
        shorts.push_back(now(many.take(Some(&disk), 256 << 10)));
    }
    let served = (0..10_000).find(|_| {
        let is_ready = waits.as_mut().poll(&mut cx).is_ready();
        shorts.pop_front();
        shorts.push_back(now(many.take(Some(&disk), 256 << 10)));
        is_ready
    });
    assert!(served.is_some());
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
            taken.extend(std::iter::from_fn(|| session.try_take(None, len)).take(4096));
            taken.extend(
                std::iter::from_fn(|| session.take_at_once(None, len.min(64 << 10))).take(4096),
            );
        }
        let total: usize = taken.iter().map(held).sum();
        assert!(total <= memory, "{total} in pieces of {len}");
        assert!(!taken.is_empty());
    }
    // A waiter for the common part gets it when it is returned, from whatever lane.
    let first = now(nexuses[0].take(None, largest)).expect("all is free");
    let mut second = pin!(nexuses[LANES].take(None, largest));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(second.as_mut().poll(&mut cx).is_pending());
    assert!(
        now(nexuses[LANES].take(None, 64 << 10)).is_some(),
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
    let mut permits = session.take_at_once(None, 4096).expect("there is room");
    permits.pay_rest(now(session.take(None, 64 << 10)).expect("there is room"));
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
        .map(|hog| now(hog.take(None, 512 << 10)).expect("its share"))
        .collect();
    assert_eq!(hogs[0].wanted(), [], "nobody else came");
    {
        let mut own = pin!(hogs[0].take(None, MIB));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(own.as_mut().poll(&mut cx).is_pending());
        assert_eq!(hogs[0].wanted(), [], "it waits for its own share");
        assert_eq!(hogs[1].wanted(), []);
    }
    let session = NexusMemory::new(&lane);
    let mut waits = pin!(session.take(None, 128 << 10));
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
        std::iter::from_fn(|| hog.take_at_once(None, 64 << 10)).collect()
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
    let unsolicited: Vec<_> = std::iter::from_fn(|| one.take_at_once(None, 64 << 10)).collect();
    let [other, more, late] = [(); 3].map(|()| NexusMemory::new(&lane));
    let unsolicited: Held = unsolicited.iter().map(Permits::held).sum();
    let permits = [&other, &more].map(|nexus| now(nexus.take(None, MIB)).expect("there is room"));
    let solicited = permits[0].held();
    assert_eq!(
        (unsolicited.of(&Pool::ALL), solicited.of(&Pool::ALL)),
        (MIB, MIB)
    );
    // The one was refused some.
    assert_eq!(solicited.of(&other.wanted()), 0);
    let mut waits = pin!(late.take(None, MIB));
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
    let unsolicited: Vec<_> = std::iter::from_fn(|| one.take_at_once(None, 64 << 10)).collect();
    let permits = [&other, &more].map(|nexus| now(nexus.take(None, MIB)).expect("there is room"));
    // From now on somebody waits for transfers, and nobody is short of the other pool.
    let mut waits = pin!(late.take(None, MIB));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    one.wanted();
    let progress = |held| ClientPace {
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
    let replies = Some((11, Moving::Replies));
    let data = Some((11, Moving::Data));
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
    let taken = now(hog.take(None, largest)).expect("all is free");
    let beside = now(neighbour.take(None, 128 << 10)).expect("all is free");
    assert_eq!(hog.wanted(), []);
    {
        let mut waits = pin!(session.take(None, largest));
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
