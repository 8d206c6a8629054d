//! A stripe and its claimants: one owner, all children or none, and no I/O after a take-over.

use set::{FoundLabel, LABEL_AT, LABEL_BYTES, Label};

use super::{
    tests::{MIB, UNIT, named, new_stripe, refused},
    *,
};
use crate::{
    SetClaim,
    claim::{Others, Owner},
    test_volume::{CallKind, TestVolume, on_lane},
};

fn claim_of(owner: &Owner, others: Others) -> SetClaim {
    SetClaim::new(owner, 2, others, 1_485_907_200).expect("chance")
}

#[test]
fn a_stripe_has_one_owner_and_all_children_or_none() {
    on_lane(async {
        let (_, volumes) = new_stripe(2, UNIT).await;
        let children = named(&volumes);
        let owner = |id, name: &str| Owner::new(Uuid::from_u128(id), Uuid::nil(), name);
        let (one, other) = (owner(1, "the first one"), owner(2, "the second one"));
        let claim = claim_of(&one, Others::Refuse);
        let opened = OpenStripe::claimed(&children, None, &claim).await.unwrap();
        // From this very process, and from another owner.
        let again = OpenStripe::claimed(&children, None, &claim_of(&one, Others::Refuse)).await;
        refused(
            again,
            &[
                "stripe child a",
                "another volume of this configuration uses it",
            ],
        );
        let second = || claim_of(&other, Others::Refuse);
        let error = OpenStripe::claimed(&children, None, &second())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Claimed);
        let said = error.to_string();
        assert!(
            said.contains("child a") && said.contains("the first one since 2017"),
            "{said}"
        );
        // Only one child is free: it is not kept.
        volumes[0].close().await.unwrap();
        OpenStripe::claimed(&children, None, &second())
            .await
            .unwrap_err();
        let block = volumes[0].data.borrow()[LABEL_AT as usize..][..LABEL_BYTES].to_vec();
        let is_free =
            matches!(Label::decode(&block), FoundLabel::Label(label) if label.is_released());
        assert!(is_free, "nobody has it");
        // A crash: the claim was never released, and its owner comes back.
        drop((opened, claim));
        volumes.iter().for_each(|volume| drop(volume.crash()));
        let error = OpenStripe::claimed(&children, None, &second())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Claimed);
        let back = claim_of(&owner(1, "the first one again"), Others::Refuse);
        OpenStripe::claimed(&children, None, &back)
            .await
            .expect("it is its own");
        volumes.iter().for_each(|volume| drop(volume.crash()));
        // A child that is only locked cannot be fenced.
        let fence = claim_of(&other, Others::Fence);
        let error = OpenStripe::claimed(&children, None, &fence)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("--force"), "{error}");
        let overrule = claim_of(&other, Others::Overrule);
        OpenStripe::claimed(&children, None, &overrule)
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
        let opened = OpenStripe::claimed(&children, None, &claim).await.unwrap();
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
            OpenStripe::claimed(&children, None, &claim).await,
            &["stripe child b", "other than a Sanstone"],
        );
        assert!(*foreign.data.borrow() == before);
        assert_eq!(volumes[0].count(CallKind::Write(Durability::Fua)), 0);
    });
}

#[test]
fn an_older_copy_of_a_child_is_refused_until_the_user_insists() {
    on_lane(async {
        let (_, volumes) = new_stripe(2, UNIT).await;
        let children = named(&volumes);
        let owner = Owner::passing("a test");
        let opened = async |others| {
            let opened = OpenStripe::claimed(&children, None, &claim_of(&owner, others)).await;
            give_up(&children).await;
            opened
        };
        opened(Others::Refuse).await.expect("nobody has it");
        let copy = volumes[1].data.borrow().clone();
        opened(Others::Refuse).await.expect("it was released");
        let current = volumes[1].data.replace(copy);
        let told = &[
            "child b: it is an older copy",
            "generation 1",
            "child a",
            "generation 2",
        ];
        for others in [Others::Refuse, Others::Refuse, Others::Fence] {
            refused(opened(others).await, told);
        }
        let looked = OpenStripe::look(&children, WantedLayout::Stripe(None), false).await;
        refused(looked, told);
        volumes[0].shape().read_only.set(true);
        refused(opened(Others::Refuse).await, told);
        volumes[0].shape().read_only.set(false);
        let copy = volumes[1].data.replace(current);
        opened(Others::Refuse).await.expect("it is the child again");
        *volumes[1].data.borrow_mut() = copy;
        opened(Others::Overrule).await.expect("by force");
        opened(Others::Refuse)
            .await
            .expect("it was accepted for good");
    });
}

#[test]
fn children_of_different_age_become_a_new_stripe() {
    on_lane(async {
        let (_, volumes) = new_stripe(2, UNIT).await;
        let children = named(&volumes);
        let owner = Owner::passing("a test");
        let old = volumes[0].data.borrow().clone();
        for _ in 0..2 {
            let claim = claim_of(&owner, Others::Refuse);
            let opened = OpenStripe::claimed(&children, None, &claim).await;
            opened.expect("nobody has it");
            give_up(&children).await;
        }
        *volumes[0].data.borrow_mut() = old;
        let claim = claim_of(&owner, Others::Refuse).for_new_set(true);
        claim_all(&children, &claim).await.expect("it is new");
    });
}
