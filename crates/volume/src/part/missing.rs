//! In place of a volume that did not open, for a kind that goes on without it until it does.

use std::{
    cell::OnceCell,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use engine::LaneFuture;

use super::Part;
use crate::{Error, ErrorKind, ReadOnly, Result, Shape, SharedVolume, Volume, values::ConfigError};

/// The place of what did not open, on all lanes.
#[derive(Debug)]
pub(crate) struct Vacancy {
    /// Why it did not, the last time.
    error: Mutex<Error>,
    /// What has come.
    part: OnceLock<Arc<Part>>,
}

impl Vacancy {
    pub(super) fn new(error: &ConfigError) -> Vacancy {
        Vacancy {
            error: Mutex::new(unreachable(error)),
            part: OnceLock::new(),
        }
    }

    /// It has come.
    pub(crate) fn fill(&self, part: Arc<Part>) {
        let _ = self.part.set(part);
    }

    /// It has still not come. Returns whether the reason is another one.
    pub(crate) fn stays(&self, error: &ConfigError) -> bool {
        let error = unreachable(error);
        let mut last = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        let is_other = last.to_string() != error.to_string();
        *last = error;
        is_other
    }

    /// What has come.
    pub(crate) fn part(&self) -> Option<&Arc<Part>> {
        self.part.get()
    }

    fn error(&self) -> Error {
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        error.clone()
    }
}

fn unreachable(error: &ConfigError) -> Error {
    Error::new(ErrorKind::Unreachable, error.message())
}

/// A lane's access to what has come; until then, a volume of no length that fails with the reason.
pub(super) struct Missing {
    vacancy: Arc<Vacancy>,
    volume: OnceCell<SharedVolume>,
    shape: Shape,
}

/// The shape of what is not there.
pub(super) fn shape() -> Shape {
    Shape::absent(ReadOnly::new(true))
}

impl Missing {
    pub(super) fn new(vacancy: Arc<Vacancy>) -> Missing {
        Missing {
            vacancy,
            volume: OnceCell::new(),
            shape: shape(),
        }
    }

    async fn volume(&self) -> Result<&SharedVolume> {
        if self.volume.get().is_none() {
            let part = self.vacancy.part().ok_or_else(|| self.vacancy.error())?;
            let _ = self.volume.set(part.on_lane().await?);
        }
        Ok(self.volume.get().expect("it was just set"))
    }
}

impl Volume for Missing {
    crate::pass_on_once_there! { self => self.volume().await }

    fn shape(&self) -> &Shape {
        self.volume
            .get()
            .map_or(&self.shape, |volume| volume.shape())
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            match self.vacancy.part() {
                Some(_) => self.volume().await?.close().await,
                None => Ok(()),
            }
        })
    }
}
