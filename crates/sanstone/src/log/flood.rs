//! Limits how often one place in the code may log: much of what is logged can be caused again and again, by peers that
//! nobody has authenticated, by initiators, by a target that answers as it likes. The limit holds for every `tracing`
//! call of the program at level info and above, so that no new one can be forgotten; the levels below are for whoever
//! asks for everything. Each place has a burst and then a line per second, and while lines are left out, the log says
//! from time to time how many.

use std::{
    collections::HashMap,
    fmt::{self, Display},
    mem,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use engine::{Instant, rate::Rate};
use tracing::{
    Event, Level, Subscriber,
    callsite::Identifier,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

/// Lines that one place may write at once: a start or an `apply` with many disks or mistakes has its say.
const BURST: u32 = 50;
/// How long after the first line that was left out the log says so.
const TOLD_AFTER: Duration = Duration::from_secs(10);
/// What is quoted of a line that was left out, in characters.
const QUOTED_MAX: usize = 120;

/// What was logged lately. There are as many places as the program has.
pub(super) struct Flood(LazyLock<Mutex<FloodState>>);

#[derive(Default)]
struct FloodState {
    places: HashMap<Identifier, CallSite>,
    /// When the first line was left out that nobody was told of.
    since: Option<Instant>,
}

/// A place in the code that logs.
struct CallSite {
    rate: Rate,
    /// Lines that were left out, and that nobody was told of.
    left_out: u64,
    /// The first of them.
    example: String,
}

impl Flood {
    pub(super) const fn new() -> Flood {
        Flood(LazyLock::new(Mutex::default))
    }

    fn lock(&self) -> MutexGuard<'_, FloodState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long until the log has to say that lines were left out, if any were.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let since = self.lock().since?;
        Some(TOLD_AFTER.saturating_sub(now() - since))
    }

    /// How many lines were left out since the last call, for each place.
    pub(super) fn tell(&self) -> Vec<LeftOut> {
        let mut state = self.lock();
        state.since = None;
        let places = state.places.values_mut();
        places
            .filter(|place| place.left_out > 0)
            .map(|place| {
                LeftOut(
                    mem::take(&mut place.left_out),
                    mem::take(&mut place.example),
                )
            })
            .collect()
    }
}

/// How many lines were left out, and the first of them.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct LeftOut(u64, String);

impl Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftOut(count, example) = self;
        let lines = if *count == 1 { "line" } else { "lines" };
        write!(f, "sanstone: left out {count} {lines} like: {example}")
    }
}

/// The part of the subscriber that leaves lines out.
pub(super) struct Limit(pub(super) &'static Flood);

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        if *event.metadata().level() > Level::INFO {
            return true;
        }
        let now = now();
        let mut state = self.0.lock();
        let place = event.metadata().callsite();
        let place = state.places.entry(place).or_insert_with(|| CallSite {
            rate: Rate::with_burst(BURST),
            left_out: 0,
            example: String::new(),
        });
        if place.rate.take(now).is_some() {
            return true;
        }
        place.left_out += 1;
        if place.left_out == 1 {
            event.record(&mut EventMessage(&mut place.example));
        }
        let is_first = state.since.is_none();
        state.since.get_or_insert(now);
        drop(state);
        if is_first {
            super::QUEUE.wake();
        }
        false
    }
}

/// Time since the first line was logged.
fn now() -> Instant {
    static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    Instant::from_ns(START.elapsed().as_nanos() as u64)
}

/// What an event says, without its fields.
struct EventMessage<'a>(&'a mut String);

impl Visit for EventMessage<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            *self.0 = format!("{value:?}").chars().take(QUOTED_MAX).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Written {
        fn lines_with(&self, part: &str) -> u64 {
            let written = self.0.lock().expect("no panic").clone();
            let text = String::from_utf8(written).expect("text");
            text.lines().filter(|line| line.contains(part)).count() as u64
        }
    }

    /// Runs `log` with a log of its own.
    fn with_log(log: impl FnOnce(&Flood, &Written)) {
        let flood: &'static Flood = Box::leak(Box::new(Flood::new()));
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::fmt()
            .with_max_level(Level::DEBUG)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(lines.with(Limit(flood)), || log(flood, &written));
    }

    #[test]
    fn a_place_that_floods_the_log_is_cut_down_and_counted_and_others_are_not() {
        with_log(|flood, written| {
            assert_eq!(flood.due_in(), None);
            for number in 0..20_000 {
                tracing::warn!(number, "the copy of disk{} failed", 1);
            }
            tracing::error!("a medium failed");
            let copies = written.lines_with("the copy");
            assert!((50..5_000).contains(&copies), "{copies}");
            assert_eq!(written.lines_with("a medium failed"), 1);
            assert!(flood.due_in().is_some());
            let example = "the copy of disk1 failed".to_owned();
            let left_out = LeftOut(20_000 - copies, example);
            let said = left_out.to_string();
            assert!(
                said.ends_with(" lines like: the copy of disk1 failed"),
                "{said}"
            );
            assert_eq!(flood.tell(), [left_out]);
            assert_eq!((flood.due_in(), flood.tell()), (None, Vec::new()));
        });
    }

    #[test]
    fn whoever_asks_for_everything_gets_it() {
        with_log(|flood, written| {
            for number in 0..1_000 {
                tracing::debug!(number, "a request");
            }
            assert_eq!(written.lines_with("a request"), 1_000);
            assert_eq!(flood.due_in(), None);
        });
    }
}
