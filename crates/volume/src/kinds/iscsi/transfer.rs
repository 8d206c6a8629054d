//! Reads and writes of any length, split into commands that the target accepts.

use engine::{LaneFuture, Payload, task};

use super::{
    cdb::{self, CdbBytes},
    facts::DiskFacts,
    session::{Data, Reply},
};
use crate::{Durability, Error, ErrorKind, Result};

/// The most commands of one request in flight, so that a target with a small transfer limit does not make a long
/// request use more memory.
const PARTS_AT_ONCE_MAX: usize = 64;

/// Access to the logical unit from the current lane.
pub(super) trait Way {
    /// What the disk reported when it was opened.
    fn facts(&self) -> &DiskFacts;

    /// Asks the disk, which is known as write-protected, whether it still is.
    async fn look_at_protection(&self) -> Result<()>;

    /// Refuses writes that would build on writes that may be lost.
    fn check_unflushed(&self) -> Result<()>;

    /// Sends a command until it succeeds, fails for good, or runs out of time.
    async fn run(&self, cdb: &CdbBytes, data: Data) -> Result<Reply>;

    /// As [`Way::run`] for a write; one that `is_volatile` is counted for the next flush.
    async fn run_write(&self, cdb: &CdbBytes, data: Payload, is_volatile: bool) -> Result<()>;
}

/// Checks the end of a write, including that all of it was taken.
pub(super) fn whole(sent: Result<Reply>, len: usize) -> Result<()> {
    match sent {
        // GOOD with an underflow: the rest was not written (RFC 7143 §11.4.5.1).
        Ok(reply) if reply.transferred != len => {
            let message = format!("the target accepted {} of {len} bytes", reply.transferred);
            Err(Error::new(ErrorKind::Protocol, message))
        }
        sent => sent.map(drop),
    }
}

/// Refuses a write that is not possible.
pub(super) async fn check_write(way: &impl Way, at: u64, len: u64) -> Result<()> {
    if way.facts().shape.read_only.is_on() {
        // Boxed, so that only refused writes pay for the memory.
        LaneFuture::new(way.look_at_protection()).await?;
    }
    way.facts().shape.check_write(at, len)?;
    way.check_unflushed()
}

/// Reads `len` bytes at byte `at`.
pub(super) fn read(way: &impl Way, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
    LaneFuture::new(async move {
        let facts = way.facts();
        facts.shape.check(at, len as u64)?;
        if len <= facts.transfer_max_bytes {
            return read_part(way, at, len).await;
        }
        let mut parts = facts.parts(len);
        let mut whole = Payload::new();
        while whole.len() < len {
            let some = parts.by_ref().take(PARTS_AT_ONCE_MAX);
            let some =
                some.map(|(start, len)| LaneFuture::new(read_part(way, at + start as u64, len)));
            for part in task::join_all(some).await {
                whole.append(part?);
            }
        }
        Ok(whole)
    })
}

async fn read_part(way: &impl Way, at: u64, len: usize) -> Result<Payload> {
    let (lba, blocks) = way.facts().blocks(at, len as u64);
    let data = way.run(&cdb::read(lba, blocks), Data::In(len)).await?.data;
    if data.len() != len {
        let message = format!("the target sent {} of {len} bytes", data.len());
        return Err(Error::new(ErrorKind::Protocol, message));
    }
    Ok(data)
}

/// Writes `data` at byte `at`.
pub(super) fn write(
    way: &impl Way,
    at: u64,
    data: Payload,
    durability: Durability,
) -> LaneFuture<'_, Result<()>> {
    LaneFuture::new(async move {
        check_write(way, at, data.len() as u64).await?;
        let facts = way.facts();
        let fua = durability == Durability::Fua && facts.shape.volatile_cache;
        if data.len() <= facts.transfer_max_bytes {
            return write_part(way, at, data, fua).await;
        }
        let mut parts = facts.parts(data.len()).peekable();
        while parts.peek().is_some() {
            let some = parts.by_ref().take(PARTS_AT_ONCE_MAX);
            let some = some.map(|(start, len)| {
                let part = data.slice(start..start + len);
                LaneFuture::new(write_part(way, at + start as u64, part, fua))
            });
            let written = task::join_all(some).await;
            written.into_iter().collect::<Result<()>>()?;
        }
        Ok(())
    })
}

async fn write_part(way: &impl Way, at: u64, data: Payload, fua: bool) -> Result<()> {
    let (lba, blocks) = way.facts().blocks(at, data.len() as u64);
    let write = cdb::write(lba, blocks, fua);
    way.run_write(&write, data, way.facts().shape.volatile_cache && !fua)
        .await
}
