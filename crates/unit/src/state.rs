//! State of a unit that must survive a restart: reservations with APTPL, saved mode pages, an unfinished sanitize.
//! Changes are made one at a time, and each takes effect once it has been stored.

use std::sync::Arc;

use engine::{LaneFuture, range_lock::RangeLocks};
use scsi::{Change, Changed, Ending, Kept, LogicalUnit, Prepared, SharedUnit};

/// Stores the persistent state of a volume's logical unit under the volume's name; `None` when
/// there is nothing left to store. The state is on persistent media when the future completes,
/// which must not block its lane. Called rarely, when reservations with APTPL or saved mode pages
/// change, and for each volume one call at a time. The error says why it could not be stored.
pub type Keep =
    Arc<dyn Fn(&str, Option<String>) -> LaneFuture<'static, Result<(), String>> + Send + Sync>;

/// Notes, under a volume's name, a port that has received the last power-on report, so that a restart of the software
/// need not look like another one: the lines that [`SharedUnit::resume`] takes. Called once for each port. It must return
/// at once, and may forget when the machine loses power.
pub type Note = Arc<dyn Fn(&str, String) + Send + Sync>;

/// The state of one disk, shared by all its lanes and ports.
pub(crate) struct DiskState {
    volume: String,
    pub(crate) unit: Arc<SharedUnit>,
    keep: Option<Keep>,
    note: Option<Note>,
    /// Held by whoever changes the state, from checking the present state until the change has been
    /// stored and made, so that an older state never overwrites a newer one.
    changing: RangeLocks,
}

impl DiskState {
    /// A state that starts from what was `kept` before a restart; the ports `told` know of the last power-on.
    pub(crate) fn new(
        volume: &str,
        (keep, note): (Option<Keep>, Option<Note>),
        kept: Option<Kept>,
        told: &[String],
    ) -> DiskState {
        let unit = Arc::<SharedUnit>::default();
        if let Some(kept) = kept {
            unit.restore(kept);
        }
        unit.resume(told);
        DiskState {
            volume: volume.to_owned(),
            unit,
            keep,
            note,
            changing: RangeLocks::default(),
        }
    }

    /// Notes a port that has received the power-on report.
    pub(crate) fn note(&self, port: String) {
        if let Some(note) = &self.note {
            note(&self.volume, port);
        }
    }

    /// Stores the current state; false if that failed.
    pub(crate) async fn keep(&self) -> bool {
        let _lock = RangeLocks::lock_all(&self.changing).await;
        self.keep_text(self.unit.save()).await
    }

    /// Stores a change, then makes it. `None` if the command is no longer `wanted` when all
    /// earlier changes have been made.
    ///
    /// # Errors
    /// How the command ends; nothing has changed then.
    pub(crate) async fn change(
        &self,
        view: &std::cell::RefCell<LogicalUnit>,
        change: &Change,
        wanted: impl FnOnce() -> bool,
    ) -> Option<Result<Changed, Ending>> {
        let _lock = RangeLocks::lock_all(&self.changing).await;
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
                // What was not stored in time may be there all the same, after the next start.
                self.keep_text(self.unit.save()).await;
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
            tracing::error!(
                volume = self.volume,
                error,
                "the state of a logical unit could not be \
                 saved"
            );
        }
        kept.is_ok()
    }
}
