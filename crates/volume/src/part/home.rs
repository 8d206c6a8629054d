//! Volumes with one home. What a cache, a link or an iSCSI session knows lives on one lane; users
//! on other lanes have a [`Remote`], which sends each request there and waits for its answer.
//!
//! A lane's homed volumes are in a table of its thread, under numbers that are used once in the
//! process. Payload crosses as a [`Buf`](engine::Buf): the same memory if it is not shared, else one copy.

use std::{
    cell::RefCell,
    collections::HashMap,
    future::Future,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use engine::{LaneFuture, LaneHandle, Payload};

use crate::{
    Allocation, AtomicWrites, Claim, Durability, Error, ErrorKind, Result, Shape, SharedVolume,
    Volume,
};

thread_local! {
    static HERE: RefCell<HashMap<u64, SharedVolume>> = RefCell::default();
}

/// A volume that lives on one lane; it goes when this is dropped, anywhere.
#[derive(Debug)]
pub(super) struct Home {
    number: u64,
    lane: LaneHandle,
    shape: Shape,
    atomic_writes: Option<AtomicWrites>,
}

impl Home {
    /// Runs `make` on `lane` and keeps what it gives there.
    pub(super) async fn settle(
        lane: &LaneHandle,
        make: impl FnOnce() -> LaneFuture<'static, Result<SharedVolume>> + Send + 'static,
    ) -> Result<Arc<Self>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (shape, atomic_writes) = lane
            .call(move || async move {
                let volume = make().await?;
                let looks = (volume.shape().clone(), volume.atomic_writes());
                HERE.with(|here| here.borrow_mut().insert(number, volume));
                Ok(looks)
            })
            .await
            .unwrap_or_else(|| Err(lane_ended()))?;
        Ok(Arc::new(Home {
            number,
            lane: lane.clone(),
            shape,
            atomic_writes,
        }))
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Whether it lives on the current lane.
    pub(super) fn is_here(&self) -> bool {
        self.lane.is_current()
    }

    /// The volume itself on its own lane, elsewhere a remote of it.
    pub(super) fn on_lane(self: &Arc<Self>) -> Result<SharedVolume> {
        if self.lane.is_current() {
            here(self.number)
        } else {
            Ok(Rc::new(Remote(self.clone())))
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let number = self.number;
        if self.lane.is_current() {
            drop(leave(number));
        } else {
            self.lane.spawn(move || {
                drop(leave(number));
                std::future::ready(())
            });
        }
    }
}

fn leave(number: u64) -> Option<SharedVolume> {
    HERE.try_with(|here| here.borrow_mut().remove(&number))
        .ok()?
}

fn here(number: u64) -> Result<SharedVolume> {
    HERE.with(|here| here.borrow().get(&number).cloned())
        .ok_or_else(|| Error::new(ErrorKind::Unreachable, "the volume has been closed"))
}

fn lane_ended() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the lane on which the volume lives has ended",
    )
}

/// A volume that lives on another lane.
#[derive(Debug)]
struct Remote(Arc<Home>);

impl Remote {
    /// Runs `request` on the volume's lane and brings its result here. It runs to its end there
    /// also if nobody waits for it any more.
    async fn call<T, F>(
        &self,
        request: impl FnOnce(SharedVolume) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + 'static,
    {
        let number = self.0.number;
        let make = move || async move { request(here(number)?).await };
        let answer = self.0.lane.call(make).await;
        answer.unwrap_or_else(|| Err(lane_ended()))
    }
}

impl Volume for Remote {
    fn shape(&self) -> &Shape {
        &self.0.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            let data = self
                .call(move |volume| async move {
                    let data = volume.read(at, len).await?;
                    Ok(data.into_buf())
                })
                .await?;
            Ok(data.into())
        })
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        let data = data.into_buf();
        LaneFuture::new(
            self.call(move |volume| async move { volume.write(at, data.into(), durability).await }),
        )
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.call(|volume| async move { volume.flush().await }))
    }

    fn claim(&self, claim: &Claim) -> LaneFuture<'_, Result<()>> {
        let claim = claim.clone();
        LaneFuture::new(self.call(move |volume| async move { volume.claim(&claim).await }))
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.call(|volume| async move { volume.close().await }))
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.call(move |volume| async move { volume.discard(at, len).await }))
    }

    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        LaneFuture::new(self.call(move |volume| async move { volume.allocation(at, len).await }))
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        self.0.atomic_writes
    }

    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        let data = data.into_buf();
        LaneFuture::new(self.call(move |volume| async move {
            volume.write_atomic(at, data.into(), durability).await
        }))
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.call(move |volume| async move {
            volume.write_zeroes(at, len, may_discard, durability).await
        }))
    }
}
