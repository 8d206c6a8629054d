//! How often the log reports something, which no client-side model can see.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
};

use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::with_default,
};

/// Counts the lines that are `wanted`, each a message and its `target_name` if it has one, while `run`
/// runs on this thread.
pub(crate) fn counting<T>(
    wanted: &[&'static str],
    run: impl FnOnce() -> T,
) -> (T, BTreeMap<&'static str, usize>) {
    let counts = wanted.iter().map(|message| (*message, 0)).collect();
    let lines = Arc::new(Lines(Mutex::new(counts)));
    // Beside a second one: while there is just one, a thread without a subscriber decides for all whether
    // anybody wants an event that it comes to first.
    let _second = Dispatch::new(lines.clone());
    let output = with_default(lines.clone(), run);
    let counts = lines.0.lock().expect("nobody panics with it").clone();
    (output, counts)
}

/// Prints every line while `run` runs on this thread, if `SANSTONE_LOG` is set: for the replay of a seed.
pub(crate) fn shown<T>(run: impl FnOnce() -> T) -> T {
    match std::env::var_os("SANSTONE_LOG") {
        None => run(),
        Some(_) => with_default(Shown, run),
    }
}

/// Prints lines of INFO and above.
struct Shown;

/// The fields of an event as text.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Shown {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        println!("{}{}", event.metadata().level(), text.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Lines(Mutex<BTreeMap<&'static str, usize>>);

/// The message of an event, and the target that it is about.
#[derive(Default)]
struct Line {
    message: String,
    target: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "target_name" => self.target = format!(" target_name={value:?}"),
            _ => {}
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let line = line.message + &line.target;
        if let Some(count) = self
            .0
            .lock()
            .expect("nobody panics with it")
            .get_mut(&*line)
        {
            *count += 1;
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
