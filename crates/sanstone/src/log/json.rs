//! Lines of the log as JSON objects, for programs that collect them: `--log-format json`.

use std::fmt;

use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
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
pub(super) fn said(message: &str) -> String {
    let mut line = started("INFO");
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
        self.0
            .insert(field.name().to_owned(), format!("{value:?}").into());
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
