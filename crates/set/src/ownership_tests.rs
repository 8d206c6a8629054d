//! Claims of a set, broken off at each step, over members of which one may be replaced by an older copy of itself.

use super::*;
use crate::policy::All;

/// A member, as its disk keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Disk {
    generation: Generation,
    /// What was last written to it.
    data: u32,
}

/// Claims `disks`, stopping dead after `orders` orders. Returns the machine.
fn claim(disks: &mut [Disk], orders: usize, accepts_older: bool) -> Ownership<All> {
    let mut ownership = Ownership::new(All, disks.len());
    ownership.accept_older(accepts_older);
    for _ in 0..orders {
        let Some((at, order)) = ownership.select() else {
            break;
        };
        ownership.apply(match order {
            MemberOrder::Take => OrderReport::Taken(Some(disks[at].generation)),
            MemberOrder::Label(generation) => {
                disks[at].generation = generation;
                OrderReport::Labelled
            }
            MemberOrder::Release => OrderReport::Released,
        });
    }
    if ownership.is_owner() {
        disks.iter_mut().for_each(|disk| disk.data += 1);
    }
    ownership
}

const UNBROKEN: usize = usize::MAX;

/// Claims with every combination of three points at which they are broken off, and every older copy put in between.
#[test]
fn an_older_copy_is_always_found_and_nothing_else_is_taken_for_one() {
    const MEMBERS: usize = 2;
    let stops = || (0..=3 * MEMBERS).chain([UNBROKEN]);
    let (mut found, mut whole) = (0, 0);
    for stop in stops().flat_map(|a| stops().flat_map(move |b| stops().map(move |c| [a, b, c]))) {
        for (copied, member) in (0..3).flat_map(|at| (0..MEMBERS).map(move |it| (at, it))) {
            for replaced in copied + 1..=3 {
                let (mut disks, mut copy) = ([Disk::default(); MEMBERS], None);
                for (round, &orders) in stop.iter().enumerate() {
                    if round == copied {
                        copy = Some(disks[member]);
                    }
                    if round == replaced {
                        break;
                    }
                    let ended = claim(&mut disks, orders, false).end();
                    assert_eq!(ended, None, "{stop:?}: each member is what it was");
                }
                let copy = copy.expect("it was made before it is used");
                let is_stale = copy.data != disks[member].data;
                disks[member] = copy;
                let before = disks;
                let ownership = claim(&mut disks, UNBROKEN, false);
                if is_stale {
                    found += 1;
                    let end = ownership.end();
                    let is_told =
                        matches!(end, Some(OwnershipEnd::Older { member: it, .. }) if it == member);
                    assert!(is_told, "{stop:?} {before:?}: {end:?}");
                    assert_eq!(disks, before, "what tells it must stay");
                } else if ownership.is_owner() {
                    whole += 1;
                }
            }
        }
    }
    assert!(found > 100 && whole > 100, "{found} {whole}");
}

#[test]
fn an_older_copy_is_accepted_from_who_insists_and_is_of_the_set_from_then_on() {
    let mut disks = [Disk::default(); 3];
    let old = disks[1];
    claim(&mut disks, UNBROKEN, false);
    disks[1] = old;
    assert!(!claim(&mut disks, UNBROKEN, false).is_owner());
    assert!(claim(&mut disks, UNBROKEN, true).is_owner());
    assert!(claim(&mut disks, UNBROKEN, false).is_owner());
    let all = disks[0].generation;
    assert!(all.claimed == all.complete && disks.iter().all(|disk| disk.generation == all));
}

#[test]
fn what_was_taken_is_released_when_a_member_cannot_be_had() {
    let mut ownership = Ownership::new(All, 3);
    let generation = Generation::default();
    for at in 0..2 {
        assert_eq!(ownership.select(), Some((at, MemberOrder::Take)));
        assert_eq!(ownership.select(), None, "one at a time");
        ownership.apply(OrderReport::Taken(Some(generation)));
    }
    assert_eq!(ownership.select(), Some((2, MemberOrder::Take)));
    ownership.apply(OrderReport::Failed);
    assert_eq!(ownership.end(), Some(OwnershipEnd::Refused(2)));
    for at in 0..2 {
        assert_eq!(ownership.select(), Some((at, MemberOrder::Release)));
        ownership.apply(OrderReport::Released);
    }
    assert_eq!(ownership.select(), None, "not the one that refused");
}

#[test]
fn a_label_that_cannot_be_written_ends_the_claim_and_all_are_released() {
    let mut ownership = Ownership::new(All, 2);
    for _ in 0..2 {
        ownership.select().expect("a member to take");
        ownership.apply(OrderReport::Taken(Some(Generation::default())));
    }
    let (at, order) = ownership.select().expect("a label to write");
    let raised = Generation {
        claimed: 1,
        complete: 0,
    };
    assert_eq!((at, order), (0, MemberOrder::Label(raised)));
    assert_eq!(ownership.generation(0), Some(raised), "it is to say that");
    ownership.apply(OrderReport::Failed);
    let says = [0, 1].map(|at| ownership.generation(at));
    let before = Generation::default();
    assert_eq!(says, [Some(raised), Some(before)], "it may say that");
    assert_eq!(ownership.end(), Some(OwnershipEnd::Refused(0)));
    let released: Vec<_> = std::iter::from_fn(|| {
        let next = ownership.select();
        next.inspect(|_| ownership.apply(OrderReport::Failed))
    })
    .collect();
    assert_eq!(
        released,
        [(0, MemberOrder::Release), (1, MemberOrder::Release)]
    );
}

