//! How grave a line is, for the journal: a number in angle brackets before it, as in the kernel's log (sd-daemon(3)). The journal
//! takes it away, and `journalctl -p warning` finds the line. Where something else reads standard error, lines have none.

use std::{
    fmt::{self, Display},
    io,
    sync::LazyLock,
};

use rustix::fs::fstat;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

/// Standard error leads to the journal: systemd tells its device and inode, and a child that has another one inherits the
/// variable, too.
static IS_JOURNAL: LazyLock<bool> = LazyLock::new(|| {
    let named = std::env::var("JOURNAL_STREAM").ok();
    named.is_some_and(|named| {
        fstat(io::stderr()).is_ok_and(|it| is_named(&named, it.st_dev, it.st_ino))
    })
});

/// Whether `named`, as `DEVICE:INODE`, is this file.
fn is_named(named: &str, device: u64, inode: u64) -> bool {
    named == format!("{device}:{inode}")
}

/// What precedes a line of this level.
pub(super) fn rank(level: Level) -> impl Display {
    match *IS_JOURNAL {
        true => number(level),
        false => "",
    }
}

fn number(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

/// Formats each event as another one does, and says before it how grave it is.
pub(super) struct Ranked<F>(pub(super) F);

impl<S, N, F> FormatEvent<S, N> for Ranked<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "{}", rank(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}
