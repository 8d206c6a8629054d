//! Values that live on one lane and are used from others: requests to a value run on its lane. They are stored among
//! their lane's [locals](engine::local), and are dropped with the lane.

use std::{fmt, future::Future, marker::PhantomData, sync::Arc};

use engine::{LaneFuture, LaneHandle, local};

use crate::{Error, ErrorKind, Result, layers};

/// A value on one lane; dropped there when this is dropped anywhere, or when the lane ends.
pub(crate) struct Resident<T> {
    number: u64,
    lane: LaneHandle,
    what: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Resident<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resident({} on {:?})", self.number, self.lane)
    }
}

impl<T: Clone + 'static> Resident<T> {
    /// Runs `make` on `lane`, keeps the resulting value there, and returns the rest of the result here.
    pub(crate) async fn settle<R: Send + 'static>(
        lane: &LaneHandle,
        make: impl FnOnce() -> LaneFuture<'static, Result<(T, R)>> + Send + 'static,
    ) -> Result<(Arc<Self>, R)> {
        let on = lane.clone();
        let settled = lane.call(move || async move {
            let (value, rest) = make().await?;
            Ok((Resident::keep(on, value), rest))
        });
        settled.await.unwrap_or_else(|| Err(lane_ended()))
    }

    /// Keeps `value` on `lane`, which must be the current one.
    pub(crate) fn keep(lane: LaneHandle, value: T) -> Arc<Self> {
        Arc::new(Resident {
            number: local::keep(value),
            lane,
            what: PhantomData,
        })
    }

    /// Its unique number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn lane(&self) -> &LaneHandle {
        &self.lane
    }

    /// The value, on its own lane.
    ///
    /// # Errors
    /// When it has been dropped.
    pub(crate) fn here(&self) -> Result<T> {
        here(self.number)
    }

    /// Schedules `order` on the value's lane, to run if the value still exists then. May be called from anywhere.
    pub(crate) fn tell(&self, order: impl FnOnce(T) + Send + 'static) {
        let number = self.number;
        self.lane.spawn(move || {
            if let Ok(value) = here(number) {
                order(value);
            }
            std::future::ready(())
        });
    }

    /// Runs `request` on the value's lane and returns its result here. It runs to completion there even if nobody
    /// waits for it any more, and the returned future borrows nothing from this. A [watch](crate::layers) goes with it.
    ///
    /// A lane that is still running never counts as ended: if it has dropped the request, this behaves as
    /// [`LaneHandle::call`].
    pub(crate) fn call<R, F, A>(
        &self,
        request: A,
    ) -> impl Future<Output = Result<R>> + use<R, F, A, T>
    where
        A: FnOnce(T) -> F + Send + 'static,
        R: Send + 'static,
        F: Future<Output = Result<R>> + 'static,
    {
        let (number, lane) = (self.number, self.lane.clone());
        async move {
            let make = move || async move { request(here(number)?).await };
            let answer = match layers::current() {
                None => lane.call(make).await,
                // Boxed, so that only watched requests pay for the memory.
                Some(watch) => {
                    LaneFuture::new(lane.call(move || layers::watched(watch, make()))).await
                }
            };
            answer.unwrap_or_else(|| Err(lane_ended()))
        }
    }
}

impl<T> Drop for Resident<T> {
    fn drop(&mut self) {
        let number = self.number;
        if self.lane.is_current() {
            drop(local::take(number));
        } else {
            self.lane.spawn(move || {
                drop(local::take(number));
                std::future::ready(())
            });
        }
    }
}

fn here<T: Clone + 'static>(number: u64) -> Result<T> {
    local::get(number)
        .ok_or_else(|| Error::new(ErrorKind::Unreachable, "the volume has been closed"))
}

fn lane_ended() -> Error {
    Error::new(ErrorKind::Unreachable, "the volume's lane has ended")
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        time::Duration,
    };

    use engine::{Lane, LaneConfig, spawn, time};

    use super::*;

    /// Starts `task` on `lane`.
    #[expect(
        clippy::async_yields_async,
        reason = "the caller waits for the task later"
    )]
    fn start<T: 'static>(
        lane: &Lane,
        task: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> {
        lane.block_on(async { spawn(task) })
    }

    fn lane() -> Lane {
        Lane::new(&LaneConfig::default()).expect("a ring")
    }

    #[test]
    fn a_request_that_its_lane_cannot_finish_ends_with_it() {
        let (asker, other) = (lane(), lane());
        let value = other.block_on(async { Resident::keep(other.handle(), ()) });
        let asked = start(&asker, async move {
            let request = |()| std::future::pending::<Result<()>>();
            value.call(request).await
        });
        other.block_on(async { time::sleep(Duration::from_millis(1)).await });
        drop(other);
        let error = asker.block_on(asked).expect_err("its lane has ended");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    }

    #[test]
    #[cfg_attr(
        debug_assertions,
        should_panic(expected = "dropped a request without answering it")
    )]
    fn a_request_that_a_living_lane_dropped_is_never_done() {
        let (asker, other) = (lane(), lane());
        let value = other.block_on(async { Resident::keep(other.handle(), ()) });
        let asked = start(&asker, async move {
            let request = |()| async { panic!("a test") };
            value.call::<(), _, _>(request).await
        });
        let survives = AssertUnwindSafe(|| {
            other.block_on(async { time::sleep(Duration::from_millis(1)).await })
        });
        catch_unwind(survives).expect_err("the request panics");
        let waited =
            asker.block_on(async { time::timeout(Duration::from_millis(50), asked).await });
        assert!(waited.is_none(), "nobody answered");
    }
}