#[test]
fn a_member_that_is_lost_ends_a_set_that_needs_all() {
    let mut disks = [Disk::default(); 2];
    let mut ownership = claim(&mut disks, UNBROKEN, false);
    assert!(ownership.is_owner());
    ownership.lose(1);
    ownership.lose(0);
    assert_eq!(
        (ownership.is_owner(), ownership.end()),
        (false, Some(OwnershipEnd::Lost(1)))
    );
}

#[test]
fn a_policy_may_do_without_a_member() {
    /// Any one member is enough.
    struct One;

    impl Policy for One {
        fn stands(&self, is_there: &[bool]) -> bool {
            is_there.contains(&true)
        }
    }

    let mut ownership = Ownership::new(One, 2);
    let mut generations = [Generation::default(); 2];
    while let Some((at, order)) = ownership.select() {
        ownership.apply(match order {
            MemberOrder::Take if at == 0 => OrderReport::Failed,
            MemberOrder::Take => OrderReport::Taken(Some(generations[at])),
            MemberOrder::Label(generation) => {
                generations[at] = generation;
                OrderReport::Labelled
            }
            MemberOrder::Release => OrderReport::Released,
        });
    }
    assert!(ownership.is_owner() && ownership.end().is_none());
    assert_eq!((generations[0].claimed, generations[1].complete), (0, 1));
    ownership.lose(1);
    assert_eq!(ownership.end(), Some(OwnershipEnd::Lost(1)));
}

#[test]
fn the_oldest_proof_counts_and_none_where_none_is_needed() {
    let mut ownership = claim(&mut [Disk::default(); 2], UNBROKEN, false);
    assert_eq!(ownership.proved_ns(), None);
    ownership.prove(0, 70);
    ownership.prove(1, 50);
    ownership.prove(0, 60);
    assert_eq!(
        ownership.proved_ns(),
        Some(50),
        "and time does not run backwards"
    );
}

#[test]
fn a_member_without_a_label_is_as_old_as_its_set() {
    let mut ownership = Ownership::new(All, 2);
    let mut labelled = Vec::new();
    while let Some((at, order)) = ownership.select() {
        ownership.apply(match order {
            MemberOrder::Take if at == 0 => OrderReport::Taken(None),
            MemberOrder::Take => OrderReport::Taken(Some(Generation {
                claimed: 7,
                complete: 7,
            })),
            MemberOrder::Label(generation) => {
                labelled.push((at, generation.claimed, generation.complete));
                OrderReport::Labelled
            }
            MemberOrder::Release => OrderReport::Released,
        });
    }
    assert!(ownership.is_owner());
    assert_eq!(labelled, [(1, 8, 7), (1, 8, 8)]);
}

/// Takes and labels what was added, and returns the orders.
fn follow(ownership: &mut Ownership<All>, disks: &mut [Disk]) -> Vec<(usize, MemberOrder)> {
    std::iter::from_fn(|| {
        let (at, order) = ownership.select()?;
        ownership.apply(match order {
            MemberOrder::Take => OrderReport::Taken(Some(disks[at].generation)),
            MemberOrder::Label(generation) => {
                disks[at].generation = generation;
                OrderReport::Labelled
            }
            MemberOrder::Release => OrderReport::Released,
        });
        Some((at, order))
    })
    .collect()
}

#[test]
fn an_added_member_is_of_no_concern_until_it_joins_and_is_as_new_as_the_others_then() {
    let mut disks = [Disk::default(); 3];
    for _ in 0..4 {
        claim(&mut disks[..2], UNBROKEN, false);
    }
    let mut ownership = claim(&mut disks[..2], UNBROKEN, false);
    let all = disks[0].generation;
    assert_eq!(ownership.add(1), 2);
    assert!(!ownership.join(2), "it is not taken");
    let orders = follow(&mut ownership, &mut disks);
    assert_eq!(
        orders,
        [(2, MemberOrder::Take), (2, MemberOrder::Label(all))]
    );
    ownership.prove(0, 70);
    ownership.prove(2, 50);
    assert_eq!(ownership.proved_ns(), Some(70), "it does not count yet");
    assert!(ownership.is_added(2) && ownership.join(2) && !ownership.is_added(2));
    assert_eq!(ownership.proved_ns(), Some(50));
    assert!(!ownership.withdraw(2), "it is one of them");
    assert!(claim(&mut disks, UNBROKEN, false).is_owner());
    ownership.lose(2);
    assert_eq!(ownership.end(), Some(OwnershipEnd::Lost(2)));
}

#[test]
fn what_was_added_and_is_refused_lost_or_given_up_does_not_join_and_ends_nothing() {
    type Fate = fn(&mut Ownership<All>);
    let fates: [Fate; 3] = [
        |it| {
            it.select().expect("it is to be taken");
            it.apply(OrderReport::Failed);
        },
        |it| {
            follow(it, &mut [Disk::default(); 4]);
            it.lose(2);
        },
        |it| {
            follow(it, &mut [Disk::default(); 4]);
            assert!(it.withdraw(2));
        },
    ];
    for fate in fates {
        let mut disks = [Disk::default(); 4];
        let mut ownership = claim(&mut disks[..2], UNBROKEN, false);
        ownership.add(1);
        fate(&mut ownership);
        assert!(!ownership.join(2) && ownership.is_owner());
        assert_eq!((ownership.end(), ownership.select()), (None, None));
        // Another one is.
        assert_eq!(ownership.add(1), 3);
        follow(&mut ownership, &mut disks);
        assert!(ownership.join(3));
        ownership.lose(0);
        assert_eq!(ownership.end(), Some(OwnershipEnd::Lost(0)));
    }
}
