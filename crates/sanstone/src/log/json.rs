//! Lines of the log as JSON objects, for programs that collect them: `--log-format json`.

use std::fmt;

use serde_json::{Map, Value};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// Formats each event as a line.
pub(super) struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Line(started(event.metadata().level().as_str()));
        let target = event.metadata().target();
        let part = target.split("::").next().unwrap_or_default();
        line.0.insert("part".to_owned(), part.into());
        event.record(&mut line);
        writeln!(writer, "{}", Value::Object(line.0))
    }
}

/// A line that is no event: what the command itself says.
pub(super) fn said(level: Level, message: &str) -> String {
    let mut line = started(level.as_str());
    line.insert("message".to_owned(), message.into());
    Value::Object(line).to_string()
}

/// A line with its time, in UTC, and its level.
fn started(level: &str) -> Map<String, Value> {
    let mut time = String::new();
    // A time that cannot be formatted is left empty.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    Map::from_iter([
        ("time".to_owned(), time.into()),
        ("level".to_owned(), level.into()),
    ])
}

/// The fields of an event, under their names.
struct Line(Map<String, Value>);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        // A string that a line of text has in quotes; what is formatted, as the message, is none.
        let string = match field.name() {
            "message" => None,
            _ => serde_json::from_str::<String>(&text).ok(),
        };
        self.0
            .insert(field.name().to_owned(), string.unwrap_or(text).into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

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

    #[test]
    fn a_string_is_a_string_however_it_was_logged() {
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::fmt()
            .event_format(Lines)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(lines, || {
            tracing::warn!(user = ?"a \"b\"", peer = %"10.0.1.9", known = ?Some(1), "\"db\" failed");
        });
        let written = written.0.lock().expect("no panic").clone();
        let line: Value = serde_json::from_slice(&written).expect("an object");
        for (field, value) in [
            ("user", "a \"b\""),
            ("peer", "10.0.1.9"),
            ("known", "Some(1)"),
            ("message", "\"db\" failed"),
            ("level", "WARN"),
        ] {
            assert_eq!(line[field], value, "{line}");
        }
    }
}
