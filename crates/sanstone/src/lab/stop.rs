//! How signals end a run. The first one has it stop where it is, and tell and keep what it has measured; as a disk may never
//! answer, that takes a bounded time. The second one ends the process at once.

use std::{fmt::Display, process, sync::atomic::Ordering, thread, time::Duration};

use ::lab::load::Stop;
use anyhow::Context;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{failure::VerbFailure, log, output};

/// The exit code of a program that SIGINT has ended.
const INTERRUPTED: i32 = 130;
/// How long a run may take to stop. Most stop with the I/O that is under way; a database server stops in seconds.
const LIMIT: Duration = Duration::from_secs(30);
/// How long it may take before the user is told why nothing happens.
const PATIENCE: Duration = Duration::from_secs(3);

/// Set by SIGINT and SIGTERM, after which the process ends within a bounded time.
pub(super) fn stopped_by_signals() -> Result<Stop, VerbFailure> {
    let stop = Stop::default();
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("catching signals")?;
    let asked = stop.clone();
    let watch = move || {
        for _ in signals.forever() {
            if asked.0.swap(true, Ordering::Relaxed) {
                end("second request to stop: ended at once");
            }
            thread::spawn(end_in_time);
        }
    };
    let named = thread::Builder::new().name("signals".into());
    named.spawn(watch).context("catching signals")?;
    Ok(stop)
}

/// Ends the process when the time is up.
fn end_in_time() {
    thread::sleep(PATIENCE);
    log::say(format_args!(
        "stopping: waiting for what is under way, for {} seconds at most; press Ctrl-C again to end at once",
        LIMIT.as_secs()
    ));
    thread::sleep(LIMIT - PATIENCE);
    end(format_args!(
        "what was under way has not ended within {} seconds, as when a disk hangs: ended without; what was measured before \
         is in the --json file, if there is one",
        LIMIT.as_secs()
    ));
}

/// Ends the process, whatever its threads wait for. A file that is being replaced is whole.
fn end(why: impl Display) -> ! {
    output::settle();
    log::complain(format_args!("sanstone: {why}"));
    log::flush();
    process::exit(INTERRUPTED)
}
