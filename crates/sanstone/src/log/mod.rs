//! The log on standard error. Logging never waits for the reader of standard error: lines go through a
//! bounded queue to one thread that writes them. A line that does not fit or cannot be written is dropped,
//! and the next line written is preceded by the number dropped. When the process ends, queued lines get a
//! moment to be written. [`flood`] keeps lines that somebody can cause again and again from filling the disk.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    collections::VecDeque,
    fmt::Display,
    io::{self, Write},
    mem,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use clap::ValueEnum;
use tracing::{Level, subscriber};
use tracing_subscriber::{layer::SubscriberExt, reload};

mod flood;
mod journal;
mod json;
mod level;

pub(crate) use level::change as change_level;

use crate::{accounts::hidden, failure::VerbFailure, output::plain};

/// Maximum size of the queue.
const QUEUE_MAX_BYTES: usize = 1 << 20;
/// How long the process waits at its end for the queue to drain.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

static QUEUE: LineQueue = LineQueue::new();

/// Makes a panic on any thread end the process, with its message in the log. A lane that panicked has lost
/// the state of its clients, and ending the process makes all of them notice.
pub(crate) fn abort_at_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("an unnamed thread");
        complain(format_args!("sanstone: {name} {panic}"));
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            complain(backtrace);
        }
        flush();
        std::process::abort();
    }));
}

/// Starts the writer thread and collects the program's log events from here on.
pub(crate) fn start(wanted: &str, format: LogFormat) -> Result<(), VerbFailure> {
    thread::Builder::new()
        .name("log".into())
        .spawn(|| QUEUE.write_to(&mut io::stderr()))
        .inspect_err(|error| {
            // There is no thread to write what is queued.
            let _ = writeln!(io::stderr(), "sanstone: starting the log's thread: {error}");
        })?;
    let wrong = |error| VerbFailure::Wrong(format!("--log {error}"));
    let filter = level::filter(wanted).map_err(wrong)?;
    let (filter, handle) = reload::Layer::new(filter);
    level::may_change(wanted, handle);
    let chosen = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(|| LogEntry);
    let limit = flood::Limit(&QUEUE.flood);
    match format {
        LogFormat::Text => {
            let lines = lines.with_target(false).map_event_format(journal::Ranked);
            subscriber::set_global_default(chosen.with(lines).with(limit))?;
        }
        LogFormat::Json => {
            IS_JSON.store(true, Ordering::Relaxed);
            let lines = lines.event_format(journal::Ranked(json::Lines));
            subscriber::set_global_default(chosen.with(lines).with(limit))?;
        }
    }
    Ok(())
}

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object on each line: `time`, `level`, `part`, `message` and fields of its own.
    Json,
}

/// Whether lines are JSON, also those that are no log events.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Writes a line that is not a log event and is too rare to be dropped.
pub(crate) fn say(line: impl Display) {
    queue(Level::INFO, line);
}

/// As [`say`], of why the command or the process has failed.
pub(crate) fn complain(line: impl Display) {
    queue(Level::ERROR, line);
}

fn queue(level: Level, line: impl Display) {
    let mut state = QUEUE.lock();
    QUEUE.push(&mut state, text_of(level, line));
}

fn text_of(level: Level, line: impl Display) -> Vec<u8> {
    let (rank, line) = (journal::rank(level), plain(line));
    match IS_JSON.load(Ordering::Relaxed) {
        true => format!("{rank}{}\n", json::said(level, &line)).into_bytes(),
        false => format!("{rank}{line}\n").into_bytes(),
    }
}

/// Waits until the queue is written, for at most a second.
pub(crate) fn flush() {
    for left_out in QUEUE.flood.tell() {
        queue(Level::WARN, left_out);
    }
    QUEUE.flush(FLUSH_TIMEOUT);
}

/// Receives one formatted event, which arrives as a single write.
struct LogEntry;

