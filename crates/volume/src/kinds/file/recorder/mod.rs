//! The power-cut recorder: shows what a power cut at any moment could have left of a volume, and checks that against
//! what was promised.
//!
//! It has three parts, at three levels:
//! - [`Recorder`] is a [`Backing`] that wraps the one below a file leaf. It logs the begin and end of every write and
//!   sync into a [`Recording`], so it sees what the leaf has really done.
//! - `replay.rs` builds images from a recording: after a cut, writes that were durable or covered by a sync are
//!   there; of the others any subset, torn at sectors.
//! - `witness.rs` is a volume around the leaf (or a whole tree). It records what was *acknowledged* at the top, and
//!   checks whether an image keeps that. It knows nothing about how.
//!
//! A leaf that omits an fdatasync or a FUA acknowledges something that its recording does not contain.

mod replay;
#[cfg(test)]
mod tests;
mod witness;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{Buf, Payload, extent::Extent, op::AllocateMode};

use super::Backing;

pub use replay::Survivors;
pub use witness::{Promises, Violation, Witness};

/// The unit that persists entirely or not at all, in bytes: the smallest sector of any disk.
pub const SECTOR_BYTES: usize = 512;

/// The log of one backing file, in memory. Clones share the log, on any thread.
#[derive(Clone, Debug, Default)]
pub struct Recording(Arc<Mutex<Vec<Event>>>);

#[derive(Clone, Debug)]
enum Event {
    WriteBegun {
        id: usize,
        at: u64,
        content: Content,
        durable: bool,
        atomic: bool,
    },
    WriteEnded {
        id: usize,
        ok: bool,
    },
    SyncBegun {
        id: usize,
    },
    SyncEnded {
        id: usize,
        ok: bool,
    },
}

#[derive(Clone, Debug)]
enum Content {
    Bytes(Arc<[u8]>),
    Zeroes(u64),
}

impl Content {
    fn len(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Zeroes(len) => *len,
        }
    }

    /// Copies the part starting at byte `from` into `to`.
    fn copy_to(&self, from: usize, to: &mut [u8]) {
        match self {
            Content::Bytes(bytes) => to.copy_from_slice(&bytes[from..from + to.len()]),
            Content::Zeroes(_) => to.fill(0),
        }
    }

    fn part(&self, from: usize, len: usize) -> Vec<u8> {
        let mut part = vec![0; len];
        self.copy_to(from, &mut part);
        part
    }
}

impl Recording {
    /// An empty log.
    pub fn new() -> Self {
        Recording::default()
    }

    /// The number of events. A cut may be before each and after the last: 0 to this.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether nothing was logged.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the event that `event` builds from its own position, which is its id.
    fn begin(&self, event: impl FnOnce(usize) -> Event) -> usize {
        let mut events = self.lock();
        let id = events.len();
        events.push(event(id));
        id
    }

    fn end(&self, event: Event) {
        self.lock().push(event);
    }
}

/// A backing file that logs each request and passes it on.
#[derive(Debug)]
pub struct Recorder<B> {
    backing: B,
    recording: Recording,
}

impl<B: Backing> Recorder<B> {
    /// Wraps `backing`, logging its requests into `recording`.
    pub fn new(backing: B, recording: Recording) -> Self {
        Recorder { backing, recording }
    }

    async fn record_write(
        &self,
        at: u64,
        content: Content,
        (durable, atomic): (bool, bool),
        write: impl Future<Output = io::Result<()>>,
    ) -> io::Result<()> {
        let id = self.recording.begin(|id| Event::WriteBegun {
            id,
            at,
            content,
            durable,
            atomic,
        });
        let result = write.await;
        self.recording.end(Event::WriteEnded {
            id,
            ok: result.is_ok(),
        });
        result
    }
}

impl<B: Backing> Backing for Recorder<B> {
    async fn read(&self, at: u64, buf: Buf) -> (io::Result<()>, Buf) {
        self.backing.read(at, buf).await
    }

    async fn write(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        let content = Content::Bytes(data.to_vec().into());
        let write = self.backing.write(at, data, durable);
        self.record_write(at, content, (durable, false), write)
            .await
    }

    async fn write_atomic(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        let content = Content::Bytes(data.to_vec().into());
        let write = self.backing.write_atomic(at, data, durable);
        self.record_write(at, content, (durable, true), write).await
    }

    async fn extent(&self, at: u64) -> io::Result<Extent> {
        self.backing.extent(at).await
    }

    async fn sync(&self) -> io::Result<()> {
        let id = self.recording.begin(|id| Event::SyncBegun { id });
        let result = self.backing.sync().await;
        self.recording.end(Event::SyncEnded {
            id,
            ok: result.is_ok(),
        });
        result
    }

    async fn allocate(&self, mode: AllocateMode, at: u64, len: u64) -> io::Result<()> {
        let allocate = self.backing.allocate(mode, at, len);
        match mode {
            AllocateMode::PunchHole | AllocateMode::Zero => {
                self.record_write(at, Content::Zeroes(len), (false, false), allocate)
                    .await
            }
            AllocateMode::Reserve => allocate.await,
        }
    }
}
