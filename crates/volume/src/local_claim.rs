//! The [claim](crate::claim) on a child without a fence: a mark, written and read like any other block.

use engine::Payload;

use crate::{
    Claim, Durability, Error, ErrorKind, Result, Volume,
    claim::{
        MARK_AT, MARK_BYTES, Others, Standing, refuse_alive, refuse_data, refuse_ours,
        refuse_running, refuse_unfenced, tell_replaced,
    },
};

/// Claims a child that has no fence: evaluates its current mark, writes ours and reads it back. `is_locked`: as for
/// [`Claim::standing`].
pub(crate) async fn mark_local(volume: &dyn Volume, claim: &Claim, is_locked: bool) -> Result<()> {
    if claim.wanted().is_some() {
        return Ok(());
    }
    let block = volume.read(MARK_AT, MARK_BYTES).await?.to_vec();
    match claim.standing(&block, is_locked) {
        Standing::Free => {}
        Standing::Dead(mark) => tell_replaced(&mark),
        Standing::Ours => return Err(refuse_ours()),
        Standing::Data if claim.others() == Others::Overrule => {}
        Standing::Data => return Err(refuse_data()),
        Standing::Alive(owner) => match claim.others() {
            Others::Refuse => return Err(refuse_alive(&owner)),
            Others::Fence => return Err(refuse_unfenced(&owner)),
            Others::Overrule => {}
        },
        Standing::Running(owner) => match claim.others() {
            Others::Refuse => return Err(refuse_alive(&owner)),
            Others::Fence => return Err(refuse_running(&owner)),
            Others::Overrule => {}
        },
    }
    let fua = Durability::Fua;
    volume.write(MARK_AT, claim.block(), fua).await?;
    let block = volume.read(MARK_AT, MARK_BYTES).await?.to_vec();
    claim.is_marked(&block).map_err(|other| {
        let message = format!("its claim was written, but what reads back is the claim of {other}");
        Error::new(ErrorKind::Medium, message)
    })
}

/// Removes the mark of `claim` from a child, if it is there.
pub(crate) async fn unmark(volume: &dyn Volume, claim: &Claim) -> Result<()> {
    let block = volume.read(MARK_AT, MARK_BYTES).await?.to_vec();
    if claim.is_marked(&block).is_err() {
        return Ok(());
    }
    let zeroes = Payload::zeroes(MARK_BYTES);
    volume.write(MARK_AT, zeroes, Durability::Fua).await
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
                Claim::new(&owner, 1, Others::Refuse, 0).expect("chance")
            };
            let child = TestVolume::new(2 << 20);
            let former = claim();
            mark_local(&*child, &former, false).await.expect("free");
            let refused = mark_local(&*child, &claim(), false).await;
            let refused = refused.expect_err("it may be open by another node");
            assert_eq!(refused.kind(), ErrorKind::Claimed);
            let replaced = mark_local(&*child, &claim(), true).await;
            replaced.expect("its owner has ended");
        });
    }
}
