//! How long the waits of a change may take: any time, until it is given up because the daemon is to stop.

use std::{pin::pin, time::Duration};

use engine::{
    LaneFuture,
    task::{self, Either},
    time,
};

use crate::DaemonFailure;

/// How long each wait of a change that is given up may still take: enough for everything that does not hang.
const GIVE_UP_TIME: Duration = Duration::from_secs(5);

/// How long the waits of a change may take.
pub(crate) struct Deadline<'a> {
    give_up: LaneFuture<'a, ()>,
    pub(crate) is_given_up: bool,
}

impl<'a> Deadline<'a> {
    pub(crate) fn new(give_up: LaneFuture<'a, ()>) -> Self {
        Deadline {
            give_up,
            is_given_up: false,
        }
    }

    /// The output of `work`; `None` if it did not end within [`GIVE_UP_TIME`] after the change was given up.
    pub(crate) async fn wait<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        if !self.is_given_up {
            match task::either(work.as_mut(), &mut self.give_up).await {
                Either::One(output) => return Some(output),
                Either::Other(()) => self.is_given_up = true,
            }
        }
        time::timeout(GIVE_UP_TIME, work).await
    }

    /// The output of `work`, a step before the lanes serve the new configuration.
    ///
    /// # Errors
    /// If the change was given up. All the same `work` has had time to end, so that what it began can be undone in order.
    pub(crate) async fn unless_given_up<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, DaemonFailure> {
        let output = self.wait(work).await.filter(|_| !self.is_given_up);
        output.ok_or_else(|| {
            let message = "the daemon is stopping, and nothing has changed";
            DaemonFailure::Failed(message.to_owned())
        })
    }
}
