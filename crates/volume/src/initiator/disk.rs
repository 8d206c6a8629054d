//! A logical unit of a remote target as a volume. It learns the disk's shape at login, keeps one
//! session, and logs in again when that is lost; requests wait for it and are sent again until
//! their time is up.
//!
//! Sending a write again is safe: a target ends all I/O of the old session before it lets the same
//! initiator port in again (RFC 7143 §6.3.5), and nothing else of this volume was ordered with it.
//! A target that has *restarted* may have lost writes that it had acknowledged and not yet made
//! durable. Only its unit attention tells, so from then on flushes fail, and writes are refused, until
//! the volume is opened again, unless nothing was unflushed.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use engine::{Buf, Duration, Instant, LaneFuture, Payload, sync::Notify, task, time};
use iscsi::{Chap, Isid, Lun};

use super::{
    cdb::{self, Cdb},
    login::Portal,
    sense::{Sense, Verdict},
    session::{Data, Reply, Session},
};
use crate::{Discard, Durability, Error, ErrorKind, Len, Result, Shape, Volume};

/// The longest READ or WRITE that is sent when the target names no limit, in bytes.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// The longest UNMAP or WRITE SAME, whatever the target offers: they have to end in time.
const COMMAND_MAX_BLOCKS: u64 = 1 << 20;
/// Between two attempts at something that may work later.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a command is sent again without a pause.
const AT_ONCE_MAX: u32 = 16;

/// Where the disk is and how long to wait for it.
#[derive(Clone, Debug)]
pub struct IscsiConfig {
    /// The portal.
    pub address: SocketAddr,
    /// The target's iSCSI name.
    pub target_name: String,
    /// The logical unit number.
    pub lun: u16,
    /// The name that we log in with.
    pub initiator_name: String,
    /// Tells sessions of this initiator with the same target apart: [`next_isid`].
    pub isid: Isid,
    /// How we prove who we are, and the target has to; `None`: not at all.
    pub chap: Option<Arc<Chap>>,
    /// Asks for CRC32C over the headers.
    pub header_digest: bool,
    /// Asks for CRC32C over the data.
    pub data_digest: bool,
    /// For a connection and its login.
    pub connect_timeout: Duration,
    /// For the answer to a command, before the session counts as lost.
    pub request_timeout: Duration,
    /// For a lost session to come back, before requests fail.
    pub reconnect_timeout: Duration,
}

