//! State of a unit that must survive a restart: reservations with APTPL, saved mode pages, an unfinished sanitize, where the
//! floor of a mirror's copy was found.
//! Changes are made one at a time, and each takes effect once it has been stored.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use engine::{LaneFuture, range_lock::RangeLocks};
use scsi::{Change, Changed, Ending, Kept, KeyFloor, LogicalUnit, Prepared, SharedUnit};
use volume::{
    ErrorKind, Volume,
    floor::{self, CopyFloor, Search},
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
    /// Why it is not, though it was asked for: until then every command fails for that.
    no_floor: Mutex<Option<String>>,
    /// Held by whoever changes the state, from checking the present state until the change has been
    /// stored and made, so that an older state never overwrites a newer one.
    changing: RangeLocks,
}

/// What was found of a mirror's copy.
enum CopyFound {
    Here(CopyFloor),
    Nowhere,
    /// Its metadata was found before, and ended where the disk has nothing any more.
    CutOff {
        end_bytes: u64,
    },
}

fn is_fences(key: u64) -> bool {
    floor::KEYS.contains(&key)
}

/// Whether `change` lifts a floor: nobody ends a fence by its own key, so whoever clears it has another use for the disk.
fn lifts(change: &Change) -> bool {
    change.clears().is_some_and(|key| !is_fences(key))
}

