//! Volumes with a home lane. The state of a cache, a link or an iSCSI session lives on one lane; users on other lanes
//! have a [`Remote`], which sends each request there and waits for the answer.
//!
//! Payload crosses lanes as a [`Buf`](engine::Buf): the same memory if it is not shared, otherwise a copy.

use std::{future::Future, rc::Rc, sync::Arc};

use engine::{LaneFuture, LaneHandle, Payload};

use super::Resident;
use crate::{AtomicWrites, Result, Shape, SharedVolume, Volume, pass_on::pass_home};

/// A volume that lives on one lane; dropping this anywhere drops it there.
#[derive(Debug)]
pub(crate) struct HomeVolume {
    volume: Arc<Resident<SharedVolume>>,
    shape: Shape,
    atomic_writes: Option<AtomicWrites>,
}

impl HomeVolume {
    /// Runs `make` on `lane` and keeps the resulting volume there.
    pub(crate) async fn settle(
        lane: &LaneHandle,
        make: impl FnOnce() -> LaneFuture<'static, Result<SharedVolume>> + Send + 'static,
    ) -> Result<Arc<Self>> {
        let make = move || {
            LaneFuture::new(async move {
                let volume = make().await?;
                let looks = (volume.shape().clone(), volume.atomic_writes());
                Ok((volume, looks))
            })
        };
        let (volume, (shape, atomic_writes)) = Resident::settle(lane, make).await?;
        Ok(Arc::new(HomeVolume {
            volume,
            shape,
            atomic_writes,
        }))
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn lane(&self) -> &LaneHandle {
        self.volume.lane()
    }

    /// Whether it lives on the current lane.
    pub(super) fn is_here(&self) -> bool {
        self.volume.lane().is_current()
    }

    /// The volume itself on its own lane, a remote elsewhere.
    pub(crate) fn on_lane(self: &Arc<Self>) -> Result<SharedVolume> {
        match self.is_here() {
            true => self.volume.here(),
            false => Ok(Rc::new(Remote(self.clone()))),
        }
    }
}

/// A volume that lives on another lane.
#[derive(Debug)]
struct Remote(Arc<HomeVolume>);

impl Remote {
    /// Runs `request` on the volume's lane and returns its result here. It runs to completion there even if nobody
    /// waits for it any more.
    fn at_home<T, F>(
        &self,
        request: impl FnOnce(SharedVolume) -> F + Send + 'static,
    ) -> LaneFuture<'static, Result<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + 'static,
    {
        LaneFuture::new(self.0.volume.call(request))
    }
}

impl Volume for Remote {
    fn shape(&self) -> &Shape {
        &self.0.shape
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        self.0.atomic_writes
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            let data = self.0.volume.call(move |volume: SharedVolume| async move {
                let data = volume.read(at, len).await?;
                Ok(data.into_buf())
            });
            Ok(data.await?.into())
        })
    }

    pass_home! {
        self;
        write, write_atomic, write_zeroes, compare_and_write, flush, discard, allocation, member, close
    }
}
