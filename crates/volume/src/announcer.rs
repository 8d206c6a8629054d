//! Changes of open volumes that nobody has asked for: a remote disk has grown, a device has become read-only. Whoever
//! serves the volumes is told, and looks at their shapes.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

type Teller = Arc<dyn Fn() + Send + Sync>;

/// Whom to tell of changes, the same for all volumes of a graph; nobody at first.
#[derive(Clone, Default)]
pub(crate) struct Announcer(Arc<Mutex<Option<Teller>>>);

impl Announcer {
    /// From now on `teller` is called, from any thread, whenever a volume may have changed; `None`: nobody is told.
    pub(crate) fn set(&self, teller: Option<Teller>) {
        *self.lock() = teller;
    }

    /// A volume has changed.
    pub(crate) fn tell(&self) {
        let teller = self.lock().clone();
        if let Some(teller) = teller {
            teller();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Teller>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Announcer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Announcer")
    }
}
