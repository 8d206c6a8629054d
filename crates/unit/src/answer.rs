//! Waiting for another lane's answer. If a running lane drops a request unanswered, that is a bug, and
//! the requested work may still be going on, so nobody may take it as done.

use engine::cross::{OneshotReceiver, Unanswered};

/// Waits until another lane has answered; `None` if that lane has ended, and its work with it. `request`
/// describes for the log what was asked.
///
/// If the lane is still running but has dropped the request, this panics in a debug build. In a release
/// build it logs an error and never returns.
pub async fn answered<T>(answer: OneshotReceiver<T>, request: &'static str) -> Option<T> {
    match answer.answer().await {
        Ok(value) => Some(value),
        Err(Unanswered::LaneEnded) => None,
        Err(Unanswered::Dropped) => {
            tracing::error!(
                request,
                "a lane dropped a request without answering it, so the requester waits forever: \
                 restart the daemon, and report this bug"
            );
            debug_assert!(
                false,
                "a lane dropped a request without answering it: {request}"
            );
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::{Lane, LaneConfig, cross::oneshot, sim::World, spawn, time};

    use super::*;

    #[test]
    fn an_answer_is_given_on() {
        let world = World::new(1);
        let host = world.host("machine");
        let answer = world.block_on(&host, async {
            let (done, answer) = oneshot();
            spawn(async move { done.send(7) });
            answered(answer, "a test").await
        });
        assert_eq!(answer, Some(7));
    }

    #[test]
    #[cfg_attr(
        debug_assertions,
        should_panic(expected = "dropped a request without answering it")
    )]
    fn a_dropped_request_is_never_done() {
        let world = World::new(1);
        let host = world.host("machine");
        world.block_on(&host, async {
            let (done, answer) = oneshot::<()>();
            spawn(async move { drop(done) });
            let waited = time::timeout(Duration::from_secs(3600), answered(answer, "a test")).await;
            assert!(waited.is_none(), "nobody answered");
        });
    }

    #[test]
    fn a_lane_that_has_ended_owes_nothing() {
        let lane = || Lane::new(&LaneConfig::default()).expect("a ring");
        let (done, answer) = oneshot::<()>();
        let ends = lane();
        ends.block_on(async {
            spawn(async move {
                std::future::pending::<()>().await;
                done.send(());
            });
        });
        drop(ends);
        assert_eq!(lane().block_on(answered(answer, "a test")), None);
    }
}
