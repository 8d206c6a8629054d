//! A mirror: one volume on two copies. A write is acknowledged when both have it on persistent media, so nothing is lost
//! with one of them; a copy that fails leaves, and is filled with what it has missed when it returns.
//!
//! What may be acknowledged, read and cleared, and when, is decided by the pure machine in `crates/mirror`; `driver` carries
//! it out, `upkeep` gives it time. `register` and `lun_register` keep the record of who owns the mirror and which copies are in
//! sync, `copy` what lies at the end of each. `open` claims a mirror, `create` makes one,
//! `grow` gives it another length. `docs/internals/mirror.md` has the rules.
//!
//! The state is on one lane, which orders what overlaps.

mod calls;
mod compare;
mod comparison;
mod copy;
mod create;
mod driver;
mod exchange;
mod grow;
mod lun_register;
mod numbered;
mod open;
mod register;
mod register_place;
mod replace;
mod requests;
pub mod settings;
mod status;
#[cfg(test)]
mod tests;
mod upkeep;

use std::{pin::pin, rc::Rc};

use ::mirror::{Mirror, MirrorEvent};
use engine::{Duration, LaneFuture, Payload, task::join_all, time};

use self::driver::Driver;
pub(crate) use self::lun_register::records;
pub use self::{
    comparison::Compared,
    status::{CopyStatus, MirrorHandle, MirrorStatus},
};
use crate::{
    Durability, Error, ErrorKind, Len, ReadOnly, Result, Shape, Volume, fallback,
    member::{Looks, Order, Report},
};

/// How long closing waits for the last heartbeats, and for the marks to be cleared.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// A mirror on its home lane.
pub(crate) struct MirrorVolume {
    driver: Rc<Driver>,
    shape: Shape,
}

impl MirrorVolume {
    fn new(driver: Rc<Driver>) -> MirrorVolume {
        let looks = || {
            driver
                .places()
                .filter_map(|copy| driver.copy(copy).looks().copied())
        };
        let most = |of: fn(&Looks) -> u32| looks().map(|looks| of(&looks)).max().unwrap_or(512);
        let shape = Shape {
            block_size_bytes: driver.header.block_bytes as u32,
            physical_block_bytes: most(|looks| looks.physical_block_bytes),
            // What the copies were created with, whatever they have become.
            len: Len::new(driver.header.data_bytes),
            volatile_cache: false,
            read_only: ReadOnly::new(false),
            discard: None,
            optimal_io_bytes: most(|looks| looks.optimal_io_bytes),
            compare_and_write_max_bytes: 0,
        };
        MirrorVolume { driver, shape }
    }

    /// Sends the heartbeats that are still due, so that each copy and the register remember one that is newer than the last write;
    /// then waits until no region is marked any more, so that the next start has nothing to equalise.
    async fn settle(&self) {
        let driver = &self.driver;
        while driver.takes_heartbeat() {
            driver.tell(MirrorEvent::Beat);
            driver.until(Mirror::has_confirmed).await;
        }
        driver.clear_marks();
        driver.until(Mirror::is_settled).await;
    }
}

impl Volume for MirrorVolume {
    crate::fall_back!();

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            self.shape.check(at, len as u64)?;
            self.driver.read(at, len as u64).await
        })
    }

    /// Every write is durable when it is acknowledged.
    fn write(&self, at: u64, data: Payload, _: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.shape.check_write(at, data.len() as u64)?;
            self.driver.write(at, data).await
        })
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move { self.driver.check() })
    }

    /// A mirror has fenced its copies when it was opened, so whoever owns it owns them.
    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>> {
        fallback::member(self, order)
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            if self.driver.check().is_ok() && self.driver.is_serving() {
                let _ = time::timeout(CLOSE_LIMIT, pin!(self.settle())).await;
            }
            self.driver.end(Error::new(
                ErrorKind::Preempted,
                "the volume has been closed",
            ));
            let copies = self.driver.places().map(|copy| self.driver.copy(copy));
            let closed = copies.map(|copy| Box::pin(async move { copy.volume.close().await }));
            let closed = join_all(closed).await;
            self.driver.register_place.close().await;
            closed.into_iter().collect()
        })
    }

    /// A copy may not free what the other one keeps, so nothing is freed.
    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move { self.shape.check_write(at, len) })
    }
}

impl Drop for MirrorVolume {
    fn drop(&mut self) {
        self.driver.end(Error::new(
            ErrorKind::Preempted,
            "the volume has been closed",
        ));
    }
}
