//! Puts another disk in the place of a copy while the mirror is used, as a step of a new configuration. The copy leaves,
//! as one that fails does; then the new disk is made that copy, one that has missed everything, and returns as such: fenced
//! and filled whole. What the old disk has still to answer concerns nobody any more.
//!
//! The other way is [`replace`](super::replace), while nobody uses the mirror.

use std::{
    fmt,
    pin::pin,
    rc::{Rc, Weak},
    sync::Arc,
};

use ::mirror::{CopyId, MirrorEvent, copy::Header};
use engine::{Duration, LaneFuture, LaneHandle, time};

use super::{
    copy::Copy,
    create::{check_blank, write},
    driver::Driver,
    replace::look_at_new,
};
use crate::{
    Error, ErrorKind, Result,
    kinds::change::Step,
    part::{Part, Resident},
};

/// How long the old disk may take to be closed before nobody waits for it any more.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Why the last copy in sync cannot be replaced, after its name.
pub(super) const ONLY_IN_SYNC: &str = "it is the only copy in sync: what was written since the other is out is on it \
     alone; wait until the other is in sync, which `sanstone status` tells";

/// The handle on an open mirror.
#[derive(Clone, Debug)]
pub(super) struct OpenMirror(Arc<Resident<Weak<Driver>>>);

impl OpenMirror {
    /// Keeps `driver` on `home`, the current lane, for as long as there is a handle on it.
    pub(super) fn keep(home: LaneHandle, driver: &Rc<Driver>) -> OpenMirror {
        OpenMirror(Resident::keep(home, Rc::downgrade(driver)))
    }
}

/// Another disk for a copy of an open mirror.
pub(super) struct Exchange {
    open: OpenMirror,
    /// What messages call the old disk and the new one.
    old: String,
    new: String,
    /// The new disk, which is open.
    part: Arc<Part>,
}

impl Exchange {
    pub(super) fn new(open: OpenMirror, [old, new]: [String; 2], part: Arc<Part>) -> Exchange {
        Exchange {
            open,
            old,
            new,
            part,
        }
    }

    /// Does `what` with the mirror, on its lane.
    fn with<F>(
        &self,
        what: impl FnOnce(Rc<Driver>, CopyId) -> F + Send + 'static,
    ) -> LaneFuture<'_, Result<()>>
    where
        F: Future<Output = Result<()>> + 'static,
    {
        let old = self.old.clone();
        let done = self.open.0.call(move |driver: Weak<Driver>| async move {
            let driver = driver.upgrade().ok_or_else(closed)?;
            let copy = driver
                .places()
                .find(|copy| driver.copy(*copy).name == old)
                .ok_or_else(|| {
                    let message = format!("{old} is none of its copies: restart to apply this");
                    Error::new(ErrorKind::Configuration, message)
                })?;
            what(driver, copy).await
        });
        LaneFuture::new(done)
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange({} by {})", self.old, self.new)
    }
}

impl Step for Exchange {
    fn prepare(&self) -> LaneFuture<'_, Result<()>> {
        let (name, part) = (self.new.clone(), self.part.clone());
        self.with(async move |driver, copy| {
            let new = Rc::new(Copy::new(name, part.on_lane().await?));
            driver.prepare_exchange(copy, new).await
        })
    }

    fn take_effect(&self) -> LaneFuture<'_, ()> {
        let taken = self.with(async move |driver, copy| {
            let new = driver.copy(copy).next.take().expect("it was prepared");
            let old = driver.put(copy, new);
            tracing::warn!(
                mirror = driver.name,
                old = old.name,
                new = driver.copy(copy).name,
                "another disk is in the place of a copy, and is filled whole"
            );
            driver.tell(MirrorEvent::Back(copy));
            driver.report();
            let closed = time::timeout(CLOSE_LIMIT, old.volume.close()).await;
            if let Some(Err(error)) = closed {
                tracing::warn!(copy = old.name, %error, "the disk that was replaced could not be closed");
            }
            Ok(())
        });
        LaneFuture::new(async move {
            if let Err(error) = taken.await {
                tracing::error!(%error, "the copy was not replaced: restart to apply this");
            }
        })
    }

    fn undo(&self) -> LaneFuture<'_, ()> {
        let part = self.part.clone();
        let undone = self.with(async move |driver, copy| {
            // It returns by itself, and has missed little.
            driver.copy(copy).next.take();
            part.on_lane().await?.close().await
        });
        LaneFuture::new(async move {
            // An error: the mirror was closed, or the disk could not be.
            let _ = undone.await;
        })
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Unreachable, "the mirror has been closed")
}

impl Driver {
    /// Has `copy` leave, and makes `new`, which is blank, a copy in its place that has missed everything.
    async fn prepare_exchange(&self, copy: CopyId, new: Rc<Copy>) -> Result<()> {
        self.check()?;
        if !self.is_serving() {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "its copies are being fenced",
            ));
        }
        let header = Header {
            copy,
            ..self.header
        };
        self.check_new(&header, &new).await?;
        let old = self.copy(copy);
        if self.machine(|it| it.record().in_sync) == copy.into() {
            return Err(old.refuse(ONLY_IN_SYNC));
        }
        self.ask_register().await?;
        old.next.replace(Some(new.clone()));
        let why = Error::new(ErrorKind::Configuration, "another disk takes its place");
        self.give_up((copy, &old), &why);
        let out = pin!(self.until(|it| it.is_out(copy)));
        let left = time::timeout(self.limits.request, out).await;
        self.report();
        self.check()?;
        if left.is_none() {
            return Err(old.refuse(
                "the register does not take it out of the set, or it is the last one that answers: it stays",
            ));
        }
        let record = self.machine(|it| *it.record());
        let written = write(&new, record, &header).await;
        written.map_err(|error| new.blame(error))
    }

    /// Refuses a disk that cannot be the copy with this header, or holds something.
    async fn check_new(&self, header: &Header, new: &Copy) -> Result<()> {
        // Left from an attempt that was taken back, or the same disk under another name.
        if look_at_new(new, header).await? == Some(*header) {
            return Ok(());
        }
        let blank = check_blank(new, header.data_bytes).await;
        blank.map_err(|error| {
            error.context(
                "a copy in use is replaced by a blank disk only (to overwrite one, stop whoever serves the mirror, and run \
                 `sanstone volume replace --force`)",
            )
        })
    }
}
