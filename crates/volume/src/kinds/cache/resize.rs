//! Another size for a cache that is in use, as a step of a new configuration. It keeps what fits.

use std::{fmt, rc::Weak, sync::Arc};

use engine::{LaneFuture, LaneHandle, spend};

use super::{Cache, CacheConfig, Inner, capacity, window_bytes};
use crate::{Result, kinds::change::Step, part::Resident};

/// The most blocks that leave in one go.
const EVICTED_AT_ONCE: usize = 1024;
/// The cost of an eviction, in equivalent bytes moved.
const EVICTION_COST_BYTES: usize = 256;

/// The handle on an open cache.
#[derive(Clone, Debug)]
pub(super) struct OpenCache(Arc<Resident<Weak<Inner>>>);

impl OpenCache {
    /// Keeps `cache` on `home`, the current lane, for as long as there is a handle on it.
    pub(super) fn keep(home: LaneHandle, cache: &Cache) -> OpenCache {
        OpenCache(Resident::keep(home, std::rc::Rc::downgrade(&cache.0)))
    }
}

/// Another size for an open cache.
pub(super) struct Resize {
    open: OpenCache,
    config: CacheConfig,
}

impl Resize {
    pub(super) fn new(open: OpenCache, config: CacheConfig) -> Resize {
        Resize { open, config }
    }
}

impl fmt::Debug for Resize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resize({:?})", self.config)
    }
}

impl Inner {
    /// From now on it has the size of `config` and reads ahead as far. Blocks leave in small numbers, so that requests pass.
    pub(super) async fn resize(&self, config: &CacheConfig) -> Result<()> {
        let capacity = capacity(config)?;
        self.state
            .borrow_mut()
            .read_ahead
            .set_window_max(window_bytes(config));
        loop {
            let (is_done, evicted) = {
                let store = &mut self.state.borrow_mut().store;
                let least = store.capacity().saturating_sub(EVICTED_AT_ONCE);
                let next = capacity.max(least.min(store.capacity()));
                (next == capacity, store.set_capacity(next))
            };
            if is_done {
                return Ok(());
            }
            spend(evicted * EVICTION_COST_BYTES).await;
        }
    }
}

impl Step for Resize {
    fn prepare(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { capacity(&self.config).map(drop) })
    }

    fn take_effect(&self) -> LaneFuture<'_, ()> {
        let config = self.config.clone();
        let resized = self.open.0.call(|cache: Weak<Inner>| async move {
            match cache.upgrade() {
                Some(cache) => cache.resize(&config).await,
                None => Ok(()),
            }
        });
        LaneFuture::new(async move {
            // An error: it was closed.
            let _ = resized.await;
        })
    }

    fn undo(&self) -> LaneFuture<'_, ()> {
        LaneFuture::new(async {})
    }
}
