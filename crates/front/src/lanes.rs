//! A front on all lanes: each lane has its own part of it, which owns the connections that the lane serves, and is reached
//! by requests.

use std::rc::Rc;

use engine::cross::{OneshotReceiver, OneshotSender, Receiver, Sender, answered, channel, oneshot};
use unit::{LaneUnits, Units};

/// One lane's part of a front.
pub trait LaneFront: 'static {
    /// What it is opened with.
    type Config: Clone + Send + 'static;
    /// What the rest of the front asks of it.
    type Request: Send + 'static;

    /// Opens it on its lane.
    ///
    /// # Errors
    /// Why it cannot serve, for instance that a unit cannot be shown.
    fn open(
        config: Self::Config,
        lane: OwnLane<Self::Request>,
        units: Rc<LaneUnits>,
    ) -> impl Future<Output = Result<Rc<Self>, String>>;

    /// Handles requests until nobody is left who could send any.
    fn run(self: Rc<Self>, requests: Receiver<Self::Request>) -> impl Future<Output = ()>;
}

/// Which lane a part is on.
pub struct OwnLane<R> {
    /// Its index.
    pub index: usize,
    /// All of them.
    pub lanes: FrontLanes<R>,
}

/// The parts of a front, one on each lane.
pub struct FrontLanes<R>(Vec<Sender<R>>);

impl<R> Clone for FrontLanes<R> {
    fn clone(&self) -> Self {
        FrontLanes(self.0.clone())
    }
}

impl<R: Send + 'static> FrontLanes<R> {
    /// Opens a front on all lanes of `units`.
    ///
    /// # Errors
    /// Why a lane cannot serve; none does then.
    pub async fn start<F: LaneFront<Request = R>>(
        units: &Units,
        config: F::Config,
    ) -> Result<FrontLanes<R>, String> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..units.lanes()).map(|_| channel()).unzip();
        let lanes = FrontLanes(senders);
        for (index, requests) in receivers.into_iter().enumerate() {
            let (started, opened) = oneshot();
            let (config, lanes) = (config.clone(), lanes.clone());
            units.enter(index, move |units| async move {
                match F::open(config, OwnLane { index, lanes }, units).await {
                    Ok(front) => {
                        started.send(Ok(()));
                        front.run(requests).await;
                    }
                    Err(error) => started.send(Err(error)),
                }
            });
            let outcome = opened.outcome().await;
            outcome.unwrap_or_else(|unanswered| Err(unanswered.to_string()))?;
        }
        Ok(lanes)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The sender of requests to lane `index`.
    pub fn lane(&self, index: usize) -> &Sender<R> {
        &self.0[index]
    }

    /// Sends a request to every lane that has not ended.
    pub fn ask<T>(&self, request: impl Fn(OneshotSender<T>) -> R) -> Vec<OneshotReceiver<T>> {
        let asked = self.0.iter().filter_map(|lane| {
            let (done, answer) = oneshot();
            lane.send(request(done)).is_ok().then_some(answer)
        });
        asked.collect()
    }

    /// The answers of all lanes that have not ended; `what` they do is for the log.
    pub async fn answers<T>(
        &self,
        what: &'static str,
        request: impl Fn(OneshotSender<T>) -> R,
    ) -> Vec<T> {
        let mut answers = Vec::new();
        for answer in self.ask(request) {
            answers.extend(answered(answer, what).await);
        }
        answers
    }

    /// Sends a request to every lane, whoever hears it.
    pub fn tell(&self, request: impl Fn() -> R) {
        for lane in &self.0 {
            // A lane that has ended has nothing left to do.
            let _ = lane.send(request());
        }
    }
}
