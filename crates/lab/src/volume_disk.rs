//! A volume as the disk under SQLite. The thread that runs SQLite is itself a lane of the engine: when a read
//! must wait, it drives the lane, so there is no second thread to wake or wait for.
//!
//! Writes stay in flight, up to a bound, until a flush waits for them. That is what a file promises, and it
//! keeps all shares of a stripe busy. Two writes of the same block are never in flight together, because a
//! volume does not order them. A read that overlaps a write in flight sees the new bytes, copied over what
//! the volume returned. The first error of a write or flush is sticky: every later call fails with it,
//! because a read could no longer return what was written.

use std::{
    cell::{Cell, RefCell},
    io,
    ops::Range,
    rc::Rc,
};

use engine::{
    Buf, Lane, Payload,
    range::overlap,
    sync::{Budget, Notify},
    task,
};
use volume::{Durability, ErrorKind, SharedVolume};

use crate::sqlite::{BLOCK_BYTES, DatabaseDisk, checked_range};

/// Enough writes in flight to keep a few fast links busy, at little memory.
pub const IN_FLIGHT_BYTES: usize = 8 << 20;

/// A volume on a lane, used from the thread that drives the lane.
pub struct VolumeDisk {
    lane: Rc<Lane>,
    len_bytes: u64,
    flight: Rc<Flight>,
}

/// The state of I/O in flight, shared with its tasks.
struct Flight {
    volume: SharedVolume,
    budget: Rc<Budget>,
    writes: RefCell<Vec<PendingWrite>>,
    next_id: Cell<u64>,
    landed: Notify,
    /// The first error of a write or flush.
    lost: RefCell<Option<volume::Error>>,
}

/// A write in flight.
struct PendingWrite {
    id: u64,
    at: u64,
    data: Payload,
}

impl PendingWrite {
    fn range(&self) -> Range<u64> {
        self.at..self.at + self.data.len() as u64
    }
}

impl VolumeDisk {
    /// The disk on `volume`, which was opened on `lane`, with at most `in_flight_bytes` of writes in flight
    /// ([`IN_FLIGHT_BYTES`]). A partial block at the end of the volume is not used.
    ///
    /// # Errors
    /// The volume is read-only.
    pub fn new(
        lane: Rc<Lane>,
        volume: SharedVolume,
        in_flight_bytes: usize,
    ) -> volume::Result<Self> {
        let shape = volume.shape();
        if shape.read_only.is_on() {
            let message = "a database needs a writable volume";
            return Err(volume::Error::new(ErrorKind::ReadOnly, message));
        }
        let len_bytes = shape.len_bytes() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let flight = Rc::new(Flight {
            volume,
            budget: Budget::new(in_flight_bytes),
            writes: RefCell::default(),
            next_id: Cell::new(0),
            landed: Notify::new(),
            lost: RefCell::default(),
        });
        Ok(Self {
            lane,
            len_bytes,
            flight,
        })
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        checked_range(self.len_bytes, offset, len)?;
        self.flight.check_lost().map_err(|error| into_io(&error))
    }
}

impl DatabaseDisk for VolumeDisk {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.check(offset, buffer.len())?;
        if buffer.is_empty() {
            return Ok(());
        }
        // Taken before the read: a write that completes while the read runs may be missing from its result.
        let newer = self.flight.overlapping(offset, buffer.len());
        let data = self.lane.block_on(async {
            let data = self.flight.volume.read(offset, buffer.len()).await;
            // A read served from memory completes without yielding. Without this, a scan that always hits
            // would never let the lane poll the sockets that bring in more data.
            task::yield_now().await;
            data
        });
        data.map_err(|error| into_io(&error))?.copy_to(0, buffer);
        for (at, data) in newer {
            lay_over(buffer, offset, at, &data);
        }
        // A write may have failed meanwhile, and the data just read may depend on it.
        self.flight.check_lost().map_err(|error| into_io(&error))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let data = Payload::from(Buf::copy_of(bytes));
        self.lane.block_on(self.flight.clone().begin(offset, data));
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.lane
            .block_on(self.flight.flush())
            .map_err(|error| into_io(&error))
    }
}

impl Flight {
    /// Starts a write as soon as the bound and overlapping writes in flight permit.
    async fn begin(self: Rc<Self>, at: u64, data: Payload) {
        let len = data.len();
        let permit = self.budget.take(len).await;
        self.landed
            .wait_for(|| self.overlapping(at, len).is_empty().then_some(()))
            .await;
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        self.writes.borrow_mut().push(PendingWrite {
            id,
            at,
            data: data.clone(),
        });
        task::spawn(async move {
            let result = self.volume.write(at, data, Durability::Cached).await;
            if let Err(error) = result {
                self.lose(error.context("a write was lost"));
            }
            self.writes.borrow_mut().retain(|write| write.id != id);
            drop(permit);
            self.landed.notify();
        });
    }

    async fn flush(&self) -> volume::Result<()> {
        self.landed
            .wait_for(|| self.writes.borrow().is_empty().then_some(()))
            .await;
        self.check_lost()?;
        let result = self.volume.flush().await;
        if let Err(error) = &result {
            self.lose(error.clone().context("a flush failed"));
        }
        result
    }

    /// The writes in flight within a range, in the order they were started.
    fn overlapping(&self, at: u64, len: usize) -> Vec<(u64, Payload)> {
        let writes = self.writes.borrow();
        let range = at..at + len as u64;
        let overlapping = writes
            .iter()
            .filter(|write| overlap(&write.range(), &range));
        overlapping
            .map(|write| (write.at, write.data.clone()))
            .collect()
    }

    fn lose(&self, error: volume::Error) {
        self.lost.borrow_mut().get_or_insert(error);
    }

    fn check_lost(&self) -> volume::Result<()> {
        self.lost.borrow().clone().map_or(Ok(()), Err)
    }
}

/// Copies the overlap of `data` (at `at`) and `buffer` (at `offset`) into `buffer`.
fn lay_over(buffer: &mut [u8], offset: u64, at: u64, data: &Payload) {
    let (from, to) = (
        at.max(offset),
        (at + data.len() as u64).min(offset + buffer.len() as u64),
    );
    if from < to {
        let part = &mut buffer[(from - offset) as usize..(to - offset) as usize];
        data.copy_to((from - at) as usize, part);
    }
}

fn into_io(error: &volume::Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::NoSpace => io::ErrorKind::StorageFull,
        ErrorKind::TimedOut => io::ErrorKind::TimedOut,
        ErrorKind::Unreachable => io::ErrorKind::ConnectionAborted,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error.clone())
}

#[cfg(test)]
#[path = "volume_disk_tests.rs"]
mod tests;
