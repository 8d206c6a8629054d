//! How a [member](crate::member) without a fence follows its set: its label is written and read like any other block.

use engine::Payload;

use crate::{
    Claim, Durability, Error, ErrorKind, Result, Volume,
    claim::{
        LABEL_AT, LABEL_BYTES, LabelStanding, Others, refuse_alive, refuse_data, refuse_ours,
        refuse_running, refuse_unfenced, tell_replaced,
    },
    fallback,
    member::{Order, Report},
};

/// Follows an order for a member that has no fence. `is_locked`: as for [`Claim::standing`].
pub(crate) async fn follow(volume: &dyn Volume, order: &Order, is_locked: bool) -> Result<Report> {
    match order {
        Order::Take(claim) => {
            take(volume, claim, is_locked).await?;
            Ok(Report::Taken(Some(claim.generation())))
        }
        Order::Label(claim) => {
            check_label(volume, claim).await?;
            write_label(volume, claim).await?;
            Ok(Report::Labelled)
        }
        order => fallback::member(volume, order.clone()).await,
    }
}

/// Evaluates the member's current label, writes ours and reads it back.
async fn take(volume: &dyn Volume, claim: &Claim, is_locked: bool) -> Result<()> {
    let block = volume.read(LABEL_AT, LABEL_BYTES).await?.to_vec();
    match claim.standing(&block, is_locked) {
        LabelStanding::Free => {}
        LabelStanding::Dead(label) => tell_replaced(&label),
        LabelStanding::Ours => return Err(refuse_ours()),
        LabelStanding::Data if claim.others() == Others::Overrule => {}
        LabelStanding::Data => return Err(refuse_data()),
        LabelStanding::Alive(owner) => match claim.others() {
            Others::Refuse => return Err(refuse_alive(&owner)),
            Others::Fence => return Err(refuse_unfenced(&owner)),
            Others::Overrule => {}
        },
        LabelStanding::Running(owner) => match claim.others() {
            Others::Refuse => return Err(refuse_alive(&owner)),
            Others::Fence => return Err(refuse_running(&owner)),
            Others::Overrule => {}
        },
    }
    write_label(volume, claim).await
}

async fn write_label(volume: &dyn Volume, claim: &Claim) -> Result<()> {
    volume
        .write(LABEL_AT, claim.block(), Durability::Fua)
        .await?;
    check_label(volume, claim).await
}

async fn check_label(volume: &dyn Volume, claim: &Claim) -> Result<()> {
    let block = volume.read(LABEL_AT, LABEL_BYTES).await?.to_vec();
    claim.is_marked(&block).map_err(|other| {
        let message = format!("its claim was written, but what reads back is the claim of {other}");
        Error::new(ErrorKind::Medium, message)
    })
}

/// Writes a label without an owner over that of `claim`, if it is there.
pub(crate) async fn release(volume: &dyn Volume, claim: &Claim) -> Result<()> {
    let block = volume.read(LABEL_AT, LABEL_BYTES).await?.to_vec();
    if claim.is_marked(&block).is_err() {
        return Ok(());
    }
    let released: Payload = claim.released_block();
    volume.write(LABEL_AT, released, Durability::Fua).await
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{
        claim::Owner,
        test_volume::{TestVolume, on_lane},
    };

    #[test]
    fn who_was_here_since_the_boot_is_dead_only_where_a_lock_proves_it() {
        on_lane(async {
            let claim = || {
                let owner = Owner::new(Uuid::new_v4(), Uuid::from_u128(1), "a test");
                Order::Take(Claim::single(&owner, Others::Refuse))
            };
            let child = TestVolume::new(2 << 20);
            let former = claim();
            follow(&*child, &former, false).await.expect("free");
            let refused = follow(&*child, &claim(), false).await;
            let refused = refused.expect_err("it may be open by another node");
            assert_eq!(refused.kind(), ErrorKind::Claimed);
            let replaced = follow(&*child, &claim(), true).await;
            replaced.expect("its owner has ended");
        });
    }
}
