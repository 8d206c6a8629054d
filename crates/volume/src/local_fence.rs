//! The fence of a mirror on a [member](crate::member) that nobody else can open: its [floor], the highest key that it was
//! ever fenced with. There are no other nexuses, so whoever raises the floor has the member.

use mirror::{
    fence::{FenceAnswer, FenceCommand},
    key::FenceKey,
};

use crate::{
    Error, ErrorKind, Result, Volume,
    floor::{self, CopyFloor, Search},
    member::Report,
};

/// Carries out a step of the fence under `key`.
pub(crate) async fn follow(
    volume: &dyn Volume,
    key: FenceKey,
    step: FenceCommand,
) -> Result<Report> {
    let held = async || Ok(floor_of(volume).await?.lowest());
    let answer = match step {
        FenceCommand::ReadKeys => FenceAnswer::Keys(held().await?.into_iter().collect()),
        FenceCommand::ReadReservation => FenceAnswer::Reservation(held().await?),
        FenceCommand::Register => raise(volume, key).await?,
        // With the floor all of it is its own, and what was asked before has ended.
        FenceCommand::Reserve | FenceCommand::Preempt(_) | FenceCommand::Reset => FenceAnswer::Good,
    };
    Ok(Report::Fence(answer))
}

async fn floor_of(volume: &dyn Volume) -> Result<CopyFloor> {
    let found = floor::of(volume, volume.shape().len_bytes(), None, Search::Everywhere).await?;
    let why = "it has no floor: what a mirror keeps on each copy is not found any more";
    found.ok_or_else(|| Error::new(ErrorKind::Configuration, why))
}

/// Raises the floor to `key`, durably, if it is not higher.
async fn raise(volume: &dyn Volume, key: FenceKey) -> Result<FenceAnswer> {
    let held = floor_of(volume).await?;
    if !held.floor.admits(key) {
        return Ok(FenceAnswer::Conflict);
    }
    // Also if it is the same: an earlier write of it may have failed.
    let raised = held.raised_to(key.raw()).unwrap_or(held);
    raised.write(volume).await?;
    Ok(FenceAnswer::Good)
}