impl Write for LogEntry {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        QUEUE.offer(hidden(&String::from_utf8_lossy(line)).as_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines waiting for the writer thread.
struct LineQueue {
    state: Mutex<LogState>,
    flood: flood::Flood,
    filled: Condvar,
    emptied: Condvar,
}

struct LogState {
    lines: VecDeque<LogLine>,
    /// Total length of the queued lines.
    bytes: usize,
    /// Lines dropped since the last one that was queued.
    lost: u64,
    /// Whether the thread has taken a line and not finished writing it.
    writing: bool,
}

struct LogLine {
    /// Lines dropped before this one.
    lost: u64,
    text: Vec<u8>,
}

impl LineQueue {
    const fn new() -> LineQueue {
        LineQueue {
            state: Mutex::new(LogState {
                lines: VecDeque::new(),
                bytes: 0,
                lost: 0,
                writing: false,
            }),
            flood: flood::Flood::new(),
            filled: Condvar::new(),
            emptied: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a line if there is room.
    fn offer(&self, text: &[u8]) {
        let mut state = self.lock();
        if state.bytes + text.len() > QUEUE_MAX_BYTES {
            state.lost += 1;
        } else {
            self.push(&mut state, text.to_vec());
        }
    }

    fn push(&self, state: &mut LogState, text: Vec<u8>) {
        state.bytes += text.len();
        let lost = mem::take(&mut state.lost);
        state.lines.push_back(LogLine { lost, text });
        self.filled.notify_one();
    }

    /// Writes lines as they come, forever.
    fn write_to(&self, out: &mut impl Write) {
        let mut lost = 0;
        loop {
            let line = self.next();
            lost = write_line(out, lost, &line);
            self.lock().writing = false;
        }
    }

    /// Waits for the next line. If lines were dropped after the last one, returns an empty line that carries
    /// their number. From time to time says how many lines a flood has cost.
    fn next(&self) -> LogLine {
        let mut state = self.lock();
        loop {
            if self.flood.due_in() == Some(Duration::ZERO) {
                for left_out in self.flood.tell() {
                    self.push(&mut state, text_of(Level::WARN, left_out));
                }
            }
            if let Some(line) = state.lines.pop_front() {
                state.bytes -= line.text.len();
                state.writing = true;
                return line;
            }
            if state.lost > 0 {
                state.writing = true;
                let lost = mem::take(&mut state.lost);
                let text = Vec::new();
                return LogLine { lost, text };
            }
            self.emptied.notify_all();
            state = match self.flood.due_in() {
                None => self.filled.wait(state),
                Some(due_in) => self
                    .filled
                    .wait_timeout(state, due_in)
                    .map(|(state, _)| state)
                    .map_err(|poisoned| PoisonError::new(poisoned.into_inner().0)),
            }
            .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes the writer, which may have to say later that lines were left out.
    fn wake(&self) {
        let _state = self.lock();
        self.filled.notify_one();
    }

    fn flush(&self, timeout: Duration) {
        let busy = |state: &mut LogState| state.writing || !state.lines.is_empty();
        // The process ends now, whether the queue was drained in time or not.
        drop(self.emptied.wait_timeout_while(self.lock(), timeout, busy));
    }
}

/// Writes a line, preceded by the number of dropped lines. Returns the number dropped and not yet reported.
fn write_line(out: &mut impl Write, lost: u64, line: &LogLine) -> u64 {
    let lost = lost + line.lost;
    let mut text = Vec::new();
    if lost > 0 {
        let lines = if lost == 1 { "line was" } else { "lines were" };
        text = format!("sanstone: {lost} {lines} lost: nothing read them from standard error\n")
            .into();
    }
    text.extend_from_slice(&line.text);
    match out.write_all(&text) {
        Ok(()) => 0,
        Err(_) => lost + u64::from(!line.text.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails this many writes, then succeeds.
    struct Reluctant {
        refusals: usize,
        taken: Vec<u8>,
    }

    impl Write for Reluctant {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.refusals > 0 {
                self.refusals -= 1;
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.taken.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Writes everything in the queue.
    fn drain(queue: &LineQueue, out: &mut Reluctant) -> String {
        let mut lost = 0;
        while !queue.lock().lines.is_empty() || queue.lock().lost > 0 {
            lost = write_line(out, lost, &queue.next());
        }
        String::from_utf8(out.taken.clone()).expect("text")
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_the_rest_goes_on() {
        let queue = LineQueue::new();
        for line in ["one\n", "two\n", "three\n"] {
            queue.offer(line.as_bytes());
        }
        let mut out = Reluctant {
            refusals: 2,
            taken: Vec::new(),
        };
        let said = drain(&queue, &mut out);
        assert_eq!(
            said,
            "sanstone: 2 lines were lost: nothing read them from standard error\nthree\n"
        );
    }

    #[test]
    fn a_full_queue_loses_lines_and_says_so_where_they_were() {
        let queue = LineQueue::new();
        let long = [b'x'; QUEUE_MAX_BYTES];
        queue.offer(&long);
        queue.offer(b"lost\n");
        let mut out = Reluctant {
            refusals: 0,
            taken: Vec::new(),
        };
        let written = drain(&queue, &mut out);
        assert!(
            written
                .ends_with("xsanstone: 1 line was lost: nothing read them from standard error\n")
        );
        queue.offer(b"found\n");
        assert!(drain(&queue, &mut out).ends_with("error\nfound\n"));
    }

    #[test]
    fn what_nobody_writes_does_not_hold_up_the_end() {
        let queue = LineQueue::new();
        queue.offer(b"line\n");
        queue.flush(Duration::ZERO);
        assert_eq!(queue.lock().lines.len(), 1);
    }
}
