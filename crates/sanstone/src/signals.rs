//! Turns signals, and the closing of standard input, into requests to this process.

use std::{
    fmt::Display,
    io, thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use engine::cross::Sender;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1},
    iterator::Signals,
};

use crate::{failure::VerbFailure, log};

/// Stop signals within this time count as one request: `timeout` sends SIGTERM both to its child and to the
/// child's process group, and a shell's trap may add one to the terminal's.
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// A request by signal or standard input.
#[derive(Clone, Copy)]
pub(crate) enum SignalRequest {
    Stop,
    Report,
    LookAgain,
}

/// Listens for SIGTERM and SIGINT (stop), SIGUSR1 (report) and SIGHUP (check lengths again), and passes them
/// to `teller`.
pub(crate) fn listen<T: From<SignalRequest> + Send + 'static>(
    teller: &Sender<T>,
    supervised: bool,
) -> Result<(), VerbFailure> {
    let teller = teller.clone();
    if supervised {
        let teller = teller.clone();
        let watch = move || {
            // The input itself is ignored; only its end counts.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            let _ = teller.send(SignalRequest::Stop.into());
        };
        thread::Builder::new()
            .name("supervisor".into())
            .spawn(watch)?;
    }
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP]).context("catching signals")?;
    let watch = move || {
        let mut stopping: Option<Instant> = None;
        for signal in signals.forever() {
            let what = match signal {
                SIGUSR1 => SignalRequest::Report,
                SIGHUP => SignalRequest::LookAgain,
                _ => SignalRequest::Stop,
            };
            if matches!(what, SignalRequest::Stop)
                && stopping.get_or_insert_with(Instant::now).elapsed() > ONE_REQUEST
            {
                end_at_once(
                    "second request to stop: ending at once, with accepted commands unfinished",
                );
            }
            if teller.send(what.into()).is_err() {
                break;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(watch)?;
    Ok(())
}

/// Ends the process with code 1, whatever its lanes wait for.
pub(crate) fn end_at_once(why: impl Display) -> ! {
    log::complain(format_args!("sanstone: {why}"));
    log::flush();
    std::process::exit(1);
}
