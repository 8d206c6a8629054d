//! The fence of a mirror on a [member](crate::member) that nobody else can open: its [floor], the highest key that it was
//! ever fenced with. There are no other nexuses, so whoever raises the floor has the member.

use mirror::{
    fence::{Answer, Step},
    key::Key,
};

use crate::{Result, Volume, floor, member::Report};

/// Carries out a step of the fence under `key`.
pub(crate) async fn follow(volume: &dyn Volume, key: Key, step: Step) -> Result<Report> {
    let held = async || Ok(floor::read(volume).await?.lowest());
    let answer = match step {
        Step::ReadKeys => Answer::Keys(held().await?.into_iter().collect()),
        Step::ReadReservation => Answer::Reservation(held().await?),
        Step::Register => raise(volume, key).await?,
        // With the floor all of it is its own, and what was asked before has ended.
        Step::Reserve | Step::Preempt(_) | Step::Reset => Answer::Good,
    };
    Ok(Report::Fence(answer))
}

/// Raises the floor to `key`, durably, if it is not higher.
async fn raise(volume: &dyn Volume, key: Key) -> Result<Answer> {
    let held = floor::read(volume).await?;
    if !held.floor.admits(key) {
        return Ok(Answer::Conflict);
    }
    // Also if it is the same: an earlier write of it may have failed.
    let raised = held.raised_to(key.raw()).unwrap_or(held);
    raised.write(volume).await?;
    Ok(Answer::Good)
}
