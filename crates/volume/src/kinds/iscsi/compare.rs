//! COMPARE AND WRITE, passed on to the disk (SBC-3 5.2), so that all daemons that serve it share one arbiter.
//!
//! A command that the target may have executed is never sent again. If its session is lost, it is waited for until it can
//! no longer take effect, as for any write, and then it fails with [`ErrorKind::OutcomeUnknown`]. Reading the blocks would
//! not tell: the new data may be another's who has written the same, and the old data may be back after ours was seen.
//! Whoever has a way to tell them apart reads and decides, or sends what can be sent twice. A command that the target
//! refused before it tried it is sent again, as every other.

use engine::Payload;

use super::{
    cdb,
    session::Data,
    transfer::{self, Way, whole},
    unflushed::Unflushed,
};
use crate::{CompareOutcome, Durability, Error, ErrorKind, Result, Volume};

/// Writes the second half of `data` at byte `at` of `disk` if the first half is there; writes that its cache may lose are
/// noted in `unflushed`.
pub(super) async fn compare_and_write(
    disk: &(impl Way + Volume),
    unflushed: &Unflushed,
    at: u64,
    data: Payload,
    durability: Durability,
) -> Result<CompareOutcome> {
    let (facts, len) = (disk.facts(), data.len());
    let half = len as u64 / 2;
    transfer::check_write(disk, at, half).await?;
    let max = facts.shape.compare_and_write_max_bytes;
    if len % 2 != 0 || half > max.into() {
        let message = format!("{len} bytes are not two halves of at most {max} bytes");
        return Err(Error::new(ErrorKind::Misaligned, message));
    }
    let is_lax = facts.flushes_for(durability);
    let is_volatile = facts.shape.volatile_cache && (durability == Durability::Cached || is_lax);
    let (lba, blocks) = facts.blocks(at, half);
    let blocks = u8::try_from(blocks).expect("the longest is told in a byte");
    let fua = facts.shape.volatile_cache && !is_volatile;
    let command = cdb::compare_and_write(lba, blocks, fua);
    let sent = disk.run(&command, Data::Out(data)).await;
    if let Some(offset_bytes) = sent.as_ref().ok().and_then(|it| it.first_difference()) {
        return Ok(CompareOutcome::Differs { offset_bytes });
    }
    let written = whole(sent, len);
    if is_volatile {
        unflushed.wrote(written.is_ok());
    }
    written?;
    if is_lax {
        disk.flush().await?;
    }
    Ok(CompareOutcome::Written)
}
