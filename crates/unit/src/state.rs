//! What a unit has to remember over a restart: reservations with APTPL, saved mode pages, a sanitize
//! that did not end. A change takes effect when it has been kept, one after the other.

use std::sync::Arc;

use engine::LaneFuture;
use scsi::{Change, Changed, Ending, LogicalUnit, Prepared, SharedUnit};

use crate::exclusion::Turns;

/// Keeps what a volume's logical unit has to remember over a restart, under the volume's name;
/// `None` when that is nothing any more. It is on persistent media when the future ends, which must
/// not block its lane. Called rarely: when reservations with APTPL or saved mode pages change, and
/// one call at a time for each volume. The error says why it could not be kept.
pub type Keep =
    Arc<dyn Fn(&str, Option<String>) -> LaneFuture<'static, Result<(), String>> + Send + Sync>;

/// The state of one disk, for all its lanes and ports.
pub(crate) struct State {
    volume: String,
    pub(crate) unit: Arc<SharedUnit>,
    keep: Option<Keep>,
    /// Who changes it, from the look at what is until the change is kept and made: no older state is
    /// written over a newer one.
    changing: Arc<Turns>,
}

impl State {
    /// With what was `kept` before a restart.
    pub(crate) fn new(volume: &str, keep: Option<Keep>, kept: Option<&str>) -> State {
        let unit = Arc::<SharedUnit>::default();
        if let Some(kept) = kept {
            unit.restore(kept);
        }
        State {
            volume: volume.to_owned(),
            unit,
            keep,
            changing: Arc::default(),
        }
    }

    /// Keeps it as it is; false if that failed.
    pub(crate) async fn keep(&self) -> bool {
        let _turn = self.changing.take_all().await;
        self.keep_text(self.unit.save()).await
    }

    /// Makes a change, after it has been kept; unless the command that wants it is not `wanted` any
    /// more when its turn comes, which gives `None`.
    ///
    /// # Errors
    /// How the command ends; then nothing has changed.
    pub(crate) async fn change(
        &self,
        view: &std::cell::RefCell<LogicalUnit>,
        change: &Change,
        wanted: impl FnOnce() -> bool,
    ) -> Option<Result<Changed, Ending>> {
        let _turn = self.changing.take_all().await;
        if !wanted() {
            return None;
        }
        let prepared = change.prepare(&view.borrow());
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(ending) => return Some(Err(ending)),
        };
        let to_keep = prepared.to_keep();
        let keeps = to_keep.is_some();
        if let Some(text) = to_keep {
            if !self.keep_text(text).await {
                return Some(Err(Prepared::not_kept()));
            }
        }
        let made = prepared.commit(&view.borrow());
        if made.is_err() && keeps {
            self.keep_text(self.unit.save()).await;
        }
        Some(made)
    }

    async fn keep_text(&self, text: Option<String>) -> bool {
        let Some(keep) = &self.keep else {
            return true;
        };
        let kept = keep(&self.volume, text).await;
        if let Err(error) = &kept {
            tracing::error!(volume = self.volume, error, "a unit's state was not kept");
        }
        kept.is_ok()
    }
}