/// An ISID that no other session of this process, and of no other one that runs now, uses.
pub fn next_isid() -> Isid {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Isid::random([a, b, c], NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A disk on a remote target.
pub struct IscsiDisk {
    config: IscsiConfig,
    portal: Portal,
    lun: Lun,
    shape: Shape,
    transfer_max_bytes: usize,
    /// The longest UNMAP; 0: it has none.
    unmap_max_blocks: u64,
    /// The longest WRITE SAME; 0: it has none.
    write_same_max_blocks: u64,
    session: RefCell<Rc<Session>>,
    /// Somebody logs in right now; others wait for the outcome.
    reconnecting: Cell<bool>,
    reconnected: Notify,
    /// The log has the loss of the session: one line, however many requests wait and attempts fail.
    loss_is_told: Cell<bool>,
    /// Volatile writes that have ended so far, well or not, and one for what others may have
    /// written before this was opened.
    ended: Cell<u64>,
    /// That count at the last write that ended well: its loss would have to be told.
    promised: Cell<u64>,
    /// How many of them a flush has covered.
    flushed: Cell<u64>,
    /// Acknowledged writes may be lost: see the module.
    lost_writes: Cell<bool>,
    /// The target has said so, or has lost us and could not: its capacity is to be read before
    /// anything else is sent.
    may_have_grown: Cell<bool>,
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
        let lun = Lun::from_number(config.lun).ok_or_else(|| {
            Error::new(
                ErrorKind::Configuration,
                format!("LUN {} is beyond 16383", config.lun),
            )
        })?;
        let portal = Portal::new(config.address);
        let session = portal.log_in(&config).await;
        let session = session.map_err(|e| e.context(&what))?;
        let mut disk = IscsiDisk {
            config,
            portal,
            lun,
            shape: Shape {
                block_size_bytes: 512,
                physical_block_bytes: 512,
                len: Len::new(0),
                volatile_cache: true,
                read_only: false,
                discard: None,
                optimal_io_bytes: 0,
            },
            transfer_max_bytes: TRANSFER_MAX_BYTES as usize,
            unmap_max_blocks: 0,
            write_same_max_blocks: 0,
            session: RefCell::new(session),
            reconnecting: Cell::new(false),
            reconnected: Notify::new(),
            loss_is_told: Cell::new(false),
            ended: Cell::new(1),
            promised: Cell::new(0),
            flushed: Cell::new(0),
            lost_writes: Cell::new(false),
            may_have_grown: Cell::new(false),
        };
        disk.learn().await.map_err(|e| e.context(&what))?;
        Ok(Rc::new(disk))
    }

    /// The digests that the session carries.
    pub fn digests(&self) -> iscsi::frame::Digests {
        self.session.borrow().digests()
    }

    /// Logs out. Requests afterwards log in again.
    pub async fn close(&self) {
        let session = self.session.borrow().clone();
        session.logout().await;
    }

    /// Asks for everything that the shape tells.
    async fn learn(&mut self) -> Result<()> {
        self.run(&cdb::test_unit_ready(), Data::None).await?;
        let inquiry = self
            .run(&cdb::inquiry(None, 96), Data::In(96))
            .await?
            .data
            .to_vec();
        const DIRECT_ACCESS: u8 = 0;
        if inquiry.first() != Some(&DIRECT_ACCESS) {
            let message = format!("there is no disk at LUN {}", self.config.lun);
            return Err(Error::new(ErrorKind::Configuration, message));
        }
        let (blocks, block, physical_exponent, thin, reads_zeroes) = self.capacity().await?;
        self.shape.block_size_bytes = block;
        self.shape.physical_block_bytes = block << physical_exponent;
        self.shape.len = Len::new(blocks * u64::from(block));
        self.shape.optimal_io_bytes = self.shape.physical_block_bytes;
        self.mode().await;
        self.limits(thin, reads_zeroes).await;
        Ok(())
    }

    async fn capacity(&self) -> Result<(u64, u32, u8, bool, bool)> {
        let long = self.run(&cdb::read_capacity_16(32), Data::In(32)).await;
        let (last, block, exponent, flags) = match long.map(|reply| reply.data.to_vec()) {
            Ok(data) if data.len() >= 16 => {
                let last = u64::from_be_bytes(data[0..8].try_into().expect("eight bytes"));
                let block = u32::from_be_bytes(data[8..12].try_into().expect("four bytes"));
                (last, block, data[13] & 0xf, data[14])
            }
            _ => {
                let data = self
                    .run(&cdb::read_capacity_10(), Data::In(8))
                    .await?
                    .data
                    .to_vec();
                let Some((last, block)) = data.get(0..4).zip(data.get(4..8)) else {
                    return Err(Error::new(
                        ErrorKind::Protocol,
                        "the disk tells no capacity",
                    ));
                };
                let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
                (word(last).into(), word(block), 0, 0)
            }
        };
        if block != 512 && block != 4096 || last >= u64::MAX / 4096 {
            let message =
                format!("a disk of {last} blocks of {block} bytes: only 512 and 4096 are used");
            return Err(Error::new(ErrorKind::Configuration, message));
        }
        Ok((
            last + 1,
            block,
            exponent,
            flags & 0x80 != 0,
            flags & 0x40 != 0,
        ))
    }

    /// Takes the disk's length if it is longer now. One that is shorter or cannot be asked leaves
    /// this as long as it was.
    async fn grow(&self) {
        let target_name = &self.config.target_name;
        let from = self.shape.len_bytes();
        let to = match self.capacity().await {
            Ok((blocks, block, ..)) if block == self.shape.block_size_bytes => {
                blocks * u64::from(block)
            }
            Ok((_, block, ..)) => {
                let error = "the disk has another block size now: open the volume again";
                tracing::error!(target_name, block, error);
                return;
            }
            Err(error) => {
                tracing::warn!(target_name, %error, "the disk may have grown; its capacity is not known");
                return;
            }
        };
        if to > from {
            tracing::info!(target_name, from, to, "the disk has grown");
            self.shape.len.grow(to);
        } else if to < from {
            let mend = "make it as long as it was and check the data";
            tracing::error!(target_name, from, to, mend, "the disk has become shorter");
        }
    }

    /// Write protection and write cache. A target that does not tell is taken to cache.
    async fn mode(&mut self) {
        const CACHING_PAGE: u8 = 0x08;
        const WRITE_PROTECT: u8 = 0x80;
        const WCE: u8 = 0x04;
        let reply = self
            .run(&cdb::mode_sense_6(CACHING_PAGE, 64), Data::In(64))
            .await;
        let Ok(data) = reply.map(|reply| reply.data.to_vec()) else {
            return;
        };
        let byte = |index: usize| data.get(index).copied().unwrap_or(0);
        self.shape.read_only = byte(2) & WRITE_PROTECT != 0;
        let page = 4 + usize::from(byte(3));
        if byte(page) & 0x3f == CACHING_PAGE {
            self.shape.volatile_cache = byte(page + 2) & WCE != 0;
        }
    }

    /// Block limits (SBC-3 6.5.3) and logical block provisioning (6.5.4).
    async fn limits(&mut self, thin: bool, reads_zeroes: bool) {
        let block = u64::from(self.shape.block_size_bytes);
        let page = |reply: Result<Reply>, code: u8| {
            reply
                .ok()
                .map(|r| r.data.to_vec())
                .filter(|data| data.get(1) == Some(&code))
        };
        let limits = self.run(&cdb::inquiry(Some(0xb0), 64), Data::In(64)).await;
        let limits = page(limits, 0xb0).unwrap_or_default();
        let word = |at: usize| {
            let bytes = limits.get(at..at + 4).unwrap_or(&[0; 4]);
            u64::from(u32::from_be_bytes(bytes.try_into().expect("four bytes")))
        };
        let (longest, optimal, granularity) = (word(8) * block, word(12) * block, word(28) * block);
        if longest > 0 {
            self.transfer_max_bytes = longest.min(4 << 20) as usize;
        }
        if optimal > 0 {
            self.shape.optimal_io_bytes = optimal.min(self.transfer_max_bytes as u64) as u32;
        }
        if !thin {
            return;
        }
        let provisioning = self.run(&cdb::inquiry(Some(0xb2), 64), Data::In(64)).await;
        let flags = page(provisioning, 0xb2)
            .and_then(|data| data.get(5).copied())
            .unwrap_or(0);
        const LBPU: u8 = 0x80;
        const LBPWS: u8 = 0x40;
        // Counts of 0 say that there is no UNMAP after all.
        let (unmap_max_blocks, unmap_max_descriptors) = (word(20), word(24));
        if flags & LBPU != 0 && unmap_max_descriptors > 0 {
            self.unmap_max_blocks = unmap_max_blocks.min(COMMAND_MAX_BLOCKS);
        }
        if flags & LBPWS != 0 {
            let limit = limits.get(36..44).unwrap_or(&[0; 8]);
            let limit = u64::from_be_bytes(limit.try_into().expect("eight bytes"));
            self.write_same_max_blocks = if limit == 0 {
                0x8000
            } else {
                limit.min(COMMAND_MAX_BLOCKS)
            };
        }
        if self.unmap_max_blocks > 0 {
            let granularity_bytes = granularity.clamp(block, 1 << 30) as u32;
            self.shape.discard = Some(Discard {
                granularity_bytes,
                reads_zeroes,
            });
        }
    }

    /// Sends a command until it has succeeded, failed for good, or its time is up.
    async fn run(&self, cdb: &Cdb, data: Data) -> Result<Reply> {
        let mut pause = PAUSE_FIRST;
        let mut lost_since: Option<Instant> = None;
        let mut at_once = 0..AT_ONCE_MAX;
        loop {
            if self.may_have_grown.take() {
                LaneFuture::new(self.grow()).await;
            }
            let session = self.session.borrow().clone();
            match session.execute(self.lun, cdb, data.clone()).await {
                Ok(reply) => match self.judge(&reply) {
                    None => return Ok(reply),
                    Some((Verdict::Fail(kind), why)) => return Err(Error::new(kind, why)),
                    Some((Verdict::Retry | Verdict::Restarted, _)) if at_once.next().is_some() => {}
                    Some((_, why)) => {
                        let since = *lost_since.get_or_insert_with(time::now);
                        if time::now() - since > self.config.reconnect_timeout {
                            return Err(Error::new(ErrorKind::TimedOut, why));
                        }
                        time::sleep(pause).await;
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                },
                Err(error) if session.error().is_none() => return Err(error),
                Err(error) => {
                    let since = *lost_since.get_or_insert_with(time::now);
                    self.reconnect(&session, &error, since).await?;
                }
            }
        }
    }

    /// What a reply asks us to do; `None`: nothing, it is good.
    fn judge(&self, reply: &Reply) -> Option<(Verdict, String)> {
        const CHECK_CONDITION: u8 = 0x02;
        let verdict = match reply.status {
            0x00 | 0x04 => return None,
            CHECK_CONDITION => {
                let sense = Sense::parse(&reply.sense);
                // One whose shape is not known yet is going to be asked anyway.
                let is_known = self.shape.len_bytes() > 0;
                self.may_have_grown
                    .set(self.may_have_grown.get() || is_known && sense.may_be_of_another_length());
                (sense.verdict(), format!("the target reports {sense}"))
            }
            // BUSY, TASK SET FULL, TASK ABORTED
            0x08 | 0x28 | 0x40 => (Verdict::RetryLater, "the target stays busy".to_owned()),
            0x18 => {
                let why = "another initiator has reserved the disk".to_owned();
                (Verdict::Fail(ErrorKind::Protocol), why)
            }
            status => {
                let why = format!("the target answers with the unknown SCSI status {status:02x}h");
                (Verdict::Fail(ErrorKind::Protocol), why)
            }
        };
        if verdict.0 == Verdict::Restarted && self.has_unflushed() {
            tracing::error!(
                target_name = self.config.target_name,
                "the target has restarted, or failed, with unflushed writes: they may be lost"
            );
            self.lost_writes.set(true);
        }
        Some(verdict)
    }

    /// Logs in again after `lost` ended with `error`; gives up when its time is up.
    async fn reconnect(&self, lost: &Rc<Session>, error: &Error, since: Instant) -> Result<()> {
        let is_other = || !Rc::ptr_eq(&self.session.borrow(), lost);
        let mut pause = PAUSE_FIRST;
        let mut error = error.clone();
        loop {
            if is_other() {
                return Ok(());
            }
            let now = time::now();
            if now - since > self.config.reconnect_timeout {
                let waited = self.config.reconnect_timeout;
                return Err(error.context(format_args!("no session again within {waited:?}")));
            }
            if self.reconnecting.replace(true) {
                let left = self.config.reconnect_timeout.saturating_sub(now - since);
                let _ = time::timeout(left, self.reconnected.notified()).await;
                continue;
            }
            let attempt = Attempt(self);
            let target_name = &self.config.target_name;
            if !self.loss_is_told.replace(true) {
                tracing::warn!(target_name, %error, "session lost; logging in again");
            }
            match self.log_in_again().await {
                Ok(session) => {
                    tracing::info!(target_name, "logged in again");
                    self.loss_is_told.set(false);
                    *self.session.borrow_mut() = session;
                    drop(attempt);
                    return Ok(());
                }
                Err(refused) if refused.kind() == ErrorKind::Configuration => return Err(refused),
                Err(failed) => error = failed,
            }
            drop(attempt);
            time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// A new session, of which we know what the target has to say: whether it has restarted has
    /// to be known before anything is sent again, or a flush could be answered well before the
    /// unit attention that came with another command is looked at.
    async fn log_in_again(&self) -> Result<Rc<Session>> {
        let session = self.portal.log_in(&self.config).await?;
        for _ in 0..AT_ONCE_MAX {
            let command = cdb::test_unit_ready();
            let reply = session.execute(self.lun, &command, Data::None).await?;
            match self.judge(&reply) {
                None | Some((Verdict::Fail(_), _)) => return Ok(session),
                Some((Verdict::Retry | Verdict::Restarted, _)) => {}
                Some((Verdict::RetryLater, why)) => {
                    session.logout().await;
                    return Err(Error::new(ErrorKind::TimedOut, why));
                }
            }
        }
        session.logout().await;
        let message = "the target has a unit attention for every command";
        Err(Error::new(ErrorKind::Protocol, message))
    }

    /// A write has ended that is durable only after a flush, if it has happened at all. Said before
    /// anything else is waited for, so that a restart finds it said.
    fn wrote(&self, result: Result<Reply>) -> Result<()> {
        self.ended.set(self.ended.get() + 1);
        if result.is_ok() {
            self.promised.set(self.ended.get());
        }
        result.map(drop)
    }

    /// Whether the target's restart loses writes that have ended well. A flush on its way has
    /// covered nothing yet.
    fn has_unflushed(&self) -> bool {
        self.shape.volatile_cache && self.promised.get() > self.flushed.get()
    }

    fn check_nothing_is_lost(&self) -> Result<()> {
        if !self.lost_writes.get() {
            return Ok(());
        }
        let message = "the target failed or restarted before writes were durable; they may be lost: \
                       check the data, then open the volume again (start sanstone again)";
        Err(Error::new(ErrorKind::FlushFailed, message))
    }

    fn blocks(&self, at: u64, len: u64) -> (u64, u32) {
        let block = u64::from(self.shape.block_size_bytes);
        (at / block, (len / block) as u32)
    }

    /// The parts of a range that one command can carry: offset from its start, length.
    fn parts(&self, len: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let longest = self.transfer_max_bytes;
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
        // Its tasks would keep it alive, and answer pings for ever.
        let closed = Error::new(ErrorKind::Unreachable, "the volume has been closed");
        self.session.borrow().end(closed);
    }
}

/// The one attempt to log in again; however it ends, others may try.
struct Attempt<'a>(&'a IscsiDisk);

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.reconnecting.set(false);
        self.0.reconnected.notify();
    }
}

impl Volume for IscsiDisk {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            self.shape.check(at, len as u64)?;
            if len <= self.transfer_max_bytes {
                return self.read_part(at, len).await;
            }
            let parts = self
                .parts(len)
                .map(|(start, len)| self.read_part(at + start as u64, len));
            let mut whole = Payload::new();
            for part in task::join_all(parts).await {
                whole.append(part?);
            }
            Ok(whole)
        })
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.shape.check_write(at, data.len() as u64)?;
            self.check_nothing_is_lost()?;
            let fua = durability == Durability::Fua && self.shape.volatile_cache;
            if data.len() <= self.transfer_max_bytes {
                return self.write_part(at, data, fua).await;
            }
            let parts = self.parts(data.len()).map(|(start, len)| {
                self.write_part(at + start as u64, data.slice(start..start + len), fua)
            });
            task::join_all(parts).await.into_iter().collect()
        })
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            if self.shape.volatile_cache && self.ended.get() > self.flushed.get() {
                let covers = self.ended.get();
                let flushed = self.run(&cdb::synchronize_cache(), Data::None).await;
                if let Err(error) = flushed {
                    self.lost_writes.set(true);
                    return Err(error);
                }
                self.flushed.set(covers.max(self.flushed.get()));
            }
            self.check_nothing_is_lost()
        })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.shape.check_write(at, len)?;
            self.check_nothing_is_lost()?;
            if self.unmap_max_blocks == 0 {
                return Ok(());
            }
            let (mut lba, blocks) = (at / u64::from(self.shape.block_size_bytes), len);
            let mut left = blocks / u64::from(self.shape.block_size_bytes);
            while left > 0 {
                let count = left.min(self.unmap_max_blocks) as u32;
                let list = cdb::unmap_list(lba, count);
                let data = Data::Out(Buf::copy_of(&list).into());
                self.wrote(self.run(&cdb::unmap(list.len() as u16), data).await)?;
                (lba, left) = (lba + u64::from(count), left - u64::from(count));
            }
            Ok(())
        })
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.shape.check_write(at, len)?;
            self.check_nothing_is_lost()?;
            let block = u64::from(self.shape.block_size_bytes);
            let mut done = 0;
            while done < len {
                let left = len - done;
                if self.write_same_max_blocks == 0 {
                    let piece = left.min(self.transfer_max_bytes as u64);
                    let zeroes = Payload::zeroes(piece as usize);
                    self.write(at + done, zeroes, durability).await?;
                    done += piece;
                    continue;
                }
                let count = (left / block).min(self.write_same_max_blocks) as u32;
                let zeroes = Data::Out(Payload::zeroes(block as usize));
                let lba = (at + done) / block;
                let command = cdb::write_same_16(lba, count, may_discard);
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
