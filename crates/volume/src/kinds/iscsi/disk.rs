//! A logical unit of a remote target as a volume: turns the volume's calls into commands that the
//! target takes, and keeps what it may have lost.
//!
//! Sending a write again is safe: [`recovery`](super::recovery) sees to it that the lost one can do no
//! harm any more, and nothing else of this volume was ordered with it.

use std::rc::Rc;

use engine::{Buf, LaneFuture, Payload, task};

use super::{
    cdb::{self, Cdb},
    config::IscsiConfig,
    identity::DiskIdentity,
    inquiry::{self, Facts},
    paths::PathCounts,
    session::{Data, Reply},
    unit::Unit,
};
use crate::{
    Allocation, AtomicWrites, Claim, Durability, Error, ErrorKind, Result, Shape, Volume, fallback,
};

/// How many commands a request has at the target at once: one that takes short ones only does not
/// make a long request take more memory.
const PARTS_AT_ONCE_MAX: usize = 64;
/// How many UNMAPs make a discard, which need not discard everything.
const UNMAPS_MAX: usize = 1024;

/// A disk on a remote target.
pub struct IscsiDisk {
    pub(super) unit: Rc<Unit>,
    facts: Facts,
}

impl IscsiDisk {
    /// Logs in and asks the disk what it is.
    ///
    /// # Errors
    /// When the target cannot be reached, refuses us, or has no such disk.
    pub async fn open(config: IscsiConfig) -> Result<Rc<IscsiDisk>> {
        let what = format!(
            "{} LUN {} at {}",
            config.target_name, config.lun, config.address
        );
        let opened = async {
            let unit = Unit::new(config);
            let opened = async {
                unit.open_first().await?;
                let facts = inquiry::ask(&unit).await?;
                let extent = (facts.shape.block_size_bytes, facts.shape.len.clone());
                let _ = unit.extent.set(extent);
                let _ = unit.identity.set(facts.identity.clone());
                unit.open_others().await?;
                Ok(facts)
            };
            match opened.await {
                Ok(facts) => Ok(Rc::new(IscsiDisk { unit, facts })),
                Err(error) => {
                    unit.paths.end(&error);
                    Err(error)
                }
            }
        };
        opened.await.map_err(|error: Error| error.context(&what))
    }

    /// The digests that its sessions carry; none while there is no session.
    pub fn digests(&self) -> iscsi::frame::Digests {
        let nexus = self.unit.paths.live().next();
        nexus
            .map(|nexus| nexus.session().digests())
            .unwrap_or_default()
    }

    /// What has happened to its paths.
    pub fn path_counts(&self) -> PathCounts {
        *self.unit.paths.counts.borrow()
    }

    /// How many of its sessions can be used now.
    pub fn live_paths(&self) -> usize {
        self.unit.paths.usable().count()
    }

    /// Which disk it is.
    pub fn identity(&self) -> &DiskIdentity {
        &self.facts.identity
    }

    /// Gives up what was claimed, and logs out. Requests afterwards log in again, unless there was a
    /// claim.
    pub async fn close(&self) {
        if let Err(error) = self.unit.release_claim().await {
            let target_name = &self.unit.config().target_name;
            tracing::warn!(target_name, %error, "the claim was not given up");
        }
        self.unit.paths.log_out().await;
    }

    /// Sends a command until it has succeeded, failed for good, or its time is up.
    async fn run(&self, cdb: &Cdb, data: Data) -> Result<Reply> {
        self.unit.run(cdb, data, &mut self.unit.patience()).await
    }

    /// A write has ended that is durable only after a flush.
    fn wrote(&self, result: Result<Reply>) -> Result<()> {
        if self.facts.shape.volatile_cache {
            self.unit.unflushed.wrote(result.is_ok());
        }
        result.map(drop)
    }

    fn check_write(&self, at: u64, len: u64) -> Result<()> {
        self.facts.shape.check_write(at, len)?;
        self.unit.unflushed.check()
    }

    fn blocks(&self, at: u64, len: u64) -> (u64, u32) {
        let block = u64::from(self.facts.shape.block_size_bytes);
        (at / block, (len / block) as u32)
    }

    /// The parts of a range that one command can carry: offset from its start, length.
    fn parts(&self, len: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let longest = self.facts.transfer_max_bytes;
        (0..len)
            .step_by(longest)
            .map(move |start| (start, longest.min(len - start)))
    }

    async fn read_part(&self, at: u64, len: usize) -> Result<Payload> {
        let (lba, blocks) = self.blocks(at, len as u64);
        let data = self.run(&cdb::read(lba, blocks), Data::In(len)).await?.data;
        if data.len() != len {
            let message = format!("the target sent {} of {len} bytes", data.len());
            return Err(Error::new(ErrorKind::Protocol, message));
        }
        Ok(data)
    }

