//! Records what was acknowledged, and checks whether an image keeps it.
//!
//! The witness is a volume around another. It notes each write and flush with its position in the recording below,
//! and so knows what had been acknowledged at a cut. A sector of an image is correct if it holds what some write (or
//! the initial image) left there, and no write that was promised to be durable by the cut came entirely after that
//! one.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use engine::{LaneFuture, Payload};

use super::{Content, Recording, SECTOR_BYTES};
use crate::{CompareOutcome, Durability, Result, SharedVolume, Volume, fallback};

/// A volume that records what it acknowledges.
pub struct Witness {
    inner: SharedVolume,
    recording: Recording,
    promises: Rc<RefCell<Promises>>,
}

/// What a [`Witness`] has seen.
#[derive(Clone, Debug, Default)]
pub struct Promises {
    writes: Vec<Noted>,
    flushes: Vec<NotedFlush>,
    /// Orders what happens between two events of the recording.
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Moment {
    order: u64,
    /// The number of recorded events that had happened.
    position: usize,
}

#[derive(Clone, Debug)]
struct Noted {
    at: u64,
    content: Content,
    /// Its acknowledgement promises durability.
    promises: bool,
    begun: Moment,
    ended: Option<(Moment, bool)>,
}

#[derive(Clone, Copy, Debug)]
struct NotedFlush {
    begun: Moment,
    ended_well: Option<Moment>,
}

/// A sector that no permitted loss explains.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "after a power cut at event {cut}, the sector at byte {at} does not hold what was acknowledged \
     as durable: {found}"
)]
pub struct Violation {
    /// The position of the cut.
    pub cut: usize,
    /// The byte offset of the sector.
    pub at: u64,
    /// What it holds instead.
    pub found: String,
}

impl Witness {
    /// Records what `inner` acknowledges; its backing file logs into `recording`.
    pub fn new(inner: SharedVolume, recording: Recording) -> Self {
        Witness {
            inner,
            recording,
            promises: Rc::default(),
        }
    }

    /// What was recorded so far.
    pub fn promises(&self) -> Promises {
        self.promises.borrow().clone()
    }

    fn moment(&self) -> Moment {
        let mut promises = self.promises.borrow_mut();
        promises.next += 1;
        Moment {
            order: promises.next,
            position: self.recording.len(),
        }
    }

    async fn note_write(
        &self,
        at: u64,
        content: Content,
        promises: bool,
        write: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let begun = self.moment();
        let index = {
            let mut noted = self.promises.borrow_mut();
            noted.writes.push(Noted {
                at,
                content,
                promises,
                begun,
                ended: None,
            });
            noted.writes.len() - 1
        };
        let result = write.await;
        let ended = self.moment();
        self.promises.borrow_mut().writes[index].ended = Some((ended, result.is_ok()));
        result
    }

    fn is_promise(&self, durability: Durability) -> bool {
        durability == Durability::Fua || !self.inner.shape().volatile_cache
    }
}

impl Volume for Witness {
    crate::pass_on! { self => self.inner; shape, read, member, close, allocation, atomic_writes }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        let content = Content::Bytes(Arc::from(data.to_vec()));
        let write = self.inner.write(at, data, durability);
        LaneFuture::new(self.note_write(at, content, self.is_promise(durability), write))
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            let begun = self.moment();
            let index = {
                let mut noted = self.promises.borrow_mut();
                noted.flushes.push(NotedFlush {
                    begun,
                    ended_well: None,
                });
                noted.flushes.len() - 1
            };
            let result = self.inner.flush().await;
            let ended = self.moment();
            if result.is_ok() {
                self.promises.borrow_mut().flushes[index].ended_well = Some(ended);
            }
            result
        })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        let discard = self.inner.discard(at, len);
        match self.inner.shape().discard {
            Some(kept) if kept.reads_zeroes => {
                let promises = self.is_promise(Durability::Cached);
                LaneFuture::new(self.note_write(at, Content::Zeroes(len), promises, discard))
            }
            // Nothing is promised about the content afterwards, so there is nothing to record.
            _ => discard,
        }
    }

    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        let content = Content::Bytes(Arc::from(data.to_vec()));
        let write = self.inner.write_atomic(at, data, durability);
        LaneFuture::new(self.note_write(at, content, self.is_promise(durability), write))
    }

    /// It records what reaches a file, which has none.
    fn compare_and_write(
        &self,
        _: u64,
        _: Payload,
        _: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        fallback::compare_and_write()
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        let write = self.inner.write_zeroes(at, len, may_discard, durability);
        let promises = self.is_promise(durability);
        LaneFuture::new(self.note_write(at, Content::Zeroes(len), promises, write))
    }
}

impl Promises {
    /// Checks that `image` keeps what had been acknowledged when the power was cut after `cut` events, if the volume
    /// held `before` when the recording began.
    ///
    /// # Errors
    /// The first sector that does not.
    pub fn verify(
        &self,
        cut: usize,
        before: &[u8],
        image: &[u8],
    ) -> std::result::Result<(), Violation> {
        let begun: Vec<&Noted> = self
            .writes
            .iter()
            .filter(|write| write.begun.position <= cut)
            .collect();
        let promised: Vec<bool> = begun
            .iter()
            .map(|write| self.is_promised(write, cut))
            .collect();
        let mut by_sector = vec![Vec::new(); image.len().div_ceil(SECTOR_BYTES)];
        for (index, write) in begun.iter().enumerate() {
            let first = write.at as usize / SECTOR_BYTES;
            let end = (write.at + write.content.len()) as usize / SECTOR_BYTES;
            for writers in &mut by_sector[first..end] {
                writers.push(index);
            }
        }
        for (sector, writers) in by_sector.iter().enumerate() {
            let at = sector * SECTOR_BYTES;
            let found = &image[at..at + SECTOR_BYTES];
            let is_superseded = |ended_order: u64| {
                writers
                    .iter()
                    .any(|&index| promised[index] && begun[index].begun.order > ended_order)
            };
            let is_unwritten = found == &before[at..at + SECTOR_BYTES];
            let explained = (is_unwritten && !is_superseded(0))
                || writers.iter().any(|&index| {
                    let write = begun[index];
                    let ended = write.ended.map_or(u64::MAX, |(moment, _)| moment.order);
                    write.content.part(at - write.at as usize, SECTOR_BYTES) == found
                        && !is_superseded(ended)
                });
            if !explained {
                return Err(Violation {
                    cut,
                    at: at as u64,
                    found: self.describe(found, is_unwritten, at as u64),
                });
            }
        }
        Ok(())
    }

    fn is_promised(&self, write: &Noted, cut: usize) -> bool {
        let Some((ended, true)) = write.ended else {
            return false;
        };
        (write.promises && ended.position <= cut)
            || self.flushes.iter().any(|flush| {
                flush.begun.order > ended.order
                    && flush
                        .ended_well
                        .is_some_and(|flushed| flushed.position <= cut)
            })
    }

    fn describe(&self, found: &[u8], is_unwritten: bool, at: u64) -> String {
        let writer = self.writes.iter().position(|write| {
            let end = write.at + write.content.len();
            (write.at..end).contains(&at)
                && write.content.part((at - write.at) as usize, found.len()) == found
        });
        match writer {
            Some(index) => format!("it holds what write {index} left, which a later one replaced"),
            None if is_unwritten => "it holds what was there before any write".into(),
            None => "it holds what nobody wrote".into(),
        }
    }
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Witness({:?})", self.inner.shape())
    }
}
