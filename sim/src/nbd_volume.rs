//! A volume that an NBD server shows, as its client uses it. Nothing is sent again: what is in flight when the connection
//! ends has failed, and everything fails until the next connection; or, if what was in flight may happen until then, it
//! fails with the next connection.

use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    rc::Rc,
};

use engine::{Buf, LaneFuture, Payload, sync::Notify};
use volume::{
    CompareOutcome, Durability, Error, ErrorKind, Len, Result, Shape, Volume, fallback,
    member::{Order, Report},
};

use crate::{
    content::SECTOR_BYTES,
    nbd_client::{
        Answer, FLUSH, FUA, IO, NO_SPACE, NbdClient, PERMISSION, READ, SHUTDOWN, TRIM, WRITE_ZEROES,
    },
};

/// The volume.
pub struct NbdVolume {
    shape: Shape,
    client: RefCell<Option<Rc<NbdClient>>>,
    /// Connections that were made so far.
    connections: Cell<usize>,
    connected: Notify,
    /// See [`NbdVolume::durable`].
    is_durable: bool,
    /// See [`NbdVolume::supersede`].
    is_superseded: Cell<bool>,
}

impl NbdVolume {
    /// A volume of `len_bytes`, not connected yet.
    pub fn new(len_bytes: u64) -> Rc<NbdVolume> {
        NbdVolume::over(len_bytes, false)
    }

    /// The same over a mirror, which has no volatile cache and no TRIM. What a lost connection fails is reported with the
    /// next connection: before that it may still happen.
    pub fn durable(len_bytes: u64) -> Rc<NbdVolume> {
        NbdVolume::over(len_bytes, true)
    }

    fn over(len_bytes: u64, is_durable: bool) -> Rc<NbdVolume> {
        Rc::new(NbdVolume {
            shape: Shape {
                block_size_bytes: SECTOR_BYTES as u32,
                physical_block_bytes: SECTOR_BYTES as u32,
                len: Len::new(len_bytes),
                // The protocol does not tell of caches.
                volatile_cache: !is_durable,
                read_only: volume::ReadOnly::default(),
                discard: None,
                optimal_io_bytes: SECTOR_BYTES as u32,
                compare_and_write_max_bytes: 0,
            },
            client: RefCell::default(),
            connections: Cell::new(0),
            connected: Notify::new(),
            is_durable,
            is_superseded: Cell::new(false),
        })
    }

    /// Connects to the server at `address`.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn connect(&self, address: SocketAddr, is_structured: bool) -> io::Result<()> {
        let client = NbdClient::start(address, is_structured).await?;
        self.client.replace(Some(client));
        self.connections.set(self.connections.get() + 1);
        self.is_superseded.set(false);
        self.connected.notify();
        Ok(())
    }

    /// Until the next connection somebody else has what the server shows. What a lost connection fails does not happen any
    /// more, and the server may not read or write anything for a request that comes from now on.
    pub fn supersede(&self) {
        self.is_superseded.set(true);
        self.connected.notify();
    }

    /// Ends the connection.
    pub fn disconnect(&self) {
        if let Some(client) = self.client.take() {
            client.end();
        }
    }

    /// The answer to a request, which is a flush or not.
    async fn ask(
        &self,
        is_flush: bool,
        request: impl AsyncFnOnce(&NbdClient) -> Answer,
    ) -> Result<Vec<u8>> {
        let client = self.client.borrow().clone();
        let before = self.connections.get();
        let is_late = self.is_superseded.get();
        let answer = match client {
            Some(client) => request(&client).await,
            None => None,
        };
        match answer {
            Some(Ok(data)) => {
                assert!(!is_late || is_flush, "a former owner has answered");
                Ok(data)
            }
            // Another owner has it.
            Some(Err(PERMISSION)) => Err(Error::new(ErrorKind::Preempted, "NBD_EPERM")),
            Some(Err(IO)) => Err(Error::new(ErrorKind::Medium, "NBD_EIO")),
            None => {
                if self.is_durable {
                    let is_next = || {
                        let is_over = self.connections.get() > before || self.is_superseded.get();
                        is_over.then_some(())
                    };
                    self.connected.wait_for(is_next).await;
                }
                Err(Error::new(ErrorKind::Unreachable, "no connection"))
            }
            // Also what has taken too long.
            Some(Err(SHUTDOWN)) => Err(Error::new(ErrorKind::TimedOut, "NBD_ESHUTDOWN")),
            Some(Err(NO_SPACE)) => Err(Error::new(ErrorKind::NoSpace, "NBD_ENOSPC")),
            Some(Err(other)) => panic!("the server answers with error {other}"),
        }
    }

    /// The same for a request without data in its answer.
    fn tell<'a>(
        &'a self,
        (kind, flags): (u16, u16),
        (at, len): (u64, u64),
    ) -> LaneFuture<'a, Result<()>> {
        LaneFuture::new(async move {
            let is_flush = kind == FLUSH;
            let asked = self.ask(is_flush, async |client| {
                client.ask((kind, flags), at, len as u32).await
            });
            asked.await.map(drop)
        })
    }
}

fn flags(durability: Durability) -> u16 {
    match durability {
        Durability::Fua => FUA,
        Durability::Cached => 0,
    }
}

impl Volume for NbdVolume {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            let asked = self.ask(false, async |client| {
                client.ask((READ, 0), at, len as u32).await
            });
            Ok(Buf::copy_of(&asked.await?).into())
        })
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            let (data, flags) = (data.to_vec(), flags(durability));
            let asked = self.ask(false, async |client| client.write(at, &data, flags).await);
            asked.await.map(drop)
        })
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        _may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        self.tell((WRITE_ZEROES, flags(durability)), (at, len))
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        self.tell((FLUSH, 0), (0, 0))
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        match self.is_durable {
            true => LaneFuture::new(async { Ok(()) }),
            false => self.tell((TRIM, 0), (at, len)),
        }
    }

    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>> {
        fallback::member(self, order)
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        self.disconnect();
        LaneFuture::new(async { Ok(()) })
    }

    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<volume::Allocation>> {
        volume::fallback::allocation(self, at, len)
    }

    fn atomic_writes(&self) -> Option<volume::AtomicWrites> {
        None
    }

    fn write_atomic(&self, _: u64, _: Payload, _: Durability) -> LaneFuture<'_, Result<()>> {
        volume::fallback::write_atomic()
    }

    fn compare_and_write(
        &self,
        _: u64,
        _: Payload,
        _: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        volume::fallback::compare_and_write()
    }
}
