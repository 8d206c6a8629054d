//! `sanstone top`: what a running daemon is doing right now, component by component.

mod interval;
mod screen;

use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use self::interval::Interval;
use crate::{
    admin::{self, AdminCall, DaemonAddress, Sample},
    failure::VerbFailure,
    output::OutputFile,
};

/// The longest delay in handling a key or a signal.
const PATIENCE: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct TopCall {
    #[command(flatten)]
    place: DaemonAddress,
    /// Seconds between two samples.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Write each interval to FILE instead, as a line of JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// End after this many intervals.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after one interval.
    #[arg(long, conflicts_with = "count")]
    once: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=3600.0).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "write seconds, 0.1 to 3600".to_owned())
}

/// Shows what the daemon selected by `call` does, until the user or an option ends it.
pub(crate) fn run(call: &TopCall) -> Result<(), VerbFailure> {
    let state = call.place.state()?;
    let count = match call.once {
        true => Some(1),
        false => call.count,
    };
    match &call.json {
        Some(json) => write(&state, call.interval, count, json),
        None if !io::stdout().is_terminal() || !io::stdin().is_terminal() => {
            let message = "standard input and output are not a terminal; to read it with a program, add --json -";
            Err(VerbFailure::Wrong(message.to_owned()))
        }
        None => show(&state, call.interval, count),
    }
}

fn sample(state: &Path) -> Result<Sample, VerbFailure> {
    admin::ask(state, AdminCall::Counters)
}

/// Writes intervals as JSON, for programs.
fn write(
    state: &Path,
    pause: Duration,
    count: Option<u64>,
    json: &Path,
) -> Result<(), VerbFailure> {
    let mut file = OutputFile::open_or_standard(json)?;
    let mut before = sample(state)?;
    let mut written = 0;
    while count.is_none_or(|count| written < count) {
        thread::sleep(pause);
        let after = sample(state)?;
        let line = serde_json::to_string(&Interval::between(&before, &after))?;
        file.append(&format!("{line}\n"))?;
        before = after;
        written += 1;
    }
    Ok(())
}

/// Shows intervals on the terminal and restores it at the end.
fn show(state: &Path, pause: Duration, count: Option<u64>) -> Result<(), VerbFailure> {
    // Done before the terminal changes, so that an error is printed as an ordinary line.
    let first = sample(state)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, stop.clone())?;
    }
    let mut terminal = ratatui::try_init()?;
    let ended = show_on(&mut terminal, state, first, (pause, count), &stop);
    ratatui::restore();
    ended
}

fn show_on(
    terminal: &mut DefaultTerminal,
    state: &Path,
    first: Sample,
    (pause, count): (Duration, Option<u64>),
    stop: &AtomicBool,
) -> Result<(), VerbFailure> {
    let of = state.display().to_string();
    let mut before = first;
    // An empty interval to show until there is a real one.
    let mut interval = Interval::between(&before, &before);
    let (mut first_row, mut shown) = (0u16, 0);
    let mut due = Instant::now() + pause;
    loop {
        let mut last_row = 0;
        terminal.draw(|frame| last_row = screen::draw(frame, &of, &interval, first_row))?;
        first_row = first_row.min(last_row);
        if count.is_some_and(|count| shown >= count) || stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let left = due.saturating_duration_since(Instant::now());
        match wait_for_key(left.min(PATIENCE))? {
            KeyMeaning::Quit => return Ok(()),
            KeyMeaning::Down => first_row = first_row.saturating_add(1),
            KeyMeaning::Up => first_row = first_row.saturating_sub(1),
            KeyMeaning::Other => {}
        }
        if Instant::now() >= due {
            let after = sample(state)?;
            interval = Interval::between(&before, &after);
            (before, due) = (after, Instant::now() + pause);
            shown += 1;
        }
    }
}

/// The meaning of a key.
enum KeyMeaning {
    Quit,
    Up,
    Down,
    Other,
}

/// Waits up to `limit` for a key. A terminal that has hung up counts as quitting, or reading keys would loop
/// forever.
fn wait_for_key(limit: Duration) -> io::Result<KeyMeaning> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    if fds[0].revents().intersects(gone) {
        return Ok(KeyMeaning::Quit);
    }
    match event::poll(Duration::ZERO)? {
        true => Ok(key(&event::read()?)),
        false => Ok(KeyMeaning::Other),
    }
}

fn key(event: &Event) -> KeyMeaning {
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press | KeyEventKind::Repeat,
        ..
    }) = event
    else {
        return KeyMeaning::Other;
    };
    match code {
        KeyCode::Char('q') | KeyCode::Esc => KeyMeaning::Quit,
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => KeyMeaning::Quit,
        KeyCode::Down | KeyCode::Char('j') => KeyMeaning::Down,
        KeyCode::Up | KeyCode::Char('k') => KeyMeaning::Up,
        _ => KeyMeaning::Other,
    }
}
