//! What the service manager is told (sd_notify(3)): that this process serves, that it stops, and what it is doing. Where the
//! unit has `WatchdogSec`, also that every lane still takes messages: a process with a lane that hangs is killed by the
//! manager and started again. Without a service manager nothing is said.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use engine::LaneHandle;
use node::{View, health::Verdict};
use sd_notify::NotifyState;

use crate::diary::Diary;

/// How often the health that the manager shows is looked at.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(2);
/// The same where there is no manager, for the log.
const LOGGED_EVERY: Duration = Duration::from_secs(4);
/// How often in the watchdog's time the lanes are asked.
const ASKED_IN_TIME: u32 = 3;

/// Says what this process does before it serves, which may take long: it waits for its disks.
pub(crate) fn starting(status: &str) {
    notify(&[NotifyState::Status(status)]);
}

/// Says that this process serves, and what.
pub(crate) fn serving(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Says that this process stops: it finishes what it has accepted.
pub(crate) fn stopping() {
    let status = "finishing the accepted requests";
    notify(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Starts the thread that looks how everything is, for as long as `look` gives views: it adds that to `status` for the
/// manager, whenever it changes, and logs what nobody else does.
pub(crate) fn report_health(
    status: String,
    look: impl Fn(mpsc::Sender<View>) -> bool + Send + 'static,
) -> std::io::Result<()> {
    let is_managed = env::var_os("NOTIFY_SOCKET").is_some();
    let pause = if is_managed {
        LOOKED_AT_EVERY
    } else {
        LOGGED_EVERY
    };
    let report = move || {
        let (mut told, mut diary) = (Verdict::default(), Diary::default());
        loop {
            thread::sleep(pause);
            let (answer, view) = mpsc::channel();
            let view = look(answer).then(|| view.recv().ok()).flatten();
            let Some(view) = view else { return };
            let verdict = Verdict::of(&view.describe());
            diary.tell(&verdict, Instant::now());
            if is_managed && verdict != told {
                notify(&[NotifyState::Status(&with_health(&status, &verdict))]);
                told = verdict;
            }
        }
    };
    thread::Builder::new().name("health".into()).spawn(report)?;
    Ok(())
}

/// A line for the manager: the worst reason, and how many others there are.
fn with_health(status: &str, verdict: &Verdict) -> String {
    match verdict.reasons.as_slice() {
        [] => status.to_owned(),
        [reason] => format!("{reason} ({status})"),
        [reason, others @ ..] => format!("{reason} (and {} more; {status})", others.len()),
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}

/// Starts the thread that feeds the manager's watchdog for as long as all `lanes` answer.
pub(crate) fn watch(lanes: &[LaneHandle]) -> std::io::Result<()> {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return Ok(());
    };
    let (lanes, pause) = (lanes.to_vec(), limit / ASKED_IN_TIME);
    let feed = move || loop {
        answered(&lanes, pause);
        notify(&[NotifyState::Watchdog]);
    };
    thread::Builder::new().name("watchdog".into()).spawn(feed)?;
    Ok(())
}

/// Asks each lane once, and looks every `pause` whether all have answered.
fn answered(lanes: &[LaneHandle], pause: Duration) {
    let answers = Arc::new(AtomicUsize::new(0));
    for lane in lanes {
        let answers = answers.clone();
        lane.spawn(move || async move {
            answers.fetch_add(1, Ordering::Relaxed);
        });
    }
    while {
        thread::sleep(pause);
        answers.load(Ordering::Relaxed) < lanes.len()
    } {}
}

#[cfg(test)]
mod tests {
    use engine::{Lane, LaneConfig, cross::channel};

    use super::*;

    #[test]
    fn a_lane_that_hangs_keeps_the_watchdog_hungry() {
        let lanes = [(); 2].map(|()| Lane::new(&LaneConfig::default()).expect("a lane"));
        let handles = [lanes[0].handle(), lanes[1].handle()];
        let (done, is_done) = channel();
        let asking = thread::spawn(move || {
            answered(&handles, Duration::from_millis(1));
            let _ = done.send(());
        });
        let [turns, hangs] = lanes;
        turns.block_on(async { engine::time::sleep(Duration::from_millis(200)).await });
        assert!(!asking.is_finished(), "one of two lanes has answered");
        hangs.block_on(is_done.receive());
        asking.join().expect("both have answered");
    }
}