fn floor_of(lowest: u64, kept_at: u64) -> KeyFloor {
    KeyFloor {
        family: floor::KEYS,
        lowest,
        kept_at,
    }
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
            // In force until the disk itself has told.
            unit.set_floor(
                kept.floor
                    .map(|saved| floor_of(saved.lowest, saved.kept_at)),
            );
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
            no_floor: Mutex::default(),
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
        let floor_before = self.unit.floor();
        if let Some(next) = next {
            if let Err(error) = next.write(volume).await {
                return Some(Err(self.no_floor(&error)));
            }
            self.let_in(&next);
        } else if lifts(change) {
            // Nothing is left to write of a copy whose end was cut off.
            self.unit.set_floor(None);
        }
        let to_keep = prepared.to_keep();
        let is_other_floor = self.unit.floor() != floor_before;
        let to_keep = to_keep.or_else(|| is_other_floor.then(|| self.unit.save()));
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
        let learned = self.learn_floor_alone(volume).await;
        *self.refusal_slot() = learned.as_ref().err().map(ToString::to_string);
        learned
    }

    /// Why every command fails, as it cannot be found out whom the disk lets in.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refusal_slot().clone()
    }

    fn refusal_slot(&self) -> MutexGuard<'_, Option<String>> {
        self.no_floor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for whoever holds the lock.
    async fn learn_floor_alone(&self, volume: &dyn Volume) -> volume::Result<()> {
        if self.knows_floor() {
            return Ok(());
        }
        let before = self.unit.floor();
        match self.find_floor(volume).await {
            Ok(CopyFound::CutOff { end_bytes }) => self.tell_cut_off(volume, end_bytes),
            Ok(CopyFound::Here(floor)) => {
                self.let_in(&floor);
                if !floor.is_told() {
                    self.point(volume, &floor, self.len_bytes(volume)).await?;
                }
            }
            Ok(CopyFound::Nowhere) => self.unit.set_floor(None),
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
        if self.unit.floor() != before {
            self.keep_text(self.unit.save()).await;
        }
        self.is_floor_known.store(true, Ordering::Release);
        Ok(())
    }

    /// Prepares for the volume to be served with `to_bytes`, more than before: if it is a copy of a mirror, what is kept on it
    /// is found from its new end as well, durably.
    ///
    /// # Errors
    /// Those of the volume; it must not be served with that length then.
    pub(crate) async fn grow(&self, volume: &dyn Volume, to_bytes: u64) -> volume::Result<()> {
        // Every command waits meanwhile, so nothing is read for a disk that is as long as before.
        if to_bytes <= self.len_bytes(volume) {
            return Ok(());
        }
        let _lock = RangeLocks::lock_all(&self.changing).await;
        self.learn_floor_alone(volume).await?;
        match self.find_floor(volume).await? {
            CopyFound::Here(floor) => self.point(volume, &floor, to_bytes).await,
            CopyFound::Nowhere | CopyFound::CutOff { .. } => Ok(()),
        }
    }

    /// Has the end of `volume` with `len_bytes` lead to the copy.
    async fn point(
        &self,
        volume: &dyn Volume,
        floor: &CopyFloor,
        len_bytes: u64,
    ) -> volume::Result<()> {
        let (name, end_bytes) = (&self.volume, floor.end_bytes());
        tracing::info!(
            volume = name,
            end_bytes,
            len_bytes,
            "a copy of a mirror has become longer; what the mirror keeps on it stays where it is"
        );
        // What cannot be written, cannot be fenced either.
        match volume.shape().read_only.is_on() {
            true => Ok(()),
            false => floor.point_from(volume, len_bytes).await,
        }
    }

    fn tell_cut_off(&self, volume: &dyn Volume, end_bytes: u64) {
        let (name, len_bytes) = (&self.volume, self.len_bytes(volume));
        tracing::error!(
            volume = name,
            end_bytes,
            len_bytes,
            "this disk was a copy of a mirror and has become shorter, so that the mirror does not find what it keeps on it: make it as long as it was; until then nobody is let in whom it has kept out, and if it is to be used for something else, clear its reservation (PERSISTENT RESERVE OUT, CLEAR)"
        );
    }

    /// The length with which it is served, in bytes.
    fn len_bytes(&self, volume: &dyn Volume) -> u64 {
        let shape = volume.shape();
        let len_blocks = self.unit.len_blocks();
        let served = len_blocks.map(|blocks| blocks * u64::from(shape.block_size_bytes));
        served.map_or(shape.len_bytes(), |served| served.min(shape.len_bytes()))
    }

    /// Looks for the copy from the end of what is served on.
    async fn find_floor(&self, volume: &dyn Volume) -> volume::Result<CopyFound> {
        let len_bytes = self.len_bytes(volume);
        let known_bytes = self.unit.floor().map(|floor| floor.kept_at);
        if let Some(end_bytes) = known_bytes.filter(|end_bytes| *end_bytes > len_bytes) {
            return Ok(CopyFound::CutOff { end_bytes });
        }
        let found = floor::of(volume, len_bytes, known_bytes, Search::Told).await?;
        Ok(found.map_or(CopyFound::Nowhere, CopyFound::Here))
    }

    /// The floor of a copy as it is there, if `change` may change it, and is to be judged by it.
    async fn look_at_floor(
        &self,
        volume: &dyn Volume,
        change: &Change,
    ) -> Result<Option<CopyFloor>, Ending> {
        let raises = change.registers().is_some_and(is_fences);
        let is_concerned = raises || (lifts(change) && self.unit.floor().is_some());
        if !is_concerned {
            return Ok(None);
        }
        let found = self.find_floor(volume).await;
        match found.map_err(|error| self.no_floor(&error))? {
            CopyFound::Here(floor) => {
                self.let_in(&floor);
                return Ok(Some(floor));
            }
            CopyFound::Nowhere => self.unit.set_floor(None),
            CopyFound::CutOff { .. } => {}
        }
        Ok(None)
    }

    fn let_in(&self, floor: &CopyFloor) {
        let lowest = floor.lowest();
        let floor = lowest.map(|lowest| floor_of(lowest, floor.end_bytes()));
        self.unit.set_floor(floor);
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
        let floor = self.unit.floor().map(|floor| floor.save());
        let text = match (text, floor) {
            (Some(text), Some(floor)) => Some(text + &floor),
            (text, floor) => text.or(floor),
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
