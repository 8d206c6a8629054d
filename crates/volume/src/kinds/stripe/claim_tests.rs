//! A stripe and its claimants: one owner, all children or none, and no I/O after a take-over.

use super::{
    tests::{MIB, UNIT, named, new_stripe, refused},
    *,
};
use crate::{
    claim::{Others, Owner},
    test_volume::{Kind, TestVolume, on_lane},
};

fn claim_of(owner: &Owner, others: Others) -> Claim {
    Claim::new(owner, 2, others, 1_485_907_200).expect("chance")
}

#[test]
fn a_stripe_has_one_owner_and_all_children_or_none() {
    on_lane(async {
        let (_, volumes) = new_stripe(2, UNIT).await;
        let children = named(&volumes);
        let owner = |id, name: &str| Owner::new(Uuid::from_u128(id), Uuid::nil(), name);
        let (one, other) = (owner(1, "the first one"), owner(2, "the second one"));
        let claim = claim_of(&one, Others::Refuse);
        let opened = Opened::claimed(&children, None, &claim).await.unwrap();
        assert_eq!(opened.shape().claim, Some(claim.clone()));
        // From this very process, and from another owner.
        let again = Opened::claimed(&children, None, &claim_of(&one, Others::Refuse)).await;
        refused(
            again,
            &[
                "stripe child a",
                "another volume of this configuration uses it",
            ],
        );
        let second = claim_of(&other, Others::Refuse);
        let error = Opened::claimed(&children, None, &second).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Claimed);
        let said = error.to_string();
        assert!(
            said.contains("child a") && said.contains("the first one since 2017"),
            "{said}"
        );
        // Only one child is free: it is not kept.
        volumes[0].close().await.unwrap();
        Opened::claimed(&children, None, &second).await.unwrap_err();
        let free = claim_of(&one, Others::Refuse);
        let free = claim_all(&children[..1], &free).await;
        free.expect("nobody has it");
        // A crash: the claim was never released, and its owner comes back.
        drop((opened, claim));
        volumes.iter().for_each(|volume| drop(volume.crash()));
        let error = Opened::claimed(&children, None, &second).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Claimed);
        let back = claim_of(&owner(1, "the first one again"), Others::Refuse);
        Opened::claimed(&children, None, &back)
            .await
            .expect("it is its own");
        volumes.iter().for_each(|volume| drop(volume.crash()));
        // A child that is only locked cannot be fenced.
        let fence = claim_of(&other, Others::Fence);
        let error = Opened::claimed(&children, None, &fence).await.unwrap_err();
        assert!(error.to_string().contains("--force"), "{error}");
        let overrule = claim_of(&other, Others::Overrule);
        Opened::claimed(&children, None, &overrule)
            .await
            .expect("by force");
    });
}

#[test]
fn a_stripe_that_was_taken_over_refuses_everything() {
    on_lane(async {
        let (_, volumes) = new_stripe(2, UNIT).await;
        let children = named(&volumes);
        let claim = claim_of(&Owner::passing("a test"), Others::Refuse);
        let opened = Opened::claimed(&children, None, &claim).await.unwrap();
        let lane: Vec<SharedVolume> = children.iter().map(|c| c.volume.clone()).collect();
        let stripe = opened.on_lane(&lane).unwrap();
        stripe.read(0, 4096).await.unwrap();
        claim.of_child(1).lose("the disk", "somebody");
        let zeroes = || Payload::zeroes(4096);
        let ended = [
            stripe.read(0, 4096).await.map(drop),
            stripe.write(0, zeroes(), Durability::Cached).await,
            stripe.flush().await,
            stripe.discard(0, 4096).await,
            stripe.write_zeroes(0, 4096, true, Durability::Fua).await,
            stripe.allocation(0, 4096).await.map(drop),
        ];
        for ended in ended {
            let error = ended.expect_err("it is another's");
            assert_eq!(error.kind(), ErrorKind::Preempted);
            assert!(
                error.to_string().contains("taken over by somebody"),
                "{error}"
            );
        }
    });
}

#[test]
fn a_disk_that_is_no_child_is_not_marked() {
    on_lane(async {
        let (_, volumes) = new_stripe(2, UNIT).await;
        let foreign = TestVolume::new(2 * MIB);
        foreign.data.borrow_mut()[..MIB / 2].fill(0x5a);
        let before = foreign.data.borrow().clone();
        let children = named(&[volumes[0].clone(), foreign.clone()]);
        let claim = claim_of(&Owner::passing("a test"), Others::Overrule);
        refused(
            Opened::claimed(&children, None, &claim).await,
            &["stripe child b", "other than a Sanstone"],
        );
        assert!(*foreign.data.borrow() == before);
        assert_eq!(volumes[0].count(Kind::Write(Durability::Fua)), 0);
    });
}
