//! The end of a daemon or of an attached volume. A disk that hangs must not keep the process from ending: a service manager
//! would kill it, and with it what could still be flushed. So each step is waited for until its own deadline, then the next
//! one is done all the same, and in the end the volumes that hang are named. What was not answered may or may not have been
//! done, as after any loss of a connection.

use std::pin::pin;

use engine::{Duration, Instant, time};
use unit::{FlushError, Units};

/// After this long, the log says what is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the end may take: less than systemd waits before it kills (90 s).
const LIMIT: Duration = Duration::from_secs(60);

/// Why the end was not a clean one.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// A volume could not be flushed.
    #[error(transparent)]
    Flush(#[from] FlushError),
    /// I/O has hung until the time was up.
    #[error(
        "{volumes} did not answer within {seconds} seconds: ended without; accepted commands may or may not have been executed, \
         and data written since the last flush may be lost"
    )]
    Hung {
        /// Which volumes, in words.
        volumes: String,
        /// How long they were waited for.
        seconds: u64,
    },
}

/// The steps of an end, each of which has its deadline.
pub struct Ending<'a> {
    units: &'a Units,
    began: Instant,
    hung: Option<String>,
}

impl<'a> Ending<'a> {
    /// It begins now. `units` tell which volumes hang.
    pub fn of(units: &'a Units) -> Ending<'a> {
        Ending {
            units,
            began: time::now(),
            hung: None,
        }
    }

    /// Waits for clients to be served to the end; half of the time is theirs. `None` if it was up.
    pub async fn clients<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        self.wait(LIMIT / 2, work).await
    }

    /// Waits for the volumes to be flushed.
    pub(crate) async fn flush<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        self.wait(LIMIT * 3 / 4, work).await
    }

    /// Waits for the volumes to be closed.
    pub(crate) async fn close<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        self.wait(LIMIT, work).await
    }

    async fn wait<T>(&mut self, until: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        if let Some(done) = time::timeout(PATIENCE, work.as_mut()).await {
            return Some(done);
        }
        let what = self.what_hangs().await;
        tracing::warn!(
            "still waiting for {what}; the end is in {} seconds at most, and a second SIGTERM or SIGINT ends at once",
            (self.began + LIMIT - time::now()).as_secs()
        );
        let left = self.began + until - time::now();
        let done = time::timeout(left, work).await;
        if done.is_none() {
            self.hung = Some(self.what_hangs().await);
        }
        done
    }

    async fn what_hangs(&self) -> String {
        let volumes: Vec<String> = self.units.busy().await.into_iter().collect();
        match &*volumes {
            [] => "the end of a volume or of a client".into(),
            [volume] => format!("volume {volume}"),
            volumes => format!("volumes {}", volumes.join(", ")),
        }
    }

    /// What the end was like, if this became of the last flush.
    ///
    /// # Errors
    /// [`StopError`]
    pub(crate) fn over(self, flushed: Option<Result<(), FlushError>>) -> Result<(), StopError> {
        match (self.hung, flushed) {
            (Some(volumes), _) => {
                let seconds = (time::now() - self.began).as_secs();
                Err(StopError::Hung { volumes, seconds })
            }
            (None, flushed) => Ok(flushed.unwrap_or(Ok(()))?),
        }
    }
}
