//! What becomes of a set that loses a child is its policy's decision.

use super::*;
use crate::{
    SharedVolume,
    member::{Order, Report},
    test_volume::{TestVolume, on_lane},
};

/// One child is enough.
struct AnyOne;

impl Policy for AnyOne {
    fn stands(&self, is_there: &[bool]) -> bool {
        is_there.contains(&true)
    }
}

/// The claim on two children of a set of which each is enough, and the volumes of both.
async fn claimed() -> (SetClaim, [SharedVolume; 2]) {
    let owner = Owner::passing("a test");
    let set = SetClaim::with_policy(Box::new(AnyOne), &owner, 2, Others::Refuse, 0);
    let set = set.expect("chance");
    let children = [(); 2].map(|()| TestVolume::new(2 << 20) as SharedVolume);
    while let Some((at, order)) = set.select() {
        let order = match order {
            set::MemberOrder::Take => Order::Take(set.of_child(at)),
            set::MemberOrder::Label(_) => Order::Label(set.of_child(at)),
            set::MemberOrder::Release => panic!("nothing has ended it"),
        };
        let report = children[at].member(order).await.expect("it is free");
        set.apply(match report {
            Report::Taken(generation) => set::OrderReport::Taken(generation),
            _ => set::OrderReport::Labelled,
        });
    }
    (set, children)
}

fn kind_of(checked: Result<()>) -> ErrorKind {
    checked.expect_err("it does not stand").kind()
}

#[test]
fn a_lost_child_ends_no_set_that_stands_without_it() {
    on_lane(async {
        let (set, children) = claimed().await;
        let [kept, lost] = [0, 1].map(|child| set.of_child(child));
        let generation = kept.generation();
        assert_eq!((generation.claimed, generation.complete), (1, 1));
        let error = lost.lose("the disk", "somebody");
        let told = "the disk was taken over by somebody: this volume goes on without it";
        assert_eq!(
            (error.kind(), error.to_string()),
            (ErrorKind::Preempted, told.into())
        );
        assert_eq!(set.end(), None);
        set.check().expect("the set stands");
        kept.check().expect("the other child is ours");
        assert!(kept.is_held() && !lost.is_held());
        // Whoever asks for the child, then or later.
        for lost in [&lost, &set.of_child(1)] {
            assert_eq!(kind_of(lost.check()), ErrorKind::Preempted);
        }
        children[1].close().await.expect("it closes");
        set.check().expect("the set still stands");
        // The last one is needed.
        kept.lose("the other disk", "somebody");
        assert_eq!(set.end(), Some(OwnershipEnd::Lost(0)));
        for checked in [set.check(), kept.check()] {
            let error = checked.expect_err("it is another's");
            assert!(error.to_string().contains("refuses all I/O"), "{error}");
        }
    });
}

#[test]
fn an_end_for_another_reason_follows_the_policy_too() {
    on_lane(async {
        let (set, _children) = claimed().await;
        let [kept, lost] = [0, 1].map(|child| set.of_child(child));
        let why = || Error::new(ErrorKind::Medium, "it has worn out");
        lost.end(why());
        assert_eq!(kind_of(lost.check()), ErrorKind::Medium);
        set.check().expect("the set stands");
        kept.end(why());
        assert_eq!(kind_of(set.check()), ErrorKind::Medium);
    });
}

#[test]
fn a_lost_child_needs_no_proof() {
    on_lane(async {
        let (set, _children) = claimed().await;
        let [kept, lost] = [0, 1].map(|child| set.of_child(child));
        let (before, now) = (
            Instant::from_ns(0),
            Instant::from_ns(DOUBT.as_nanos() as u64 * 2),
        );
        kept.proved(now);
        lost.proved(before);
        assert!(set.is_in_doubt(now));
        lost.lose("the disk", "somebody");
        assert!(!set.is_in_doubt(now));
    });
}
