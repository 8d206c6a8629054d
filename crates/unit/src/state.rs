//! State of a unit that must survive a restart: reservations with APTPL, saved mode pages, an unfinished sanitize.
//! Changes are made one at a time, and each takes effect once it has been stored.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use engine::{LaneFuture, range_lock::RangeLocks};
use scsi::{Change, Changed, Ending, Kept, KeyFloor, LogicalUnit, Prepared, SharedUnit};
use volume::{
    ErrorKind, Volume,
    floor::{self, CopyFloor},
};

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
    /// Whether the floor of the volume is being asked for, or was.
    is_floor_asked: AtomicBool,
    /// Whether it is known.
    is_floor_known: AtomicBool,
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
            is_floor_asked: AtomicBool::new(false),
            is_floor_known: AtomicBool::new(false),
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
        volume: &dyn Volume,
        view: &std::cell::RefCell<LogicalUnit>,
        change: &Change,
        wanted: impl FnOnce() -> bool,
    ) -> Option<Result<Changed, Ending>> {
        let _lock = RangeLocks::lock_all(&self.changing).await;
        if !wanted() {
            return None;
        }
        if let Err(error) = self.learn_floor_alone(volume).await {
            return Some(Err(self.no_floor(&error)));
        }
        let floor = match self.look_at_floor(volume, change).await {
            Ok(floor) => floor,
            Err(ending) => return Some(Err(ending)),
        };
        let prepared = change.prepare(&view.borrow());
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(ending) => return Some(Err(ending)),
        };
        let next = floor.and_then(|floor| match change.registers() {
            Some(key) => floor.raised_to(key),
            None => Some(floor.lifted()),
        });
        if let Some(next) = next {
            if let Err(error) = next.write(volume).await {
                return Some(Err(self.no_floor(&error)));
            }
            self.let_in(&next);
        }
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

    /// Whether [`DiskState::learn_floor`] has nothing more to do.
    pub(crate) fn knows_floor(&self) -> bool {
        self.is_floor_known.load(Ordering::Acquire)
    }

    /// Whether nobody has begun [`DiskState::learn_floor`] yet; the caller does.
    pub(crate) fn begins_to_learn_floor(&self) -> bool {
        !self.is_floor_asked.swap(true, Ordering::Relaxed)
    }

    /// Finds out whom the disk lets in, before it is first used: a copy of a mirror lets in nobody who was superseded
    /// before a restart, whatever became of the reservation.
    ///
    /// # Errors
    /// Those of the volume, but for a medium that cannot be read where a copy would say it: a mirror could not use such a
    /// copy either.
    pub(crate) async fn learn_floor(&self, volume: &dyn Volume) -> volume::Result<()> {
        let _lock = RangeLocks::lock_all(&self.changing).await;
        self.learn_floor_alone(volume).await
    }

    /// The same for whoever holds the lock.
    async fn learn_floor_alone(&self, volume: &dyn Volume) -> volume::Result<()> {
        if self.knows_floor() {
            return Ok(());
        }
        match floor::of(volume).await {
            Ok(Some(floor)) => self.let_in(&floor),
            Ok(None) => {}
            Err(error) if matches!(error.kind(), ErrorKind::Medium | ErrorKind::Configuration) => {
                let volume = &self.volume;
                tracing::warn!(
                    volume,
                    %error,
                    "whether this disk is a copy of a mirror, and who may use it, cannot be read at its end"
                );
            }
            Err(error) => return Err(error),
        }
        self.is_floor_known.store(true, Ordering::Release);
        Ok(())
    }

    /// The floor of a copy as it is there, if `change` may change it, and is to be judged by it.
    async fn look_at_floor(
        &self,
        volume: &dyn Volume,
        change: &Change,
    ) -> Result<Option<CopyFloor>, Ending> {
        let is_fences = |key: u64| floor::KEYS.contains(&key);
        let raises = change.registers().is_some_and(is_fences);
        // Nobody ends a fence by its own key; whoever clears it has another use for the disk.
        let lifts = change.clears().is_some_and(|key| !is_fences(key));
        let is_concerned = raises || (lifts && self.unit.floor().is_some());
        if !is_concerned {
            return Ok(None);
        }
        let found = floor::of(volume).await;
        let found = found.map_err(|error| self.no_floor(&error))?;
        match &found {
            Some(floor) => self.let_in(floor),
            None => self.unit.set_floor(None),
        }
        Ok(found)
    }

    fn let_in(&self, floor: &CopyFloor) {
        self.unit.set_floor(floor.lowest().map(|lowest| KeyFloor {
            family: floor::KEYS,
            lowest,
        }));
    }

    fn no_floor(&self, error: &volume::Error) -> Ending {
        let volume = &self.volume;
        tracing::error!(
            volume,
            %error,
            "the floor of a mirror's copy, below which nobody is let in, could not be read or written; the \
             reservation stays as it is"
        );
        Prepared::not_kept()
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
