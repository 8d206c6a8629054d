//! The fence of a mirror on a [member](crate::member) that nobody else can open: its floor, the highest key that it was
//! ever fenced with, is kept in its own metadata. There are no other nexuses, so whoever raises the floor has the member.

use mirror::{
    copy::{BLOCK_BYTES, Floor, MetadataBlock, newest},
    fence::{FenceAnswer, FenceCommand},
    key::FenceKey,
};

use engine::Buf;

use crate::{Durability, Error, ErrorKind, Result, Volume, member::Report};

/// Carries out a step of the fence under `key`.
pub(crate) async fn follow(
    volume: &dyn Volume,
    key: FenceKey,
    step: FenceCommand,
) -> Result<Report> {
    let answer = match step {
        FenceCommand::ReadKeys => FenceAnswer::Keys(
            held(volume)
                .await?
                .1
                .into_iter()
                .map(FenceKey::raw)
                .collect(),
        ),
        FenceCommand::ReadReservation => {
            FenceAnswer::Reservation(held(volume).await?.1.map(FenceKey::raw))
        }
        FenceCommand::Register => raise(volume, key).await?,
        // With the floor all of it is its own, and what was asked before has ended.
        FenceCommand::Reserve | FenceCommand::Preempt(_) | FenceCommand::Reset => FenceAnswer::Good,
    };
    Ok(Report::Fence(answer))
}

/// The floor's key, and its sequence number.
async fn held(volume: &dyn Volume) -> Result<(u64, Option<FenceKey>)> {
    let len_bytes = end_of(volume);
    let mut slots = Vec::with_capacity(2);
    for slot in 0..2 {
        let at = MetadataBlock::Floor(slot).at(len_bytes);
        let block = volume.read(at, BLOCK_BYTES).await?;
        slots.push(Floor::decode(&block.to_vec()));
    }
    let slots: [_; 2] = slots.try_into().expect("two slots");
    let (sequence, floor) = newest(slots).map_err(|why| {
        let message = format!("it has no floor: {why}");
        Error::new(ErrorKind::Configuration, message)
    })?;
    Ok((sequence, floor.key))
}

/// Raises the floor to `key`, durably, if it is not higher.
async fn raise(volume: &dyn Volume, key: FenceKey) -> Result<FenceAnswer> {
    let (sequence, held) = held(volume).await?;
    let floor = Floor { key: held };
    if !floor.admits(key) {
        return Ok(FenceAnswer::Conflict);
    }
    let next = sequence + 1;
    let at = MetadataBlock::Floor((next % 2) as usize).at(end_of(volume));
    let block = Buf::copy_of(&floor.raised_to(key).encode(next));
    volume.write(at, block.into(), Durability::Fua).await?;
    Ok(FenceAnswer::Good)
}

/// Where the metadata of a copy ends: at its last whole block.
fn end_of(volume: &dyn Volume) -> u64 {
    volume.shape().len_bytes() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
}