    async fn write_part(&self, at: u64, data: Payload, fua: bool) -> Result<()> {
        let len = data.len();
        let (lba, blocks) = self.blocks(at, len as u64);
        let written = self
            .run(&cdb::write(lba, blocks, fua), Data::Out(data))
            .await;
        // GOOD with an underflow: the rest was not written (RFC 7143 §11.4.5.1).
        let written = match written {
            Ok(reply) if reply.transferred != len => {
                let message = format!("the target took {} of {len} bytes", reply.transferred);
                Err(Error::new(ErrorKind::Protocol, message))
            }
            written => written,
        };
        match fua && written.is_ok() {
            true => Ok(()),
            false => self.wrote(written),
        }
    }
}

impl Drop for IscsiDisk {
    fn drop(&mut self) {
        // At once: an attempt to log in again keeps the unit for a while.
        let closed = Error::new(ErrorKind::Unreachable, "the volume has been closed");
        self.unit.paths.end(&closed);
    }
}

impl Volume for IscsiDisk {
    fn shape(&self) -> &Shape {
        &self.facts.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            self.facts.shape.check(at, len as u64)?;
            if len <= self.facts.transfer_max_bytes {
                return self.read_part(at, len).await;
            }
            let mut parts = self.parts(len);
            let mut whole = Payload::new();
            while whole.len() < len {
                let some = parts.by_ref().take(PARTS_AT_ONCE_MAX);
                let some = some
                    .map(|(start, len)| LaneFuture::new(self.read_part(at + start as u64, len)));
                for part in task::join_all(some).await {
                    whole.append(part?);
                }
            }
            Ok(whole)
        })
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.check_write(at, data.len() as u64)?;
            let fua = durability == Durability::Fua && self.facts.shape.volatile_cache;
            if data.len() <= self.facts.transfer_max_bytes {
                return self.write_part(at, data, fua).await;
            }
            let mut parts = self.parts(data.len()).peekable();
            while parts.peek().is_some() {
                let some = parts.by_ref().take(PARTS_AT_ONCE_MAX);
                let some = some.map(|(start, len)| {
                    let part = data.slice(start..start + len);
                    LaneFuture::new(self.write_part(at + start as u64, part, fua))
                });
                let written = task::join_all(some).await;
                written.into_iter().collect::<Result<()>>()?;
            }
            Ok(())
        })
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            let unflushed = &self.unit.unflushed;
            if !self.facts.shape.volatile_cache {
                return unflushed.check();
            }
            if let Some(covers) = unflushed.to_flush() {
                let flushed = self.run(&cdb::synchronize_cache(), Data::None).await;
                if let Err(error) = flushed {
                    unflushed.lose();
                    return Err(error);
                }
                unflushed.flushed(covers);
            }
            unflushed.check()
        })
    }

    fn claim(&self, claim: &Claim) -> LaneFuture<'_, Result<()>> {
        let claim = claim.clone();
        let is_volatile = self.facts.shape.volatile_cache;
        LaneFuture::new(async move { self.unit.claim(&claim, is_volatile).await })
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            IscsiDisk::close(self).await;
            Ok(())
        })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.check_write(at, len)?;
            if self.facts.unmap_max_blocks == 0 {
                return Ok(());
            }
            let (mut lba, blocks) = self.blocks(at, len);
            let mut left = u64::from(blocks);
            for _ in 0..UNMAPS_MAX {
                let count = left.min(self.facts.unmap_max_blocks) as u32;
                let list = cdb::unmap_list(lba, count);
                let data = Data::Out(Buf::copy_of(&list).into());
                self.wrote(self.run(&cdb::unmap(list.len() as u16), data).await)?;
                (lba, left) = (lba + u64::from(count), left - u64::from(count));
                if left == 0 {
                    break;
                }
            }
            Ok(())
        })
    }

    /// GET LBA STATUS is not asked: few targets have it, and none has to tell the truth.
    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        fallback::allocation(self, at, len)
    }

    /// Sending a write again after a lost session would be all right, but no target is asked yet what
    /// it writes all or nothing.
    fn atomic_writes(&self) -> Option<AtomicWrites> {
        None
    }

    fn write_atomic(&self, _: u64, _: Payload, _: Durability) -> LaneFuture<'_, Result<()>> {
        fallback::write_atomic()
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.check_write(at, len)?;
            let block = u64::from(self.facts.shape.block_size_bytes);
            let same_max = self.facts.write_same_max_blocks;
            let transfer_max = self.facts.transfer_max_bytes as u64;
            let may_unmap = may_discard && self.facts.zeroes_may_unmap;
            let mut done = 0;
            while done < len {
                let left = len - done;
                // Whichever takes fewer commands.
                if same_max * block <= transfer_max {
                    let piece = left.min(transfer_max);
                    let zeroes = Payload::zeroes(piece as usize);
                    self.write(at + done, zeroes, durability).await?;
                    done += piece;
                    continue;
                }
                let count = (left / block).min(same_max) as u32;
                let zeroes = Data::Out(Payload::zeroes(block as usize));
                let lba = (at + done) / block;
                let command = cdb::write_same_16(lba, count, may_unmap);
                self.wrote(self.run(&command, zeroes).await)?;
                done += u64::from(count) * block;
            }
            match durability {
                Durability::Fua => self.flush().await,
                Durability::Cached => Ok(()),
            }
        })
    }
}
